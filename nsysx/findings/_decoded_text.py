"""Numbers of tokens that a program decodes to text and encodes again for another network, which could be given the numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nsysx.analyses.lines import texts
from nsysx.events.profile import Profile
from nsysx.findings._fix import Fix
from nsysx.findings._work_bounds import NEAR_LINES

#: A line that makes text of numbers, and gives it a name.
_DECODES = re.compile(r"^\s*(?P<name>\w+)\s*(?::[^=]+)?=\s*.*\b(?:batch_)?decode\(")
#: A line that makes numbers of the text of a name.
_ENCODES = r"\b(?!\w*de(?:code|tok))\w*(?:tok|processor|encode)\w*\(\s*(?:text\s*=\s*|list\(\s*)?{}\b(?!\s*[+\[.])"
AGAIN = Fix.by_name("ids-passed-on")


def decoded_again(profile: Profile, file: str | None, line: int | None) -> Fix | None:
    """Return the advice for a line that decodes what a near line encodes again, and for that one; None for any other line."""
    source = texts(profile).get(file or "", {})
    return AGAIN if line is not None and isinstance(source, Mapping) and line in _both_ways(source) else None


def _both_ways(source: Mapping[str, object]) -> set[int]:
    """Return the lines of a file that decode text, and those that encode it again as it is."""
    lines = sorted((int(number), text) for number, text in source.items() if isinstance(text, str))
    line_numbers = set[int]()
    for number, text in lines:
        decodes = _DECODES.search(text)
        if decodes is None:
            continue
        name = decodes["name"]
        for other, later in lines:
            if not 0 < other - number <= NEAR_LINES:
                continue
            if re.search(_ENCODES.format(name), later):
                line_numbers |= {number, other}
            elif not re.match(rf"\s*{name}\s*=[^=]", later):
                continue
            break  # what is put together anew has other tokens
    return line_numbers
