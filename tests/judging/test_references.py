"""What checks and verdicts count, against slow references over rows, on random small frames."""

from __future__ import annotations

import random
import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import units
from nsysx.catalogue import Call, DeviceActivity
from nsysx.judging import gpu_work, growth, limits, probe_checks, waiting, window_checks
from nsysx.judging.judging_bounds import CALLS_UNTIL_SIZED_KERNELS, COSTLY_PROFILING_SHARE, SIZE_COPY_BYTES
from nsysx.model import Row
from tests.random_tables import columns, covered, grouped, profile, rounds, rows

PROCESS, OTHER = 7, 8
US = 1_000
SELECTS = "void at::native::write_indices<long>(long*)"


def work(source: random.Random, most: int = 16) -> pl.DataFrame:
    of = columns(source, most).times().add("process", (PROCESS, PROCESS, OTHER)).add("device", (0, 0, 1))
    of.names("name", ("k1", "k2<int>")).names("op_kind", ("kernel", "kernel", "memcpy"))
    of.names("cls", [a.value for a in (DeviceActivity.COMPUTE, DeviceActivity.COMPUTE, DeviceActivity.COMM)])
    return (
        of.names("module", ("blocks.0", "blocks.1", "head", None)).names("family", ("gemm", "other", "reduce")).frame()
    )


def test_kernels_of_the_steady_steps_of_one_device() -> None:
    for source in rounds():
        ops = work(source)
        ns = [
            r["end_ns"] - r["start_ns"]
            for r in rows(ops)
            if (r["process"], r["device"], r["op_kind"]) == (PROCESS, 0, "kernel")
        ]
        assert gpu_work.kernels(profile(steady_ops=ops), PROCESS, 0) == (len(ns), statistics.median(ns) if ns else None)


def test_sums_by_name_and_module() -> None:
    for source in rounds():
        ops = work(source)
        found = gpu_work._work(profile(steady_ops=ops), PROCESS, 0)
        mine = [
            r | {"ns": r["end_ns"] - r["start_ns"]} for r in rows(ops) if (r["process"], r["device"]) == (PROCESS, 0)
        ]
        assert [r["module"] for r in rows(found)] == [
            r["module"] and r["module"].replace("0", "*").replace("1", "*") for r in mine
        ]
        sums = {name: sum(r["ns"] for r in of) for (name,), of in grouped(mine, "family").items()}
        assert gpu_work._sums(found, "family") == sorted(sums.items(), key=lambda x: (-x[1], x[0]))
        if not mine:
            continue
        family, ns = gpu_work._sums(found, "family")[0]
        whole = sum(r["ns"] for r in mine)
        mostly = ns >= gpu_work.MOST_OF_MODULE_SHARE * whole and family != "other"
        assert gpu_work._kind(found) == (gpu_work.FAMILIES.get(family, family) if mostly else "")


