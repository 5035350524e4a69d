"""``nsysx`` and ``python -m nsysx``: the same program, that also says so when it is interrupted before it has begun."""

import os
import sys


def begin() -> None:
    """Run the command line. What is imported takes a moment in which Ctrl-C would print a traceback."""
    try:
        from nsysx.cli.process import program
    except KeyboardInterrupt:
        sys.stderr.write("nsysx: interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    program()


if __name__ == "__main__":
    begin()
