"""What every output shows, in one order: sections of text, ledgers and grids made from a Summary, ready to print.

Terminal, page and Markdown differ in how they draw a :class:`View`, never in what it says. A table that an analysis adds
needs no code here: its columns say unit and meaning, and that is enough to draw it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsysx import ids, units
from nsysx.model import Check, Column, Finding, Row, Scope, Summary, Table
from nsysx.render import glossary
from nsysx.render.safe_text import clean, file_name, scrub, shorten_cell, shorten_column

VERDICTS = {
    "gpu_bound": "GPU-bound",
    "launch_bound": "launch-bound",
    "input_bound": "input-bound",
    "sync_bound": "sync-bound",
    "copy_bound": "copy-bound",
    "comm_bound": "communication-bound",
    "alloc_bound": "allocator-bound",
    "warmup": "warm-up only",
    "unknown": "cannot tell",
}

#: What a part of a ledger is called, in the order in which it is drawn.
GPU_PARTS = {
    "compute_ns": ("compute", "compute"),
    "comm_ns": ("comm", "communication"),
    "copy_ns": ("copy", "copy"),
    "memset_ns": ("memset", "memset"),
}
CPU_PARTS = {
    "launch_ns": ("launch", "launch calls"),
    "copy_ns": ("copy", "copy calls"),
    "sync_wait_ns": ("sync", "waiting in sync calls"),
    "alloc_ns": ("alloc", "alloc and free"),
    "load_ns": ("load", "loading code"),
    "other_api_ns": ("other", "other CUDA calls"),
    "outside_api_ns": ("outside", "outside CUDA calls"),
}
CAUSES = {
    "launch_latency": ("launch", "launch latency"),
    "sync": ("sync", "inside a sync call"),
    "alloc": ("alloc", "alloc and free"),
    "load": ("load", "loading code"),
    "copy_call": ("copy", "inside a copy call"),
    "other_api": ("other", "other CUDA call"),
    "data_loader": ("data", "data loader"),
    "profiler": ("profiler", "profiler itself"),
    "host_code": ("outside", "host code (Python)"),
    "dependency": ("dependency", "waiting for other GPU work"),
    "kernel_gap": ("gap", "between kernels"),
    "untraced_launch": ("idle", "launched outside the trace"),
    "no_further_work": ("idle", "nothing more launched"),
}


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one column of a grid."""

    name: str
    label: str
    meaning: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: what is printed, what it sorts by, the whole name where it was shortened, and its glossary key."""

    text: str
    sort: float | str | None = None
    full: str = ""
    term: str = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """One table ready to print. ``rows`` is None where the capture holds no answer; ``reason`` then says why."""

    key: str
    title: str
    intro: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...] | None
    reason: str = ""
    folded: int = 0
    scope: str = ""
    depth: int = 0
    without_data: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a ledger; ``idle`` marks the causes of idle time."""

    kind: str
    label: str
    ns: float
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """One device or thread over one window: the parts sum to ``window_ns``."""

    label: str
    device: bool
    window_ns: float
    parts: tuple[Part, ...]

    def sentence(self) -> str:
        """Return the ledger in words, largest parts first."""
        top = sorted((p for p in self.parts if p.ns), key=lambda p: -p.ns)[:4]
        said = ", ".join(
            f"{'idle: ' if p.idle else ''}{p.label} {units.duration(p.ns)} ({units.share(p.ns, self.window_ns)})"
            for p in top
        )
        return f"{self.label}: {units.duration(self.window_ns)}; {said}."


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled number or text."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding with its numbers as text."""

    code: str
    verdict: str
    title: str
    detail: str
    where: str
    cost: str
    saving: str
    confidence: str
    fix: str
    evidence: Grid | None
    notable: bool = False


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step of the step-by-step picture: kinds of GPU work where they are known, else phases of the CPU step."""

    index: int
    length_ns: float
    cpu_ns: float | None
    steady: bool
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is shown, as text, in order."""

    title: str
    verdict_code: str
    verdict_label: str
    sentence: str
    evidence: tuple[str, ...]
    first: FindingView | None
    facts: tuple[Fact, ...]
    steps_line: str
    step_times: str
    per_step: bool
    ledger_title: str
    ledgers: tuple[Ledger, ...]
    quiet_threads: int
    ledger_reasons: tuple[str, ...]
    findings: tuple[FindingView, ...] | None
    steps: tuple[StepBar, ...]
    steps_on_gpu: bool
    grids: tuple[Grid, ...]
    capture: tuple[Fact, ...]
    diagnostics: tuple[str, ...]
    quality: tuple[Check, ...]
    alarms: tuple[Check, ...] = ()
    glossary: tuple[glossary.Entry, ...] = ()
    hidden: tuple[str, ...] = ()
    no_first: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """How a known table is shown.

    ``intro`` is a sentence for people, ``first`` names columns in order of importance, ``bar`` the column with bars,
    ``unknown`` what a null in the first column means, ``hide`` columns that only serve programs. ``sums``: whole numbers are
    sums over the table's scope, shown per step; ``per_row``: so are these columns, over the row's own ``steps``. ``depth``: 0 is
    shown everywhere, 1 is left out of the terminal where there are steps to talk about, 2 is left out unless it is asked for,
    and the page folds its rows. ``rows``: more than these are never worth a line. ``keep``: where not all rows fit, those that
    are largest here stay, in their order.
    """

    intro: str = ""
    first: tuple[str, ...] = ()
    bar: str = ""
    unknown: str = "-"
    hide: tuple[str, ...] = ()
    sums: bool = False
    per_row: tuple[str, ...] = ()
    depth: int = 0
    rows: int = 1 << 30
    keep: str = ""


