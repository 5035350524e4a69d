"""How many examples a property test tries."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """Return the number for `settings`: as many as a quick suite can afford, or what NSYSX_EXAMPLES asks of all of them."""
    return int(os.environ.get("NSYSX_EXAMPLES") or usual)
