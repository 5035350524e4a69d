"""The parts of a window, what limits it and what is said beside it, against slow references on random small frames."""

from __future__ import annotations

import random
import statistics
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import units
from nsysx.catalogue import Call, Cause, DeviceActivity, StepLimit, StepPart
from nsysx.events.ledger import CLASSES
from nsysx.frames.intervals import StepFunction, coverage
from nsysx.judging import (
    capture_checks,
    idle_parts,
    limit_causes,
    limit_words,
    limits,
    line_of_most,
    other_work,
    program,
    sample_checks,
    step_passes,
    verdict,
    waiting,
    window_checks,
)
from nsysx.judging.judging_bounds import (
    GPU_IS_LIMIT_SHARE,
    LIMITING_SHARE,
    LONG_STEP_TIMES,
    MUCH_UNSAMPLED_SHARE,
    NOTABLE_PART_SHARE,
    OTHER_PART_PAUSE_NS,
    SAME_STEP_SHARE,
)
from nsysx.judging.limits import WindowLimits
from nsysx.model import Row
from tests.judging.test_populations import NO_RANGES
from tests.random_tables import always, asked, columns, covered, grouped, last_null, profile, rounds, rows

PROCESS, OTHER = 7, 8
MS = 1_000_000


def limits_of(source: random.Random, **changes: Any) -> WindowLimits:
    """Return the limits of a window with some random parts; a quarter of them is about as long as what limits a step."""
    parts = {p: source.choice((0, 0, 3, 14, 15, 40, 120)) * MS for p in StepPart}
    steps, whole = source.choice(((0, True), (1, False), (4, False)))
    return WindowLimits(PROCESS, 0, sum(parts.values()), steps, whole, {**parts, **changes}, True)


def lost_of(of: WindowLimits) -> dict[StepLimit, int]:
    told: dict[StepLimit, int] = {}
    for part, ns in of.parts.items():
        if part.limit and ns:
            told[part.limit] = told.get(part.limit, 0) + ns
    return told


def test_what_could_be_removed_and_what_is_real() -> None:
    for source in rounds():
        of = limits_of(source)
        assert of.lost == lost_of(of)
        not_real = of.parts[StepPart.PROFILER] + of.parts[StepPart.ELSEWHERE]
        assert of.real_ns == sum(of.parts.values()) - not_real
        assert of.idle_ns == sum(ns for part, ns in of.parts.items() if part.idle)
        assert of.per_step(40) == (40 / of.steps if of.steps else 40)


