"""The programs of the table: those of ``programs/`` in a process each that has already imported torch, those of ``ways`` from scratch.

A program is held to a bare run of itself. It notes in a file how many steps it makes (``lab.own``), which the probe must find.
Where the two differ by right, the case tells the probe's number and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAB = (HERE / "lab.py").read_text(encoding="utf-8")

#: Lines that torch's own profiler and compiler write, with time and process.
_VARY = (
    (r"USDT:[^\n]*", "USDT"),
    (r"(?m)^ERROR:[\d-]+ [\d:]+ \d+:\d+ ", "ERROR "),  # without a device, torch for CUDA says that there is none
    (r"(?m)^[VIWE]\d{4} [\d:.]+ \d+ ", "logged "),
)
_TOLD = re.compile(r"told (\d+|any): (.+)")
#: The number of steps hangs on which thread runs first.
ANY = -1


@dataclass(frozen=True)
class Case:
    """One program and one way to start it."""

    name: str
    program: str
    #: The words of the command; {python} is the interpreter. Without any, the program runs in a fork that has imported torch.
    command: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    terminal: bool = False
    #: The probe's number of steps and why it is not the program's own.
    told: tuple[int, str] | None = None
    #: What of the probe the program sees in its output, because it looks for it, and why that stays so.
    seen: str = ""
    #: Whether Python ends as usual, so that the probe can write its last counts.
    ends: bool = True
    slow: bool = False
    #: What differs from run to run (process numbers, addresses, times) is replaced in the output of both.
    varies: tuple[tuple[str, str], ...] = ()
    needs: str = ""
    #: Options of ``nsysx run``, where there is one.
    options: tuple[str, ...] = ()
    #: What the process is sent that has written its number to OWN_STEPS.ready; ``nsysx run`` gets or (--then stop) sends it in its place.
    signal: int = 0
    #: It starts with SIGINT ignored, as a job in the background of a script does.
    background: bool = False
    #: It makes enough steps for two windows, which one of its processes, or each rank of its job, must have.
    windows: bool = False
    #: Why it cannot run under nsys at all, with or without nsysx.
    not_under_nsys: str = ""
    #: A signal's exception may strike between a range and its count.
    struck: bool = False


def told(text: str) -> tuple[int, str]:
    """Return the number and the reason of "told N: reason"; N may be "any"."""
    match = _TOLD.fullmatch(text)
    assert match, text
    return ANY if match[1] == "any" else int(match[1]), match[2]


def _from_text(path: Path) -> list[Case]:
    """Return the programs of a file: each begins with "### name", and lines that begin with "#!" are options."""
    cases = []
    for part in re.split(r"^### ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        options = re.findall(r"^#! (.*)$", text, re.MULTILINE)
        numbers = [told(o) for o in options if o.startswith("told")]
        body = "from lab import *\n" + re.sub(r"^#! .*\n", "", text, flags=re.MULTILINE)
        case = Case(f"{path.stem}: {name}", body, told=numbers[0] if numbers else None, slow="slow" in options)
        seen = next((o.removeprefix("seen: ") for o in options if o.startswith("seen: ")), "")
        needs = next((o.removeprefix("needs: ") for o in options if o.startswith("needs: ")), "")
        cases.append(replace(case, varies=_VARY, seen=seen, needs=needs))
    return cases


def table() -> list[Case]:
    """Return all cases, in the order of the files."""
    from tests.starts import ways

    cases = [
        case for name in ("training", "inference", "odd") for case in _from_text(HERE / "programs" / f"{name}.txt")
    ]
    cases += ways.cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
    return cases
