"""nsysx's end of the connection to the stand-in that nsys starts in place of the command."""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

from nsysx.recording.recording_bounds import STAND_IN_ANSWER_LOOK_S, STAND_IN_ANSWER_LOOKS, STAND_IN_ANSWER_S


class StandIn:
    """Waits for the stand-in, receives its environment, sends it orders and reads its messages."""

    def __init__(self) -> None:
        self.address = f"nsysx-{os.getpid()}-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.address)
        self._listener.listen(1)
        self._link: socket.socket | None = None
        self._read = b""
        self.open = False
        self._ended: int | None = None
        self.pid = 0
        self.signals: list[int] = []
        self.environment: dict[bytes, bytes] = {}

    def close(self) -> None:
        """Close the connection. A stand-in that is still there ends with the command."""
        self._listener.close()
        if self._link is not None:
            self._link.close()

    def connected(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the stand-in to connect, and receive its environment; False if it has not connected yet."""
        if not select.select([self._listener], [], [], seconds)[0]:
            return False
        link, _ = self._listener.accept()
        pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.getuid():  # every user of the machine can see the address
            link.close()
            return False
        link.setblocking(False)
        if self._link is not None:  # that of an attempt before
            self._link.close()
        self._link, self.open, self.pid = link, True, pid
        self._hear_until(lambda: b"\n" in self._read)
        size, _, self._read = self._read.partition(b"\n")
        self._hear_until(lambda: len(self._read) >= int(size or 0))
        raw, self._read = self._read[: int(size or 0)], self._read[int(size or 0) :]
        pairs = (entry.split(b"=", 1) for entry in raw.split(b"\0") if b"=" in entry[1:])
        self.environment = {name: value for name, value in pairs if name}
        return bool(raw)

    def _hear(self, seconds: float) -> None:
        """Read what arrives within ``seconds``."""
        if self._link is None or not self.open or not select.select([self._link], [], [], seconds)[0]:
            return
        try:
            data = self._link.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.open = bool(data)
        self._read += data

    def _hear_until(self, complete: Callable[[], bool]) -> None:
        for _ in range(STAND_IN_ANSWER_LOOKS):
            if complete() or not self.open:
                break
            self._hear(STAND_IN_ANSWER_LOOK_S)

    def _tell(self, data: bytes, streams: Sequence[int] = ()) -> None:
        if self._link is None:
            return
        try:
            self._link.settimeout(STAND_IN_ANSWER_S)
            if streams:
                sent = socket.send_fds(self._link, [data], list(streams))
                data = data[sent:]
            self._link.sendall(data)
            self._link.setblocking(False)
        except OSError:
            self.open = False

    def wait(self, pid: int) -> None:
        """Tell the stand-in to wait for the command, which is process ``pid``."""
        self._tell(b"wait %d\n" % pid)

    def exit(self, status: int) -> None:
        """Tell the stand-in that the command has ended."""
        self._tell(b"exit %d\n" % (status if status >= 0 else 128 - status))

    def start(self, words: Sequence[str | bytes]) -> None:
        """Tell the stand-in to start the command with our streams.

        ``words``: umask, blocked and ignored signals, number of variables, the variables as NAME=VALUE, words of the command.
        """
        data = b"\0".join(os.fsencode(word) for word in words)
        self._tell(b"start %d\n%b" % (len(data), data), (0, 1, 2))

    def listen(self, seconds: float = 0.0) -> Iterator[list[str]]:
        """Yield the words of each message that has arrived, waiting up to ``seconds``."""
        self._hear(seconds)
        while b"\n" in self._read:
            line, _, self._read = self._read.partition(b"\n")
            words = line.decode("ascii", "replace").split()
            if words[:1] == ["signal"]:
                self.signals.append(int(words[1]))
            elif words[:1] == ["end"]:
                self._ended = int(words[1])
            yield words

    def pid_of_command(self) -> int:
        """Return the process id of the command that the stand-in was told to start. Raises OSError if it did not start."""
        for _ in range(STAND_IN_ANSWER_LOOKS):
            for words in self.listen(STAND_IN_ANSWER_LOOK_S):
                if words[:1] == ["pid"]:
                    return int(words[1])
                if words[:1] == ["failed"]:
                    raise OSError(int(words[1]), os.strerror(int(words[1])))
            if not self.open:
                break
        raise OSError(0, "nsys ended meanwhile")

    def command_status(self) -> int | None:
        """Return the status of the command that the stand-in started, None while it runs."""
        list(self.listen())
        return self._ended
