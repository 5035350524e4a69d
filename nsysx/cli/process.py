"""The program as a process: how it starts and ends, and how an error becomes one line and an exit code."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from nsysx import redaction
from nsysx.cli.app import command_line, common_first, with_stdout
from nsysx.cli.command_output import harmless, talk
from nsysx.cli.dying import EndedBy, die_of
from nsysx.errors import EXIT_INTERRUPTED, EXIT_RUN_FAILED, EXIT_USAGE, NsysxError


def program() -> NoReturn:
    """Run the command line as a process of its own: the console entry point.

    It ends without tearing down the interpreter: freeing a million objects one by one would take a tenth of a small report's
    time for nothing. Other exit handlers have run by then, because this one was registered first.
    """
    code: object = EXIT_RUN_FAILED
    _died.clear()

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # if this fails, Python reports it and exits in its own way
        if _died:
            die_of(_died[0])
        os._exit(code if isinstance(code, int) else 0)

    atexit.register(leave)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored for a job that a shell started with "&"
        signal.signal(signal.SIGINT, _interrupted)
    try:
        main()
    except SystemExit as end:
        code = end.code
        if sys.flags.inspect:  # PYTHONINSPECT is meant for the command: here Python would wait for what somebody types
            atexit._run_exitfuncs()
        raise


#: Interrupts so far: typer turns Ctrl-C into an exit code that commands may also return for other reasons.
_interrupts: list[int] = []
#: The signal to end with, [] for none.
_died: list[int] = []


def _interrupted(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    signal.default_int_handler(number, frame)


def main() -> NoReturn:
    """Run the command line and raise SystemExit with its exit code."""
    sys.exit(exit_code_of_command())


def _print_error(error: NsysxError) -> int:
    talk(f"nsysx: error: {harmless(str(error))}")
    return error.exit_code


def _meant(message: str) -> str:
    """Return what somebody meant who forgot the name of the command, "" if that is not clear."""
    first = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if message != f"No such command '{first}'":
        return ""
    if (Path(first).exists() and not os.access(first, os.X_OK)) or ".sqlite" in first or first.endswith(".nsys-rep"):
        return f"Did you mean: nsysx report {harmless(redaction.shell(sys.argv[1:]))}"
    return f"Did you mean: nsysx run -- {harmless(redaction.shell(sys.argv[1:]))}" if shutil.which(first) else ""


def _ended_by_interrupt() -> int:
    talk("nsysx: interrupted")
    _died.append(signal.SIGINT)
    return EXIT_INTERRUPTED


def exit_code_of_command() -> int:
    """Run the command in ``sys.argv``; report a failure in one line, and return the exit code."""
    from nsysx.outputs import is_of_stdout, open_streams, stdout_fails, to_stdout

    try:
        open_streams()
        words = with_stdout(common_first(sys.argv[1:]))
        code = command_line(words)(words, prog_name="nsysx", standalone_mode=False)
        if _interrupts and code == EXIT_INTERRUPTED:
            return _ended_by_interrupt()
        with to_stdout():
            pass
    except NsysxError as error:
        return _print_error(error)
    except EndedBy as end:
        _died.append(end.number)
        return 128 + end.number
    except (KeyboardInterrupt, typer.Abort):
        return _ended_by_interrupt()
    except Exception as error:
        # Newer typer brings its own copy of click, so a usage error can only be recognized by its methods.
        explain = getattr(error, "format_message", None)
        if explain is not None:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "nsysx"
            message = harmless(str(explain()).rstrip("."))
            talk(f"nsysx: error: {message}. {_meant(message) or f'Try {command} --help'}")
            return EXIT_USAGE
        if isinstance(error, OSError) and is_of_stdout(error):
            return _print_error(stdout_fails(error))
        if os.environ.get("NSYSX_DEBUG"):
            raise
        talk(f"nsysx: error: {type(error).__name__}: {harmless(str(error))}. Run with NSYSX_DEBUG=1 for the traceback")
        return EXIT_RUN_FAILED
    return code if isinstance(code, int) else 0
