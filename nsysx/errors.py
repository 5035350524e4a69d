"""The one error that users are meant to see."""

from __future__ import annotations

from functools import partial

# ``run`` passes the command's own code on and uses the 125 family for what is not the command's.
EXIT_BUDGET = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_EMPTY = 4
EXIT_INCONCLUSIVE = 5  # a check that cannot tell
EXIT_RUN_FAILED = 125  # also any failure that is a bug of ours
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_INTERRUPTED = 130


class NsysxError(Exception):
    """A failure with one line for the user: what is wrong, and what to do about it.

    ``message`` names the file or option and the problem; ``slug`` is stable and greppable; ``hint`` says what to do;
    ``exit_code`` is the exit code of the process.
    """

    def __init__(self, message: str, *, slug: str, hint: str = "", exit_code: int = EXIT_INPUT) -> None:
        super().__init__(message)
        self.message = message
        self.slug = slug
        self.hint = hint
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, ...]:
        """Let a worker process hand the error on."""
        return partial(type(self), slug=self.slug, hint=self.hint, exit_code=self.exit_code), (self.message,)

    def __str__(self) -> str:
        """Return the line that is printed after ``nsysx: error:``."""
        return f"{self.message}. {self.hint}" if self.hint else self.message
