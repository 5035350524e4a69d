"""NSX123 python-line: one line of Python runs while the GPU has nothing to do.

What it means
    While the GPU idled for host code, the program was at this line: the X-ray of `nsysx run` noted it, or samples of Python's stack are
    on it again and again. The line costs the idle time that it explains, not the time that it takes: while the GPU is busy it costs
    nothing. A line that mostly launches kernels is not told here: its cost is its launches. Where its time goes to operators of torch
    on the CPU, and torch has one thread although there are many cores (torchrun's default unless OMP_NUM_THREADS is set), more threads
    are advised. Lines whose results no gradient needs, such as metrics of each step, cost their launches and waits, too. What another
    thread runs in Python costs as well: only one thread of a process runs Python at a time. The X-ray counts how often lines run.
    Thousands of runs in a step are a loop over single items, which operations on arrays replace. One run of a millisecond or more is
    one call of native code or of Python's library: it can run ahead, or have more threads where an environment variable holds it to
    one. A cache whose test asks for another key than its entries are stored under is told with all that it makes again, and so is a
    function that returned the same in each step of the X-ray. A metric that the host makes in each step from large copies is told with
    these copies and their waits, where what it makes stays on the host. A line that holds the loop of steps, such as a trainer's fit, is
    told only with what its callbacks and loggers cost.

In the trace
    Gaps on the GPU with no CUDA call on the launching thread, and this line in the X-ray or in the Python samples of that time.

Bad
    for batch in loader:
        batch = augment(batch)                         # 2 ms of Python before each forward
        loss = step(batch)

Good
    loader = DataLoader(AugmentedData(), num_workers=8)  # in the workers, while the GPU is busy

Harmless when
    The GPU has work queued while the line runs.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import units
from nsysx.analyses import host_lines
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import sampled_stacks
from nsysx.events.host_pieces import CAUSES
from nsysx.events.sampled_lines import interval, known_lines
from nsysx.findings._case import Case, Fix, Rule, way
from nsysx.findings._finding_bounds import FEWEST_LINE_SAMPLES, MOST_PYTHON_LINES
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding

RULE = Rule(
    "NSX123",
    "python-line",
    "Python lines that the GPU waits for",
    cause=(StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC),
    about=StepLimit.LAUNCH,
    leads=True,
    tries=("gc-freeze",),
    rests_on="The host was seen at this line",
)
REQUIRES = ("steps",)
_PLACE = ["file", "line", "function"]
#: What to do about a line, by the framework function that runs below it; the first match counts.
_FIXES = (
    (
        r"^torch/utils/data/",
        Fix.by_name(
            way("loader-workers-8", "Let DataLoader workers do it: num_workers=8, persistent_workers=True", "", "")
        ),
    ),
    (
        r"^torch/optim/(?!.*:_fused)",
        Fix.listed(
            "",
            (("fused", "Give the optimizer fused=True"), ("cuda-graph", "capture the step in a CUDA graph")),
            ", or ",
        ),
    ),
    (
        r"^torch/",
        Fix.listed(
            "Use fewer, larger operations: ",
            (("compile", "torch.compile(model)"), ("cuda-graph", "capture the step in a CUDA graph")),
            ", or ",
        ),
    ),
)
_FIX = Fix("Move this work out of the loop, into another process, or onto the GPU")


def _costs(case: Case) -> pl.DataFrame:
    """Return the samples in host code with their place, and the idle time of each: ns (as recorded), real_ns (untraced)."""
    lines = known_lines(case.profile)
    assert lines is not None
    host = case.idle.filter(case.idle["cause"] == CAUSES["idle_ns"])
    # Part of each gap is due to tracing; the line gets the rest.
    left = host.group_by("op").agg((pl.col("real_ns").sum() / pl.col("ns").sum().clip(1)).alias("_left"))
    seen = lines.seen.filter(lines.seen["cause"] == CAUSES["idle_ns"]).join(
        left, on="op", how="left", maintain_order="left"
    )
    places = lines.places.places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    seen = seen.join(places, on="place", how="left", maintain_order="left")
    return seen.with_columns(real_ns=pl.col("ns") * pl.col("_left").fill_null(1.0))


def _most(seen: pl.DataFrame, column: str) -> tuple[str | None, float]:
    """Return the value of a column that most of the time goes to, and its share of the time."""
    parts = (
        seen.group_by(column)
        .agg(pl.col("real_ns").sum())
        .sort("real_ns", column, descending=[True, False], nulls_last=True)
    )
    whole = float(parts["real_ns"].sum())
    return parts[column].item(0), float(parts["real_ns"].item(0)) / whole if whole else 0.0


def _finding(case: Case, seen: pl.DataFrame, samples: int) -> Finding | None:
    """Return the finding about one line, None where it costs too little. ``samples``: how many all lines have together."""
    cost = min(case.per_step(float(seen["real_ns"].sum())), case.taken_by(RULE.cause))
    if not case.notable(cost):
        return None
    file, line, function = seen.select(_PLACE).row(0)
    (module, _), (phase, _), (framework, part) = (_most(seen, c) for c in ("module", "phase", "framework"))
    where = {"module": module, "phase": phase, "file": file, "line": line}
    line_text = sampled_stacks.spoken(file, line, function)
    worth = case.bound(cost, "the time the GPU idles while this line runs")
    n = len(seen)
    # As sure as the line's share of all samples.
    parts = pl.DataFrame({"n": [n], "of": [samples], "whole": [round(cost * samples / n)]})
    low, high = parts.select(interval(pl.col("n") / pl.col("of"), pl.col("of"), pl.col("whole"))).row(0)
    detail = (
        f"{units.count(n)} of the {units.count(samples)} samples taken while the GPU idled for host code are on this line: "
        f"{units.duration(low)} to {units.duration(high)} {case.per} (95 % interval)."
    )
    if framework is not None:
        detail += f" {units.share(part, 1)} of its time is spent in {framework}."
    before = f" before work{case.in_module(where)}" if case.in_module(where) else ""
    title = f"{line_text} runs{before} while the GPU idles: {units.duration(cost)} {case.per}"
    fix = next((text for pattern, text in _FIXES if re.search(pattern, framework or "")), _FIX)
    takes = Takes(idle=_share_of_gaps(case, seen))
    return Found(RULE, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, takes=takes).as_finding(case)


def _share_of_gaps(case: Case, seen: pl.DataFrame) -> npt.NDArray[np.float64]:
    """Return which share of each piece of idle time the samples of a line stand for."""
    host = pl.when(pl.col("cause") == CAUSES["idle_ns"]).then("real_ns").otherwise(0)
    gaps = case.idle.select("op", host_ns=host).with_columns(whole=pl.col("host_ns").sum().over("op"))
    of_line = gaps.join(
        seen.group_by("op").agg(pl.col("real_ns").sum().alias("line")), on="op", how="left", maintain_order="left"
    )
    share = pl.when(pl.col("host_ns") > 0).then((pl.col("line") / pl.col("whole")).clip(0.0, 1.0)).otherwise(0.0)
    return of_line.select(share.fill_null(0.0)).to_series().to_numpy()


_NONE = "no line of Python lets the GPU idle for 1 % of the step"


def _of_xray(case: Case) -> list[Finding]:
    """Return the findings about lines that an X-ray noted, and about what makes them slow."""
    # A dozen files, which no other report needs.
    from nsysx.findings import (
        _built_kernels,
        _graphed_rounds,
        _line_remedies,
        _looped_parameters,
        _noted,
        _other_threads,
        _recorded_graphs,
    )

    others = _other_threads.findings_of(case, RULE)
    lines = _looped_parameters.but_told(case, _noted.found(case, RULE))
    if others:  # why a line of which nothing else is known is slow
        lines = [f for f in lines if f.remedies not in [fix.ways for fix in _line_remedies.NOT_KNOWN]]
    told = any(_built_kernels.SAME.intersection(f.remedies) for f in lines)
    built = [] if told else _built_kernels.findings_of(case, RULE)
    graphs = [*_recorded_graphs.findings_of(case, RULE), *_graphed_rounds.findings_of(case, RULE)]
    return [*others, *built, *graphs, *lines]


def check(case: Case) -> list[Finding]:
    """Return a finding for each of the costliest lines that cost 1 % of the step or more."""
    if case.profile.code() is None and (reason := case.missing(host_lines.KEY)):
        return case.cannot_tell(RULE, reason)
    if case.device is None:
        return case.cannot_tell(RULE, "the steady steps hold no GPU work")
    if case.profile.code() is not None:
        return _of_xray(case) or case.clear(RULE, _NONE)
    seen = _costs(case)
    if seen.height < FEWEST_LINE_SAMPLES:
        return case.clear(
            RULE,
            f"only {units.several(seen.height, 'sample')} in host code that the GPU waits for: too few to name a line",
        )
    by_line = seen.group_by(_PLACE).agg(pl.len(), pl.col("real_ns").sum()).filter(pl.col("len") >= FEWEST_LINE_SAMPLES)
    by_line = by_line.sort("real_ns", *_PLACE, descending=[True, False, False, False], nulls_last=True)
    findings = []
    for file, line, function, *_ in by_line.head(MOST_PYTHON_LINES).iter_rows():
        same_line = (
            (pl.col("file") == file)
            & (pl.col("function") == function)
            & pl.col("line").eq_missing(pl.lit(line, pl.Int64))
        )
        finding = _finding(case, seen.filter(same_line), seen.height)
        findings += [finding] if finding else []
    return findings or case.clear(RULE, _NONE)