def test_the_limit_is_what_is_worth_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the module says it: 15 % can be removed, else the GPU; the worthiest cause of 15 %, else the longest; half of it without steps."""
    seen = set()
    for source in rounds(200):
        of = limits_of(source)
        worths = {code: source.choice((None, 0, 5 * MS, 60 * MS)) for code in StepLimit}
        monkeypatch.setattr(verdict, "worth", lambda _, __, code, worths=worths: worths[code])
        where = source.choice(("probe", "capture"))
        found = verdict._limit(profile(steps=SimpleNamespace(source=where)), of)
        lost, real = lost_of(of), of.real_ns
        values = {}
        for code, ns in lost.items():
            cost, saving = of.per_step(ns), worths[code]
            values[code] = cost if saving is None else min(cost, saving)
        large = {code: value for code, value in values.items() if lost[code] >= LIMITING_SHARE * real}
        works = of.parts[StepPart.WORK] + of.parts[StepPart.PAUSE] >= GPU_IS_LIMIT_SHARE * real
        if sum(lost.values()) < LIMITING_SHARE * real:
            told = StepLimit.GPU
        elif not large:
            told = StepLimit.GPU if works else max(lost, key=lambda c: (lost[c], c))
        else:
            best = max(large, key=lambda c: (large[c], c))
            if where == "capture" and lost[best] < GPU_IS_LIMIT_SHARE * real:
                told = StepLimit.GPU if works else StepLimit.UNKNOWN
            elif large[best] >= LIMITING_SHARE * of.per_step(real):
                told = best
            else:
                told = max(lost, key=lambda c: (lost[c], c))
        assert found == told
        seen.add(told)
    assert len(seen) > 5


def test_the_parts_that_are_worth_a_word_longest_first() -> None:
    for source in rounds():
        of = limits_of(source)
        among = source.sample(list(StepPart), 6)
        large = [p for p in among if of.parts[p] and of.parts[p] >= NOTABLE_PART_SHARE * of.real_ns]
        large.sort(key=lambda p: (of.parts[p], p), reverse=True)
        words = [f"{p.label} {limit_words.short(of.per_step(of.parts[p]))}" for p in large]
        assert limit_words.divided(of, among) == ", ".join(words)


def test_the_second_cause_is_the_largest_other_that_could_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_words, "_clause", lambda _, __, code: f" clause {code}")
    monkeypatch.setattr(limit_words, "_noun", lambda _, __, code: f"noun {code}")
    monkeypatch.setattr(limit_words.line_of_most, "idle", always(None))
    line = line_of_most.LineShare("/a/x.py", 3, 0.5)
    seen = 0
    for source in rounds(80):
        of = limits_of(source)
        lost = lost_of(of)
        if not lost:
            continue
        code = source.choice(list(lost))
        others = {c: ns for c, ns in lost.items() if c != code and ns >= LIMITING_SHARE * of.real_ns}
        words = limit_words._second_cause(profile(), of, code)
        if not others:
            assert words == ""
            continue
        seen += 1
        second = max(others, key=lambda c: (others[c], c))
        works = (StepLimit.COPY, StepLimit.COMM)
        ns = limit_words._bare(of, others[second])
        if second in works:
            assert words == f"; noun {second}: {ns}"
        else:
            assert words == f"{'; the GPU idles' if code in works else ', and'} {ns} clause {second}"
            with monkeypatch.context() as patch:
                patch.setattr(limit_words.line_of_most, "idle", always(line))
                at_line = limit_words._second_cause(profile(), of, code)
            assert (", in x.py:3" in at_line or " of it in x.py:3" in at_line) == (
                second == StepLimit.LAUNCH and code in works
            )
    assert seen > 20


def test_the_wait_after_which_the_device_idles_most() -> None:
    for source in rounds(80):
        of = columns(source).add("process", (PROCESS, PROCESS, OTHER)).add("api", ("a", "b"), pl.String)
        of.add("module", ("m", "all", None), pl.String).add("file", ("/x/t.py", None, None), pl.String)
        sites = of.add("line", (3, 4)).add("idle_caused_ns", (0, 0, 5, 9)).frame()
        sites = sites.with_columns(line=pl.when(pl.col("file").is_not_null()).then("line"))
        shown = profile(
            steps=SimpleNamespace(process=PROCESS),
            wait_sites=always(sites),
            attributed=SimpleNamespace(without_path={"all"}),
        )
        groups = grouped([r for r in rows(sites) if r["process"] == PROCESS], "api", "module", "file", "line")
        sums = {k: sum(r["idle_caused_ns"] for r in g) for k, g in groups.items()}
        told = ""
        if sums and max(sums.values()):
            api, module, file, line = min(sums, key=lambda k: (-sums[k], *map(last_null, k)))
            told = f" in {api}"
            if file:
                told += f" (t.py:{line})"
            elif module == "m":
                told += " in m"
        assert limit_causes.site(shown) == told


# --- idle time by part ----------------------------------------------------------------------------------------------------


def test_idle_time_by_the_part_of_the_step_that_it_counts_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By cause; behind a wait its own; in steps and without them, real and as recorded. The parts sum to the idle time."""
    causes = list(Cause)
    monkeypatch.setattr(idle_parts, "_capped", lambda _, parts: parts)
    monkeypatch.setattr(idle_parts, "_in_other_part", lambda *a: np.zeros(len(a[3]), np.bool_))
    seen = set()
    for source in rounds(120):
        long = OTHER_PART_PAUSE_NS
        of = columns(source, 14).add("start_ns", (0, 20, 50, 90)).add("ns", (5, 10, 30, long, long - 1))
        of.add("cause", range(len(causes))).add("began_in", (None, 0, 1, 2, 3)).add("op", (None, 0, 1, 2, 3))
        of.add("waited_device", (None, 0)).add("gap", range(4)).add("real_ns", (0, 3, 8, long))
        pieces = of.frame().with_columns(end_ns=pl.col("start_ns") + pl.col("ns"))
        begin_ns, end_ns = 10, source.choice((60, 90 + long))
        kinds = pl.DataFrame({"kind": [Call.SYNC, Call.LAUNCH, Call.COPY, Call.OTHER]}, schema={"kind": pl.Categorical})
        moves = [source.choice((None, 11, 12)) for _ in range(4)]
        ops = pl.DataFrame({"copy_kind": moves}, schema={"copy_kind": pl.Int64})
        windows = pl.DataFrame({"process": [PROCESS], "device": [0], "start_ns": [begin_ns], "end_ns": [end_ns]})
        where, real = source.choice(("probe", "capture")), source.choice((True, False))
        shown = profile(
            steps=SimpleNamespace(windows=windows, source=where, process=PROCESS),
            ledgers=SimpleNamespace(idle_of=always(pieces)),
            attributed=SimpleNamespace(api_calls=kinds, gpu_ops=ops),
            once=always(pieces),
        )
        inside = [r for r in rows(pieces) if r["end_ns"] > begin_ns and r["start_ns"] < end_ns]
        paid = [source.choice((0, 0, 2)) for _ in inside]
        first = [source.random() < 0.2 for _ in inside]
        monkeypatch.setattr(idle_parts, "_paid_once", lambda *_, paid=paid: np.array(paid, np.int64))
        monkeypatch.setattr(idle_parts, "_before_first", lambda *_, first=first: np.array(first, np.bool_))
        told: dict[StepPart, int] = {}
        whole = 0
        for r, once_ns, is_first in zip(inside, paid, first, strict=True):
            ns = r["real_ns"] if real else min(r["end_ns"], end_ns) - max(r["start_ns"], begin_ns)
            part, once = causes[r["cause"]].part, 0
            if where == "capture":
                if part == StepPart.HOST and ns >= OTHER_PART_PAUSE_NS:
                    part = StepPart.ELSEWHERE
                once = 0 if part in (StepPart.ELSEWHERE, StepPart.PROFILER) else once_ns
                loads = part == StepPart.DEPENDENCY and r["waited_device"] is None
                if is_first and (loads or part in (StepPart.HOST, StepPart.LAUNCH)):
                    once = ns
            elif r["began_in"] in (0, 2) and part in (StepPart.HOST, StepPart.LAUNCH):
                part = StepPart.SYNC
            if part == StepPart.UNTRACED and r["op"] is not None:
                part = {11: StepPart.MIGRATION, 12: StepPart.HOST, None: part}[moves[r["op"]]]
            whole += ns
            told[part] = told.get(part, 0) + ns - once
            told[StepPart.START_UP] = told.get(StepPart.START_UP, 0) + once
        found = idle_parts.idle_parts(shown, PROCESS, 0, real=real)
        assert found == {part: ns for part, ns in told.items() if ns}
        assert sum(found.values()) == whole
        seen |= set(found)
    assert len(seen) > 8


