"""NVTX rows -> ranges with a meaning: step, phase, module, autograd op, or just a range.

nsysx's own ranges say what they are (``inject.nsysx_probe.ranges``). A stranger's are read by how people commonly name them:
``step 12``, ``forward``, ``blocks.0.attn:Attention``, and the ``aten::mul, seq = 7`` of ``emit_nvtx``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import ids
from nsysx.events import framework_ranges, python_pauses
from nsysx.frames import derived, frame_columns, lookup
from nsysx.frames.intervals import I64
from nsysx.inject.nsysx_probe import capture_range
from nsysx.inject.nsysx_probe import ranges as vocabulary
from nsysx.reading import schema
from nsysx.reading.load import Trace

Flags = npt.NDArray[np.bool_]
#: What stands for the end of a range that nothing closed.
_OPEN = np.iinfo(np.int64).min

#: Libraries annotate themselves; their ranges say nothing about the user's modules.
_LIBRARY_DOMAINS = re.compile(
    r"^(cu(BLAS|DNN|FFT|SPARSE|SOLVER|RAND|DF|ML|Tensor)\w*|NCCL|NVSHMEM|CCCL|NPP|TensorRT|libcu\w+|Python .*|GIL Trace)$",
    re.IGNORECASE,
)
# Numbers of more digits count nothing, and do not fit 64 bits.
_STEP = re.compile(r"^(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?|ProfilerStep)[\s_#:=\-]*(\d{1,18})$", re.IGNORECASE)
_MODULE = re.compile(r"^([\w.\-]*):([A-Za-z_]\w*)$")
# What stands behind the sign of numbers is what the probe knows of a launch of Triton.
_OP = re.compile(
    r"^((?P<launch>triton::)?.*?)(?(launch)(?:#(?:\d{1,18}|products))?), (?:seq = (?P<seq>\d{1,18})(?!\d)|op_id = \d+)"
)
_PHASES = (
    ("data", re.compile(r"^:?(data[ _]?load(ing|er)?|data|next[ _]batch|get[ _]batch|load[ _]batch)\b", re.IGNORECASE)),
    ("evaluation", re.compile(r"^:?(eval(uation)?|valid(ation)?|inference)\b", re.IGNORECASE)),
    ("backward", re.compile(r"^:?(backward|bwd)( pass)?$|^backward[_ .]", re.IGNORECASE)),
    ("forward", re.compile(r"^:?(forward|fwd)( pass)?$|^forward[_ .]", re.IGNORECASE)),
    ("zero_grad", re.compile(r"^:?(optimizer\.)?zero_?grad\b", re.IGNORECASE)),
    ("optimizer", re.compile(r"^:?(optim(izer)?|opt)([ ._]?step)?$|^Optimizer\.step", re.IGNORECASE)),
    ("loss", re.compile(r"^:?(compute[ _])?loss$", re.IGNORECASE)),
    ("clip", re.compile(r"^:?(clip|grad(ient)?[ _]clip)", re.IGNORECASE)),
)
#: Numbers that only count calls would make every path unique.
_COUNTER = re.compile(r"([\s_#:=\-]|^)\d+$")


LINE_RANGES = frame_columns.schema(derived.LINE_RANGES)


@dataclass(frozen=True)
class Repeats:
    """What ``sequence`` found out about steps whose modules were not marked.

    ``calls``: MARKED, REPEATED or UNMATCHED per API call; ``of``: the call of a marked step that each corresponds to, -1 for
    none. ``marked`` and ``steps``: steps with and without marks; ``exact`` of the latter repeat a marked one whole. ``launches``:
    calls with GPU work in steps without marks, ``unmatched`` of them repeat nothing.
    """

    calls: npt.NDArray[np.int8]
    of: I64
    marked: int
    steps: int
    exact: int
    launches: int
    unmatched: int

    @property
    def like(self) -> I64:
        """The call of a marked step that each corresponds to, itself without one."""
        return np.where(self.of >= 0, self.of, np.arange(len(self.of)))


@dataclass(frozen=True)
class Ranges:
    """``ranges``: one row per range (columns below); ``marks`` the same for marks, whose ``end_ns`` is ``start_ns``.

    Columns: range, process, thread, start_ns, end_ns, kind (step, phase, module, backward_module, op, range), name, cls,
    number (step or sequence number, -1 without), recompute, own (written by nsysx's probe), crossing (ends on another
    thread), open (never closed; it then ends with the capture), repeated (copied from a marked step, see ``sequence``).
    ``notes``: process, start_ns, name: what the probe said about itself, JSON. ``pauses``: where Python stood still, see
    ``events.python_pauses``. ``repeats``: what ``sequence`` found out. ``gil``: process, thread, start_ns, end_ns, holds (else waits): who
    has Python's lock; None where that was not traced. ``lines``: thread, start_ns, end_ns, label of the lines of Python that the
    probe's X-ray recorded, sorted by thread, the outer of two before the inner; see ``events.code_lines``. ``other_lines``: the same of
    threads that do not drive the steps.
    """

    ranges: pl.DataFrame
    marks: pl.DataFrame
    notes: pl.DataFrame
    pauses: pl.DataFrame
    repeats: Repeats | None = None
    gil: pl.DataFrame | None = None
    lines: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINE_RANGES))
    other_lines: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINE_RANGES))


def meaning(text: str, by_probe: bool) -> tuple[str, str, str, int, bool]:
    """Return (kind, name, cls, number, recompute) of a range text."""
    if by_probe and text == capture_range.TEXT:
        return "window", "", "", -1, False
    if by_probe or text.startswith(vocabulary.PREFIX):
        label = vocabulary.decode(text)
        return label.kind, label.name, label.cls, label.number, "recompute" in label.flags
    if match := _OP.match(text):
        # What has no sequence number is not an operator of autograd, but a range of Python's that emit_nvtx wrote.
        name, sequence = match.group(1, "seq")
        if sequence or "::" in name or meaning(name, False)[0] not in ("step", "phase", "module"):
            return "op", name, "", int(sequence) if sequence else -1, False
        text = name
    if framework := framework_ranges.meaning_of_text(text):
        return *framework, -1, False
    if match := _STEP.match(text):
        return "step", text, "", int(match[1]), False
    for phase, pattern in _PHASES:
        if pattern.search(text):
            return "phase", phase, "", -1, False
    if match := _MODULE.match(text):
        path, cls = match[1], match[2]
        # A root is commonly labeled with its class twice.
        return "module", "" if path == cls else path, cls, -1, False
    return "range", _COUNTER.sub(r"\1#", text.split(",", 1)[0].strip())[:200], "", -1, False


class _Meaning(NamedTuple):
    """What a text means, but for its number: operators have a text each, and few meanings."""

    kind: str
    name: str
    cls: str
    recompute: bool


def _meanings(labels: Sequence[str], occurring: I64) -> tuple[list[_Meaning], I64, I64]:
    """Return the distinct meanings of texts, and of each text its number and its meaning.

    ``occurring``: twice the place of each text in ``labels``, and 1 more for one that the probe wrote.
    """
    place_of: dict[tuple[str, str, str, bool], int] = {}
    numbers, of_text = list[int](), list[int]()
    for i in occurring.tolist():
        kind, name, cls, number, recompute = meaning(labels[i // 2], bool(i % 2))
        numbers.append(number)
        of_text.append(place_of.setdefault((kind, name, cls, recompute), len(place_of)))
    return [_Meaning(*each) for each in place_of], np.array(numbers, np.int64), np.array(of_text, np.int64)


def _domains(trace: Trace, rows: pl.DataFrame) -> tuple[Flags, Flags]:
    """Return which rows libraries wrote about themselves, and which the probe wrote."""
    names = trace.domains["domain_name"].cast(pl.String)
    numbers = zip(*(trace.domains[c].to_list() for c in ("process", "domain")), names.to_list(), strict=True)
    library, by_probe = np.zeros(rows.height, np.bool_), np.zeros(rows.height, np.bool_)
    for process, domain, name in numbers:
        if process is None or domain is None:
            continue
        is_library, is_own = bool(name and _LIBRARY_DOMAINS.match(name)), name == vocabulary.DOMAIN
        if is_library or is_own:
            in_domain = ((rows["process"] == process) & (rows["domain"] == domain)).fill_null(False).to_numpy()
            (library if is_library else by_probe)[in_domain] = True
    return library, by_probe


def _of_lines(trace: Trace, event_type: int) -> Flags:
    """Return which rows are lines of Python, which the probe writes in a domain of their own."""
    rows, chosen = trace.nvtx, np.zeros(trace.nvtx.height, np.bool_)
    for process, domain in _domains_named(trace, vocabulary.LINES_DOMAIN).rows():
        chosen |= ((rows["process"] == process) & (rows["domain"] == domain)).fill_null(False).to_numpy()
    if chosen.any():
        chosen &= (rows["event_type"] == event_type).to_numpy()
    return chosen


def _domains_named(trace: Trace, name: str) -> pl.DataFrame:
    """Return process and domain of the domains of this name."""
    return trace.domains["process", "domain"].filter(trace.domains["domain_name"] == name)


def _lines(rows: pl.DataFrame, end: I64, of_line: Flags) -> pl.DataFrame:
    """Return ``Ranges.lines``. ``end``: of each row, where nothing closed it that of the capture."""
    if not of_line.any():
        return pl.DataFrame(schema=LINE_RANGES)
    of_line = of_line & ~rows["crossing"].to_numpy() & (end >= rows["start_ns"].to_numpy())
    lines = rows["thread", "start_ns", "text"].with_columns(pl.Series("end_ns", end))[np.flatnonzero(of_line)]
    lines = lines["thread", "start_ns", "end_ns", "text"].rename({"text": "label"}).drop_nulls("label")
    return lookup.ordered(lines, "start_ns", ["end_ns", "label"], group="thread", descending=[True, False])


def _gil(trace: Trace) -> pl.DataFrame | None:
    """Return who holds Python's lock and who waits for it, as nsys notes it in a domain of its own; None without the domain."""
    domains = _domains_named(trace, schema.GIL_DOMAIN)
    if not domains.height:
        return None
    rows = trace.nvtx.filter(pl.col("event_type") == schema.NVTX_PUSH_POP, pl.col("end_ns") > pl.col("start_ns"))
    rows = rows.join(domains, on=["process", "domain"], how="semi")
    text = rows["text"].cast(pl.String)
    rows = rows.with_columns(text.str.starts_with("Holding").alias("holds"))
    about_lock = text.str.contains("^(Holding|Waiting)").fill_null(False)
    return rows.filter(about_lock)["process", "thread", "start_ns", "end_ns", "holds"].drop_nulls().sort("start_ns")


