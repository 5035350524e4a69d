"""Kernel families by pattern, from an editable file."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from importlib import resources
from pathlib import Path

from nsysx.errors import EXIT_USAGE, NsysxError

COMMUNICATION = "communication"
OTHER = "other"


@lru_cache(maxsize=1)
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return (family, pattern) pairs in file order.

    Errors: NsysxError with exit code 2 when the file that NSYSX_KERNEL_FAMILIES names cannot be read or a line is no
    ``family: regular expression``.
    """
    replaced = os.environ.get("NSYSX_KERNEL_FAMILIES")
    try:
        source = Path(replaced) if replaced else resources.files("nsysx.events") / "kernel_families.txt"
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        what = f"NSYSX_KERNEL_FAMILIES: {replaced} cannot be read ({why})"
        raise NsysxError(what, slug="families-unreadable", exit_code=EXIT_USAGE) from None
    result = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        family, colon, expression = line.partition(":")
        try:
            if not colon or not expression.strip():
                raise re.error("no `family: expression`")
            result.append((family.strip(), re.compile(expression.strip(), re.IGNORECASE)))
        except re.error as error:
            what = f"line {number} of the kernel families: {error}"
            raise NsysxError(what, slug="families-line", exit_code=EXIT_USAGE) from None
    return tuple(result)


def family(kernel: str) -> str:
    """Return the family of a kernel by its full name, "other" when no pattern matches."""
    # Template arguments of a megabyte exist; the distinguishing words stand early.
    return _first_family(kernel[:4000], patterns())


@lru_cache(maxsize=4096)  # the ranks of a job run the same few kernels
def _first_family(name: str, every_pattern: tuple[tuple[str, re.Pattern[str]], ...]) -> str:
    return next((family for family, pattern in every_pattern if pattern.search(name)), OTHER)