def test_a_long_pause_of_all_that_calls_ask_for() -> None:
    long = OTHER_PART_PAUSE_NS
    for source in rounds():
        of = columns(source, 6).add("start_ns", (0, 10, long - 5, long + 40, 3 * long)).add("ns", (1, 30, 200))
        of.add("process", (PROCESS, PROCESS, OTHER)).add("device", (0, 0, 0, 1)).add("copy_kind", (None, 1, 11, 12))
        ops = of.frame().with_columns(end_ns=pl.col("start_ns") + pl.col("ns"))
        mine = [
            r
            for r in rows(ops)
            if (r["process"], r["device"]) == (PROCESS, 0) and r["copy_kind"] not in idle_parts.MIGRATIONS
        ]
        begin = np.array([source.randrange(2 * long) for _ in range(4)], np.int64)
        finish = begin + 7
        told = []
        for b, f in zip(begin.tolist(), finish.tolist(), strict=True):
            after = [r["start_ns"] for r in mine if r["start_ns"] >= f]
            before = [r["end_ns"] for r in mine if r["end_ns"] <= b]
            told.append(not after or min(after) - max(before, default=0) >= long)
        if not mine:
            told = [True] * 4
        shown = profile(attributed=SimpleNamespace(gpu_ops=ops))
        assert idle_parts._in_other_part(shown, PROCESS, 0, begin, finish).tolist() == told


def test_the_first_run_of_a_kernel_in_a_gap_with_one_time_costs() -> None:
    for source in rounds():
        of = columns(source).names("name", ("a", "b", "c")).add("start_ns", iter(source.sample(range(99), 40)).__next__)
        ops = of.frame().with_row_index("op").cast({"op": pl.Int64})
        pieces = columns(source).add("op", (None, *range(12))).add("gap", range(4)).frame()
        once = [source.choice((0, 0, 3)) for _ in range(pieces.height)]
        first = {min(g, key=lambda r: r["start_ns"])["op"] for g in grouped(rows(ops), "name").values()}
        paying = {r["gap"] for r, ns in zip(rows(pieces), once, strict=True) if ns}
        shown = profile(attributed=SimpleNamespace(gpu_ops=ops))
        found = idle_parts._before_first(shown, pieces, np.array(once, np.int64))
        assert found.tolist() == [r["op"] in first and r["gap"] in paying for r in rows(pieces)]


def test_what_of_idle_time_lies_in_one_time_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        of = columns(source).add("start_ns", range(50)).add("one_time_ns", (1, 6, 20))
        paid = of.add("process", (PROCESS, OTHER)).frame()
        monkeypatch.setattr(idle_parts.one_time_cost, "costs", always(paid))
        pieces = rows(columns(source).times().frame())
        spans = [(r["start_ns"], r["start_ns"] + r["one_time_ns"]) for r in rows(paid) if r["process"] == PROCESS]
        begin, finish = (np.array([r[key] for r in pieces], np.int64) for key in ("start_ns", "end_ns"))
        found = idle_parts._paid_once(profile(), PROCESS, begin, finish)
        assert found.tolist() == [len(covered(*spans) & covered((r["start_ns"], r["end_ns"]))) for r in pieces]


# --- the window without the profiler --------------------------------------------------------------------------------------