#: Known tables in the order in which they are shown; tables that are not named here follow in their own order.
SPECS: dict[str, Spec] = {
    "phases": Spec(
        "What the training loop was doing, by phase. GPU time counts for the phase whose code launched the work, even if "
        "the GPU ran it later.",
        ("name", "cpu_ns", "gpu_busy_ns", "gpu_idle_ns"),
        "gpu_busy_ns",
        unknown="(outside every phase)",
        sums=True,
    ),
    "waits": Spec(
        "Places where the CPU stood still for the GPU. A long wait is a symptom: behind a busy GPU it costs nothing. Total = "
        "backlog + own work + host cost; what counts is the GPU idle time that a wait causes, and its saving.",
        (
            "api",
            "module",
            "total_ns",
            "idle_caused_ns",
            "saving_ns",
            "calls",
            "file",
            "backlog_ns",
            "own_op_ns",
            "host_ns",
            "phase",
        ),
        "total_ns",
        sums=True,
    ),
    "wait_chain": Spec(
        "A replay of the step without its longest wait, then without the next as well: what that is worth, and which wait "
        "takes its place.",
        ("removed", "saving_ns", "step_ns", "moves_to", "wait_ns"),
    ),
    "modules": Spec(
        "GPU time by module of the model. Forward and backward of a parent include its children; self time is its own and "
        "adds up to all GPU work.",
        (
            "path",
            "forward_gpu_ns",
            "backward_gpu_ns",
            "self_gpu_ns",
            "launch_ns",
            "wait_ns",
            "idle_blamed_ns",
            "calls",
            "grade",
            "cls",
        ),
        "self_gpu_ns",
        unknown="(not attributed)",
        hide=("parent", "depth", "copy_ns", "queue_ns", "sync_ns"),
        sums=True,
    ),
    "kernels": Spec(
        "Functions that ran on the GPU. Queue is the time that they waited after their launch, summed: long queues are normal "
        "on a busy GPU.",
        (
            "name",
            "total_ns",
            "share",
            "count",
            "mean_ns",
            "median_ns",
            "max_ns",
            "queue_ns",
            "api_self_ns",
        ),
        "total_ns",
        hide=("min_ns", "std_ns"),
    ),
    "kernel_families": Spec(
        "The same GPU work by what it does.",
        ("family", "total_ns", "share", "count"),
        "total_ns",
        sums=True,
        depth=1,
    ),
    "kernel_spread": Spec(
        "Whether a kernel always takes the same time and, where it does not, why: first call, cold L2 cache, other work beside "
        "it, other data, or the clock.",
        ("name", "verdict", "median_ns", "first_ns", "p10_ns", "p90_ns", "spread", "count", "detail", "total_ns"),
        depth=1,
    ),
    "first_calls": Spec(
        "What is paid once: the first call of an API, a kernel or a library loads code and fills caches. It belongs to no "
        "steady step, so cutting it shortens the start and nothing else.",
        ("name", "one_time_ns", "calls", "first_ns", "later_median_ns", "what", "module", "evidence", "phase"),
        "one_time_ns",
        hide=("api",),
        rows=20,
    ),
    "api_bill": Spec(
        "All time in CUDA calls, split into waiting for the GPU, the profiler itself, what was paid once, and what is paid "
        "every time. Only the last column can be cut from a steady step.",
        (
            "name",
            "self_ns",
            "waiting_ns",
            "one_time_ns",
            "repeated_ns",
            "profiler_ns",
            "calls",
            "repeated_share",
            "share",
            "kind",
        ),
        "self_ns",
        depth=1,
    ),
    "api_calls": Spec(
        "CUDA calls made by the CPU. Self time leaves out calls nested inside. A blocking call splits into backlog (waiting "
        "for work launched earlier), its own GPU work, and host cost.",
        (
            "name",
            "self_ns",
            "total_ns",
            "calls",
            "first_ns",
            "steady_median_ns",
            "backlog_ns",
            "own_op_ns",
            "host_ns",
            "kind",
        ),
        "self_ns",
    ),
    "launches": Spec(
        "What launching costs. A launch costs GPU time only where the GPU stands idle for it; one that blocks on a full queue "
        "means that the GPU is behind, not the CPU.",
        (
            "name",
            "verdict",
            "launches",
            "gpu_ops",
            "median_ns",
            "p90_ns",
            "total_ns",
            "usual_ns",
            "queue_full_ns",
            "slow_ns",
            "idle_launch_ns",
            "idle_host_ns",
            "idle_share",
            "pending_median",
        ),
        hide=("launches_per_step",),
        sums=True,
        depth=1,
    ),
    "copies": Spec(
        "Copies by direction and kind of host memory. Pageable host memory makes a copy slow and makes the CPU wait; pinned "
        "does not.",
        ("direction", "src_kind", "dst_kind", "count", "bytes", "total_ns", "bandwidth_bytes_per_s"),
        "total_ns",
    ),
    "copy_sites": Spec(
        "Copies by the place that asks for them. Hidden time runs beside kernels and costs nothing; the obstacle says what keeps "
        "the rest from being hidden.",
        (
            "direction",
            "module",
            "file",
            "exposed_ns",
            "hidden_ns",
            "obstacle",
            "count",
            "bytes",
            "bandwidth_bytes_per_s",
            "limit_bytes_per_s",
            "src_kind",
            "dst_kind",
            "phase",
        ),
        "exposed_ns",
        sums=True,
        depth=2,
    ),
    "allocator": Spec(
        "Memory calls inside steady steps. PyTorch keeps memory for itself, so a steady step should make none.",
        (
            "api",
            "module",
            "file",
            "total_ns",
            "idle_caused_ns",
            "calls",
            "bytes",
            "advice",
            "in_flushes",
            "steps",
            "phase",
            "kind",
        ),
        "total_ns",
        sums=True,
    ),
    "alloc_flushes": Spec(
        "Each time that PyTorch gave cached memory back to the driver because it could not find room: frees, then a new "
        "allocation, and the GPU runs dry.",
        (
            "start_ns",
            "step",
            "duration_ns",
            "idle_caused_ns",
            "frees",
            "freed_bytes",
            "retry_bytes",
            "module",
            "phase",
            "steady",
        ),
        depth=1,
    ),
    "memory": Spec(
        "Memory as the driver handed it out since the capture began, PyTorch's cache included.",
        ("time_ns", "kind", "bytes", "peak_bytes", "allocations", "frees", "allocated_bytes", "freed_bytes", "device"),
        hide=("process",),
        depth=2,
    ),
    "data_loader": Spec(
        "Each step's wait for its batch. Waiting costs nothing while the GPU still works on what was launched before.",
        ("index", "gpu_idle_ns", "wait_ns", "gpu_hidden_ns", "step_ns", "api_ns", "pin_thread_ns", "verdict", "steady"),
        "gpu_idle_ns",
        depth=2,
    ),
    "stopwatch": Spec(
        "One operation, timed four ways: what a clock around it reads depends on where you synchronize, and only the kernel "
        "column is the work. A value with ≈ is put together from its parts, the others were measured in this capture.",
        (
            "name",
            "kernel_ns",
            "api_ns",
            "host_ns",
            "latency_ns",
            "queue_ns",
            "both_ns",
            "before_ns",
            "after_ns",
            "none_ns",
            "event_idle_ns",
            "event_queued_ns",
            "benchmark_ns",
            "sync_return_ns",
            "calls",
            "module",
            "custom",
        ),
        hide=tuple(f"{way}_from" for way in ("both", "before", "after", "none")),
        depth=1,
    ),
    "module_stopwatch": Spec(
        "The same for whole modules, forward only: what four ways of timing would have read, and the GPU time that is the work.",
        (
            "name",
            "work_ns",
            "range_ns",
            "api_ns",
            "alone_ns",
            "both_ns",
            "before_ns",
            "after_ns",
            "none_ns",
            "event_idle_ns",
            "event_queued_ns",
            "benchmark_ns",
            "kernels_each",
            "calls",
        ),
        hide=tuple(f"{way}_from" for way in ("both", "before", "after", "none")),
        depth=1,
    ),
    "events": Spec(
        "Windows between pairs of torch.cuda.Event records, and what was really inside each of them: only the kernel part is "
        "work.",
        (
            "site",
            "module",
            "verdict",
            "median_ns",
            "kernel_median_ns",
            "first_ns",
            "min_ns",
            "max_ns",
            "windows",
            "kernels_each",
            "launch_wait_ns",
            "idle_ns",
            "copy_ns",
        ),
        depth=1,
    ),
    "event_windows": Spec(
        "The same windows one by one, in order of time.",
        (
            "start_ns",
            "site",
            "reading_ns",
            "kernel_ns",
            "copy_ns",
            "memset_ns",
            "launch_wait_ns",
            "other_streams_ns",
            "idle_ns",
        ),
        depth=2,
    ),
    "threads": Spec("CPU threads that called CUDA."),
    "ranks": Spec(
        "The ranks of the job side by side. In a collective all wait for the rank that comes last: make that one faster, the "
        "others follow.",
        (
            "rank",
            "window_ns",
            "straggler",
            "compute_ns",
            "exposed_wait_ns",
            "exposed_transfer_ns",
            "idle_ns",
            "delay_ns",
            "last_share",
            "late_because",
            "bytes",
            "bus_bytes_per_s",
            "gpu",
            "steps",
        ),
        hide=("file", "process", "step_ns", "idle_causes", "clock_correction_ns", "by_collective"),
        # The mean step, because its parts stand beside it; the median would not be their sum.
        per_row=(
            "window_ns",
            "compute_ns",
            "comm_ns",
            "copy_ns",
            "memset_ns",
            "idle_ns",
            "hidden_comm_ns",
            "collectives",
            "transfer_ns",
            "wait_ns",
            "exposed_wait_ns",
            "exposed_transfer_ns",
            "exposed_unmatched_ns",
            "bytes",
            "delay_ns",
        ),
        keep="delay_ns",
    ),
}

