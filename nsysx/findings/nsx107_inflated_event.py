"""NSX107 inflated-event: a torch.cuda.Event pair reads more than the kernels between its records took.

What it means
    elapsed_time is the time between two points of a stream, not the time of kernels. If the stream is empty at the first
    record, the window includes the CPU's launch time; copies inside it count; work on other streams can delay it.

In the trace
    Between the two records the stream is empty until the launch arrives ("launch wait"), or a copy runs.

Bad
    start.record(); y = F.linear(x.cuda(), w.cuda()); end.record()

Good
    x, w = x.cuda(), w.cuda()
    for _ in range(10): F.linear(x, w)                # first calls out of the way
    torch.cuda._sleep(1_000_000)                      # keeps the stream busy while the CPU launches
    start.record(); y = F.linear(x, w); end.record()
    # or: torch.utils.benchmark.Timer(...).blocked_autorange()

Harmless when
    The window is long compared with its idle parts, or you want the time of the whole sequence, launches included.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses import event_windows, events
from nsysx.analyses.event_windows import parts_of
from nsysx.analyses.helpers import event_makers
from nsysx.findings._case import NO_SAVING, Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import ALIKE_PLACES_SHARE, INFLATED_READING_SHARE, MOST_EVENT_PLACES
from nsysx.findings._found import Found
from nsysx.findings._names import mostly
from nsysx.findings._once import Takes
from nsysx.model import Finding, Row

RULE = Rule("NSX107", "inflated-event", "Inflated cuda.Event windows", about="timing", picture="windows", reading=True)
_FIX = Fix.by_name("busy-windows")
#: What stands between the kernels of a window while no launch has arrived.
AT_LAUNCH = "waiting for the CPU to launch"
_PARTS = {
    "copy_ns": "copies",
    "memset_ns": "memsets",
    "launch_wait_ns": AT_LAUNCH,
    "other_streams_ns": "work of other streams",
    "idle_ns": "start latency and dependencies",
}


def _usual_readings(case: Case, row: events.EventRow) -> tuple[str, dict[str, int]]:
    """Return what to call the usual readings of a place, and their parts (ns): of the median, which the title says, or the sums."""
    windows = (
        []
        if case.missing("event_windows")
        else [w for w in case.typed_rows(event_windows.ROWS) if w["site"] == row["site"]]
    )
    if len(windows) != row["windows"] or len(windows) < 2:
        return "event time", parts_of(row)
    by_length = sorted(windows, key=lambda w: int(w["reading_ns"]))
    middle = {(len(windows) - 1) // 2, len(windows) // 2}  # of an even number, the two in the middle
    return "median event time", {
        k: sum(parts_of(by_length[i])[k] for i in middle) // len(middle) for k in parts_of(row)
    }


def _in_turn(case: Case, row: events.EventRow) -> list[events.EventRow]:
    """Return the places that this place's loop times in turn, in order; none if it times only one, or different kernels."""
    rows = [r for r in case.typed_rows(events.ROWS) if row["turns"] and r["loop"] == row["loop"]]
    kernels = [r["kernel_median_ns"] for r in rows]
    alike = len(rows) == row["turns"] and max(kernels) <= (1 + ALIKE_PLACES_SHARE) * min(kernels)
    return sorted(rows, key=lambda r: r["turn"] or 0) if alike else []


def _divided(case: Case, row: events.EventRow) -> tuple[str, dict[str, int], str]:
    """Return which readings of a place are usual, their parts (ns), and the shares of the parts in words."""
    which, usual = _usual_readings(case, row)
    others = sorted(((usual[k], k) for k in _PARTS), reverse=True)
    whole = usual["kernel_ns"] + sum(ns for ns, _ in others)
    shares = ", ".join(f"{units.share(ns, whole)} {_PARTS[k]}" for ns, k in others if ns * 20 >= whole)
    more = f" (the rest: {shares})" if shares else ""
    return which, usual, f"kernels are {units.share(usual['kernel_ns'], whole)} of the {which}{more}"


