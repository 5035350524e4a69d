"""Examples below the help of a command, which its file declares as EXAMPLES."""

from __future__ import annotations

from collections.abc import Sequence

#: Columns of an 80-column terminal that are left beside the indentation.
_WIDTH = 76


def below(command: str, examples: Sequence[tuple[str, str]]) -> str:
    """Return the examples of a command for its help, each with a comment beside it or on the next line, behind ``# ``."""
    shown = [(f"  nsysx {command} {words}".rstrip(), f"  # {comment}") for words, comment in examples]
    longest = max((len(line) for line, comment in shown if len(line) + len(comment) <= _WIDTH), default=0)
    lines = ["\b", "Examples:"]  # \b keeps the lines apart
    for line, comment in shown:
        fits = len(line) + len(comment) <= _WIDTH
        lines += [f"{line:<{min(longest, _WIDTH - len(comment))}}{comment}"] if fits else [line, f"    {comment}"]
    return "\n".join(lines)