#: Checks that make the numbers themselves doubtful where they fail: said at the top, not only among the other checks.
_ALARMS = frozenset(
    {"gpu work", "launches without kernel", "diagnostics", "lost ranges", "probe cost", "bad times", "exit code"}
)

LEDGER_TABLES = ("gpu_ledger", "cpu_ledger")
#: For programs, not for people.
UNSEEN = ("step_parts",)

_LABELS = {
    "cls": "class",
    "path": "module",
    "queue_ns": "queue, summed",
    "parent": "called by",
    "wait_ns": "backlog waited",
    "file": "Python line",
    "api": "call",
    "own_op_ns": "own work",
    "host_ns": "host cost",
    "idle_caused_ns": "GPU idle caused",
    "idle_blamed_ns": "GPU idle blamed",
    "saving_ns": "saving",
    "moves_to": "wait moves to",
    "forward_gpu_ns": "forward GPU",
    "backward_gpu_ns": "backward GPU",
    "self_gpu_ns": "self GPU",
    "gpu_busy_ns": "GPU busy",
    "gpu_idle_ns": "GPU idle",
    "cpu_ns": "CPU",
    "api_self_ns": "API self time",
    "std_ns": "std dev",
    "bandwidth_bytes_per_s": "bandwidth",
    "src_kind": "from memory",
    "dst_kind": "to memory",
    "steady_median_ns": "steady median",
    "pid": "pid",
    "tid": "tid",
    "sm_count": "SMs",
    "l2_bytes": "L2 cache",
    "one_time_ns": "paid once",
    "work_ns": "GPU work",
    "range_ns": "CPU range",
    "alone_ns": "on an idle GPU",
    "repeated_ns": "paid every time",
    "later_median_ns": "later, median",
    "first_ns": "first call",
    "both_ns": "sync before and after",
    "before_ns": "sync only before",
    "after_ns": "sync only after",
    "none_ns": "no sync",
    "event_idle_ns": "cuda.Event, idle GPU",
    "event_queued_ns": "cuda.Event, queued",
    "benchmark_ns": "torch benchmark",
    "sync_return_ns": "sync return",
    "kernels_each": "kernels in each",
    "idle_launch_ns": "GPU idle in launch",
    "idle_host_ns": "GPU idle before it",
    "pending_median": "queued, median",
    "gpu_ops": "GPU ops",
    "limit_bytes_per_s": "possible",
    "exposed_wait_ns": "waits for a rank",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_unmatched_ns": "exposed, on no other rank",
    "bus_bytes_per_s": "bus bandwidth",
    "delay_ns": "makes others wait",
    "last_share": "comes last",
    "late_because": "spends more on",
    "step_ns": "step",
    "window_ns": "step, mean",
    "index": "step",
    "reading_ns": "reading",
    "start_ns": "time",
    "time_ns": "time",
}
_UNIT_SUFFIX = re.compile(r"_(?:ns|bytes|bytes_per_s|per_s)$")
_TEXT_TYPES = ("String", "Utf8", "Categorical", "Enum", "Boolean", "List", "Struct", "Object")
_MONO = ("name", "path", "api", "cls", "module", "kernel", "file")


