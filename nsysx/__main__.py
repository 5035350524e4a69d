"""``nsysx`` and ``python -m nsysx``: the same program, which reports an interrupt even before it has started."""

import gc
import os
import signal
import sys


def _own_packages_first() -> None:
    """Look in the folders of PYTHONPATH and the working folder last: a program may have a typer.py of its own there."""
    try:
        folders = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), ""]
        theirs = {os.path.abspath(folder) for folder in folders}  # noqa: PTH100 - pathlib takes a tenth of the start
        sys.path.sort(key=lambda folder: os.path.abspath(folder) in theirs)  # noqa: PTH100
    except OSError:  # the working folder has been deleted
        return


def begin() -> None:
    """Run the command line. Importing it takes a moment, in which Ctrl-C would print a traceback."""
    # A process that ends after one answer has no garbage worth collecting, and looking would cost a twentieth of the start.
    gc.disable()
    _own_packages_first()
    try:
        from nsysx.cli.process import program
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C has nothing more to end
        sys.stderr.write("nsysx: interrupted\n")
        sys.stderr.flush()
        from nsysx.cli.dying import die_of

        die_of(signal.SIGINT)
    program()


if __name__ == "__main__":
    begin()
