"""``nsysx`` that is ended with the server that started it, whatever ends that: ``python -m nsysx.serving.ends_with_server SERVER ...``.

SERVER is the number of its process. A client that loses patience kills the server, which then ends nothing itself: Linux sends SIGTERM
here, on which ``try`` and ``run`` end the programs that they run.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys

#: prctl(2): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run ``nsysx`` with the words after the first."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # not on Linux: the server ends what it can
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv.pop(1)):
        sys.exit(128 + signal.SIGTERM)  # it ended before it could be told
    runpy.run_module("nsysx", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
