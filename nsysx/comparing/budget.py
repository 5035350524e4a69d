"""A Summary against a budget: counts first, because they hold on shared runners; times with their noise; waits by site."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from nsysx.analyses import first_calls, memory, modules
from nsysx.analyses import waits as wait_table
from nsysx.catalogue import Call, Cause, DeviceActivity
from nsysx.comparing import difference_intervals, rank_budget
from nsysx.comparing.comparability import doubtful
from nsysx.comparing.comparing_bounds import (
    BUDGET_LEAST_SHARE,
    BUDGET_ROOM_TIMES,
    GPU_DRIFT_SHARE,
    MOST_NAMED_KNOWN,
    SELDOM_CALLS,
    STEP_LEVEL,
)
from nsysx.comparing.side import BlockSeries, Captured
from nsysx.errors import EXIT_BUDGET, EXIT_EMPTY, EXIT_INCONCLUSIVE, EXIT_USAGE, NsysxError
from nsysx.events import families
from nsysx.findings import rules
from nsysx.frames.frame_bounds import PROCESS_DRIFT
from nsysx.frames.statistics import block_length, mean_error

SCHEMA = "nsysx.check/1"
Status = Literal["kept", "broken", "inconclusive", "not_measured"]

#: Kinds of API calls that a count sums.
_KINDS = {
    "launches": (Call.LAUNCH, Call.GRAPH_LAUNCH),
    "syncs": (Call.SYNC,),
    "copies": (Call.COPY,),
    "allocations": (Call.ALLOC, Call.FREE),
}
#: The columns that identify a wait.
_SITE = ("api", "module", "phase", "file", "line")


@dataclass(frozen=True)
class BudgetLine:
    """One line of a budget: ``value`` against ``limit``, and the ``noise`` of the value, all in ``unit``."""

    name: str
    status: Status
    value: float | None
    limit: float | None
    noise: float
    unit: str
    detail: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class BudgetVerdict:
    """All lines of a budget, and the exit code: 0 kept, 1 broken, 5 inconclusive or partly not measured, 4 nothing checked."""

    capture: str
    results: tuple[BudgetLine, ...]
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain JSON values, keys as in the contract `nsysx.check/1`."""
        return {
            "schema": SCHEMA,
            "capture": self.capture,
            "exit_code": self.exit_code,
            "results": [asdict(r) for r in self.results],
        }


def _noise(capture: Captured, series: BlockSeries, drift: float) -> float:
    """Return how far a mean per step may be off (ns): the scatter of steps, and the drift between processes."""
    rows = (series.ns / series.steps)[None, :]
    error, df = mean_error(rows, block_length(rows[0]))
    half = difference_intervals.Doubt(float(error[0]), df, 0.0).half(STEP_LEVEL)
    return (0.0 if half == float("inf") else half) + drift * series.mean_ns


Measured = tuple[float, float] | None


def _count(capture: Captured, name: str) -> Measured:
    kinds = _KINDS.get(name)
    if kinds is None or not capture.series("api"):
        return None
    counted = [s for s in capture.series("api").values() if s.cls in kinds and s.count is not None]
    return float(sum(_usual(s) for s in counted)), 0.0


def _usual(series: BlockSeries) -> int:
    """Return how often something happens in a usual step: what only some steps do (logging) moves no limit.

    It is the median over the blocks of steps; so a capture of fewer steps of the same program has the same figure.
    """
    assert series.count is not None
    return math.floor(float(np.median(series.count / series.steps)) + 0.5)


def _series(part: str, drift: float) -> Callable[[Captured, str], Measured]:
    def get(capture: Captured, name: str) -> Measured:
        if not capture.series(part):
            return None
        series = capture.series(part).get(name)
        return (0.0, 0.0) if series is None else (series.mean_ns / 1e6, _noise(capture, series, drift) / 1e6)

    return get


#: Times that are a part of the step: part of step_parts, and its name there.
_OF_PARTS: Mapping[str, tuple[str, str]] = {
    "step": ("step", "gpu"),
    "gpu_idle": ("ledger", DeviceActivity.IDLE),
    "exposed_comm": ("ledger", DeviceActivity.COMM),
    "exposed_copy": ("ledger", DeviceActivity.COPY),
    "compute": ("ledger", DeviceActivity.COMPUTE),
}


