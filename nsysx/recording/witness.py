"""A process in the group of ``nsysx run`` that shows whether a signal was sent to ``nsysx run`` alone or to the whole group.

``nsysx run`` passes signals on to the command. A signal that a terminal, ``timeout``, a shell's job control or a scheduler sends
to the whole group has already reached the command, and a second SIGINT would cut short its handling of the first. A signal does
not carry this information. But nobody sends signals to this process, so it gets only those that went to the whole group.

Run by its path with ``python -I -S``. For each signal it writes one line to stdout, ``NUMBER TIME`` (monotonic, ns). Signals are
blocked when it starts. It ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main(numbers: list[str]) -> None:
    """Write down each signal of ``numbers`` that arrives, until the parent has ended."""
    wanted = {int(number) for number in numbers}
    parent = os.getppid()
    for fd in (0, 2):
        os.close(fd)
    while os.getppid() == parent:
        info = signal.sigtimedwait(wanted, 1.0)
        if info is not None:
            os.write(1, b"%d %d\n" % (info.si_signo, time.monotonic_ns()))


if __name__ == "__main__":
    main(sys.argv[1:])
