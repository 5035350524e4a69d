"""Messages of rows that were copied before: what it saves to send each row once, and to copy it where it arrives."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.sent_copies import SentCopies, sent_copies
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._copied_heads import heads_as_they_are
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._flow_work import in_short
from nsysx.findings._line_remedies import quoted
from nsysx.findings._once import Takes
from nsysx.findings._rows_of_all import backward_of
from nsysx.model import Row


class _CopyLine(NamedTuple):
    """Messages of one line (row of the places): their GPU ``ops`` and ``ns`` in the steady steps, and those of the X-ray that send copies.

    ``needless``: the share of all bytes that the line sends which need not be sent.
    """

    ops: frozenset[int]
    ns: int
    line_row: int
    copies: tuple[SentCopies, ...]
    needless: float


def _of_lines(profile: Profile) -> list[_CopyLine]:
    """Return the lines that send copies, none where lines are not recorded."""
    flow, code = flow_of(profile), profile.code()
    copies, numbers = ([], {}) if flow is None or code is None else sent_copies(flow, profile)
    if flow is None or code is None or not copies:
        return []
    starts = list(numbers)
    line_of = dict(zip(starts, code.places_of(code.at(flow.thread, np.array(starts))).tolist(), strict=True))
    comm = profile.steady_ops.select("op", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    comm = comm.filter(comm["cls"] == DeviceActivity.COMM.value)
    place_of_comm = code.places_of(code.op[comm["op"].to_numpy()])
    of_lines = list[_CopyLine]()
    for row in sorted({line_of[each.start_ns] for each in copies} - {-1}):
        theirs = tuple(each for each in copies if line_of[each.start_ns] == row)
        whole = sum(count for start, count in numbers.items() if line_of[start] == row)
        needless = sum(each.numbers * each.needless for each in theirs) / whole
        ops = comm.filter(pl.Series(np.isin(place_of_comm, [row, *backward_of(code, row)]), dtype=pl.Boolean))
        of_lines.append(_CopyLine(ops_of(ops), int(ops["ns"].sum()), row, theirs, needless))
    return of_lines


def _saved_ns(case: Case) -> int:
    """Return the most that goes (ns a step): of the exposed transfer of these messages the part that sends a row again."""
    if case.program.compiled:  # what a compiled program sends is not seen
        return 0
    return sum(round(line.needless * transfer_of_ops_ns(case, line.ops)) for line in case.profile.once(_of_lines))


def _first(case: Case) -> _CopyLine | None:
    """Return the line whose messages of copies take longest."""
    return max(case.profile.once(_of_lines), key=lambda line: line.ns * line.needless, default=None)


def _copying(case: Case) -> Row:
    """Return the line that copies what is sent, or the one that calls a function which only returns copies; empty where none is known."""
    line, flow, code = _first(case), flow_of(case.profile), case.profile.code()
    if line is None or flow is None or code is None:
        return {}
    stack = int(code.at(flow.thread, flow.start_ns[[line.copies[0].copying]])[0])
    source = lines.texts(case.profile)
    places = [code.where_of(each) for each in code.around(stack)]
    texts = [lines.text_of(source, str(where["file"]), int(where["line"])) or "" if where else "" for where in places]
    for where, text in zip(places, texts, strict=True):
        if where and not text.strip().startswith("return"):
            return where
    return places[0] if places else {}


def copies_are_sent(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that rows are copied before they are sent, where their transfer is notable."""
    line, code = _first(case), case.profile.code()
    if line is None or code is None or not case.notable(_saved_ns(case)):
        return ""
    file, number, _ = code.places.row(line.line_row)
    text = lines.text_of(lines.texts(case.profile), file, number) or ""
    copied, first = in_short(_copying(case)), line.copies[0]
    once = "once to each rank that needs it" if first.exchange and not first.heads else "once"
    back = ", and so does the way back of what becomes of them" if any(each.back for each in line.copies) else ""
    return (
        f"line {number}{f' ({quoted(text)})' if text else ''} sends each row {first.times:.1f} times, on average: it was copied before"
        f"{f' ({copied})' if copied else ''}. Sent {once}, and copied where it arrives, {units.share(line.needless, 1)} of the bytes stay "
        f"away{back}"
    )


def sent_once(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that it saves if each row is sent once."""
    return case.bound(_saved_ns(case), "copies of rows are not sent, and the network takes as much less time")


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for what sends the rows, with the line that copies."""
    line, where = _first(case), _copying(case)
    if line is None:
        return title, remedy
    if line.copies[0].heads and line.copies[0].exchange:
        title, split = "Heads are repeated before they are exchanged", all(e.split for e in line.copies if e.heads)
        return title, replace(remedy, paste=heads_as_they_are(case, line.copies) or _BEHIND) if split else remedy
    if line.copies[0].exchange:
        return title, way("row-for-each-rank")
    text = lines.text_of(lines.texts(case.profile), str(where["file"]), int(where["line"])) if where else None
    behind = f"{text.partition('  #')[0].strip()}  # line {where['line']}, behind the exchange\n" if text else ""
    return title, replace(remedy, paste=f"{remedy.paste}\n{behind}".rstrip()) if behind else remedy


_BEHIND = (
    "q, k, v = exchange(q), exchange(k), exchange(v)  # k and v with the heads that they have, your own exchange\n"
    "k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))  # behind it; [batch, heads, rows, width]"
)


def taken(case: Case) -> Takes:
    """Return these messages."""
    return Takes(frozenset[int]().union(*(line.ops for line in case.profile.once(_of_lines))))


def place_of_message(case: Case) -> Row:
    """Return the line that sends most copies; that which repeats heads before an exchange, where these are sent."""
    code, line = case.profile.code(), _first(case)
    if line is not None and line.copies[0].heads and line.copies[0].exchange and (copying := _copying(case)):
        return copying
    return {} if code is None or line is None else code.where(line.line_row)
