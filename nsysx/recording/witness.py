"""Tells a signal that only ``nsysx run`` got from one that everybody got: a process that sits in the same group.

``nsysx run`` passes signals on to the command. What a terminal, ``timeout``, a shell's job control or a scheduler sends to the
whole group has reached the command already, and a second SIGINT would cut short what the first one made it do. A signal does
not tell whether it was sent to one or to all; this process, which is nobody's target, does by getting it or not.

Run by its path with ``python -I -S``. For each signal it writes one line to stdout, ``NUMBER TIME`` (monotonic, ns). Signals are
blocked when it starts. It ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main(numbers: list[str]) -> None:
    """Write down each signal of ``numbers`` that comes, until the parent has gone."""
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