def label(name: str) -> str:
    """Return a column's name for people: its unit goes, because every cell carries it."""
    text = _LABELS.get(name) or _UNIT_SUFFIX.sub("", name).replace("_", " ")
    for word, full in (("gpu", "GPU"), ("cpu", "CPU"), ("api", "API"), ("l2", "L2")):
        text = re.sub(rf"\b{word}\b", full, text)
    return clean(text, 40)


def is_numeric(column: Column) -> bool:
    """Return whether a column holds numbers that are worth adding, comparing and right-aligning."""
    return not column.dtype.startswith(_TEXT_TYPES)


def number(value: Any, name: str, unit: str) -> str:
    """Return one number of a column with its unit; "-" for None and for what is no number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if unit == "ns" or name.endswith("_ns"):
        return units.duration(value)
    if unit in ("bytes/s", "B/s", "bytes_per_s") or name.endswith("_per_s"):
        return units.bandwidth(value)
    if unit in ("bytes", "B") or name.endswith("_bytes") or name == "bytes":
        return units.size(value)
    if unit in ("share", "fraction", "ratio", "1") or name in ("share", "error", "spread") or name.endswith("_share"):
        return units.share(value, 1)
    if unit in ("%", "percent"):
        return units.share(value, 100)
    if float(value).is_integer():
        text = units.count(value)
    else:
        text = f"{value:,.2g}" if abs(value) < 1 else f"{value:,.1f}"
    return f"{text} {clean(unit, 20)}" if unit and unit not in ("count", "calls", "rows") else text


class Texts:
    """Cleans, scrubs and shortens the strings of one output."""

    def __init__(self, redact: bool, width: int) -> None:
        self.redact = redact
        self.width = width

    def __call__(self, value: object, limit: int = 400) -> str:
        """Return ``value`` as harmless text of at most ``limit`` characters."""
        text = str(value)[: 4 * limit]
        return clean(scrub(text) if self.redact else text, limit)

    def cell(self, value: object, column: str) -> tuple[str, str]:
        """Return a text for a cell, and the whole text if that is longer."""
        if column == "file" and self.redact:
            value = file_name(str(value)[:2000], True)
        full = self(value, 600)
        text = shorten_cell(full, column, self.width)
        return text, "" if text == full else full


def _describe(value: Any, column: Column, texts: Texts, scope: Scope | None = None) -> Cell:
    """Return the cell of one value; whole numbers are sums over ``scope``."""
    if value is None or value == "":
        return Cell("-", None)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", float(value))
    if isinstance(value, Mapping):
        inner = (
            f"{label(str(k))} {number(v, str(k), column.unit) if isinstance(v, int | float) else texts(v, 80)}"
            for k, v in value.items()
        )
        text, full = texts.cell(", ".join(inner), column.name)
        return Cell(text, text, full)
    if isinstance(value, list | tuple | set | frozenset):
        text, full = texts.cell(", ".join(texts(v, 80) for v in value), column.name)
        return Cell(text, text, full)
    if (is_numeric(column) and isinstance(value, int | float)) or hasattr(value, "item"):
        if scope is not None and scope.steps and column.dtype.startswith(("Int", "UInt")):
            value = scope.per_step(value)
        return Cell(number(value, column.name, column.unit), float(value))
    text, full = texts.cell(value, column.name)
    return Cell(
        text,
        (full or text).lower(),
        full,
        glossary.key(str(value)[:100]) or "" if column.name in ("name", "api") else "",
    )


def _tree(rows: Sequence[Row], top: int) -> list[Row]:
    """Return the ``top`` module rows by GPU time with the modules that call them, each followed by what it calls.

    Siblings stand in order of GPU time, so the first line of every level is the one to look at.
    """
    by_path: dict[Any, Row] = {}
    for row in rows:
        by_path.setdefault(row.get("path"), row)

    def order(path: Any) -> tuple[float, str]:
        row = by_path[path]
        return -float((row.get("forward_gpu_ns") or 0) + (row.get("backward_gpu_ns") or 0)), str(path)

    def chain(path: Any) -> list[Any]:
        above = [path]
        while (up := by_path[above[-1]].get("parent")) is not None and up in by_path and up not in above:
            above.append(up)
        return above[::-1]

    keep: dict[Any, None] = {}
    for path in sorted(by_path, key=order):
        wanted = [p for p in chain(path) if p not in keep]
        if len(keep) + len(wanted) <= top:
            keep.update(dict.fromkeys(wanted))
    return [by_path[path] for path in sorted(keep, key=lambda path: [order(p) for p in chain(path)])]


def _scope_of(row: Row, column: Column, spec: Spec, table: Table) -> Scope | None:
    """Return what a cell is a sum over, None where it is none."""
    if column.name in spec.per_row:
        return Scope("steady", (), steps=row.get("steps") or 0)
    return table.scope if spec.sums and column.name != "steps" else None


def _sorted(table: Table, spec: Spec) -> list[Row]:
    """Return the rows by the bar column, largest first; as given where there is no such column."""
    rows = list(table.rows or ())
    if spec.bar and any(c.name == spec.bar for c in table.columns):
        rows.sort(key=lambda r: (r.get("what") == "rest", -(r.get(spec.bar) or 0)))
    return rows


def grid(table: Table, *, top: int, redact: bool, width: int) -> Grid:
    """Return ``table`` ready to print: at most ``top`` rows, columns that hold nothing left out and named.

    Sums over steps are shown per step.
    """
    spec = SPECS.get(table.key, Spec())
    top = min(top, spec.rows)
    title = clean(table.title or label(table.key).capitalize(), 100)
    texts = Texts(redact, width)
    if table.rows is None:
        return Grid(table.key, title, spec.intro, (), None, texts(table.reason or "not recorded in this capture", 600))
    columns = [c for c in table.columns if c.name not in spec.hide]
    if {"file", "line"} <= {c.name for c in columns}:
        columns = [c for c in columns if c.name not in ("line", "function")]
    rank = {name: i for i, name in enumerate(spec.first)}
    columns.sort(key=lambda c: rank.get(c.name, len(rank)))
    rows = _tree(table.rows, top) if table.key == "modules" else _sorted(table, spec)
    if spec.keep and len(rows) > top:
        kept = sorted(range(len(rows)), key=lambda i: (-(rows[i].get(spec.keep) or 0), i))[:top]
        rows = [rows[i] for i in sorted(kept)]
    rows = rows[:top]
    empty = [c for c in columns if all(r.get(c.name) in (None, "") for r in table.rows)] if table.rows else []
    columns = [c for c in columns if c not in empty or c is columns[0]]
    empty = [c for c in empty if c not in columns]
    largest = max((abs(r.get(spec.bar) or 0) for r in table.rows), default=0) if spec.bar else 0
    scope = "per step, mean of each row's own steps" if spec.per_row else table.scope.label if table.scope else ""

    def cell(row: Row, column: Column) -> Cell:
        value = row.get(column.name)
        if value in (None, "") and column is columns[0]:
            return Cell(spec.unknown)
        made = _describe(value, column, texts, _scope_of(row, column, spec, table))
        if value is not None and row.get(f"{column.name.removesuffix('_ns')}_from") == "composed":
            made = replace(made, text=f"≈ {made.text}")
        if column.name == "file" and value and row.get("line"):
            function = f" {texts(row['function'], 60)}" if row.get("function") else ""
            place = f":{int(row['line'])}{function}"
            return replace(made, text=made.text + place, full=made.full and made.full + place)
        if column.name == spec.bar and largest and value:
            return replace(made, part=abs(value) / largest)
        return made

    cells = [[cell(r, c) for c in columns] for r in rows]
    if columns and not is_numeric(columns[0]):
        names = [line[0].full or line[0].text for line in cells]
        for line, name, text in zip(cells, names, shorten_column(names, columns[0].name, width), strict=True):
            line[0] = replace(line[0], text=text, full="" if text == name else name)
    return Grid(
        key=table.key,
        title=title,
        intro=spec.intro,
        heads=tuple(Head(c.name, label(c.name), clean(c.meaning, 300), is_numeric(c)) for c in columns),
        rows=tuple(tuple(line) for line in cells),
        reason="" if table.rows else "nothing of this kind in the capture",
        folded=max(0, len(table.rows) - len(rows)),
        scope=scope,
        depth=spec.depth,
        without_data=tuple(label(c.name) for c in empty),
    )


def _process(summary: Summary, process: Any) -> str:
    """Return what tells a process apart: nothing when there is one, else its rank or pid."""
    pids = {g.process: g.pid for g in summary.capture.gpus}
    if len(pids) < 2 and len(summary.capture.processes) < 2:
        return ""
    row = next((r for r in summary.capture.processes if r.get("process") == process), {})
    if row.get("rank") is not None:
        return f"rank {row['rank']} "
    pid = row.get("pid") or pids.get(process) or (ids.pid_of(process) if isinstance(process, int) else process)
    return f"process {clean(pid, 20)} "


def _busy_threads(summary: Summary) -> list[Row]:
    """Return the rows of the CPU ledger without threads that spend under 1 % in CUDA calls; the first always stays."""
    rows = list(summary.rows("cpu_ledger"))

    def busy(row: Row) -> bool:
        window, outside = row.get("window_ns") or 0, row.get("outside_api_ns")
        return outside is None or (window - outside) * 100 >= window

    return rows[:1] + [row for row in rows[1:] if busy(row)]


def _ledgers(summary: Summary) -> Iterable[Ledger]:
    """Yield the ledgers of the devices, then of the threads, each per its own steps."""
    names: dict[tuple[Any, Any], str] = {(g.process, g.device): g.name for g in summary.capture.gpus}
    for row in summary.rows("gpu_ledger"):
        scope = summary.scope_of(row)
        parts = [Part(kind, text, scope.per_step(row.get(name) or 0)) for name, (kind, text) in GPU_PARTS.items()]
        idle = row.get("idle_ns") or 0
        causes = {k: v for k, v in (row.get("idle_causes") or {}).items() if v}
        for cause, ns in sorted(causes.items(), key=lambda c: -c[1]):
            kind, text = CAUSES.get(cause.removesuffix("_ns"), ("idle", label(cause)))
            parts.append(Part(kind, text, scope.per_step(ns), idle=True))
        rest = idle - sum(causes.values())
        if rest > 0:
            text = "cause not known" if causes else "GPU idle"
            parts.append(Part("idle", text, scope.per_step(rest), idle=True))
        name = names.get((row.get("process"), row.get("device")), "")
        name = "" if name.startswith("unknown") else name
        where = f"{_process(summary, row.get('process'))}GPU {row.get('device')}"
        yield _ledger(summary, row, f"{where} ({name})" if name else where, True, parts)
    for row in _busy_threads(summary):
        scope = summary.scope_of(row)
        parts = [Part(kind, text, scope.per_step(row.get(name) or 0)) for name, (kind, text) in CPU_PARTS.items()]
        thread = clean(row.get("thread_name") or row.get("name") or row.get("thread"), 30)
        yield _ledger(summary, row, f"CPU {_process(summary, row.get('process'))}thread {thread}", False, parts)


def _ledger(summary: Summary, row: Row, where: str, device: bool, parts: Sequence[Part]) -> Ledger:
    """Return one ledger; it says how many steps it is the mean of where those are not the shown ones."""
    scope, shown = summary.scope_of(row), summary.steps.scope
    text = clean(where, 60)
    if shown is not None and scope.steps != shown.steps:
        text += f", {scope.mean}"
    return Ledger(text, device, scope.per_step(row.get("window_ns") or 0), tuple(parts))


def _where(where: Row, texts: Texts) -> str:
    """Return a place in the program as text."""
    parts = []
    if where.get("module"):
        parts.append(f"module {texts(where['module'], 120)}")
    if where.get("phase"):
        parts.append(texts(where["phase"], 40))
    if where.get("file"):
        line = f":{where['line']}" if where.get("line") else ""
        parts.append(f"{texts(file_name(str(where['file'])[:2000], texts.redact), 160)}{line}")
    return ", ".join(parts)


#: Savings below this part of the step are listed, and no reason to act.
_NOTABLE = 0.01
#: How the confidence of a saving begins that is an upper bound.
_BOUND = "at most, "


def _step_ns(summary: Summary) -> float:
    """Return the length of a step that savings are measured by."""
    replay = summary.replay or {}
    return replay.get("recorded_ns") or summary.steps.gpu_mean_ns or summary.steps.cpu_mean_ns or 0


def _no_first(summary: Summary) -> str:
    """Return why there is nothing to do first."""
    if summary.replay is None or not summary.replay.get("trusted", True):
        return "What a change would save cannot be said: there is no replay of steady steps that could be trusted."
    return "Nothing that was looked for saves 1 % of the step."


def _finding(finding: Finding, texts: Texts, width: int, step_ns: float = 0) -> FindingView:
    """Return a finding as text."""
    saving, bound = finding.saving_ns_per_step, finding.confidence.startswith(_BOUND)
    evidence = None
    if finding.evidence:
        names = {k: v for row in finding.evidence for k, v in row.items()}
        columns = tuple(
            Column(k, "Int64" if isinstance(v, int | float) else "String", "", "") for k, v in names.items()
        )
        table = Table("", "Evidence", columns, finding.evidence)
        evidence = grid(table, top=20, redact=texts.redact, width=width)
    return FindingView(
        code=clean(finding.code, 20),
        verdict=finding.verdict,
        title=texts(finding.title, 200),
        detail=texts(finding.detail, 2000),
        where=_where(finding.where, texts),
        cost="" if finding.cost_ns_per_step is None else units.duration(finding.cost_ns_per_step),
        saving="" if saving is None else ("at most " if bound else "") + units.duration(saving),
        confidence=texts(finding.confidence.removeprefix(_BOUND), 200),
        fix=texts(finding.fix, 2000),
        evidence=evidence,
        notable=(finding.saving_ns_per_step or 0) > _NOTABLE * step_ns,
    )


def _findings(summary: Summary, texts: Texts, width: int) -> tuple[FindingView, ...] | None:
    """Return the findings: found first by saving, then what cannot be told, then what is clear."""
    if summary.findings is None:
        return None
    order = {"found": 0, "cannot_tell": 1, "clear": 2}
    ranked = sorted(summary.findings, key=lambda f: (order[f.verdict], -(f.saving_ns_per_step or 0), f.code))
    step_ns = _step_ns(summary)
    return tuple(_finding(f, texts, width, step_ns) for f in ranked)


def _steps_line(summary: Summary) -> str:
    """Return one line about the steps: how many, which rule, how long."""
    steps = summary.steps
    if not steps.count:
        return clean(steps.rule or "No steps were found: the numbers cover the whole capture.", 300)
    text = f"{units.count(steps.count)} step{'s' * (steps.count != 1)}"
    if steps.steady and steps.count > 1:
        text += (
            f", {units.count(steps.steady[1] - steps.steady[0] + 1)} steady ({steps.steady[0]} to {steps.steady[1]})"
        )
    rule = clean(steps.rule or steps.source, 200).rstrip(".")
    if steps.source == "capture":
        return f"No steps: {rule}."
    return f"{text}. Found by: {rule}." if rule else f"{text}."


def _step_times(summary: Summary) -> str:
    """Return the mean steady step as text, "" when it is not known; and that of the replay where it is another."""
    steps, replay = summary.steps, summary.replay or {}
    if steps.source == "capture":
        return ""
    times = [
        f"{who} {units.duration(ns)}"
        for who, ns in (("GPU", steps.gpu_mean_ns), ("CPU", steps.cpu_mean_ns))
        if ns is not None
    ]
    text = f"Steady step, mean: {', '.join(times)}." if times else ""
    count = steps.scope.steps if steps.scope else 0
    if text and count > (replay.get("steps") or count):
        again = f"the last {replay['steps']} of the {count} steady steps, mean {units.duration(replay['recorded_ns'])}"
        text += f" Savings are from a replay of {again}."
    return text


def _facts(summary: Summary, ledgers: Sequence[Ledger]) -> tuple[Fact, ...]:
    """Return the few numbers that stand beside the verdict. What is not known is left out, never shown as zero."""
    steps, totals = summary.steps, summary.totals
    facts = []
    stepped = steps.source != "capture"
    if stepped and steps.gpu_mean_ns is not None:
        facts.append(Fact("GPU step, mean", units.duration(steps.gpu_mean_ns)))
    if stepped and steps.cpu_mean_ns is not None:
        facts.append(Fact("CPU step, mean", units.duration(steps.cpu_mean_ns)))
    devices = [row for row in summary.rows("gpu_ledger") if row.get("busy_ns") is not None and row.get("window_ns")]
    if devices:
        shares = [row["busy_ns"] / row["window_ns"] for row in devices]
        text = (
            units.share(min(shares), 1)
            if len(shares) == 1
            else f"{units.share(min(shares), 1)} to {units.share(max(shares), 1)}"
        )
        facts.append(Fact("GPU busy", text, "whole capture" if steps.whole else "steady steps"))
    if stepped and steps.count and steps.steady:
        facts.append(Fact("Steady steps", f"{steps.steady[1] - steps.steady[0] + 1} of {steps.count}"))
    for key, text in (("kernels", "Kernels"), ("api_calls", "CUDA calls")):
        if totals.get(key) is not None:
            facts.append(Fact(text, units.count(totals[key]), "whole capture"))
    return tuple(facts)


_PROCESS_FIELDS = ("pid", "rank", "name")
_PROBE_FIELDS = ("python", "torch", "nvtx", "backend", "ranges_pushed", "reason")


def _capture(summary: Summary, texts: Texts) -> tuple[Fact, ...]:
    """Return the allow-listed facts about the capture; nothing else of it is ever shown."""
    capture = summary.capture
    facts = [
        Fact(
            "Report" if len(capture.files) == 1 else "Reports",
            ", ".join(texts(_base(f) if texts.redact else f, 300) for f in capture.files),
        )
    ]
    if capture.duration_ns is not None:
        facts.append(Fact("Length", units.duration(capture.duration_ns)))
    if capture.nsys_version:
        schema = f" (schema {texts(capture.schema_version, 30)})" if capture.schema_version else ""
        facts.append(Fact("Nsight Systems", f"{texts(capture.nsys_version, 60)}{schema}"))
    for gpu in capture.gpus:
        limits = [
            text
            for value, text in (
                (gpu.memory_bytes, f"{units.size(gpu.memory_bytes)} memory"),
                (gpu.memory_bandwidth, f"{units.bandwidth(gpu.memory_bandwidth)} memory bandwidth"),
                (gpu.l2_bytes, f"{units.size(gpu.l2_bytes)} L2"),
                (gpu.sm_count, f"{gpu.sm_count} SMs"),
            )
            if value
        ]
        facts.append(
            Fact(f"{_process(summary, gpu.process)}GPU {gpu.device}", ", ".join([texts(gpu.name, 60), *limits]))
        )
    for row in capture.processes[:16]:
        said = [f"{name} {texts(row[name], 60)}" for name in _PROCESS_FIELDS if row.get(name) not in (None, "")]
        if said and len(capture.processes) > 1:
            facts.append(Fact("Process", ", ".join(said)))
    for row in capture.probe[:16]:
        said = [f"{label(name)} {texts(row[name], 120)}" for name in _PROBE_FIELDS if row.get(name) not in (None, "")]
        facts.append(Fact("Probe", ", ".join(said)))
        facts.extend(Fact("Probe error", texts(error, 300)) for error in (row.get("errors") or ())[:5])
    if capture.exit_code is not None:
        facts.append(Fact("Exit code of the program", str(capture.exit_code)))
    if not texts.redact:
        facts.extend(Fact(f"Option {texts(k, 40)}", texts(v, 300)) for k, v in capture.options.items())
    facts.append(Fact("nsysx", texts(summary.version, 30)))
    return tuple(facts)


def _base(path: str) -> str:
    """Return the last component of a path."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def _step_bars(summary: Summary) -> tuple[StepBar, ...]:
    """Return the steps for their picture: on the GPU where every step has a GPU side, else on the CPU."""
    rows = [r for r in summary.steps.rows if not r.get("cut")]
    steady = summary.steps.steady or (0, -1)
    on_gpu = bool(rows) and sum(r.get("gpu_ns") is not None for r in rows) * 2 > len(rows)
    bars = []
    for row in rows:
        index = int(row.get("index") or 0)
        start, end = row.get("start_ns"), row.get("end_ns")
        cpu = row.get("cpu_ns", end - start if start is not None and end is not None else None)
        length = row.get("gpu_ns") if on_gpu else cpu
        if not length or length < 0:
            continue
        if on_gpu:
            parts = {kind: float(row.get(f"gpu_{name}") or 0) for name, (kind, _) in GPU_PARTS.items()}
            parts["idle"] = float(row.get("gpu_idle_ns") or 0)
        else:
            parts = {str(k): float(v) for k, v in (row.get("phases") or {}).items() if v}
        bars.append(StepBar(index, float(length), cpu, steady[0] <= index <= steady[1], parts))
    return tuple(bars)