def ledger_rows(source: random.Random) -> list[Row]:
    made = []
    for process, device in ((PROCESS, 0), (PROCESS, 1), (OTHER, 0)):
        parts = {f"{p}_ns": source.randrange(20) for p in ("compute", "memset", "comm", "copy", "idle")}
        busy = sum(parts.values()) - parts["idle_ns"]
        made.append(
            {"process": process, "device": device, "busy_ns": source.choice((busy, 30)), "window_ns": 99, **parts}
        )
    return made


def test_the_recorded_window_is_that_of_the_busiest_device_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        table = ledger_rows(source)
        shown_process = source.choice((PROCESS, 5))
        moving, idle = source.randrange(3), {StepPart.HOST: 4, StepPart.COMM: 2}
        monkeypatch.setattr(limits, "pages_moving", always(moving))
        monkeypatch.setattr(limits, "idle_parts", always(idle))
        kinds = [source.choice(("kernel", "memcpy", "graph")) for _ in range(2)]
        ops = pl.DataFrame({"op_kind": kinds}, schema={"op_kind": pl.Categorical})
        shown = profile(
            steps=SimpleNamespace(process=shown_process, whole=False),
            scope=SimpleNamespace(steps=3),
            attributed=SimpleNamespace(gpu_ops=ops),
        )
        found = limits.recorded_limits(shown, table)
        mine = [r for r in table if r["process"] == shown_process] or table
        most = max(r["busy_ns"] for r in mine)
        row = min((r for r in mine if r["busy_ns"] == most), key=lambda r: r["device"])
        assert (found.device, found.window_ns, found.steps) == (row["device"], 99, 3)
        told = {
            StepPart.WORK: row["compute_ns"] + row["memset_ns"],
            StepPart.COMM: row["comm_ns"] + 2,
            StepPart.COPY: row["copy_ns"] - moving,
            StepPart.MIGRATION: moving,
            StepPart.HOST: 4,
        }
        assert {p: ns for p, ns in found.parts.items() if ns} == {p: ns for p, ns in told.items() if ns}
        assert found.kernels == any(k != "memcpy" for k in kinds)


def test_parts_of_the_step_without_the_profiler_sum_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's work stays; the rest of the real step is divided among waits as recorded, launches and host code as in the replay."""
    seen = {"shrunk": 0, "recorded": 0, "divided": 0}
    for source in rounds(200):
        of = limits_of(source)
        steps = max(of.steps, 1)
        recorded = WindowLimits(PROCESS, 0, of.window_ns, steps, False, of.parts, True)
        real = round(of.window_ns / steps * source.choice((0.3, 0.7, 0.96, 1)))
        more, longer = source.choice((0, MS)), source.choice((0, 2 * MS))
        monkeypatch.setattr(limits, "steady_lengths", always((real, real + 5)))
        monkeypatch.setattr(limits, "_more_loading_ns", always(more))
        monkeypatch.setattr(limits, "_longer", always(longer))
        monkeypatch.setattr(limits, "_shrunk", always("shrunk"))
        comm, causes = (
            source.choice((0, 10 * MS)),
            {c.value: source.choice((0, 3, 9)) for c in source.sample(list(Cause), 5)},
        )
        bare = SimpleNamespace(exposed_comm_ns=comm, idle_causes=causes, source=source.choice(("modelled", "measured")))
        found: Any = limits._unprofiled(profile(), recorded, bare)  # type: ignore[arg-type]
        kept = dict(of.parts)
        for p in (StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC, StepPart.PROFILER):
            kept.pop(p)
        kept[StepPart.COMM] = min(kept[StepPart.COMM], comm * steps)
        kept[StepPart.INPUT] += more * steps
        kept[StepPart.LONGER] = longer
        rest = real * steps - sum(kept.values())
        if rest < 0 or not of.window_ns > (1 + SAME_STEP_SHARE) * real * steps:
            assert found == (recorded if of.parts[StepPart.MIGRATION] else "shrunk")
            seen["recorded" if of.parts[StepPart.MIGRATION] else "shrunk"] += 1
            continue
        seen["divided"] += 1
        host = [of.parts[p] for p in (StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC)]
        sync = rest * host[2] // sum(host) if sum(host) else 0
        launches = sum(ns for c, ns in causes.items() if Cause.named(c).part == StepPart.LAUNCH)
        all_ = launches + sum(ns for c, ns in causes.items() if Cause.named(c).part == StepPart.HOST)
        launch = (rest - sync) * launches // all_ if all_ else 0
        told = kept | {StepPart.SYNC: sync, StepPart.LAUNCH: launch, StepPart.HOST: rest - sync - launch}
        assert {p: ns for p, ns in found.parts.items() if ns} == {p: ns for p, ns in told.items() if ns}
        assert sum(found.parts.values()) == found.window_ns == real * steps
        assert (found.recorded_ns, found.estimated) == ((real + 5) * steps, bare.source == "modelled")
    assert min(seen.values()) > 5


