"""What is said of lines that launch in each of many calls of their function: the loop that calls it, and what waits between the calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from nsysx import units
from nsysx.events.code_lines import CodeLines
from nsysx.findings._calling_loops import CallingLoop, calling_loop
from nsysx.findings._case import Case, Fix
from nsysx.findings._costly_lines import CostlyLine
from nsysx.findings._line_remedies import BATCHED, quoted


def in_calls(
    case: Case, code: CodeLines, group: Sequence[CostlyLine], held: str, words: tuple[str, str, Fix | None]
) -> tuple[str, str, Fix | None]:
    """Return title, detail and remedy of a group of lines that one operation for all rounds replaces, where a loop calls their function.

    ``words``: what is said of them otherwise; ``held``: how long they hold the CPU.
    """
    title, detail, fix = words
    first = group[0]
    lines = [
        line for line in group if (line.row["file"], line.row["function"]) == (first.row["file"], first.row["function"])
    ]
    loop = calling_loop(case, code, [line.place for line in lines])
    if loop is None or fix is None or fix != BATCHED or first.aside or any(line.rounds for line in group):
        return words
    calls, launches = units.count(loop.calls), sum(line.row["launches"] for line in lines) / case.steps
    name, between = loop.function.rpartition(".")[2], [line for line in group if line not in lines]
    waits = round(sum(line.seen.waits for line in between))
    waiting = f" and {units.several(waits, 'wait')} between them" if between else ""
    title = (
        f"{loop.caller} calls {name} {calls} times {case.per} ({_lines_of(code, loop)}): {units.count(launches)} launches{waiting} hold "
        f"the CPU for {held}"
    )
    in_one = "each of its lines is then one operation on a batch"
    text = f"Do in one call what {name} does in {calls} {case.per}, in the loop of {loop.caller}: {in_one}"
    if between:
        where = ", ".join(f"line {line.row['line']} (`{quoted(line.seen.text)}`)" for line in between)
        text += (
            f". Do without {where}: the host waits there for values of the GPU, {units.count(waits)} times {case.per}"
        )
    return title, f"Each call launches {launches / loop.calls:.0f} kernels. {detail}", fix.but(text=text)


def _lines_of(code: CodeLines, loop: CallingLoop) -> str:
    numbers = sorted({int(code.places.row(each)[1] or 0) for each in loop.places})
    return f"{PurePath(loop.file).name}:{' and '.join(map(str, numbers))}"