def _sentence(summary: Summary, texts: Texts) -> str:
    """Return the verdict's sentence without the label that is shown in front of it."""
    text = texts(summary.verdict.sentence, 1000)
    start = f"{VERDICTS.get(summary.verdict.code, '')}: "
    if len(start) > 2 and text.lower().startswith(start.lower()):
        text = text[len(start) :]
        text = text[:1].upper() + text[1:]
    return text


def _shown(summary: Summary) -> int | None:
    """Return the shown process."""
    return summary.steps.scope.processes[0] if summary.steps.scope else None


def _wait_line(summary: Summary, texts: Texts) -> list[str]:
    """Return what removing the longest wait is worth: the first question of whoever sees a long one."""
    table = summary.tables.get("waits")
    waits = [r for r in summary.rows("waits") if r.get("saving_ns") is not None]
    windows = [r["window_ns"] for r in summary.rows("gpu_ledger") if r.get("process") == _shown(summary)]
    if not waits or table is None or table.scope is None or not table.scope.steps:
        return []
    row = max(waits, key=lambda r: r.get("total_ns") or 0)
    if (row.get("total_ns") or 0) < 0.05 * max(windows, default=0):
        return []
    wait, saving = (table.scope.per_step(row[c]) for c in ("total_ns", "saving_ns"))
    place = f" in {texts(row['module'], 80)}" if row.get("module") else ""
    line = (
        f"The longest wait, {texts(row['api'], 80)}{place}, lasts {units.duration(wait)} per step; "
        f"without it the step is {units.duration(saving)} shorter"
    )
    if not row.get("moves_to"):
        return [line]
    little = saving < 0.2 * wait
    return [f"{line}{', because' if little else ', and'} the wait moves to {texts(row['moves_to'], 160)}"]