def read(trace: Trace) -> Ranges:
    """Return the ranges and marks of a report with their meaning."""
    rows = trace.nvtx
    (library, by_probe), of_line = _domains(trace, rows), _of_lines(trace, schema.NVTX_PUSH_POP)
    of_other_line = _of_lines(trace, schema.NVTX_START_END)
    kind_of_event = rows["event_type"].to_numpy()
    wanted = np.isin(kind_of_event, (schema.NVTX_MARK, schema.NVTX_PUSH_POP, schema.NVTX_START_END)) & ~library
    is_mark = kind_of_event == schema.NVTX_MARK
    texts, label = lookup.distinct(rows["text"])
    labels = ["<unnamed>" if text is None else text for text in texts]
    by_probe |= np.array([text.startswith(vocabulary.PREFIX) for text in labels])[label]
    # What a text means is found once per text, for those that the probe wrote and for a stranger's.
    occurring, which = lookup.numbered(2 * label + by_probe)
    meanings, number, of_text = _meanings(labels, occurring)
    number, which = number[which], of_text[which]
    with_meaning = _probe_marks(rows, ("info",), meanings, which, by_probe & is_mark)
    paused = _probe_marks(rows, python_pauses.KINDS, meanings, which, by_probe & is_mark)
    wanted &= np.array([m.kind not in _TOLD for m in meanings], np.bool_)[which] & ~(of_line | of_other_line)
    ends = [trace.frames[f]["end_ns"].max() for f in ("runtime", "kernel", "memcpy", "nvtx")]
    last = max((e for e in ends if isinstance(e, int)), default=0)
    start, end = rows["start_ns"].to_numpy(), lookup.filled(rows["end_ns"], _OPEN)
    never = (end == _OPEN) & ~is_mark
    # A range that the first of two windows left open ends with it: what became of it was not recorded.
    ended = trace.seams[0] if trace.seams and trace.sampled is None else 0
    until = np.where(start < ended, ended, last)
    end = np.where(is_mark, start, np.where(never, np.maximum(start, until), end))
    lines, other_lines = _lines(rows, end, of_line), _lines(rows, end, of_other_line)
    steps = np.array([m.kind == "step" for m in meanings], np.bool_)[which] & by_probe
    frame = pl.DataFrame(
        {
            "process": rows["process"],
            "thread": rows["thread"],
            "start_ns": start,
            "end_ns": end,
            "label": lookup.named(labels, label),
            **{
                column: lookup.named([getattr(m, column) for m in meanings], which)
                for column in ("kind", "name", "cls")
            },
            "number": _numbers(number, rows, steps, trace.run),
            "recompute": np.array([m.recompute for m in meanings], np.bool_)[which],
            "own": by_probe,
            "crossing": rows["crossing"],
            "open": never,
            "repeated": np.zeros(len(start), np.bool_),
            "_mark": is_mark,
        }
    ).filter(wanted & (end >= start))
    frame = lookup.ordered(frame, "start_ns", ["end_ns", "label"], group="thread", descending=[True, False])
    marked = frame["_mark"]
    marks, ranges = (frame.filter(marked), frame.filter(~marked)) if marked.any() else (frame.clear(), frame)
    notes = with_meaning["process", "start_ns", "name"]
    return Ranges(
        ranges.drop("_mark").with_row_index("range"),
        marks.drop("_mark"),
        notes,
        python_pauses.decode(paused),
        gil=_gil(trace),
        lines=lines,
        other_lines=other_lines,
    )


