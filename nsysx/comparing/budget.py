"""A Summary against a budget: counts first, because they hold on shared runners; times with their noise; waits by site."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nsysx import units
from nsysx.analyses import waits as wait_table
from nsysx.comparing.budget_sections import API_COUNTS, SECTIONS, Measured, api_count, part_time
from nsysx.comparing.comparability import doubtful
from nsysx.comparing.comparing_bounds import (
    BUDGET_LEAST_SHARE,
    BUDGET_ROOM_TIMES,
    MOST_NAMED_KNOWN,
    SELDOM_CALLS,
)
from nsysx.comparing.side import Captured
from nsysx.errors import EXIT_BUDGET, EXIT_EMPTY, EXIT_INCONCLUSIVE, EXIT_USAGE, NsysxError

SCHEMA = "nsysx.check/1"
Status = Literal["kept", "broken", "inconclusive", "not_measured"]

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
    base = SECTIONS[section].measure(baseline, name)
    return None if base is None else base[0] * (1 + share)


def _line_of_limit(section: str, name: str, measured: Measured, limit: float | None) -> BudgetLine:
    kind = SECTIONS[section]
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
        section = SECTIONS.get(key)
        if section is None and key != _ALLOW:
            raise _unknown(f"[{key[:40]}]", key, (*SECTIONS, _ALLOW))
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
    for key, section in SECTIONS.items():
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
    for section in [s for s in SECTIONS if s in budget]:
        value = budget[section]
        for name, wanted in value.items() if isinstance(value, Mapping) else [("", value)]:
            limit = _limit(section, name, wanted, baseline)
            results.append(_line_of_limit(section, name, SECTIONS[section].measure(capture, name), limit))
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
    room = units.bound(BUDGET_ROOM_TIMES - 1)
    counts = [(name, got[0]) for name in API_COUNTS if (got := api_count(capture, name)) is not None]
    lines += [f"{name} = {number:g}" for name, number in counts]
    lines += [
        "",
        f"# Times as recorded, ms per step, with {room} headroom or what two captures of one program differ by.",
        "# Compare them only on one kind of machine.",
        "[times_ms]",
    ]
    times = {n: got for n in ("step", "exposed_comm", "exposed_copy") if (got := part_time(capture, n)) is not None}
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