def _finding(case: Case, row: events.EventRow, turns: list[events.EventRow]) -> Finding:
    kernel = units.duration(row["kernel_median_ns"])
    _, _, shares = _divided(case, row)
    title = f"cuda.Event reads {units.duration(row['median_ns'])}, the kernels take {kernel}"
    first = "the first most" if row["first_ns"] == row["max_ns"] else f"the first {units.duration(row['first_ns'])}"
    detail = (
        f"A window with only the kernels reads about {kernel}; these {row['windows']}{case.in_module(row)} read "
        f"{units.duration(row['min_ns'])} to {units.duration(row['max_ns'])}, {first}."
    )
    because = f"{shares[:1].upper()}{shares[1:]}."
    if turns:
        read = [units.duration(r["median_ns"]) for r in turns]
        title = f"cuda.Event reads {', '.join(read[:-1])} and {read[-1]} in turn, the same kernels take {kernel}"
        detail = (
            f"A window with only the kernels reads about {kernel}; the {row['windows']} at {_call_site(row)} read "
            f"{units.duration(row['min_ns'])} to {units.duration(row['max_ns'])}, {first}."
        )
        because = f"At {_call_site(row)}, {shares}."
    evidence = [row for window_row in turns or [row] for row in _evidence(case, window_row)]
    inside = _kernels_between_events(case, row)
    return Found(
        RULE,
        title,
        detail,
        worth=NO_SAVING,
        cost_ns=None,
        where=row if row["module"] else _timed(case, inside),
        fix=_FIX,
        evidence=evidence,
        because=because,
        takes=Takes(ops_of(inside)),
    ).as_finding(case)


def _timed(case: Case, inside: pl.DataFrame) -> Row:
    """Return the kernel that most of the time between the events of a place is, for one outside of all modules."""
    most = mostly(case.profile, inside)
    return {**most, "near": f"around {most['near']}"} if "near" in most else most


def _kernels_between_events(case: Case, row: events.EventRow) -> pl.DataFrame:
    """Return the kernels between the events of a place."""
    windows = [] if case.missing("event_windows") else case.typed_rows(event_windows.ROWS)
    spans = [(w["start_ns"], w["start_ns"] + w["reading_ns"]) for w in windows if w["site"] == row["site"]]
    within = pl.any_horizontal(pl.col("start_ns").is_between(a, b) for a, b in spans) if spans else pl.lit(value=False)
    return case.kernels.filter(case.kernels["op"].is_in(case.ops.filter(within)["op"].implode()))


def _evidence(case: Case, window_row: events.EventRow) -> list[Row]:
    """Return the parts of a place's usual readings: the kernels, then the others, largest first."""
    _, usual, _ = _divided(case, window_row)
    named = {"place": _call_site(window_row)} if window_row["turns"] else {}
    others = sorted(_PARTS, key=lambda k: -usual[k])
    parts = [("kernels", usual["kernel_ns"]), *((_PARTS[k], usual[k]) for k in others if usual[k])]
    return [{**named, "part": part, "ns": ns} for part, ns in parts]


def _call_site(row: events.EventRow) -> str:
    """Return the turn of a place in its loop: call site 2."""
    return f"call site {row['turn'] or 0}"


def check(case: Case) -> list[Finding]:
    """Return a finding per place whose event pairs read 10 % or more above the kernels inside."""
    if missing := case.missing("events"):
        if case.profile.recorded("event"):
            return case.clear(RULE, "the program reads no pair of events")
        return case.cannot_tell(RULE, missing)
    findings: list[Finding] = []
    rows = [row for row in case.typed_rows(events.ROWS) if row["made_by"] == event_makers.PROGRAM]
    if not rows:
        return case.clear(
            RULE,
            "only PyTorch itself uses events here: its wrapper of the ranks, or operators and compilers that choose their fastest kernel",
        )
    told: set[int] = set()
    for row in rows:
        if (
            row["verdict"] == "kernel"
            or not row["kernel_ns"]
            or len(findings) == MOST_EVENT_PLACES
            or row["site"] in told
        ):
            continue
        # One window can inflate a sum; what people read is the usual window.
        if row["median_ns"] < (1 + INFLATED_READING_SHARE) * row["kernel_median_ns"]:
            continue
        turns = _in_turn(case, row)
        told |= {r["site"] for r in turns}
        findings.append(_finding(case, row, turns))
    return findings or case.clear(RULE, "every event pair reads within 10 % of the kernels inside")