def _time(capture: Captured, name: str) -> Measured:
    if name == "real_step":
        real = capture.summary.unprofiled
        if real is None:
            return None
        return real.step_ns / 1e6, max(abs(end - real.step_ns) for end in (real.low_ns, real.high_ns)) / 1e6
    if name == "first_calls":
        rows = capture.summary.recorded(first_calls.ROWS)
        return None if rows is None else (sum(r.get("one_time_ns") or 0 for r in rows) / 1e6, 0.0)
    part, key = _OF_PARTS.get(name, ("", ""))
    series = capture.series(part).get(key) if part else None
    if series is None:
        return None
    noise = _noise(capture, series, GPU_DRIFT_SHARE)
    if name in ("step", "gpu_idle"):
        noise += PROCESS_DRIFT * capture.series("work")["rest"].mean_ns
    return series.mean_ns / 1e6, noise / 1e6


def _busy(capture: Captured, _: str) -> Measured:
    step, idle = capture.series("step")["gpu"], capture.series("ledger").get(DeviceActivity.IDLE)
    return None if idle is None else (1 - idle.mean_ns / step.mean_ns, 0.0)


def _peak(capture: Captured, _: str) -> Measured:
    rows = capture.summary.recorded(memory.ROWS)
    return None if rows is None else (float(max((r.get("peak_bytes") or 0 for r in rows), default=0)), 0.0)


def _found(capture: Captured, code: str) -> Measured:
    findings = capture.summary.findings
    return None if findings is None else (sum(f.code == code and f.verdict == "found" for f in findings), 0.0)


def _causes(_: Captured) -> list[str]:
    return [cause.value for cause in Cause]


def _families(_: Captured) -> list[str]:
    return [*dict.fromkeys(name for name, _ in families.patterns()), families.OTHER]


def _codes(_: Captured) -> list[str]:
    return [str(rule.RULE.code) for rule in rules()]


def _modules(capture: Captured) -> list[str]:
    """Return the modules that a capture knows, those whose steady steps hold no GPU work included."""
    return [*map(str, capture.series("module")), *(str(r["path"]) for r in capture.summary.typed_rows(modules.ROWS))]


@dataclass(frozen=True)
class _Section:
    """A section of a budget: how its figures are measured, their unit, and their names, if those are not from the report.

    ``known`` gives the names that exist in a capture where ``names`` are not fixed: a limit for any other is a typo, or for
    something that was renamed, and would hold for ever. ``single``: it is one figure. ``least``: the figure has to be at least its
    limit.
    """

    measure: Callable[[Captured, str], Measured]
    unit: str
    names: tuple[str, ...] = ()
    single: bool = False
    least: bool = False
    known: Callable[[Captured], Sequence[str]] | None = None


_SECTIONS: Mapping[str, _Section] = {
    "counts": _Section(_count, "per step", tuple(_KINDS)),
    "times_ms": _Section(_time, "ms", (*_OF_PARTS, "real_step", "first_calls")),
    "idle_ms": _Section(_series("idle", PROCESS_DRIFT), "ms", known=_causes),
    "modules_ms": _Section(_series("module", GPU_DRIFT_SHARE), "ms", known=_modules),
    "families_ms": _Section(_series("family", GPU_DRIFT_SHARE), "ms", known=_families),
    "gpu_busy_min": _Section(_busy, "share", single=True, least=True),
    "peak_memory_bytes": _Section(_peak, "bytes", single=True),
    "ranks_ms": _Section(rank_budget.times, "ms", rank_budget.TIMES),
    "ranks_share": _Section(rank_budget.shares, "share", rank_budget.SHARES),
    "findings": _Section(_found, "found", known=_codes),
}
#: The section of allowed waits, whose rows have these keys.
_ALLOW, _ALLOWED = "allow", (*_SITE, "count")


def _no_limit(section: str, name: str, wanted: object) -> NsysxError:
    message = f"budget: {section}.{name} = {str(wanted)[:40]!r} is neither a number nor a share such as '+5%'"
    return NsysxError(message, slug="bad-budget", exit_code=EXIT_USAGE)


