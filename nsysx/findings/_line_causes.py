"""Why a line of the program holds the CPU, from what an X-ray counts and the probe reads, and what can be done about that.

A line below which the steps themselves run is no place for a change: a trainer's ``fit`` holds the loop. Where most lines of Python that
run in a step are a loop over single items, arrays take their place. One call that takes long is native code, or Python's library: it
can have more threads if a setting holds it to one, else run ahead, beside the GPU's work.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import ids, units
from nsysx.catalogue import Call
from nsysx.events import bare, line_runs
from nsysx.events.activation_lines import activation_lines
from nsysx.events.beat import beat_ns
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_runs import LineRuns
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._cpu_operators import cores_of
from nsysx.findings._finding_bounds import (
    FEW_CALLS,
    FEWEST_CORES_PER_PROCESS,
    LOOPED_RUNS,
    MANY_LINE_RUNS,
    ONE_CALL_SHARE,
)
from nsysx.findings._line_remedies import fix_by_package
from nsysx.model import Row
from nsysx.replay.idle_lines import by_line


class LineCause(NamedTuple):
    """Why a line holds the CPU: what to do, a sentence for the detail, and the function whose loop the line is in ("" for none).

    ``loop``: that function's line of it, -1 for none. ``holds``: a setting is known to hold the call back, which goes before what the
    line's text says. ``beside``: one thread that runs ahead leaves the longer of the call and the rest of the step.
    """

    fix: Fix
    why: str = ""
    looped: str = ""
    loop: int = -1
    holds: bool = False
    beside: bool = False


def encloses(case: Case, line_row: int) -> bool:
    """Return whether whole steps run below a line: it holds the loop, so nothing can be done about the line."""
    return bool(case.profile.once(line_runs.of_lines).encloses[line_row])


def of_line(case: Case, code: CodeLines, line_row: int, text: str, below: str, launches: float) -> LineCause | None:
    """Return why a line holds the CPU, None where nothing of this explains it.

    ``below``: the file of a package in which most of its time is, "" for none; ``launches``: those that it makes in a step.
    """
    runs = case.profile.once(line_runs.of_lines)
    stopped = _stopped(case)
    looped = _loop_of(code, runs, line_row)
    if looped >= 0 and not below and launches * 2 * LOOPED_RUNS < runs.runs[line_row]:
        # A loop over layers or micro-batches works by its launches, however many lines it runs: there is no array of its items.
        within = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))["call"].to_numpy()
        launched = int(code.passing(code.call[within], frozenset({looped})).sum()) / case.steps
        if launched * 2 * LOOPED_RUNS < runs.runs[looped] + runs.below[looped]:
            return _vectorized(code, runs, looped, stopped)
    # A loop within one line is none of its runs.
    if runs.long_share[line_row] < ONE_CALL_SHARE or runs.runs[line_row] > FEW_CALLS or re.search(r"\bfor\b", text):
        return None
    settings = settings_of(case.profile)
    held = _held_to_one_thread(settings, f"{text} {below}") if settings else None
    if held is not None:
        return held
    if below or launches >= 1:
        return None
    often = units.several(max(1, round(runs.runs[line_row])), "call")
    fix = Fix.by_name("call-ahead")
    library = next((a for a in _LIBRARIES if re.search(a.calls, f"{text} {below}")), None)
    if library is not None:
        switch = library.variables[0][0]
        fix = fix.but(text=f"{fix.text}; or let {library.name} use its threads, if {switch} holds it to few")
    return LineCause(fix, f" It is {often} into native code or Python's library.", beside=True)


def of_no_parameters(case: Case, line_row: int, text: str, fix: Fix) -> bool:
    """Return whether advice for gradients of parameters, or for metrics, does not hold for a line that sends those of activations."""
    names, lines_of = {each.name for each in fix.ways}, activation_lines(case.profile)
    if line_row in lines_of.backward:
        return not names.isdisjoint(("gradients-in-buckets", "collective-rarely"))
    return line_row in lines_of.forward and "gradients-in-buckets" in names and "grad" not in text


def beat_of(case: Case) -> float | None:
    """Return the beat of the steps without the profiler (ns), None where they keep to none."""
    record: Row = next(iter(ids.records_of(case.profile.trace.capture.probe, case.process)), {})
    beats = [beat_ns(lengths) for lengths in (bare.lengths(record), bare.after(record, case.profile.trace.capture))]
    return next((beat for beat in beats if beat is not None), None)


def in_loop(case: Case, code: CodeLines, line_row: int, outer: int) -> bool:
    """Return whether a line runs in the long loop of another one: below that, or beside it, as often, in its function."""
    runs, (file, _, function) = case.profile.once(line_runs.of_lines), code.places.row(outer)
    own_file, _, own_function = code.places.row(line_row)
    if (own_file, own_function) == (file, function):
        return bool(2 * runs.runs[line_row] >= runs.runs[outer])
    return _loop_of(code, runs, line_row) == outer


def _loop_of(code: CodeLines, runs: LineRuns, line_row: int) -> int:
    """Return the outermost line that runs several times in a step and that a line is, or runs below, if that is a long loop, else -1."""
    stacks = np.flatnonzero((code.place == line_row) & (code.own == np.arange(len(code.own))))
    chain = code.chain(int(stacks[0])) if len(stacks) else []
    outer = next((row for row in chain if runs.runs[row] >= LOOPED_RUNS and not runs.encloses[row]), -1)
    return outer if outer >= 0 and runs.runs[outer] + runs.below[outer] >= MANY_LINE_RUNS else -1


def _vectorized(code: CodeLines, runs: LineRuns, outer: int, stopped: bool) -> LineCause:
    function = str(code.places["function"][outer])
    lines = units.count(round(runs.runs[outer] + runs.below[outer]))
    least = "at least " if stopped else ""
    text = (
        f"Do this for all items at once, by one call of numpy or torch over arrays: {function} runs {least}{lines} lines of Python in each "
        "step, for one item at a time"
    )
    fix = Fix.by_name(way("vectorized", text))
    # Whether it works on the batch is not known: what returns the same in all steps that were looked at is told elsewhere.
    fix = fix.but(condition=f"{fix.condition} If it makes the same in each step, make it once instead, and keep it.")
    return LineCause(fix, looped=function, loop=outer)


def _stopped(case: Case) -> bool:
    """Return whether the X-ray stopped within a step, so that its counts are the least."""
    return any(
        (p.get("xray") or {}).get("stopped")
        for p in case.profile.trace.capture.probe
        if isinstance(p.get("xray"), dict)
    )


#: What an off switch looks like, to the libraries below.
_OFF = ("0", "false", "off", "no", "f", "n")


class _Library(NamedTuple):
    """A library with threads of its own: what its calls look like, variables that hold it to one thread, by their values, and its lines."""

    name: str
    calls: str
    variables: tuple[tuple[str, tuple[str, ...]], ...]
    setting: str = ""  # of the processors: threads that it says it has
    paste: str = ""


_LIBRARIES = (
    _Library(
        "tokenizers",
        r"(?i)\bencode_batch\w*\(|\bbatch_encode\w*\(|tokeniz|\btok\(",
        (("TOKENIZERS_PARALLELISM", _OFF), ("RAYON_NUM_THREADS", ("1",)), ("RAYON_RS_NUM_CPUS", ("1",))),
    ),
    _Library("OpenCV", r"\bcv2\b", (("OPENCV_FOR_THREADS_NUM", ("0", "1")),), "opencv_threads", "cv2.setNumThreads({cores})"),
    _Library(
        "numpy",
        r"\b(np|numpy|scipy|sklearn)\b.*\b(linalg|dot|matmul|einsum|svd|eig\w*|solve|lstsq|fit\w*|cdist)\b|^numpy/linalg|^scipy/|^sklearn/",
        (("OPENBLAS_NUM_THREADS", ("1",)), ("MKL_NUM_THREADS", ("1",)), ("OMP_NUM_THREADS", ("1",))),
    ),
    _Library("numexpr", r"\bnumexpr\b|\bne\.evaluate\(", (("NUMEXPR_NUM_THREADS", ("1",)), ("NUMEXPR_MAX_THREADS", ("1",)))),
    _Library("numba", r"\bnumba\b|\bprange\b", (("NUMBA_NUM_THREADS", ("1",)),)),
    _Library("polars", r"\bpl\.\w|^polars/", (("POLARS_MAX_THREADS", ("1",)),)),
)  # fmt: skip


def _held_to_one_thread(settings: RecordedSettings, calls: str) -> LineCause | None:
    """Return the advice where a setting holds the library of a call to one thread although more cores are there."""
    cores = cores_of(settings)
    if cores < FEWEST_CORES_PER_PROCESS:
        return None
    for library in _LIBRARIES:
        if not re.search(library.calls, calls):
            continue
        for name, values in library.variables:
            value = settings.variable(name)
            if value.lower() in values:
                better = "true" if value.lower() in _OFF[1:] else str(cores)
                text = (
                    f"Set {name}={better}, or leave it out: {name}={value} holds {library.name} to one of {cores} cores"
                )
                paste = f'os.environ["{name}"] = "{better}"  # before {library.name} is first used'
                return LineCause(Fix.by_name(way("threads-of-library", text, paste)), holds=True)
        if library.setting and settings.cpu(library.setting) == 1:
            paste = library.paste.format(cores=cores)
            text = f"Let {library.name} use its threads ({paste}): it has 1, and there are {cores} cores"
            return LineCause(Fix.by_name(way("threads-of-library", text, paste)), holds=True)
    return None


class InPackages(NamedTuple):
    """What of a line's host code is spent in packages. ``file``: where most of all its time is, "" if the line itself has that.

    ``fix`` and ``share``: what can be done about most of what something can be done about, and the share of the line's time of that.
    """

    file: str = ""
    fix: Fix | None = None
    share: float = 0.0


#: A file of an installed package, below the folder of packages.
_INSTALLED = re.compile(r"(?:site|dist)-packages/(.*)$")


def in_packages(case: Case, code: CodeLines, line_row: int) -> InPackages:
    """Return what of a line's host code is spent in packages: by the outermost function of each stack for which something can be done."""
    rows = by_line(case.profile).filter(pl.col("place") == line_row, pl.col("host"), pl.col("stack") >= 0)
    whole = float(rows["real_ns"].sum())
    of_fix: dict[Fix, float] = {}
    of_package: dict[str, dict[str, float]] = {}
    for stack, ns in rows.group_by("stack").agg(pl.col("real_ns").sum()).sort("stack").iter_rows():
        inner = _INSTALLED.search(str(code.places["file"][int(code.place[stack])]))
        if inner:
            files = of_package.setdefault(inner[1].partition("/")[0], {})
            files[inner[1]] = files.get(inner[1], 0.0) + ns
        fix = _outermost(code, int(stack))
        if fix is not None:
            of_fix[fix] = of_fix.get(fix, 0.0) + ns
    files = max(of_package.values(), key=lambda files: sum(files.values()), default={})
    file = max(files, key=lambda file: files[file]) if 2 * sum(files.values()) >= max(whole, 1.0) else ""
    most = max(of_fix, key=lambda fix: of_fix[fix], default=None)
    return InPackages(file) if most is None else InPackages(file, most, of_fix[most] / max(whole, 1.0))


def _outermost(code: CodeLines, stack: int) -> Fix | None:
    """Return what can be done about the outermost function of a package below the program's own line, None where that is not known."""
    above = int(code.own[stack])
    called = code.places[code.chain(stack)[len(code.chain(above)) if above >= 0 else 0 :]]
    installed = ((_INSTALLED.search(str(file)), function) for file, function in called["file", "function"].iter_rows())
    fixes = (fix_by_package(f"{match[1]}:{function}") for match, function in installed if match)
    return next((fix for fix in fixes if fix is not None), None)