def test_each_gap_is_as_long_as_in_the_untraced_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds(80):
        of = limits_of(source)
        recorded = WindowLimits(PROCESS, 0, of.window_ns, 2, False, of.parts, True)
        real, longer = source.choice((40, 400)) * MS, source.choice((0, 0, 20)) * MS
        monkeypatch.setattr(limits, "steady_lengths", always((real, real + 5)))
        monkeypatch.setattr(limits, "_longer", always(longer))
        gaps = {StepPart.HOST: source.choice((0, 5)), StepPart.SYNC: 3, StepPart.PROFILER: 9}
        monkeypatch.setattr(limits, "idle_parts", lambda *_, real, gaps=gaps: gaps if real else {})
        much, busy = source.choice((True, False)), source.choice((0.2, 0.9))
        bare = SimpleNamespace(gpu_busy=busy, source="assumed")
        found = limits._shrunk(profile(), recorded, bare, much)  # type: ignore[arg-type]
        works = {p: of.parts[p] for p in (StepPart.WORK, StepPart.COMM, StepPart.COPY)}
        window, working = 2 * real, round(2 * real * busy)
        if longer:
            working = min(working, sum(works.values()))
            longer = min(longer, window - working)
        assert sum(found.parts.values()) == found.window_ns == window
        assert sum(found.parts[p] for p in works) == working
        assert found.parts[StepPart.LONGER] == longer and found.parts[StepPart.PROFILER] == 0
        idle = window - working - longer
        assert abs(found.parts[StepPart.SYNC] - idle * 3 / (gaps[StepPart.HOST] + 3)) <= 2
        if sum(works.values()):
            assert (
                abs(found.parts[StepPart.COPY] - works[StepPart.COPY] * working / max(sum(works.values()), 1))
                <= len(works) + 1
            )
        assert (found.recorded_ns, found.estimated) == (((real + 5) * 2, True) if much else (None, False))


# --- lines, samples, other work -------------------------------------------------------------------------------------------


def test_the_line_with_most_of_a_time_has_a_share_of_all_of_it() -> None:
    seen = 0
    for source in rounds(80):
        place = [source.choice((-1, 0, 1, 2)) for _ in range(9)]
        files = ["/a/x.py", "/b/y.py", "z.py"]
        places = pl.DataFrame({"file": files, "line": [1, 2, 3], "function": line_of_most.TOP_OF_FILE})
        lines: Any = SimpleNamespace(places_of=lambda stack, place=place: np.array(place)[stack], places=places)
        stack = np.array([source.randrange(9) for _ in range(6)], np.int64)
        ns = np.array([source.randrange(9) for _ in stack], np.int64)
        whole, least = int(ns.sum()) + source.randrange(9), source.choice((0.2, 0.5))
        sums = [
            sum(int(t) for s, t in zip(stack.tolist(), ns.tolist(), strict=True) if place[s] == i) for i in range(3)
        ]
        told = None
        if whole and any(place[s] >= 0 for s in stack.tolist()) and max(sums) >= least * whole:
            most = sums.index(max(sums))
            told = (("/a/x.py", "/b/y.py", "z.py")[most], most + 1, max(sums) / whole)
        seen += told is not None
        sites = line_of_most._at_sites(lines, stack, ns)
        assert line_of_most._place_with_share(sites, whole, least) == told
    assert seen > 20


def test_how_much_host_code_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        of = columns(source).add("idle_ns", (0, 5, 90)).add("place", (None, 1, 2)).add("samples", range(4)).frame()
        monkeypatch.setattr(sample_checks, "known_lines", always(SimpleNamespace(rows=of, period_ns=1_000_000)))
        taken = columns(source).add("process", (PROCESS, PROCESS, OTHER)).add("thread", (1, 2)).frame()
        (check,) = sample_checks.python_samples(profile(process=PROCESS, trace=SimpleNamespace(samples=taken)))
        mine = [r for r in rows(taken) if r["process"] == PROCESS]
        assert check.detail.startswith(
            f"{len(mine)} samples of Python's stack on {len({r['thread'] for r in mine})} thread"
        )
        whole = sum(r["idle_ns"] for r in rows(of))
        lined = sum(r["idle_ns"] for r in rows(of) if r["place"] is not None)
        if whole:
            assert f"{sum(r['samples'] for r in rows(of))} are in host code" in check.detail
            assert f"and {units.share(lined, whole)} of its time has a line" in check.detail
        assert (check.status == "warn") == bool(check.fix) == (lined < (1 - MUCH_UNSAMPLED_SHARE) * whole)


def activity_of(of: list[Row]) -> StepFunction:
    return coverage(
        [(np.array([r["start_ns"] for r in of], np.int64), np.array([r["end_ns"] for r in of], np.int64))], 0, 100
    )