def test_what_most_of_the_work_is() -> None:
    """By module from a third on, else by kind, else the kernel of no known kind that is larger than all of them."""
    for source in rounds(80):
        ops = work(source, 10)
        mine = [
            r | {"ns": r["end_ns"] - r["start_ns"]} for r in rows(ops) if (r["process"], r["device"]) == (PROCESS, 0)
        ]
        own = [r for r in mine if r["cls"] != DeviceActivity.COMM.value]
        what = "GPU time" if len(own) == len(mine) else "GPU time without communication"
        mine, whole = own, sum(r["ns"] for r in own)
        words = gpu_work.most(profile(steady_ops=ops, attributed=SimpleNamespace(without_path={"head"})), PROCESS, 0)
        blocks = [r for r in mine if r["module"] in ("blocks.0", "blocks.1")]
        ns = sum(r["ns"] for r in blocks)
        if not sum(r["ns"] for r in mine):
            assert words == ""
        elif blocks and ns >= gpu_work.FIRST_MODULE_SHARE * whole:
            count = len({r["module"] for r in blocks})
            assert words.startswith(
                f"{units.share(ns, whole)} of {what} is blocks.*" if ns >= gpu_work.SECOND_MODULE_SHARE * whole else ""
            )
            assert ("2 modules" in words) == (count == 2)
        else:
            kinds = {f: sum(r["ns"] for r in mine if r["family"] == f) for f in ("gemm", "reduce")}
            listed = sorted(
                ((-t, f) for f, t in kinds.items() if t >= gpu_work.KIND_OF_WORK_SHARE * whole and t), key=lambda x: x
            )
            kernels = {
                n: sum(r["ns"] for r in mine if r["op_kind"] == "kernel" and r["name"] == n) for n in ("k1", "k2<int>")
            }
            of_known = {r["name"] for r in mine if r["family"] != "other"}
            unknown = max((t for n, t in kernels.items() if n not in of_known), default=0)
            if listed and -listed[0][0] >= unknown:
                assert words.startswith(
                    f"{units.share(-listed[0][0], whole)} of {what} is {gpu_work.FAMILIES.get(listed[0][1], listed[0][1])}"
                )
                assert words.count("%") == len(listed)
            elif max(kernels.values()) >= gpu_work.KIND_OF_WORK_SHARE * whole and any(
                r["op_kind"] == "kernel" for r in mine
            ):
                name = min(kernels, key=lambda n: (-kernels[n], n))
                assert words == f"{units.share(kernels[name], whole)} of {what} is the kernel {name.partition('<')[0]}"


def test_what_grows_with_the_steps() -> None:
    """Per kernel, the last fourth of the steady steps against the first; the one with most of the growth is named."""
    seen = 0
    for source in rounds(80):
        count = source.choice((5, 8, 9, 12))
        steps = pl.DataFrame({"process": [PROCESS] * (count + 2) + [OTHER], "start_ns": [100 * i for i in range(count + 2)] + [0],
                              "steady": [False, *[True] * count, False, True]})  # fmt: skip
        made = []
        for i in range(count + 1):  # what no steady step launches is in no figure of them
            for name in ("grows", "stays"):
                for _ in range(source.choice((1, 2))):
                    ns = 100 * US + (i * 40 * US if name == "grows" else source.randrange(3) * US)
                    made.append(
                        (
                            PROCESS,
                            name,
                            "kernel",
                            100 * i + source.randrange(100),
                            0,
                            ns,
                            (1 << 47) + (1 << 31) + (i + 1 if name == "grows" else 4),
                        )
                    )
            made.append(
                (
                    source.choice((OTHER, PROCESS)),
                    "huge",
                    source.choice(("memcpy", "kernel")) if False else "memcpy",
                    100 * i,
                    0,
                    i * 10_000 * US,
                    None,
                )
            )
            made.append((OTHER, "huge", "kernel", 100 * i, 0, i * 10_000 * US, None))
            made.append((PROCESS, "huge", "kernel", None, 0, i * 10_000 * US, None))
        ops = pl.DataFrame(made, schema={"process": pl.Int64, "name": pl.Categorical, "op_kind": pl.Categorical, "call_start_ns": pl.Int64,
                                         "start_ns": pl.Int64, "end_ns": pl.Int64, "grid": pl.Int64}, orient="row")  # fmt: skip
        ops = ops.sample(fraction=1, shuffle=True, seed=count)
        frees = source.choice((0, 3))
        calls = pl.DataFrame({"kind": [Call.FREE] * frees + [Call.LAUNCH]})
        shown = profile(steady_ops=ops, steady_calls=calls, steps=SimpleNamespace(process=PROCESS, cpu=steps))
        words = growth.words(shown)
        if count < 2 * growth.GROWTH_PART_OF_STEPS:
            assert words == ""
            continue
        few = count // growth.GROWTH_PART_OF_STEPS

        def mean(name: str, numbers: range, made: list[Any] = made, few: int = few) -> float:
            return (
                sum(
                    m[5]
                    for m in made
                    if m[1] == name
                    and m[0] == PROCESS
                    and m[2] == "kernel"
                    and m[3] is not None
                    and m[3] // 100 in numbers
                )
                / few
            )

        early, late = range(1, few + 1), range(count - few + 1, count + 1)
        more = {name: mean(name, late) - mean(name, early) for name in ("grows", "stays")}
        whole = sum(more.values())
        if more["grows"] >= growth.GROWING_KERNEL_SHARE * whole > 0 and more["grows"] >= more["stays"]:
            seen += 1
            took = f"{units.duration(mean('grows', early))} to {units.duration(mean('grows', late))} a step"
            assert f"of the growth is the kernel grows, {took}, with " in words
            assert units.share(min(more["grows"], whole), whole) in words
        assert ("frees device memory 3 times meanwhile" in words) == bool(frees)
    assert seen > 10


