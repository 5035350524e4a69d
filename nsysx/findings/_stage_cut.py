"""Where a program cuts its network in stages of a pipeline, by the text of its lines."""

from __future__ import annotations

import re

from nsysx.analyses.lines import text_of, texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.model import Row

#: A number of layers divided by that of stages or ranks, a stage's stretch of them, or a point at which a network is split.
_CUT = re.compile(
    r"(?i)//\s*\(?\s*[\w.]*stages?\b|\b\w*(?:layer|block|depth)\w*\b.*//\s*\(?\s*[\w.]*(?:world|rank)|"
    r"\b\w*(?:layer|block)\w*\[.*(?:stage|rank).*:.*\]|\bSplitPoint\."
)


def cut_line(profile: Profile) -> Row:
    """Return the line that cuts the network in stages, as its text shows; empty where none does."""
    noted = texts_of_ranks(profile)
    places = [(file, int(line)) for file, lines in noted.items() for line in lines if str(line).isdigit()]
    cuts = (
        (file, line) for file, line in places if _CUT.search((text_of(noted, file, line) or "").partition("  #")[0])
    )
    file, line = next(cuts, ("", 0))
    return {"file": file, "line": line} if file else {}