def test_work_of_others_while_the_shown_device_works_or_idles() -> None:
    for source in rounds():
        ops = rows(columns(source, 14).times().add("place", range(3)).frame())
        places = ((PROCESS, 0), (OTHER, 0), (OTHER, 1))
        activity = {key: activity_of([r for r in ops if r["place"] == i]) for i, key in enumerate(places)}
        window = (source.randrange(40), source.choice((60, 80, 0)))
        shown = profile(
            window=window,
            device=source.choice((0, 0, None)),
            process=PROCESS,
            ledgers=SimpleNamespace(activity=activity),
        )
        others = [places[i] for i in (1, 2) if source.random() < 0.8]
        found = other_work._work_at(shown, others)
        if shown.device is None or not others or window[1] <= window[0]:
            assert found == other_work.OtherWork(0, 0)
            continue

        def busy(*which: int, ops: list[Row] = ops, window: tuple[int, int] = window) -> set[int]:
            return covered(*((r["start_ns"], r["end_ns"]) for r in ops if r["place"] in which)) & covered(window)

        of_others = busy(*(places.index(p) for p in others))
        assert (found.busy_ns, found.meanwhile_ns) == (len(of_others), len(of_others - busy(0)))
        assert found.devices == tuple(sorted({d for _, d in others}))


def test_communication_that_no_compute_hides_is_that_of_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_of_most, "_at_sites", lambda _, stack, ns: (stack.tolist(), ns.tolist()))
    monkeypatch.setattr(line_of_most, "_place_with_share", lambda sites, whole, _: (*sites, whole))
    for source in rounds():
        of = columns(source, 10).times().add("process", (PROCESS, PROCESS, OTHER)).add("device", (0,))
        of.names("cls", (DeviceActivity.COMM.value, DeviceActivity.COMM.value, DeviceActivity.COMPUTE.value))
        ops = of.frame().with_row_index("op").cast({"op": pl.Int64})
        mine = [r for r in rows(ops) if r["process"] == PROCESS]
        sets: list[Any] = []
        for name in CLASSES:
            of_class = [r for r in mine if r["cls"] == name]
            sets.append(tuple(np.array([r[k] for r in of_class], np.int64) for k in ("start_ns", "end_ns")))
        activity = coverage(sets, 0, 100)
        shown = profile(
            steady_ops=ops,
            ledgers=SimpleNamespace(activity={(PROCESS, 0): activity}),
            code=always(SimpleNamespace(op=np.arange(ops.height))),
        )
        hides = covered(*((r["start_ns"], r["end_ns"]) for r in mine if r["cls"] == DeviceActivity.COMPUTE.value))
        told, taken = [], set()
        comm = sorted(
            (r for r in mine if r["cls"] == DeviceActivity.COMM.value), key=lambda r: (r["start_ns"], r["end_ns"])
        )
        for r in comm:
            own = covered((r["start_ns"], r["end_ns"])) - taken
            taken |= own
            told.append(len(own - hides))
        stack, ns, whole = line_of_most.communication(shown, PROCESS, 0)  # type: ignore[misc]
        assert sorted(ns) == sorted(told) and whole == sum(told)
        assert sorted(stack) == sorted(r["op"] for r in comm)


def test_gpu_time_by_how_it_was_tied_to_code() -> None:
    for source in rounds():
        of = columns(source).times().add("grade", ("thread", "seq", "time", "none", "none"), pl.String)
        ops = of.frame()
        shown = profile(steady_ops=ops, ranges=SimpleNamespace(ranges=pl.DataFrame({"x": [1]})))
        checks = capture_checks._attribution(shown)
        if not ops.height:
            assert checks == []
            continue
        sums: dict[str, int] = {}
        for r in rows(ops):
            sums[r["grade"]] = sums.get(r["grade"], 0) + r["end_ns"] - r["start_ns"]
        whole = sum(sums.values())
        for grade, ns in sums.items():
            assert not ns or f"{units.share(ns, whole)} {capture_checks._GRADES[grade]}" in checks[0].detail
        assert checks[0].detail.count("%") == sum(bool(ns) for ns in sums.values())
        assert (checks[0].status == "warn") == (sums.get("none", 0) > 0.01 * whole)


def test_the_networks_that_a_program_calls_longest_first() -> None:
    for source in rounds():
        of = columns(source).times().names("name", ("forward", "evaluation", "module", None))
        of.add("own", (True, True, False), pl.Boolean).names("cls", ("A", "B", "", None))
        ranges = of.frame()
        modules = pl.DataFrame(
            {"module": ["(Y)", "net", "(X)", "(Y)", None], "cls": ["Y", "Net", "X", "Y", "Z"]},
            schema={"module": pl.Categorical, "cls": pl.Categorical},
        )
        sums: dict[str, int] = {}
        for r in rows(ranges):
            if r["own"] and r["name"] in ("forward", "evaluation") and r["cls"] in ("A", "B"):
                sums[r["cls"]] = sums.get(r["cls"], 0) + r["end_ns"] - r["start_ns"]
        told = tuple(sorted(sums, key=lambda c: (-sums[c], c))) or ("Y", "X")
        assert program._networks(profile(attributed=SimpleNamespace(modules=modules)), ranges) == told


