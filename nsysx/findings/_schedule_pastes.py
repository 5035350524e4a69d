"""A pipeline's order of passes in the program's own words: the class that its line makes, or the name that an option of its config has."""

from __future__ import annotations

import re

from nsysx.analyses import lines
from nsysx.findings._case import Case
from nsysx.findings._recomputed import asking_lines
from nsysx.model import Row

_CLASS, _BY_NAME = re.compile(r"\bScheduleGPipe\b"), re.compile(r"\bget_schedule_class\(([^()]*)\)")
_NAMED = re.compile(r"([\"'])(?:Schedule)?GPipe\1", re.IGNORECASE)
_OTHER = "1F1B"


def named_orders(case: Case) -> list[tuple[Row, str]]:
    """Return the lines of the program that name all forwards first (GPipe), with their texts."""
    noted = lines.texts_of_ranks(case.profile)
    rows = ((file, str(number), str(text)) for file, texts in noted.items() for number, text in texts.items())
    return [({"file": f, "line": int(n)}, text.strip()) for f, n, text in rows if n.isdigit() and _NAMED.search(text)]


def in_turn(case: Case, schedule: Row) -> tuple[Row, list[str]]:
    """Return where the order is said, and the lines that say another one; none where the line of the schedule does not show how."""
    text = lines.text_of(lines.texts(case.profile), schedule.get("file"), schedule.get("line")) or ""
    option = _BY_NAME.search(text)
    if _CLASS.search(text):
        return schedule, [
            f"{_CLASS.sub('Schedule1F1B', text)}  # line {schedule['line']}; its bubble is as long",
            *_without(case),
        ]
    if option is None:
        return schedule, []
    named = named_orders(case)
    if len(named) != 1:
        changed = text.replace(option[0], f'get_schedule_class("{_OTHER}")')
        return schedule, [f"{changed}  # line {schedule['line']}; its bubble is as long", *_without(case)]
    ((where, named_in),) = named
    changed = _NAMED.sub(lambda each: f"{each[1]}{_OTHER}{each[1]}", named_in)
    return where, [
        f"{changed}  # line {where['line']}, read by line {schedule['line']}; its bubble is as long",
        *_without(case),
    ]


def _without(case: Case) -> list[str]:
    """Return what is then done without, in words: the option that asks for checkpoints is not known."""
    asking = next(asking_lines(lines.texts(case.profile)), None)
    if asking is None:
        return []
    where, text = asking
    return [f"# and, where memory then does, no checkpoints: line {where['line']} ({text.strip()})"]
