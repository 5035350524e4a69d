"""The answer in ten seconds: what limits the step, what to do, what that is worth and how sure it is.

One record, made from a Summary, from which the first screen of the page, the terminal, Markdown and ``--brief`` are drawn, so that
the four never differ. Everything in it is text that is safe to show and numbers in ns of one step; where the step without a
profiler is known, all of them are in that time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nsysx import findings, units
from nsysx.model import Finding, Row, Summary
from nsysx.render.safe_text import clean, file_name, scrub

#: Below this part of the step a saving is no line of its own.
NOTABLE = 0.01
#: A part of a bar below this share is shown with others of its kind.
_SMALL = 0.02
#: Lines under "also found", bars of ranks, modules in a bar.
_READINGS = ("NSX115", "NSX107", "NSX108")
_MOST_ALSO, _MOST_BARS, _MOST_MODULES = 5, 8, 6

#: What the GPU does or waits for, in the words of somebody who writes PyTorch: kind (a colour), label.
BUSY = {
    "compute_ns": ("compute", "computes"),
    "comm_ns": ("comm", "communicates"),
    "copy_ns": ("copy", "copies"),
    "memset_ns": ("memset", "fills memory"),
}
IDLE = {
    "host_code": ("outside", "waits for Python"),
    "launch_latency": ("launch", "waits for launch calls"),
    "sync": ("sync", "waits after a synchronize"),
    "data_loader": ("data", "waits for data"),
    "alloc": ("alloc", "waits for the allocator"),
    "load": ("load", "waits for code to load"),
    "copy_call": ("copy", "waits for a copy call"),
    "other_api": ("other", "waits for other CUDA calls"),
    "profiler": ("profiler", "waits for the profiler"),
    "dependency": ("dependency", "waits for other GPU work"),
    "kernel_gap": ("gap", "pauses between kernels"),
    "untraced_launch": ("idle", "waits for an untraced launch"),
    "no_further_work": ("idle", "has nothing left to do"),
}

#: What to warn of before anything else is read: checks of the capture that make every number doubtful.
_ALARMS = frozenset({"gpu work", "launches without kernel", "lost ranges", "bad times", "exit code"})

#: What makes the cause itself doubtful.
_DOUBTS = _ALARMS | {"diagnostics", "gpu ops without call", "attribution", "replay", "probe ranges"}
#: A real step that is known this closely is no reason for doubt, wherever it is from.
_CLOSE = 0.03

Level = Literal["certain", "likely", "unknown"]
Texts = Callable[[object, int], str]


def _texts(redact: bool) -> Texts:
    """Return what makes a string harmless and at most so many characters long."""

    def text(value: object, limit: int) -> str:
        raw = str(value)[: 4 * limit]
        return clean(scrub(raw) if redact else raw, limit)

    return text


def folded_path(path: str) -> str:
    """Return a name with the numbers of repeated blocks as "*": "blocks.3.attn" and "blocks.7.attn" are one."""
    return re.sub(r"(?<=[A-Za-z_]\.)\d+(?![\w])|(?<![\w.])\d+(?=\.[A-Za-z_])|^\d+$", "*", path)


def _place(where: Row, texts: Texts) -> str:
    """Return a place in the program as text."""
    parts = [texts(where[k], 120) for k in ("module", "phase") if where.get(k)]
    if where.get("file"):
        line = f":{where['line']}" if where.get("line") else ""
        parts.append(f"{texts(file_name(str(where['file'])[:2000], True), 160)}{line}")
    return ", ".join(parts)


def _each(summary: Summary, row: Row | None = None) -> Callable[[float], float]:
    """Return what makes a sum over steps (those of a row, else the shown ones) the part of one of them."""
    scope = summary.steps.scope if row is None else summary.scope_of(row)
    return scope.per_step if scope is not None else float


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: ``idle`` parts are hatched."""

    label: str
    ns: float
    kind: str
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; its parts sum to ``total_ns``."""

    label: str
    total_ns: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Sure:
    """How sure one half of the answer is (``about``), why, and the command that would settle it."""

    about: str
    level: Level
    reason: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Also:
    """Another finding in one line. Savings overlap and must not be added."""

    code: str
    text: str
    saving_ns: int
    bound: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The first screen. ``now_ns`` is the step, ``then_ns`` the step after the change (None: cannot be said in time).

    ``bound``: the change brings at most that. ``real``: times are without the profiler, ``profiled_ns`` is the step as recorded.
    """

    facts: tuple[str, ...]
    sentence: str
    alarms: tuple[str, ...]
    code: str
    do: str
    paste: str
    condition: str
    where: str
    now_ns: int | None
    then_ns: int | None
    bound: bool
    real: bool
    profiled_ns: int | None
    worth: str
    sure: tuple[Sure, ...]
    bars_title: str
    bars: tuple[Bar, ...]
    also: tuple[Also, ...]
    commands: tuple[str, ...]