def test_bare_steps_by_rank_are_compared_over_those_that_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_checks.bare, "lengths", lambda p: p["lengths"])
    for source in rounds():
        probes = [
            {
                "rank": source.choice((f"{i}", None)),
                "lengths": [source.randrange(1, 99) for _ in range(source.randrange(4))],
            }
            for i in (2, 0, 1)
        ]
        words = window_checks._by_rank(profile(trace=SimpleNamespace(capture=SimpleNamespace(probe=probes))))
        ranks = {p["rank"]: p["lengths"] for p in probes if p["rank"] and p["lengths"]}
        if len(ranks) < 2:
            assert words == ""
            continue
        few = min(map(len, ranks.values()))  # type: ignore[arg-type]
        means = [f"{r} {units.duration(round(statistics.fmean(ranks[r][-few:])))}" for r in sorted(ranks)]  # type: ignore[type-var]
        assert words == f", the same steps by rank: {', '.join(means)}"


def test_bare_steps_that_no_recorded_step_is_like() -> None:
    """Some take half as long again as the median, and of the recorded steady steps of the process none does."""
    seen = 0
    for source in rounds(80):
        count = source.choice((window_checks.BOOTSTRAP_FEWEST_STEPS - 1, window_checks.BOOTSTRAP_FEWEST_STEPS, 30))
        lengths = np.array([source.choice((100, 100, 100, 101, 151, 150)) for _ in range(count)], np.int64)
        of = columns(source).add("steady", (True, True, False), pl.Boolean).add("process", (PROCESS, PROCESS, OTHER))
        cpu = of.add("start_ns", (0,)).add("end_ns", (100, 100, 100, 100, 150, 151)).frame()
        checks = window_checks._missed(profile(steps=SimpleNamespace(cpu=cpu, process=PROCESS)), lengths)
        usual = statistics.median(lengths.tolist())
        long = [n for n in lengths.tolist() if n > LONG_STEP_TIMES * usual]
        mine = [r["end_ns"] for r in rows(cpu) if r["steady"] and r["process"] == PROCESS]
        recorded = mine and any(n > LONG_STEP_TIMES * statistics.median(mine) for n in mine)
        if count < window_checks.BOOTSTRAP_FEWEST_STEPS or not long or recorded:
            assert checks == []
            continue
        seen += 1
        more = units.duration(round(statistics.fmean(long) - usual))
        assert checks[0].detail.startswith(f"{len(long)} of {count} steps without the profiler took {more} longer")
    assert seen > 5


# --- waits ----------------------------------------------------------------------------------------------------------------