def _limit(section: str, name: str, wanted: object, baseline: Captured | None) -> float | None:
    """Return a limit: a number, or "+5%" over the baseline's figure; None if the baseline does not have it."""
    if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
        if not math.isfinite(wanted):
            raise _no_limit(section, name, wanted)
        return float(wanted)
    text = str(wanted).replace(" ", "")
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else None
    except ValueError:
        share = None
    if share is None or not math.isfinite(share):  # 1e400 is no number either, and nothing would exceed it
        raise _no_limit(section, name, wanted)
    if baseline is None:
        raise NsysxError(
            f"budget: {section}.{name} is relative",
            slug="no-baseline",
            hint="Give --baseline FILE",
            exit_code=EXIT_USAGE,
        )
    base = _SECTIONS[section].measure(baseline, name)
    return None if base is None else base[0] * (1 + share)


def _held(section: str, name: str, measured: Measured, limit: float | None) -> BudgetLine:
    kind = _SECTIONS[section]
    full = section if kind.single else f"{section}.{name}"
    if measured is None or limit is None:
        detail = f"{full}: not in the {'baseline' if measured is not None else 'Summary'}"
        return BudgetLine(full, "not_measured", None, limit, 0.0, kind.unit, detail)
    value, noise = measured
    over = limit - value if kind.least else value - limit
    # Counts are exact; a rounding error is no breach.
    status: Status = "kept" if over <= 1e-6 * max(1.0, abs(limit)) else "broken" if over > noise else "inconclusive"
    words = f"{full}: {value:.6g} {kind.unit}, budget {limit:.6g}"
    if status == "inconclusive":
        words += f"; over by less than the noise of {noise:.3g}: capture again, or several times"
    return BudgetLine(full, status, value, limit, noise, kind.unit, words)


def _matches(allowed: Mapping[str, Any], wait: Mapping[str, Any]) -> bool:
    """Return whether an allowed wait is this one: every column that it names has to agree, a file by its end."""
    for key in _SITE:
        if key not in allowed:
            continue
        if key == "file":
            if not str(wait.get("file") or "").endswith(str(allowed["file"])):
                return False
        elif allowed[key] != (wait.get(key) if wait.get(key) is not None else ""):
            return False
    return True


def lint(capture: Captured, allowed: Sequence[Mapping[str, Any]]) -> list[BudgetLine]:
    """Return one line per wait site: kept if no more often than allowed per step, broken if more often or new."""
    waits = capture.summary.recorded(wait_table.ROWS)
    if waits is None:
        return [BudgetLine("waits", "not_measured", None, None, 0.0, "per step", "waits: not in the Summary")]
    left = [float(a.get("count", 1)) for a in allowed]
    problems = []
    for wait in waits:
        per_step = wait["calls"] / capture.steps
        wait_place = f"{wait['api']}" + (f" in {wait['module']}" if wait.get("module") else "")
        wait_place += f" ({wait['phase']})" if wait.get("phase") else ""
        wait_place += f" at {wait['file']}:{wait['line']}" if wait.get("file") else ""
        excess, met = per_step, False
        for i, a in enumerate(allowed):
            if excess > 0 and _matches(a, wait):
                taken = min(excess, left[i])
                left[i] -= taken
                excess -= taken
                met |= float(a.get("count", 1)) >= 1
        status: Status = "broken" if excess > (SELDOM_CALLS if met else 1e-6) else "kept"
        words = f"{wait_place}: {per_step:.4g} a step" + (
            f", {excess:.4g} of them not allowed" if status == "broken" else ""
        )
        problems.append(
            BudgetLine(
                f"wait {wait_place}",
                status,
                per_step,
                per_step - excess,
                0.0,
                "per step",
                words,
                wait.get("file"),
                wait.get("line"),
            )
        )
    return problems


def _unknown(shown: str, name: str, names: Sequence[str]) -> NsysxError:
    """Return the error for a name that no budget has, with the one that was probably meant."""
    close = difflib.get_close_matches(name, names, n=1)
    several = f"{', '.join(names[:MOST_NAMED_KNOWN])}{' ...' if len(names) > MOST_NAMED_KNOWN else ''}"
    hint = f"Did you mean {close[0]}?" if close else f"Known: {several}"
    return NsysxError(f"budget: {shown} is unknown", slug="bad-budget", hint=hint, exit_code=EXIT_USAGE)