# ---------------------------------------------------------------- the step


def ledger_row(summary: Summary) -> Row | None:
    """Return the row of the busiest device of the shown process, None without GPU work."""
    rows = summary.rows("gpu_ledger")
    shown = _shown_process(summary)
    mine = [r for r in rows if r["process"] == shown] or list(rows)
    return max(mine, key=lambda r: r["busy_ns"], default=None)


def _shown_process(summary: Summary) -> Any:
    real = summary.unprofiled
    if real is not None:
        return real.process
    rows = summary.rows("gpu_ledger")
    return max(rows, key=lambda r: r["busy_ns"])["process"] if rows else None


def _steady(summary: Summary) -> list[Row]:
    return [r for r in summary.steps.rows if r.get("steady")]


def _recorded_ns(summary: Summary) -> int | None:
    """Return the mean steady step as recorded, on the GPU where it has work; None without steps."""
    if summary.steps.whole or summary.steps.source == "capture":
        return None
    return summary.steps.cpu_mean_ns if summary.steps.gpu_mean_ns is None else summary.steps.gpu_mean_ns


def _facts(summary: Summary, texts: Texts, now: int | None, profiled: int | None) -> tuple[str, ...]:
    gpus = [clean(g.name, 40) for g in summary.capture.gpus if g.name]
    said = [file_name(summary.capture.files[0], True) if summary.capture.files else "report"]
    if len(summary.capture.files) > 1:
        said[0] += f" and {len(summary.capture.files) - 1} more"
    kinds = sorted(set(gpus))
    said += [f"{gpus.count(k)} x {k}" if gpus.count(k) > 1 else k for k in kinds[:2]] or ["no GPU recorded"]
    steady = len(_steady(summary))
    if now is None:
        said.append("no steps found")
        return tuple(texts(s, 80) for s in said)
    said.append(f"{steady} steady of {summary.steps.count} steps")
    if summary.unprofiled is not None:
        said.append(f"about {units.duration(now)} a step ({units.duration(profiled)} under the profiler)")
    else:
        said.append(f"{units.duration(now)} a step under the profiler")
    return tuple(texts(s, 80) for s in said)


# ---------------------------------------------------------------- bars


def _merged(parts: Iterable[Part], total: float) -> tuple[Part, ...]:
    """Return the parts, small idle ones put together and small busy ones put to the largest of their kind's list."""
    shown, rest = [], 0.0
    for part in parts:
        if part.ns <= 0:
            continue
        if part.ns >= _SMALL * total:
            shown.append(part)
        else:
            rest += part.ns
    return (*shown, Part("other", rest, "other")) if rest > 0 else tuple(shown)


def step_bar(summary: Summary) -> Bar | None:
    """Return one step on the busiest GPU: what it does, and what it waits for."""
    row = ledger_row(summary)
    if row is None:
        return None
    real = summary.unprofiled
    each = _each(summary, row)
    causes: Mapping[str, float]
    if real is not None:
        scale = real.gpu_busy_ns / max(1, row["busy_ns"])
        busy = {k: row[k] * scale for k in BUSY}
        causes, total = real.idle_causes, float(real.gpu_busy_ns + real.gpu_idle_ns)
    else:
        busy = {k: each(row[k]) for k in BUSY}
        causes, total = {k: each(v) for k, v in row["idle_causes"].items()}, each(row["window_ns"])
    parts = [Part(label, busy[key], kind) for key, (kind, label) in BUSY.items()]
    idle = [Part(IDLE[c][1], ns, IDLE[c][0], True) for c, ns in causes.items() if c in IDLE]
    idle.sort(key=lambda p: -p.ns)
    device = f"GPU {row['device']}"
    return Bar(device, total, _merged([*parts, *idle], total))