# --- waits --------------------------------------------------------------------------------------------------------------


def calls_of(source: random.Random) -> pl.DataFrame:
    """Return calls of two threads, numbered by thread and time."""
    of = columns(source, 16).names("kind", (Call.LAUNCH, Call.COPY, Call.SYNC, Call.OTHER)).frame()
    thread = [1 + (i >= of.height // 2) for i in range(of.height)]
    return of.with_columns(pl.Series("thread", thread, dtype=pl.Int64)).with_row_index("call").cast({"call": pl.Int64})


def test_the_next_launch_of_the_thread_gathers_what_a_mask_selects() -> None:
    for source in rounds(80):
        calls = calls_of(source)
        if not calls.height:
            continue
        of = columns(source, 10).names("op_kind", ("kernel", "kernel", "memcpy")).names("name", (SELECTS, "add"))
        ops = of.add("call", (None, *range(calls.height))).frame()
        selects = {r["call"] for r in rows(ops) if r["op_kind"] == "kernel" and r["name"] == SELECTS}
        at, told = rows(calls), []
        for i in range(len(at)):
            ahead = [
                j
                for j in range(i + 1, min(i + 1 + CALLS_UNTIL_SIZED_KERNELS, len(at)))
                if at[j]["thread"] == at[i]["thread"]
            ]
            launch = next((j for j in ahead if at[j]["kind"] in Call.LAUNCHES), None)
            told.append(launch is not None and launch in selects)
        attributed = SimpleNamespace(api_calls=calls, gpu_ops=ops)
        found = waiting._next_is_selection(profile(attributed=attributed), np.arange(calls.height)).tolist()
        waits = [i for i, r in enumerate(at) if r["kind"] not in Call.LAUNCHES]
        assert [found[i] for i in waits] == [told[i] for i in waits]


def test_what_a_call_waits_for(monkeypatch: Any) -> None:
    """A copy of a few bytes before a selection asks for a size, a synchronize alone for nothing, all else for a value."""
    for source in rounds():
        calls = calls_of(source).filter(pl.col("kind").cast(pl.String).is_in([Call.COPY, Call.SYNC]))
        sized = [source.random() < 0.5 for _ in range(calls.height)]
        monkeypatch.setattr(waiting, "_next_is_selection", lambda _, __, sized=sized: np.array(sized, np.bool_))
        site = [source.choice((call, *range(16))) for call in calls["call"]]
        split = pl.DataFrame({"call": calls["call"], "site": pl.Series(site, dtype=pl.Int64)})
        of = (
            columns(source, 10).names("op_kind", ("memcpy", "memcpy", "kernel")).names("name", ("DtoH", "DtoH", "HtoD"))
        )
        ops = of.add("call", (None, *range(16))).add("bytes", (1, SIZE_COPY_BYTES, SIZE_COPY_BYTES + 1, None)).frame()
        moved: dict[int, int] = {}
        for r in rows(ops):
            if r["op_kind"] == "memcpy" and r["name"] == "DtoH" and r["call"] is not None:
                moved[r["call"]] = moved.get(r["call"], 0) + (r["bytes"] or 0)
        told = []
        for r, at, is_sized in zip(rows(calls), site, sized, strict=True):
            copy = r["call"] if r["kind"] == Call.COPY else at
            if copy in moved and moved[copy] <= SIZE_COPY_BYTES and is_sized:
                told.append(waiting.SIZE)
            else:
                told.append(waiting.NOTHING if copy not in moved and r["kind"] == Call.SYNC else waiting.VALUE)
        shown = profile(waits=split, attributed=SimpleNamespace(gpu_ops=ops))
        assert waiting.asked(shown, calls).to_list() == told


def test_all_synchronizes_of_the_whole_device_are_one_place() -> None:
    for source in rounds():
        of = columns(source).add(
            "api", ("cudaDeviceSynchronize", "cuCtxSynchronize", "cudaStreamSynchronize"), pl.String
        )
        of.add("asks", (waiting.NOTHING, waiting.VALUE), pl.String).add("module", ("a", "b", None), pl.String)
        calls = of.add("phase", ("forward", None), pl.String).frame()
        whole = [r for r in rows(calls) if "Stream" not in r["api"] and r["asks"] == waiting.NOTHING]
        several = len({(r["module"], r["phase"]) for r in whole}) > 1
        told = [r | {"module": None, "phase": None} if several and r in whole else r for r in rows(calls)]
        assert rows(waiting._as_one(calls)) == told


# --- what the probe costs -----------------------------------------------------------------------------------------------


def ranges_of(source: random.Random) -> pl.DataFrame:
    of = (
        columns(source, 30)
        .times(100)
        .add("process", (PROCESS, PROCESS, OTHER))
        .add("own", (True, True, False), pl.Boolean)
    )
    return (
        of.add("repeated", (False, False, True), pl.Boolean).add("kind", ("module", "op", "phase"), pl.String).frame()
    )


def probed(source: random.Random, probe: Row, ranges: pl.DataFrame, marks: pl.DataFrame, end: int) -> Any:
    windows = pl.DataFrame({"process": [OTHER, PROCESS], "start_ns": [0, 20], "end_ns": [9, end]})
    return profile(
        steps=SimpleNamespace(process=PROCESS, cpu_windows=windows),
        trace=SimpleNamespace(capture=SimpleNamespace(probe=(probe,))),
        ranges=SimpleNamespace(ranges=ranges, marks=marks),
    )


def test_the_probes_calls_in_the_steady_steps_have_their_cost() -> None:
    for source in rounds(80):
        pair, module, mark = source.choice((1, 20, 3_000)), source.choice((None, 7, 400)), source.choice((None, 5, 90))
        probe = {"pair_cost_ns": pair, "module_cost_ns": module, "backward_mark_cost_ns": mark, "ranges_pushed": 1}
        ranges, marks, end = ranges_of(source), ranges_of(source), source.choice((60, 5_000))
        check = probe_checks.probe_cost(probed(source, probe, ranges, marks, end))[0]

        def inside(frame: pl.DataFrame, end: int = end) -> list[Row]:
            return [
                r
                for r in rows(frame)
                if r["own"] and not r["repeated"] and r["process"] == PROCESS and 20 <= r["start_ns"] <= end
            ]

        modules = sum(r["kind"] == "module" for r in inside(ranges))
        others, marked = len(inside(ranges)) - modules, len(inside(marks))
        share = (modules * (module or pair) + marked * (mark or pair) + others * pair) / (end - 20)
        assert check.detail.startswith(f"{units.several(modules, 'module call')} at {units.duration(module or pair)}, ")
        assert (
            f"{units.several(marked, 'backward mark')} at" in check.detail
            and f"{units.several(others, 'other range')} at" in check.detail
        )
        assert f"take at least {units.share(share, 1)} of" in check.detail
        assert (check.status == "warn") == bool(check.fix) == (share > COSTLY_PROFILING_SHARE)


def test_operators_in_the_steady_steps_are_counted() -> None:
    for source in rounds():
        ranges = ranges_of(source)
        shown = probed(source, {}, ranges, ranges, 60)
        count = sum(
            r["kind"] == "op" and not r["repeated"] and r["process"] == PROCESS and 20 <= r["start_ns"] <= 60
            for r in rows(ranges)
        )
        checks = probe_checks.operator_cost(shown)
        assert [c.detail.split()[0] for c in checks] == ([str(count)] if count else [])
    shown.steps.cpu_windows = shown.steps.cpu_windows.clear()
    assert probe_checks.operator_cost(shown) == [] == probe_checks.probe_cost(shown)


def test_the_cost_of_profiling_compares_the_same_steps() -> None:
    for source in rounds(80):
        numbers = list(range(5, 11))
        steps = pl.DataFrame({"process": [PROCESS] * 6 + [OTHER], "index": [*range(6), 0], "number": [*numbers, 5],
                              "steady": [False, *[True] * 6], "start_ns": [*range(0, 600, 100), 0],
                              "end_ns": [100 * i + source.randrange(50, 90) for i in range(6)] + [9_999]})  # fmt: skip
        steps_of = ("process", "index", "device", "start_ns", "end_ns")
        tiles = pl.DataFrame([(PROCESS, i, d, 100 * i, 100 * i + source.randrange(50, 90)) for i in range(6) for d in (0, 1)],
                             schema=dict.fromkeys(steps_of, pl.Int64), orient="row")  # fmt: skip
        clock = source.choice(("gpu", "cpu"))
        listed = {str(n): source.choice((40, 60, True, "x")) for n in numbers if source.random() < 0.6}
        trace = SimpleNamespace(run={"calibration": {"steps_ns": listed, "clock": clock}})
        shown = profile(trace=trace, steps=SimpleNamespace(process=PROCESS, cpu=steps, gpu=tiles, parts=1))
        spent = {i: max(r["end_ns"] - r["start_ns"] for r in rows(tiles if clock == "gpu" else steps)
                        if r["process"] == PROCESS and r["index"] == i) for i in range(6)}  # fmt: skip
        both = [(listed[str(n)], spent[i]) for i, n in enumerate(numbers) if i and type(listed.get(str(n))) is int]
        (check,) = probe_checks.profiling_cost(shown)
        if not both:
            assert check.status == "missing"
            continue
        without, with_ = (statistics.median(c) for c in zip(*both, strict=True))
        share = (with_ - without) / without
        assert (
            f"a step took {units.duration(without)} without the profiler and {units.duration(with_)} with it"
            in check.detail
        )
        assert f"{units.share(share, 1)} of a step (medians of the same {len(both)} steps)" in check.detail
        assert (check.status == "warn") == bool(check.fix) == (share > COSTLY_PROFILING_SHARE)


def test_pages_that_move_alone_or_beneath_kernels() -> None:
    for source in rounds():
        of = columns(source, 16).times().add("process", (PROCESS, PROCESS, OTHER)).add("device", (0, 0, 1))
        ops = of.names("op_kind", ("kernel", "graph", "memcpy")).add("copy_kind", (None, 11, 12, 1)).frame()
        windows = pl.DataFrame(
            {"process": [PROCESS, OTHER, PROCESS], "device": [0, 0, 1], "start_ns": [10, 0, 0], "end_ns": [50, 60, 60]}
        )
        shown = profile(attributed=SimpleNamespace(gpu_ops=ops), steps=SimpleNamespace(windows=windows))
        mine = [r for r in rows(ops) if (r["process"], r["device"]) == (PROCESS, 0)]
        for kinds in ((11,), (11, 12)):
            moves = covered(*((r["start_ns"], r["end_ns"]) for r in mine if r["copy_kind"] in kinds)) & set(
                range(10, 50)
            )
            busy = covered(*((r["start_ns"], r["end_ns"]) for r in mine if r["op_kind"] != "memcpy"))
            assert limits.pages_moving(shown, PROCESS, 0, kinds) == len(moves - busy)
            assert limits.pages_moving(shown, PROCESS, 0, kinds, beneath=True) == len(moves & busy)


@pytest.mark.parametrize(("lengths", "told"), [([100] * 15, ""), ([100] * 12 + [200] * 3, ""), ([100] * 16, ""),
                                               ([100] * 12 + [108] * 4, "108 ns"),
                                               ([100] * 12 + [101] * 4, ""), ([108] * 4 + [100] * 12, "108 ns")])  # fmt: skip
def test_bare_steps_that_drift_say_so(lengths: list[int], told: str) -> None:
    """From four steps in a quarter on, and by more than 2 % of the mean."""
    words = window_checks._drift(np.array(lengths, np.int64))
    assert (told in words) and bool(words) == bool(told)
