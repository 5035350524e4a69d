"""The last step before the command: what nsys starts, and what then becomes the command itself.

Run by its path with ``python -I -S``, standard library only: ``become_command.py STARTED STREAMS COMMAND...``.

nsys puts the command behind pipes of its own and writes its own messages into the same stdout. So ``nsysx run`` hands its
three real streams down as extra descriptors, and this file puts them back: the command sees the terminal or file that
the user gave it, and nothing else writes there. It also leaves the file STARTED, which tells a command that failed from
an nsys that never got as far. Being replaced by ``exec`` it costs the command no process and no traceback line.
"""

from __future__ import annotations

import errno
import os
import signal
import sys


def restore_streams(streams: str) -> bool:
    """Put the descriptors of ``"fd:device:inode,..."`` back as 0, 1 and 2; False when nsys did not hand them down."""
    wanted = [tuple(map(int, part.split(":"))) for part in streams.split(",")]
    for fd, device, inode in wanted:
        try:
            stat = os.fstat(fd)
        except OSError:
            return False
        if (stat.st_dev, stat.st_ino) != (device, inode):
            return False
    for target, (fd, _, _) in enumerate(wanted):
        os.dup2(fd, target)
    for fd, _, _ in wanted:
        os.close(fd)
    return True


def main(argv: list[str]) -> int:
    """Become the command; return only when it cannot be executed (126) or found (127)."""
    started, streams, *command = argv
    if not restore_streams(streams):
        # Behind the pipe of nsys Python would hold output back that the user is used to see at once.
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    with open(started, "w") as file:  # noqa: PTH123 - pathlib would double the start-up time
        file.write(str(os.getpid()))
    # Python ignores these two for itself, and what is ignored stays ignored over exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line "#!": what every shell does then
            os.execv("/bin/sh", ["/bin/sh", *command])
        sys.stderr.write(f"nsysx: error: cannot execute {command[0]}: {error.strerror}\n")
        return 127 if error.errno == errno.ENOENT else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