def _rank_bars(summary: Summary) -> tuple[Bar, ...]:
    """Return one bar a rank: what it computes, what it waits for another."""
    bars = []
    for row in summary.rows("ranks")[:_MOST_BARS]:
        each = _each(summary, row)
        wait, transfer = row.get("exposed_wait_ns") or 0, row.get("exposed_transfer_ns") or 0
        other = max(0, row["comm_ns"] - wait - transfer)
        idle = row["idle_ns"]
        parts = [
            Part("computes", each(row["compute_ns"]), "compute"),
            Part("copies", each(row["copy_ns"] + row["memset_ns"]), "copy"),
            Part("transfers", each(transfer + other), "comm"),
            Part("waits for another rank", each(wait), "comm", True),
            Part("idle", each(idle), "outside", True),
        ]
        total = each(row["window_ns"])
        bars.append(Bar(f"rank {row['rank']}", total, _merged(parts, total)))
    return tuple(bars)


def _module_bar(summary: Summary) -> Bar | None:
    """Return the GPU's work of one step by module, largest self time first."""
    each, rows = _each(summary), summary.rows("modules")
    named = [(folded_path(str(r["path"] or "(no module)")), r["self_gpu_ns"] or 0) for r in rows]
    sums: dict[str, float] = {}
    for path, ns in named:
        sums[path] = sums.get(path, 0) + each(ns)
    total = sum(sums.values())
    if total <= 0 or len(sums) < 2:
        return None
    top = sorted(sums.items(), key=lambda e: -e[1])[:_MOST_MODULES]
    parts = [Part(clean(path, 60), ns, f"m{i}") for i, (path, ns) in enumerate(top)]
    rest = total - sum(p.ns for p in parts)
    return Bar("by module", total, (*parts, *([Part("other modules", rest, "other")] if rest > 0 else [])))


def _family_bar(summary: Summary) -> Bar | None:
    """Return the kernels of one step by what they do."""
    each, rows = _each(summary), summary.rows("kernel_families")
    total = each(sum(r["total_ns"] for r in rows))
    if total <= 0:
        return None
    top = sorted(rows, key=lambda r: -r["total_ns"])[:_MOST_MODULES]
    parts = [Part(clean(str(r["family"]), 40), each(r["total_ns"]), f"m{i}") for i, r in enumerate(top)]
    rest = total - sum(p.ns for p in parts)
    return Bar("by kind of work", total, (*parts, *([Part("other kinds", rest, "other")] if rest > 1 else [])))


def _reading_bars(summary: Summary) -> tuple[Bar, ...]:
    """Return, of the kernel that the program times itself, its true time and what each way of timing reads."""
    rows = [r for r in summary.rows("stopwatch") if r.get("both_ns") is not None or r.get("after_ns") is not None]
    own = [r for r in rows if r.get("custom")] or rows
    if not own:
        return _window_bars(summary)
    row = own[0]
    ways = (
        ("kernel itself", "kernel_ns", "compute"),
        ("synchronize before and after", "both_ns", "launch"),
        ("synchronize only before", "before_ns", "outside"),
        ("synchronize only after", "after_ns", "sync"),
        ("no synchronize", "none_ns", "outside"),
    )
    return tuple(Bar(label, row[key], (Part("", row[key], kind),)) for label, key, kind in ways if row.get(key))


def _window_bars(summary: Summary) -> tuple[Bar, ...]:
    """Return each site of cuda.Event windows: what it reads (median), of which kernels."""
    bars = []
    for row in summary.rows("events")[:_MOST_BARS]:
        reading, kernel = row["median_ns"], min(row["kernel_median_ns"] or 0, row["median_ns"])
        parts = (Part("kernels", kernel, "compute"), Part("not kernels", reading - kernel, "launch", True))
        bars.append(Bar(f"event pair {row['site'] + 1}", reading, tuple(p for p in parts if p.ns > 0)))
    return tuple(bars)


