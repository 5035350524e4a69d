"""``nsysx`` and ``python -m nsysx``: the same program, which reports an interrupt even before it has started."""

import os
import sys


def begin() -> None:
    """Run the command line. Importing it takes a moment, in which Ctrl-C would print a traceback."""
    try:
        from nsysx.cli.process import program
    except KeyboardInterrupt:
        sys.stderr.write("nsysx: interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    program()


if __name__ == "__main__":
    begin()