def _sections(budget: Mapping[str, Any]) -> None:
    for key, value in budget.items():
        section = _SECTIONS.get(key)
        if section is None and key != _ALLOW:
            raise _unknown(f"[{key[:40]}]", key, (*_SECTIONS, _ALLOW))
        names = section.names if section else _ALLOWED
        for row in value if isinstance(value, list) else [value]:
            for name in row if names and isinstance(row, Mapping) else ():
                if name not in names:
                    raise _unknown(f"{key}.{name[:40]}", name, names)
        rows = isinstance(value, list) and all(isinstance(a, Mapping) for a in value)
        if not (rows if section is None else isinstance(value, Mapping) is not section.single):
            raise NsysxError(f"budget: {key} has the wrong shape", slug="bad-budget", exit_code=EXIT_USAGE)
    for row in budget.get(_ALLOW, ()):
        count = row.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, (int, float)) or not 0 <= count < math.inf:
            message = f"budget: allow.count = {str(count)[:40]!r} is no number of waits in a step"
            raise NsysxError(message, slug="bad-budget", exit_code=EXIT_USAGE)


def _names_exist(budget: Mapping[str, Any], capture: Captured, baseline: Captured | None) -> None:
    """Raise NsysxError for a limit whose name exists neither in the capture, in the baseline nor in nsysx."""
    for key, section in _SECTIONS.items():
        if section.known is None or not budget.get(key):
            continue
        captures = (capture,) if baseline is None else (capture, baseline)
        existing = [name for c in captures for name in section.known(c)]
        for name in budget[key] if existing else ():
            if name not in existing:
                raise _unknown(f"{key}.{name[:80]}", name, existing)


def check(capture: Captured, budget: Mapping[str, Any], baseline: Captured | None = None) -> BudgetVerdict:
    """Return whether a capture keeps a budget. Raises NsysxError, exit code 2, if the budget is not a valid one."""
    _sections(budget)
    _names_exist(budget, capture, baseline)
    if doubt := doubtful(capture):
        lost = BudgetLine("capture", "not_measured", None, None, 0.0, "", f"the capture is partial: {doubt}")
        return BudgetVerdict(capture.label, (lost,), EXIT_EMPTY)
    results = []
    for section in [s for s in _SECTIONS if s in budget]:
        value = budget[section]
        for name, wanted in value.items() if isinstance(value, Mapping) else [("", value)]:
            limit = _limit(section, name, wanted, baseline)
            results.append(_held(section, name, _SECTIONS[section].measure(capture, name), limit))
    if _ALLOW in budget:
        results += lint(capture, budget[_ALLOW])
    states = {r.status for r in results}
    if not results or states == {"not_measured"}:
        code = EXIT_EMPTY
    else:
        code = EXIT_BUDGET if "broken" in states else EXIT_INCONCLUSIVE if states != {"kept"} else 0
    return BudgetVerdict(capture.label, tuple(results), code)


def _quoted(text: object) -> str:
    safe = "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c) & 0xFFFF:04x}" for c in str(text))
    return f'"{safe}"'


def init(capture: Captured) -> str:
    """Return a budget, as TOML, that this capture keeps: its counts and waits as they are, its times with some headroom."""
    lines = ["# Counts hold on any runner; they are compared exactly.", "[counts]"]
    counts = [(name, got[0]) for name in _KINDS if (got := _count(capture, name)) is not None]
    lines += [f"{name} = {number:g}" for name, number in counts]
    lines += [
        "",
        "# Times as recorded, ms per step, with 5 % headroom or what two captures of one program differ by.",
        "# Compare them only on one kind of machine.",
        "[times_ms]",
    ]
    times = {n: got for n in ("step", "exposed_comm", "exposed_copy") if (got := _time(capture, n)) is not None}
    least = BUDGET_LEAST_SHARE * times["step"][0] if "step" in times else 0.0
    lines += [f"{n} = {max(ms * BUDGET_ROOM_TIMES, ms + noise):.4g}" for n, (ms, noise) in times.items() if ms > least]
    lines += ["", "# Allowed waits, each with its number in a usual step. A new one fails."]
    allowed = capture.summary.typed_rows(wait_table.ROWS)
    for wait in allowed:
        lines += ["[[allow]]", f"api = {_quoted(wait['api'])}"]
        lines += [f"{k} = {_quoted(wait[k])}" for k in ("module", "phase") if wait.get(k)]
        lines += [f"count = {max(1, math.floor(wait['calls'] / capture.steps + 0.5))}", ""]
    if not allowed:
        lines.append("allow = []")
        lines.insert(0, lines.pop())
    return "\n".join(lines) + "\n"