def _pictured(summary: Summary) -> tuple[str, tuple[Bar, ...]]:
    """Return the bars that show the cause, with a title."""
    if _waiting_for_rank(summary):
        return "One step, rank by rank", _rank_bars(summary)
    step = step_bar(summary)
    if summary.steps.source == "capture" and (readings := _reading_bars(summary)):
        return "What each way of timing reads", readings
    if step is None:
        return "", ()
    title = "The whole capture on the GPU" if summary.steps.whole else "One step on the GPU"
    busy = sum(p.ns for p in step.parts if not p.idle)
    if busy >= 0.8 * step.total_ns:
        more = (_module_bar(summary), _family_bar(summary))
        return title, (step, *(b for b in more if b is not None))
    return title, (step,)


# ---------------------------------------------------------------- the sentence


def _waiting_for_rank(summary: Summary) -> Row | None:
    """Return the rank that the shown one waits for, where that costs 5 % of the step or more."""
    rows = summary.rows("ranks")
    late = next((r for r in rows if r.get("straggler")), None)
    row = ledger_row(summary)
    mine = next((r for r in rows if row is not None and r["process"] == row["process"]), None)
    if late is None or mine is None or late is mine:
        return None
    wait = mine.get("exposed_wait_ns") or 0
    return late if wait >= 0.05 * mine["window_ns"] else None


def _rank_sentence(summary: Summary, late: Row) -> str:
    row = ledger_row(summary)
    assert row is not None
    mine = next(r for r in summary.rows("ranks") if r["process"] == row["process"])
    each = _each(summary, mine)
    wait, transfer = each(mine["exposed_wait_ns"]), each(mine.get("exposed_transfer_ns") or 0)
    step = each(mine["window_ns"])
    because = {k: v for k, v in (late.get("late_because") or {}).items() if v > 0}
    why = ""
    if because:
        cause, extra = max(because.items(), key=lambda e: e[1])
        doing = {"compute": "computes", "data": "waits for data", "host": "spends in host code"}.get(
            cause, f"spends on {cause}"
        )
        why = f", which {doing} {units.duration(extra)} longer"
    network = " The network is not the problem." if transfer < 0.02 * step else ""
    return f"Rank {mine['rank']} waits {units.duration(wait)} of every {units.duration(step)} for rank {late['rank']}{why}.{network}"


def _sentence(summary: Summary, texts: Texts) -> str:
    late = _waiting_for_rank(summary)
    return _rank_sentence(summary, late) if late else texts(summary.verdict.sentence, 400)


# ---------------------------------------------------------------- the cards


def _ordered(summary: Summary) -> list[Finding]:
    return [f for f in summary.findings or () if f.verdict == "found"]


def _first(summary: Summary, now: int | None) -> Finding | None:
    """Return the finding that the first card is about: what saves most; without savings the first that was found."""
    found = _ordered(summary)
    worth = [f for f in found if now and (f.saving_ns_per_step or 0) >= NOTABLE * now]
    if worth:
        return worth[0]
    if summary.steps.source != "capture":
        return None
    # Without steps it is an experiment with single operations: how they are timed comes first.
    return next((f for f in found if f.code in _READINGS), found[0] if found else None)


def _do(first: Finding | None, summary: Summary, texts: Texts) -> tuple[str, str, str, str]:
    """Return what to do, code to paste, what must hold for it, and where."""
    if first is None:
        row = ledger_row(summary)
        if row is None:
            return "Record a part of the program in which the GPU works.", "", "", ""
        return "Nothing that was looked for saves 1 % of the step. What is left is the GPU work itself.", "", "", ""
    # Code that changes how ranks communicate is no help where one of them works longer.
    paste = first.paste or ("" if _waiting_for_rank(summary) else findings.example(first.code))
    return texts(first.fix or first.title, 400), paste, texts(first.condition, 300), _place(first.where, texts)


def _worth(first: Finding | None, now: int | None, summary: Summary) -> tuple[int | None, str]:
    """Return the step after the change, and what to say of it."""
    if first is None:
        return None, "The modules and kinds of work below say where the time is."
    if now is None:
        return None, first.detail
    saving = first.saving_ns_per_step
    if saving is None:
        return None, first.confidence[:1].upper() + first.confidence[1:]
    return max(0, now - saving), "at best" if first.bound else f"saves {units.duration(saving)} of each step"


_SOURCES: Mapping[str, tuple[Level, str, str]] = {
    "in_process": ("likely", "The step without profiler was measured in the same process.", ""),
    "second_run": ("likely", "The step without profiler was measured in a second run.", ""),
    "modelled": ("likely", "The cost of tracing on this machine is taken out of the step.", "nsysx run --calibrate"),
    "assumed": (
        "unknown",
        "The cost of tracing is taken from a table, not from this machine.",
        "nsysx run --calibrate",
    ),
}


