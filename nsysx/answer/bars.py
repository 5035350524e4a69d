"""The bars of the answer: one picture, chosen by the cause. The parts of each bar sum to its whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nsysx import findings
from nsysx.advice import Bar, BarPart, Picture
from nsysx.analyses import alloc_flushes, data_loader, kernel_families, kernel_limits, modules
from nsysx.analyses.helpers.module_names import spoken
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.answer import clock_bars, subject
from nsysx.answer.answer_bounds import (
    BUSY_GPU_SHARE,
    LEAST_REST_NS,
    MOST_BARS,
    MOST_BATCH_BARS,
    MOST_NAMED_PARTS,
    MOST_UNNAMED_SHARE,
    PAUSED_WINDOW_SHARE,
    SAME_WORK_SHARE,
    SMALL_PART_SHARE,
)
from nsysx.catalogue import AT_HOST_CODE, FAMILIES, Paint, StepLimit
from nsysx.catalogue import StepPart as Code
from nsysx.events import kernel_names
from nsysx.findings import nsx120_mask_work
from nsysx.model import Finding, Row, Summary
from nsysx.ranks import rank_table

#: GPU work that no module launched.
NO_MODULE = "(not attributed)"
#: The colors of modules and of kinds of work begin with these, and go on with a number: one color is no module and kind at once.
MODULES, WORK = "m", "w"
#: The title of bars of ranks, and of those below the bar of the shown step.
RANKS, RANKS_BELOW = "One step, rank by rank", "One step on the GPU; below, rank by rank"
#: Kinds of work that have a color of their own in every picture.
_KNOWN = {"communication": Paint.COMM, "copies": Paint.COPY, "memsets": Paint.MEMSET}

#: What the GPU does or waits for, by part of the verdict: kind (a color), label, idle.
PARTS = {part.value: (part.color, part.drawn, part.idle) for part in Code if part.drawn}


def folded_path(path: str) -> str:
    """Return a name with block numbers as "*", so that "blocks.3.attn" and "blocks.7.attn" are the same."""
    return re.sub(r"(?<=[A-Za-z_]\.)\d+(?![\w])|(?<![\w.])\d+(?=\.[A-Za-z_])|^\d+$", "*", path)


def folded_label(pattern: str, rows: Iterable[Row]) -> str:
    """Return what repeated modules are called: "10 x Conv2d", "8 x blocks.*.attn"."""
    rows = list(rows)
    if len(rows) < 2 or "*" not in pattern:
        return pattern
    classes = {str(r.get("cls") or "") for r in rows}
    name = pattern
    if pattern.rpartition(".")[2] == "*" and len(classes) == 1 and "" not in classes:
        name = classes.pop() + (f" ({pattern})" if pattern != "*" else "")
    return f"{len(rows)} x {'module' if name == '*' else name}"


def called(summary: Summary, module: str) -> str:
    """Return a module as people write it, see ``module_names.spoken``."""
    return spoken(
        module,
        lambda pattern: [
            r["cls"] for r in summary.typed_rows(modules.ROWS) if re.fullmatch(pattern, str(r["path"] or ""))
        ],
    )


def each(summary: Summary, row: Row | None = None) -> Callable[[float], float]:
    """Return a function from a sum over steps (the row's own, else the shown ones) to the part of one step."""
    scope = summary.steps.scope if row is None else summary.scope_of(row)
    return scope.per_step if scope is not None else float


def merged(parts: Iterable[BarPart], total: float) -> tuple[BarPart, ...]:
    """Return the parts, with those below 2 % as one."""
    shown = [p for p in parts if p.ns >= SMALL_PART_SHARE * total and p.ns > 0]
    small = [p for p in parts if 0 < p.ns < SMALL_PART_SHARE * total]
    if len(small) < 2:
        return (*shown, *small)
    return (*shown, BarPart("other", sum(p.ns for p in small), Paint.OTHER, all(p.idle for p in small)))


def step_parts(summary: Summary) -> list[BarPart]:
    """Return what the busiest GPU does in one step and what it waits for, in the verdict's order, without empty parts.

    Host code and launches on their way are one part, because they are one cause and the sentence gives one number for them. Where it says
    at which line the host is, launches are not what the GPU waits for.
    """
    said = summary.verdict
    host, launch = (said.parts.get(part, 0) for part in (Code.HOST, Code.LAUNCH))
    parts = []
    for part, ns in _with_launches(said.parts, host + launch).items():
        if part in PARTS and ns > 0:
            kind, label, idle = PARTS[part]
            label = AT_HOST_CODE if part == Code.HOST and said.idle_at else label
            parts.append(BarPart(label, ns, kind, idle))
    return parts


def _with_launches(parts: Mapping[str, int], both: int) -> dict[str, int]:
    """Return the parts, with launches on their way counted as the host's."""
    return {
        (Code.HOST.value if part == Code.LAUNCH else part): both if part in (Code.HOST, Code.LAUNCH) else ns
        for part, ns in parts.items()
    }


def step_bar(summary: Summary) -> Bar | None:
    """Return one step on the busiest GPU: what it does and what it waits for, by the verdict's parts."""
    row, said = subject.ledger_row(summary), summary.verdict
    if row is None or not said.step_ns:
        return None
    parts = step_parts(summary)
    busy, waits = [p for p in parts if not p.idle], sorted((p for p in parts if p.idle), key=lambda p: -p.ns)
    return Bar(f"GPU {row['device']}", said.step_ns, merged([*busy, *waits], said.step_ns))


def _rank_bars(summary: Summary, late: rank_table.RankRow | None) -> tuple[Bar, ...]:
    """Return one bar per rank: its computing, and its wait for another rank.

    Of many, the late rank is among them, or else those that differ most: the ones that wait least and longest.
    """
    rows = list(summary.typed_rows(rank_table.ROWS))
    if len(rows) > MOST_BARS:
        waiting = sorted(rows, key=lambda r: r.get("exposed_wait_ns") or 0)
        ends = {r["rank"] for r in (*waiting[: MOST_BARS // 2], *waiting[-MOST_BARS // 2 :])}
        rows = (
            [*[r for r in rows if r is not late][: MOST_BARS - 1], late]
            if late
            else [r for r in rows if r["rank"] in ends]
        )
    bars = []
    for row in rows:
        of = each(summary, row)
        wait, transfer = row.get("exposed_wait_ns") or 0, row.get("exposed_transfer_ns") or 0
        parts = [
            BarPart("compute", of(row["compute_ns"]), Paint.COMPUTE),
            BarPart("copies", of(row["copy_ns"] + row["memset_ns"]), Paint.COPY),
            BarPart("transfers", of(transfer + max(0, row["comm_ns"] - wait - transfer)), Paint.COMM),
            BarPart(
                f"waiting for rank {late['rank']}" if late is not None and row is not late else "waiting for others",
                of(wait),
                Paint.COMM,
                True,
            ),
            BarPart(Code.HOST_COMM.drawn, of(rank_table.on_host_ns(row)), Code.HOST_COMM.color, True),
            BarPart("idle", of(row["idle_ns"] - rank_table.on_host_ns(row)), Paint.IDLE, True),
        ]
        total = of(row["window_ns"])
        bars.append(Bar(f"rank {row['rank']}", total, merged(parts, total)))
    return tuple(bars)


def _bar_of_largest(sums: list[tuple[str, float]], label: str, rest: str, colors: str = WORK) -> Bar | None:
    """Return a bar of the largest sums; those below 2 %, and what is of no known kind ("other"), go with the rest."""
    total = sum(ns for _, ns in sums)
    named = sorted((e for e in sums if e[0] != "other"), key=lambda e: -e[1])
    top = [(name, ns) for name, ns in named[:MOST_NAMED_PARTS] if ns >= SMALL_PART_SHARE * total]
    if total <= 0 or not top:
        return None
    parts = [BarPart(name, ns, _KNOWN.get(name) or f"{colors}{i}") for i, (name, ns) in enumerate(top)]
    left = total - sum(p.ns for p in parts)
    if left > MOST_UNNAMED_SHARE * total:
        return None
    return Bar(label, total, (*parts, *([BarPart(rest, left, Paint.OTHER)] if left > LEAST_REST_NS else [])))


def _to_shown(summary: Summary) -> float:
    """Return the factor from recorded GPU work to GPU work in the shown step, whose parts are those of the replayed steps."""
    row, step = subject.ledger_row(summary), summary.step.shown_ns
    recorded = each(summary)(row["busy_ns"]) if row is not None and step is not None else 0.0
    busy = sum(p.ns for p in step_parts(summary) if not p.idle)
    return busy / recorded if recorded and busy else 1.0


def module_sums(summary: Summary) -> list[tuple[str, float, list[Row]]]:
    """Return the GPU work of one step by module, repeated modules folded, largest first: label, ns, rows."""
    of, groups = each(summary), dict[str, list[Row]]()
    for row in summary.typed_rows(modules.ROWS):
        if row["self_gpu_ns"]:
            groups.setdefault(folded_path(str(row["path"] or NO_MODULE)), []).append(row)
    sums = [(folded_label(path, rows), of(sum(r["self_gpu_ns"] for r in rows)), rows) for path, rows in groups.items()]
    return sorted(sums, key=lambda e: -e[1])


def _module_bar(summary: Summary) -> Bar | None:
    sums, shown = module_sums(summary), _to_shown(summary)
    return (
        _bar_of_largest([(name, ns * shown) for name, ns, _ in sums], "by module", "other modules", MODULES)
        if len(sums) > 1
        else None
    )


def _opened(summary: Summary, first: Finding) -> Bar | None:
    """Return the GPU work of a mask finding's module, by the operations that its kernels come from."""
    if not first.where.get("module") or not first.cost_ns_per_step:
        return None
    sums, shown = dict[str, float](), _to_shown(summary)
    for row in first.typed_rows(nsx120_mask_work.EVIDENCE):
        if (operation := row.get("from")) and row["total_ns"]:
            sums[operation] = sums.get(operation, 0) + row["total_ns"] * shown
    total = first.cost_ns_per_step * shown
    rest = total - sum(sums.values())
    if rest < -1 or not sums:
        return None
    name = str(first.where["module"])
    # Where the module does nothing but mask work, the bar is the module; else it is only its mask work.
    whole = next((ns for label, ns, _ in module_sums(summary) if label == name), None)
    label = (
        name
        if whole is not None and abs(whole - first.cost_ns_per_step) <= SAME_WORK_SHARE * whole
        else f"masks in {name}"
    )
    parts = [BarPart(k, ns, f"{WORK}{i}") for i, (k, ns) in enumerate(sorted(sums.items(), key=lambda e: -e[1]))]
    return Bar(label, total, merged([*parts, BarPart("the rest of it", max(0.0, rest), Paint.OTHER)], total))


def _family_bar(summary: Summary) -> Bar | None:
    """Return the GPU work of one step by kind."""
    of, shown = each(summary), _to_shown(summary)
    rows = summary.typed_rows(kernel_families.ROWS)
    unknown = sum(r["total_ns"] for r in rows if str(r["family"]) == "other")
    if 2 * unknown > sum(r["total_ns"] for r in rows):
        return _kernel_bar(summary)
    sums = [(FAMILIES.get(r["family"], str(r["family"])), of(r["total_ns"]) * shown) for r in rows]
    return _bar_of_largest(sums, "by kind of work", "other kinds")


def _kernel_bar(summary: Summary) -> Bar | None:
    """Return the GPU work of one step by kernel, for programs whose kernels are of no known kind."""
    of, shown, table = each(summary), _to_shown(summary), summary.tables.get(kernel_limits.KEY)
    if table is None or table.scope is None or not table.scope.steps:
        return None
    sums: dict[str, float] = {}
    for row in table.rows or ():
        # The row of all that is not listed belongs to no kernel.
        name = (
            "other" if str(row["name"]).endswith(f"{kernel_limits.REST})") else kernel_names.computes(str(row["name"]))
        )
        sums[name] = sums.get(name, 0.0) + of(row["total_ns"]) * shown
    bar = _bar_of_largest(list(sums.items()), "by kernel", "other kernels")
    return replace(bar, names="kernel") if bar else None


def _loader_bars(summary: Summary) -> tuple[Bar, ...]:
    """Return single steady steps: how long the GPU waits for the batch of each, and the rest of the step.

    The first ones where each of them waits; else a usual step and those that wait longest, which is what the average is made of.
    """
    steady = [r for r in summary.typed_rows(data_loader.ROWS) if r["steady"] and r["step_ns"]]
    rows = steady[:MOST_BATCH_BARS]
    if not all(r["gpu_idle_ns"] for r in rows):
        usual = sorted(steady, key=lambda r: (r["step_ns"], r["gpu_idle_ns"] or 0))[(len(steady) - 1) // 2]
        longest = sorted((r for r in steady if r is not usual), key=lambda r: -(r["gpu_idle_ns"] or 0))
        rows = sorted([usual, *longest[: MOST_BATCH_BARS - 1]], key=lambda r: r["index"])
    bars = []
    for row in rows:
        wait = min(row["gpu_idle_ns"] or 0, row["step_ns"])
        parts = (
            BarPart("waiting for input data", wait, Paint.DATA, True),
            BarPart("the rest", row["step_ns"] - wait, Paint.OTHER),
        )
        bars.append(Bar(f"step {row['index']}", row["step_ns"], tuple(p for p in parts if p.ns > 0)))
    return tuple(bars)


class _OnDevice(NamedTuple):
    """A step on the device (ns)."""

    gpu_ns: int
    idle_ns: int


def _flush_bars(summary: Summary) -> tuple[Bar, ...]:
    """Return the median step and the step that loses most time to the allocator's cudaFree, by what the GPU does in them."""
    steps = {
        r["index"]: _OnDevice(r["gpu_ns"], r["gpu_idle_ns"] or 0)
        for r in rows_of(summary.steps)
        if r["steady"] and r["gpu_ns"]
    }
    lost: dict[int, int] = {}
    for row in summary.typed_rows(alloc_flushes.ROWS):
        if (index := row["step"]) is not None and index in steps:
            lost[index] = lost.get(index, 0) + (row["idle_caused_ns"] or 0)
    usual = sorted((s for i, s in steps.items() if i not in lost), key=lambda s: s.gpu_ns)
    if not lost or not usual:
        return ()
    worst = max(lost, key=lambda i: lost[i])
    bars = []
    for name, step, ns in (("a usual step", usual[len(usual) // 2], 0), (f"step {worst}", steps[worst], lost[worst])):
        idle = min(ns, step.idle_ns)
        parts = (
            BarPart("busy", step.gpu_ns - step.idle_ns, Paint.COMPUTE),
            BarPart("allocator calls", idle, Paint.ALLOC, True),
            BarPart("other idle time", step.idle_ns - idle, Paint.OTHER, True),
        )
        bars.append(Bar(name, step.gpu_ns, tuple(p for p in parts if p.ns > 0)))
    return tuple(bars)


def _of_all(summary: Summary, bars: Sequence[Bar]) -> str:
    """Return " (8 of 64)" where not every rank of a job has a bar, else ""."""
    count = len(summary.typed_rows(rank_table.ROWS))
    return f" ({len(bars)} of {count:,})" if len(bars) < count else ""


def pictured(summary: Summary, first: Finding | None) -> Picture:
    """Return the picture that shows the cause: the one that the finding's rule asks for, where the capture has what it takes."""
    late = subject.rank_waited_for(summary)
    if late is not None:
        another = summary.step.recorded_ns != summary.step.shown_ns
        ranks = _rank_bars(summary, late)
        return Picture("ranks", f"{RANKS}{_of_all(summary, ranks)}{', as recorded' if another else ''}", ranks)
    asked: str = findings.rule_of(first.code).picture if first else ""
    if summary.steps.source == "capture" and (picture := clock_bars.pictured(summary, first, asked)):
        return picture
    step = step_bar(summary)
    if step is None:
        return Picture("", "", ())
    if summary.steps.whole or summary.steps.source == "capture":
        return Picture("step", f"The GPU {whole_words(summary)}", (step,))
    title, more = "One step on the GPU", tuple[Bar | None, ...]()
    if asked in _SINGLE_STEPS:
        # Single steps are as recorded: beside a step of another length they would say something wrong.
        more = () if summary.step.marked else _SINGLE_STEPS[asked](summary)
        another = summary.step.recorded_ns != summary.step.shown_ns
        title += f"; below, single steps{', as recorded' if another else ''}" if more else ""
    elif ranks := _rank_bars(summary, None):
        recorded = ", as recorded" if summary.step.marked else ""
        return Picture("ranks", f"{RANKS_BELOW}{_of_all(summary, ranks)}{recorded}", (step, *ranks))
    elif (
        summary.verdict.code == StepLimit.GPU
        and sum(p.ns for p in step.parts if not p.idle) >= BUSY_GPU_SHARE * step.total_ns
    ):
        opened = _opened(summary, first) if first is not None and asked == "masks" else None
        asked = "work"
        more = tuple(_overlapping(b, step) for b in (_module_bar(summary), opened or _family_bar(summary)))
    bars = (step, *(b for b in more if b is not None))
    return Picture(asked if len(bars) > 1 else "step", title, bars)


def _overlapping(bar: Bar | None, step: Bar) -> Bar | None:
    """Return a bar of GPU work that says so where it is longer than the GPU works: streams then run at the same time."""
    busy = sum(p.ns for p in step.parts if not p.idle or p.label == "other")
    return (
        replace(bar, label=f"{bar.label}, overlapping") if bar and bar.total_ns > (1 + SAME_WORK_SHARE) * busy else bar
    )


#: Pictures of single steps below the step, by the name with which a rule asks for one (``Rule.picture``).
_SINGLE_STEPS: Mapping[str, Callable[[Summary], tuple[Bar, ...]]] = {"loader": _loader_bars, "flushes": _flush_bars}


def whole_words(summary: Summary) -> str:
    """Return what part of a capture without steps is shown."""
    row, shown = subject.ledger_row(summary), summary.verdict.step_ns
    paused = row is not None and shown is not None and row["window_ns"] > (1 + PAUSED_WINDOW_SHARE) * shown
    return "from its first to its last work" + (", without long pauses" if paused else "")