def test_waits_of_the_process_by_place_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to the device and what follows them are none; a place is listed from a share of the window on."""
    asks = (waiting.NOTHING, waiting.VALUE)
    for source in rounds(80):
        of = columns(source, 16).times(100).add("process", (PROCESS, PROCESS, OTHER))
        of.names("kind", (Call.SYNC, Call.COPY, Call.LAUNCH)).add("api", ("a", "b"), pl.String)
        of.add("module", ("l.1", "l.2", "head", None), pl.String).add("phase", ("forward",), pl.String)
        of.add("file", ("t.py", None), pl.String).add("line", (None, 3)).add("idle_caused_ns", (0, 0, 9))
        sites = of.frame().with_columns(backlog_ns=pl.lit(1), own_op_ns=pl.lit(2), host_ns=pl.lit(3))
        sites = sites.with_row_index("call").cast({"call": pl.Int64})
        its = [source.choice(asks) for _ in range(sites.height)]
        monkeypatch.setattr(
            waiting,
            "asked",
            lambda _, calls, its=its: pl.Series("asks", [its[c] for c in calls["call"]], dtype=pl.String),
        )
        monkeypatch.setattr(waiting, "_as_one", lambda calls: calls)
        ops = columns(source, 6).names("name", ("HtoD", "DtoH")).add("call", (None, *range(16))).frame()
        uploads = pl.DataFrame({"call": [source.randrange(16)]})
        steps = pl.DataFrame({"process": [PROCESS] * 3 + [OTHER], "start_ns": [0, 40, 80, 1], "index": [0, 1, 2, 9]})
        window = (0, source.choice((100, 40_000)))
        shown = profile(
            steps=SimpleNamespace(process=PROCESS, cpu=steps.sample(4, shuffle=True, seed=1)),
            steady_ops=ops,
            window=window,
            wait_sites=always(sites),
            once=asked({waiting.uploads: uploads}),
        )
        to_device = {r["call"] for r in rows(ops) if r["name"] == "HtoD"} | set(uploads["call"])
        mine = []
        for r in rows(sites):
            if r["process"] == PROCESS and r["kind"] in Call.WAITS and r["call"] not in to_device:
                module = r["module"] and r["module"].replace("1", "*").replace("2", "*")
                step = 2 if r["start_ns"] >= 80 else int(r["start_ns"] >= 40)
                mine.append(
                    r | {"asks": its[r["call"]], "module": module, "index": step, "ns": r["end_ns"] - r["start_ns"]}
                )
        found = waiting.waits(shown)
        assert sorted(found.calls["call"]) == sorted(r["call"] for r in mine)
        told = []
        for key, group in grouped(mine, *waiting.PLACE).items():
            sums = {c: sum(r[c] for r in group) for c in ("ns", "backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns")}
            if max(sums["ns"], sums["idle_caused_ns"]) >= max(waiting.LISTED_WAIT_SHARE * window[1], 1):
                told.append(
                    dict(zip(waiting.PLACE, key, strict=True))
                    | {"calls": len(group), "in_steps": len({r["index"] for r in group})}
                    | sums
                )
        told.sort(key=lambda r: (-r["ns"], *(last_null(r[c]) for c in waiting.PLACE)))
        assert rows(found.places) == told[: waiting.MOST_WAIT_PLACES]


def test_how_many_passes_a_step_has() -> None:
    seen = set()
    for source in rounds(80):
        steps = source.choice((0, 1, 2))
        passes, updates, extra = source.choice((1, 2, 3)), source.choice((0, 1, 2)), source.choice((0, 0, 1))
        each = (["forward", "backward"] * passes) + ["optimizer", "data"] * updates
        order = each * steps + ["backward", "data"] * extra
        spans, at = [], 100
        for phase in order:
            for _ in range(source.choice((1, 2))):  # what interrupts a phase cuts its span
                spans.append((PROCESS, 1, at, phase))
                at += 1
        spans += [
            (OTHER, 1, 101, "backward"),
            (PROCESS, 1, 5, "backward"),
            (PROCESS, 1, 6, "data"),
            (PROCESS, 1, at + 9, "backward"),
        ]
        frame = pl.DataFrame(
            spans,
            schema={"process": pl.Int64, "thread": pl.Int64, "start_ns": pl.Int64, "phase": pl.Categorical},
            orient="row",
        ).sample(len(spans), shuffle=True, seed=len(spans))
        windows = pl.DataFrame({"process": [OTHER, PROCESS], "start_ns": [0, 100], "end_ns": [9_999, max(at - 1, 100)]})
        shown = profile(
            ranges=NO_RANGES,
            attributed=SimpleNamespace(phase_spans=frame),
            steady_ops=pl.DataFrame(schema={"cls": pl.String, "name": pl.String}),
            steps=SimpleNamespace(process=PROCESS, cpu_windows=windows),
            scope=SimpleNamespace(steps=steps, per_step=partial(_over, steps)),
        )
        words, whole = step_passes.in_words(shown), not extra
        if (
            not steps
            or (not whole and extra / steps >= 0.5)
            or passes + (extra if steps == 1 else 0) < 2
            or not updates
        ):
            continue_with = ""
            if steps == 1 and extra and updates and passes + 1 >= 2:
                # a pass more than the network was called
                continue_with = "" if updates == 1 else f"A step has {passes + 1} backward passes and {updates}"
        else:
            continue_with = (
                f"A step is {passes} forward"
                if updates == 1
                else f"A step has {passes} backward passes and {updates} optimizer"
            )
        assert words.startswith(continue_with) and bool(words) == bool(continue_with)
        seen.add(continue_with[:10])
    assert len(seen) > 2


def _over(steps: int, ns: int) -> float:
    return ns / steps


def test_the_module_before_whose_work_the_device_idles_most() -> None:
    for source in rounds(80):
        ops = pl.DataFrame(
            {"module": [source.choice(("a", "b", "all", None)) for _ in range(6)]}, schema={"module": pl.Categorical}
        )
        pieces = columns(source, 6).add("op", range(6)).add("ns", (0, 5, 9)).frame()
        of = window_of(source.choice((30, 400)))
        shown = profile(
            idle=always({(PROCESS, 0): pieces}), attributed=SimpleNamespace(gpu_ops=ops, without_path={"all"})
        )
        sums: dict[str | None, int] = {}
        for r in rows(pieces):
            module = ops["module"][r["op"]]
            sums[module] = sums.get(module, 0) + r["ns"]
        whole, most = sum(sums.values()), max(sums.values(), default=0)
        name = min((m for m, ns in sums.items() if ns == most and m), default=None)
        told = ""
        if name in ("a", "b") and most >= 0.2 * whole and whole >= LIMITING_SHARE * of.window_ns:
            told = f"{units.share(most, whole)} of the GPU's idle time is before work of module '{name}'"
        if whole:
            assert verdict._blamed(shown, of) == told


def window_of(ns: int) -> WindowLimits:
    return WindowLimits(PROCESS, 0, ns, 1, False, dict.fromkeys(StepPart, 0), True)