def _sure(summary: Summary, first: Finding | None, texts: Texts) -> tuple[Sure, ...]:
    """Return how sure the cause is, and how sure the size."""
    steady = _steady(summary)
    warned = [c for c in summary.quality if c.status == "warn" and c.check in _DOUBTS]
    busy = [1 - r["gpu_idle_ns"] / r["gpu_ns"] for r in steady if r.get("gpu_ns")]
    if summary.steps.source == "capture":
        cause = Sure(
            "What limits it", "unknown", "No steps were found, so start-up and steady work are not told apart."
        )
    elif len(busy) < 3:
        cause = Sure("What limits it", "likely", f"Only {len(busy)} steady steps with GPU work.")
    else:
        low, high = units.share(min(busy), 1), units.share(max(busy), 1)
        spread = f"GPU busy {low}" if low == high else f"GPU busy {low} to {high}"
        certain: Level = "likely" if warned else "certain"
        more = f" But: {texts(warned[0].detail, 110)}" if warned else ""
        cause = Sure("What limits it", certain, f"{spread} in all {len(busy)} steps, as recorded.{more}")
    if first is None or first.saving_ns_per_step is None:
        return (cause,)
    real = summary.unprofiled
    if real is None:
        return cause, Sure(
            "How much", "unknown", "The step is as long as the profiler made it.", "nsysx run --calibrate"
        )
    level, reason, command = _SOURCES[real.source]
    span = f" {units.duration(real.low_ns)} to {units.duration(real.high_ns)} a step."
    if real.high_ns - real.low_ns <= _CLOSE * real.step_ns:
        level, reason, command = "likely", "Tracing hardly changes this step.", ""
    return cause, Sure("How much", level, reason + span, command)


def _alsos(summary: Summary, first: Finding | None, now: int | None, texts: Texts) -> tuple[Also, ...]:
    """Return the other findings that are worth a line; the same rule in repeated blocks is one line."""
    lines: dict[str, Also] = {}
    for f in _ordered(summary):
        saving = f.saving_ns_per_step or 0
        if f is first or not now or saving < NOTABLE * now or saving < (f.error_ns or 0):
            continue
        text = folded_path(texts(f.title, 110))
        key = f"{f.code} {text}"
        if key not in lines or lines[key].saving_ns < saving:
            lines[key] = Also(f.code, text, saving, f.bound)
    return tuple(sorted(lines.values(), key=lambda a: -a.saving_ns)[:_MOST_ALSO])


def _commands(summary: Summary, first: Finding | None) -> tuple[str, ...]:
    """Return what to ask next."""
    name = file_name(summary.capture.files[0], True) if summary.capture.files else "REPORT"
    said = [f"nsysx explain {first.code}"] if first else []
    if summary.replay is not None:
        said.append(f"nsysx whatif {name}")
    return (*said, f"nsysx report {name} --full", f"nsysx report {name} --html page.html")


def build(summary: Summary, *, redact: bool = True) -> Answer:
    """Return the answer of a Summary. ``redact`` hides what names a person or a machine."""
    texts = _texts(redact)
    profiled = _recorded_ns(summary)
    real = summary.unprofiled
    now = profiled if real is None or profiled is None else real.step_ns
    first = _first(summary, now)
    do, paste, condition, where = _do(first, summary, texts)
    then, worth = _worth(first, now, summary)
    title, bars = _pictured(summary)
    return Answer(
        facts=_facts(summary, texts, now, profiled),
        sentence=_sentence(summary, texts),
        alarms=tuple(texts(c.detail, 200) for c in summary.quality if c.status == "warn" and c.check in _ALARMS),
        code=first.code if first else "",
        do=do,
        paste=paste,
        condition=condition,
        where=where,
        now_ns=now,
        then_ns=then,
        bound=bool(first and first.bound),
        real=real is not None,
        profiled_ns=profiled,
        worth=texts(worth, 300),
        sure=_sure(summary, first, texts),
        bars_title=title,
        bars=bars,
        also=_alsos(summary, first, now, texts),
        commands=_commands(summary, first),
    )
