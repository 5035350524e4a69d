"""``nsysx`` and ``python -m nsysx``: the same program, which reports an interrupt even before it has started."""

import signal
import sys


def begin() -> None:
    """Run the command line. Importing it takes a moment, in which Ctrl-C would print a traceback."""
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