def _quality(summary: Summary, texts: Texts) -> tuple[Check, ...]:
    """Return the checks; tables that are not there are named once, by their own reason."""
    gone = {f"table {key}" for key, table in summary.tables.items() if table.rows is None}
    order = ("warn", "missing", "ok")
    checks = sorted((c for c in summary.quality if c.check not in gone), key=lambda c: order.index(c.status))
    return tuple(Check(clean(c.check, 60), c.status, texts(c.detail, 800), texts(c.fix, 400)) for c in checks)


def _wanted(sections: Sequence[str] | None) -> Callable[[str], bool]:
    """Return the test whether a section is to be shown."""
    chosen = None if sections is None else frozenset(sections)
    return lambda name: chosen is None or name in chosen


def table_keys(summary: Summary) -> list[str]:
    """Return the keys of the tables that are shown as grids, in their order."""
    return [k for k in SPECS if k in summary.tables] + [
        k for k in summary.tables if k not in SPECS and k not in LEDGER_TABLES and k not in UNSEEN
    ]


def build(
    summary: Summary, *, top: int, redact: bool = False, width: int = 110, sections: Sequence[str] | None = None
) -> View:
    """Return everything that is shown of ``summary``.

    ``top`` bounds the rows of each table, ``width`` the characters of a name, ``sections`` (keys of tables, "ledger", "first")
    what is made at all; ``redact`` hides home folders, the folders of files, and options.
    """
    texts = Texts(redact, width)
    wanted = _wanted(sections)
    scope = summary.steps.scope
    ledgers = tuple(_ledgers(summary)) if wanted("ledger") else ()
    findings = _findings(summary, texts, width)
    found = [f for f in findings or () if f.verdict == "found"]
    notable = bool(found) and found[0].notable
    reasons = [
        f"{clean(t.title or label(key), 60)}: {texts(t.reason or 'not recorded', 400)}"
        for key in LEDGER_TABLES
        if (t := summary.tables.get(key)) is not None and t.rows is None
    ]
    checks = _quality(summary, texts)
    return View(
        title=", ".join(texts(_base(f), 80) for f in summary.capture.files[:3])
        + (" …" if len(summary.capture.files) > 3 else ""),
        verdict_code=clean(summary.verdict.code, 30),
        verdict_label=VERDICTS.get(summary.verdict.code, clean(summary.verdict.code, 30)),
        sentence=_sentence(summary, texts),
        evidence=(*(texts(e, 500) for e in summary.verdict.evidence), *_wait_line(summary, texts)),
        first=found[0] if found and notable and wanted("first") else None,
        no_first="" if notable or findings is None else _no_first(summary),
        facts=_facts(summary, ledgers),
        steps_line=_steps_line(summary),
        step_times=_step_times(summary),
        per_step=bool(scope and scope.steps),
        ledger_title=scope.mean if scope else "whole capture",
        ledgers=ledgers,
        quiet_threads=len(summary.rows("cpu_ledger")) - len(_busy_threads(summary)),
        ledger_reasons=tuple(reasons),
        findings=findings,
        steps=_step_bars(summary),
        steps_on_gpu=any(r.get("gpu_ns") is not None for r in summary.steps.rows),
        grids=tuple(
            grid(summary.tables[k], top=top, redact=redact, width=width) for k in table_keys(summary) if wanted(k)
        ),
        capture=_capture(summary, texts),
        diagnostics=tuple(texts(d.get("text") or d.get("detail") or "", 300) for d in summary.capture.diagnostics[:20]),
        quality=checks,
        alarms=tuple(c for c in checks if c.status != "ok" and c.check in _ALARMS),
        glossary=glossary.used(summary),
        hidden=(
            "home folders",
            "folders of files",
            "options and arguments of the command",
            "environment",
            "host and user names",
        )
        if redact
        else (),
    )