def _numbers(by_text: I64, rows: pl.DataFrame, steps: Flags, run: Mapping[str, Any]) -> I64:
    """Return the number of each range: that in its text, or the payload of a step of the probe's.

    An export may lack payloads. Then such steps are counted in each process, from the first that was to be recorded.
    """
    if not (steps & (by_text < 0)).any():
        return by_text
    payload = lookup.filled(rows["payload"], -1)
    numbers = np.where(steps & (by_text < 0), payload, by_text)
    uncounted = steps & (numbers < 0)
    if not uncounted.any():
        return numbers
    order = pl.col("start_ns").rank("ordinal").over("process").cast(pl.Int64) - 1
    counted = rows.filter(uncounted).select("process", order.alias("place"))
    firsts = {p.get("pid"): (p.get("capture_steps") or [0])[0] for p in run.get("probe") or []}
    first = counted["process"].map_elements(lambda process: firsts.get(ids.pid_of(process), 0), return_dtype=pl.Int64)
    numbers[uncounted] = (counted["place"] + first).to_numpy()
    return numbers


#: Kinds of text that tell something and lie in nobody's step.
_TOLD = ("info", "window", *python_pauses.KINDS)


def _probe_marks(
    rows: pl.DataFrame,
    kinds: Sequence[str],
    meanings: Sequence[_Meaning],
    which: I64,
    by_probe: Flags,
) -> pl.DataFrame:
    """Return the marks of the probe of these kinds: process, thread, start_ns, kind, name (JSON)."""
    chosen = np.array([m.kind in kinds for m in meanings], np.bool_)[which] & by_probe
    told = [meanings[i] for i in which[chosen].tolist()]
    return rows["process", "thread", "start_ns"][np.flatnonzero(chosen)].with_columns(
        pl.Series("kind", [m.kind for m in told], dtype=pl.String),
        pl.Series("name", [m.name for m in told], dtype=pl.String),
    )
