"""The rule of what limits a step, by its parts alone: which part counts for what, from where on, and what the sentence names beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.catalogue import StepLimit, StepPart
from nsysx.judging import limit_causes, limit_words, limits, line_of_most, program, sample_checks, verdict, waiting
from nsysx.judging.limits import WindowLimits
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.reports import US

MS = 1_000_000


def window(*, steps: int = 1, whole: bool = False, **ms: float) -> WindowLimits:
    """Return the limits of a window with these parts (ms)."""
    parts = dict.fromkeys(StepPart, 0) | {StepPart.named(name): round(each * MS) for name, each in ms.items()}
    return WindowLimits(1, 0, sum(parts.values()), steps, whole, parts, kernels=True)


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what these rules ask of a profile: steps without a replay, a program of Python, one GPU, no lines."""
    monkeypatch.setattr(verdict, "worth", lambda *_: None)
    monkeypatch.setattr(limit_words, "program_of", lambda _: SimpleNamespace(host="Python"))
    monkeypatch.setattr(limit_words, "other_gpus", lambda _: SimpleNamespace(meanwhile_ns=0))
    monkeypatch.setattr(limit_causes, "site", lambda _: "")
    monkeypatch.setattr(limit_causes, "calls", lambda *_: "")
    monkeypatch.setattr(limit_causes, "launches", lambda *_: "")
    monkeypatch.setattr(limit_causes, "direction", lambda *_: "")
    monkeypatch.setattr(limit_causes, "collective", lambda *_: "")
    monkeypatch.setattr(limit_causes, "loader", lambda *_: "")
    monkeypatch.setattr(limit_causes, "pauses", lambda *_: ("", 0.0))
    monkeypatch.setattr(limit_words.gpu_work, "most", lambda *_: "")
    monkeypatch.setattr(limit_words.gpu_work, "kernels", lambda *_: (40, 2000))
    return SimpleNamespace(steps=SimpleNamespace(source="probe"), code=lambda: None)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"work": 86, "host": 14}, StepLimit.GPU),
        ({"work": 85, "host": 15}, StepLimit.LAUNCH),
        ({"work": 85, "host": 8, "launch": 7}, StepLimit.LAUNCH),
        ({"work": 60, "host": 14, "input": 13, "sync": 13}, StepLimit.GPU),
        ({"work": 40, "pause": 10, "host": 13, "input": 13, "sync": 12, "alloc": 12}, StepLimit.GPU),
        ({"work": 39, "pause": 10, "host": 14, "input": 13, "sync": 12, "alloc": 12}, StepLimit.LAUNCH),
        ({"work": 40, "host": 16, "input": 44}, StepLimit.INPUT),
        ({"work": 40, "copy": 30, "migration": 16, "host": 14}, StepLimit.COPY),
        ({"work": 40, "comm": 46, "host": 14}, StepLimit.COMM),
        ({"work": 40, "alloc": 46, "host": 14}, StepLimit.ALLOC),
        ({"work": 40, "load": 30, "start_up": 30}, StepLimit.WARMUP),
        # What nobody can remove is no limit, and the profiler's own time is no part of the step.
        ({"work": 60, "pause": 20, "dependency": 20}, StepLimit.GPU),
        ({"work": 43, "host": 7, "profiler": 50}, StepLimit.GPU),
        ({"work": 42, "host": 8, "elsewhere": 50}, StepLimit.LAUNCH),
    ],
)  # fmt: skip
def test_each_part_counts_for_its_limit_from_15_percent_on(
    profile: Any, parts: dict[str, float], code: StepLimit
) -> None:
    assert verdict._limit(profile, window(**parts)) == code


@pytest.mark.parametrize(
    ("worths", "code"),
    [
        ({}, StepLimit.INPUT),
        ({StepLimit.INPUT: 16}, StepLimit.LAUNCH),  # what is worth most, not what takes longest
        ({StepLimit.INPUT: 16, StepLimit.LAUNCH: 14}, StepLimit.INPUT),
        ({StepLimit.INPUT: 14, StepLimit.LAUNCH: 13}, StepLimit.INPUT),  # nothing is worth a word: what takes longest
        ({StepLimit.INPUT: 40, StepLimit.LAUNCH: 99}, StepLimit.INPUT),  # never worth more than it takes
    ],
)
def test_of_several_causes_the_one_that_is_worth_most_is_the_limit(
    profile: Any, monkeypatch: pytest.MonkeyPatch, worths: dict[StepLimit, int], code: StepLimit
) -> None:
    monkeypatch.setattr(verdict, "worth", lambda _p, _l, each: worths[each] * MS if each in worths else None)
    assert verdict._limit(profile, window(work=40, host=25, input=35)) == code


def test_figures_of_a_window_are_those_of_a_step(profile: Any) -> None:
    """Four steps: all that is told is a quarter of the window, and the parts that are idle sum to its idle time."""
    four = window(steps=4, work=40, host=25, input=35, profiler=8, elsewhere=12)
    assert (four.real_ns, four.per_step(four.real_ns)) == (100 * MS, 25 * MS)
    assert four.idle_ns == 68 * MS  # what the program does elsewhere is not waited for
    assert four.lost == {StepLimit.LAUNCH: 25 * MS, StepLimit.INPUT: 35 * MS}
    assert (
        limit_words.headline(profile, four, StepLimit.INPUT)
        == "Input-bound: the GPU idles 15.0 of 25.0 ms, 8.8 ms of it waiting for input data, and 6.2 ms waiting for kernel launches."
    )
    assert window(whole=True, steps=4, work=4).per_step(4 * MS) == 4 * MS


@pytest.mark.parametrize(("between_ms", "told"), [(4.3, False), (4.5, True)])
def test_what_runs_between_steps_is_told_where_it_could_limit_the_loop(
    profile: Any, monkeypatch: pytest.MonkeyPatch, between_ms: float, told: bool
) -> None:
    """From 15 % of the loop on, that is of the step of 25 ms with it, whatever limits the step itself."""
    words = f"; what runs between steps adds {between_ms:.2f} ms a step."
    monkeypatch.setattr(line_of_most, "gpu_work", lambda *_: line_of_most.LineShare("train.py", 31, 0.5))
    for code, parts in ((StepLimit.GPU, {"work": 100}), (StepLimit.INPUT, {"work": 40, "input": 60})):
        four = replace(window(steps=4, **parts), between_ns=round(between_ms * MS))
        sentence = limit_words.headline(profile, four, code)
        assert sentence.endswith(words) == told, sentence
        # A line's part is one of the step, so it stands before what is none.
        assert code != StepLimit.GPU or "of 25.0 ms, 12.5 ms of it in train.py:31" in sentence


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.5, "Copy-bound: exposed copies take 40.0 of 100.0 ms, 20.0 ms of it in train.py:31."),
        (0.98, "Copy-bound: exposed copies take 40.0 of 100.0 ms, in train.py:31."),
    ],
)  # fmt: skip
def test_copies_have_the_line_that_makes_most_of_them(
    profile: Any, monkeypatch: pytest.MonkeyPatch, share: float, words: str
) -> None:
    monkeypatch.setattr(line_of_most, "copies", lambda *_: line_of_most.LineShare("train.py", 31, share))
    assert limit_words.headline(profile, window(work=60, copy=40), StepLimit.COPY) == words
    moved = limit_words.headline(profile, window(work=60, migration=40), StepLimit.COPY)
    assert "train.py" not in moved  # pages move where they are touched


def test_a_step_with_several_small_causes_says_what_the_gpu_works_on(
    profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_words.gpu_work, "most", lambda *_: "78 % of GPU time is the kernel k")
    sentence = limit_words.headline(profile, window(work=80, copy=10, alloc=10), StepLimit.GPU)
    assert sentence.endswith("exposed copies 10.0 ms, allocator calls 10.0 ms. 78 % of GPU time is the kernel k.")


@pytest.mark.parametrize(
    ("parts", "code", "words"),
    [
        ({"work": 20, "host": 35, "alloc": 20, "input": 25}, StepLimit.LAUNCH,
         "the GPU idles 80.0 of 100.0 ms, 35.0 ms of it waiting for kernel launches, and 25.0 ms waiting for input data."),
        ({"work": 50, "host": 36, "input": 14}, StepLimit.LAUNCH, "50.0 of 100.0 ms, 36.0 ms of it waiting for kernel launches."),
        ({"work": 50, "host": 49, "input": 1}, StepLimit.LAUNCH, "the GPU idles 50.0 of 100.0 ms, 49.0 ms of it waiting"),
        ({"work": 50, "host": 48, "input": 2}, StepLimit.LAUNCH, "the GPU idles 50.0 of 100.0 ms, 48.0 ms of it waiting"),
        ({"work": 50, "host": 24, "launch": 26}, StepLimit.LAUNCH, "the GPU idles 50.0 of 100.0 ms in kernel launch latency."),
        ({"work": 50, "host": 25, "launch": 25}, StepLimit.LAUNCH, "the GPU idles 50.0 of 100.0 ms waiting for kernel launches."),
        ({"work": 40, "copy": 40, "host": 20}, StepLimit.COPY,
         "exposed copies take 40.0 of 100.0 ms; the GPU idles 20.0 ms waiting for kernel"),
        ({"work": 40, "copy": 40, "comm": 20}, StepLimit.COPY, "exposed copies take 40.0 of 100.0 ms; exposed communication: 20.0 ms."),
        ({"work": 40, "copy": 20, "comm": 40}, StepLimit.COMM, "exposed communication takes 40.0 of 100.0 ms; exposed copies: 20.0 ms."),
        ({"work": 40, "copy": 19, "migration": 21, "host": 20}, StepLimit.COPY, "exposed page migration takes 40.0 of 100.0 ms"),
        ({"work": 60, "pause": 20, "dependency": 20}, StepLimit.GPU, "60 % of 100.0 ms, inter-kernel gaps take 20.0 ms: 40 short"),
        ({"work": 60, "pause": 19, "dependency": 21}, StepLimit.GPU, "60 % of 100.0 ms; for 21.0 ms its next kernel is queued but"),
        ({"work": 86, "pause": 14}, StepLimit.GPU, "GPU busy 86 % of 100.0 ms."),
        ({"work": 70, "comm": 10, "host": 10, "input": 10}, StepLimit.GPU, "GPU busy 80 % of 100.0 ms; the rest: "),
        ({"work": 40, "start_up": 60}, StepLimit.WARMUP, "the GPU idles 60.0 of 100.0 ms in loading of kernels and libraries and other"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_limit_and_what_could_limit_beside_it(
    profile: Any, parts: dict[str, float], code: StepLimit, words: str
) -> None:
    sentence = limit_words.headline(profile, window(**parts), code)
    assert words in sentence and sentence.startswith(f"{limit_words.name_of(code)}: ")


def test_a_wait_costs_at_least_what_its_removal_saves(profile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of which two were replayed: 12 ms saved there are 24, taken from host code and launches by their shares."""
    replay = limits.Replay.__new__(limits.Replay)
    monkeypatch.setattr(limits, "replay_of", lambda _: replay)
    monkeypatch.setattr(limits.Replay, "trusted", True, raising=False)
    monkeypatch.setattr(limits.Replay, "real_ns", 50 * MS, raising=False)
    monkeypatch.setattr(waiting, "dearest_ns", lambda _: 12 * MS)
    profile.once = lambda rule: rule(profile)
    before = window(steps=4, work=50, host=30, launch=10, sync=10)
    after = limits._with_waits(profile, before)
    assert after.parts[StepPart.SYNC] == 24 * MS
    assert (after.parts[StepPart.HOST], after.parts[StepPart.LAUNCH]) == (19_500_000, 6_500_000)
    assert sum(after.parts.values()) == after.window_ns == before.window_ns
    monkeypatch.setattr(waiting, "dearest_ns", lambda _: 4 * MS)
    assert limits._with_waits(profile, before) is before  # the idle time right after the wait is already more
    monkeypatch.setattr(waiting, "dearest_ns", lambda _: 50 * MS)
    assert limits._with_waits(profile, before).parts[StepPart.SYNC] == 50 * MS  # no more than there is
    monkeypatch.setattr(limits.Replay, "trusted", False, raising=False)
    assert limits._with_waits(profile, before) is before


@pytest.mark.parametrize(("sampled_ms", "status"), [(86, "ok"), (84, "warn"), (75, "warn")])
def test_samples_say_too_little_where_more_than_15_percent_has_no_line(
    monkeypatch: pytest.MonkeyPatch, sampled_ms: int, status: str
) -> None:
    pl = sample_checks.pl
    rows = pl.DataFrame({"idle_ns": [sampled_ms, 100 - sampled_ms], "place": [1, None], "samples": [9, 1]})
    monkeypatch.setattr(sample_checks, "known_lines", lambda _: SimpleNamespace(rows=rows, period_ns=MS))
    samples = pl.DataFrame({"process": [1, 1, 2], "thread": [1, 2, 3]})
    given: Any = SimpleNamespace(trace=SimpleNamespace(samples=samples), process=1)
    (check,) = sample_checks.python_samples(given)
    assert check.status == status and f"{sampled_ms} % of its time has a line" in check.detail
    assert "2 samples of Python's stack on 2 threads" in check.detail


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"work": 49, "untraced": 51}, "Limit unknown: for 51.0 of 100.0 ms the GPU waits for work whose launch is not in the capture."),
        ({"work": 51, "untraced": 49}, "GPU-bound: GPU busy 51 % of 100.0 ms."),
        ({"work": 82, "host": 8, "profiler": 10}, "Limit unknown: the profiler itself takes 10.0 ms of 100.0 ms, the GPU works 82.0."),
        ({"work": 82, "host": 10, "profiler": 8}, "GPU-bound: GPU busy 89 % of 92.0 ms."),  # less than half of the idle time
        ({"work": 93, "host": 3, "profiler": 4}, "GPU-bound: GPU busy 97 % of 96.0 ms."),  # too little idle time to matter
    ],
)  # fmt: skip
def test_nothing_is_claimed_where_most_is_the_profilers_or_launched_elsewhere(
    profile: Any, monkeypatch: pytest.MonkeyPatch, parts: dict[str, float], sentence: str
) -> None:
    monkeypatch.setattr(verdict, "_evidence", lambda *_: ())
    monkeypatch.setattr(verdict, "_blamed", lambda *_: "")
    monkeypatch.setattr(verdict, "_course", lambda *_: "")
    assert verdict._judged(profile, window(**parts))[1] == sentence


@pytest.mark.parametrize(
    ("idle_ms", "words"),
    [
        ({"a": 12, "b": 8}, "60 % of the GPU's idle time is before work of module 'a'"),
        ({"b": 10, "a": 10}, "50 % of the GPU's idle time is before work of module 'a'"),
        ({None: 12, "a": 8}, ""),  # most is before work of no module
        ({None: 10, "a": 10}, "50 % of the GPU's idle time is before work of module 'a'"),
        ({"(outside)": 20}, ""),
        (dict.fromkeys("abcdef", 4), ""),  # none of them has a fifth
        ({"a": 14}, ""),  # idle time that is no limit
        ({"a": 15}, "100 % of the GPU's idle time is before work of module 'a'"),
    ],
)
def test_idle_time_is_blamed_on_the_module_that_has_most_of_it(idle_ms: dict[str | None, int], words: str) -> None:
    pl = sample_checks.pl
    ops = pl.DataFrame({"module": list(idle_ms)}, schema={"module": pl.Categorical})
    pieces = pl.DataFrame({"op": range(len(idle_ms)), "ns": [each * MS for each in idle_ms.values()]})
    given: Any = SimpleNamespace(
        idle=lambda: {(1, 0): pieces}, attributed=SimpleNamespace(gpu_ops=ops, without_path=("(outside)",))
    )
    assert verdict._blamed(given, window(work=100)) == words


@pytest.mark.parametrize(
    ("versions", "recorded", "second"),
    [
        (("2.1.0",), 0, True), (("1.13.1",), 2**62, False), (("2.0", "0.4"), 2**62, False), ((None,), 1_678_838_400_000_000_000, True),
        ((), 1_678_838_399_999_999_999, False), ((), None, True),
    ],
)  # fmt: skip
def test_a_compiler_is_there_from_the_second_version_of_pytorch_on(
    versions: tuple[str | None, ...], recorded: int | None, second: bool
) -> None:
    """By what the probe noted, else by when the report was recorded; unknown is no reason against it."""
    capture: Any = SimpleNamespace(probe=[{"torch": v} for v in versions], utc_epoch_ns=recorded)
    assert program._second_torch(capture) is second


@pytest.mark.parametrize(("stream", "part"), [(None, "start_up"), (9, "dependency")])
def test_a_first_kernel_that_waits_for_nothing_recorded_is_being_loaded(
    tmp_path: Path, stream: int | None, part: str
) -> None:
    """Launched at once, it begins 2 ms later, and its call is one-time cost; unless it is another stream's work that ended last."""
    report = Report()
    main = report.process(1, name="solver").thread(1)
    main.memcpy(0, 5 * US, kind="HtoD", gpu_start=10 * US, gpu_dur=300 * US, stream=stream or 7)
    main.launch(400 * US, 80 * US, kernel="first", gpu_start=2_400 * US, gpu_dur=20 * US)
    for again in range(2):
        main.launch(
            (2_430 + again * 30) * US, 5 * US, kernel="first", gpu_start=(2_450 + again * 30) * US, gpu_dur=20 * US
        )
    parts = summarize([report.write(tmp_path / "r.sqlite")], every_table=False).verdict.parts
    assert max(parts, key=lambda name: parts[name]) == part


def shared_memory(
    tmp_path: Path, reads: tuple[int, int], *, again_ms: int | None = None, prefetch: bool = False
) -> Any:
    """Return the Summary of a kernel of 10 ms, 4 of them while pages come to it, whose result the host then reads page by page.

    ``reads``: so many pages, one in so many ms, each moves for 0.1 ms; ``again_ms``: when the next kernel is launched.
    """
    report = Report()
    process = report.process(1, name="solver")
    main = process.thread(1)
    if prefetch:
        main.call("cudaMemPrefetchAsync_v8000", 0, 5 * US)
    main.launch(10 * US, 5 * US, kernel="add", gpu_start=20 * US, gpu_dur=10 * MS)
    process.copy("UVM_HtoD", MS, 4 * MS, correlation=0, bytes=1 << 20)
    pages, each_ms = reads
    for page in range(pages):
        process.copy("UVM_DtoH", (12 + page * each_ms) * MS, MS // 10, correlation=0, bytes=1 << 20)
    if again_ms is not None:
        main.launch(again_ms * MS, 5 * US, kernel="add", gpu_start=again_ms * MS + 10 * US, gpu_dur=10 * MS)
    return summarize([report.write(tmp_path / "r.sqlite")], every_table=False)


@pytest.mark.parametrize(
    ("again_ms", "parts"),
    [
        (None, {"work": 10, "migration": 1}),  # behind the last kernel
        (111, {"work": 20, "migration": 1}),  # 100 ms and more
        (109, {"work": 20, "migration": 1, "host": 98}),
    ],
)
def test_the_device_waits_for_no_page_that_the_host_reads(
    tmp_path: Path, again_ms: int | None, parts: dict[str, int]
) -> None:
    """Ten pages, one in 4 ms: they move for 1 ms, the rest is code of the host, and a long stretch of it another part of the program."""
    verdict = shared_memory(tmp_path, (10, 4), again_ms=again_ms).verdict
    assert {name: round(ns / MS) for name, ns in verdict.parts.items() if ns >= MS // 2} == parts
    assert sum(verdict.parts.values()) == verdict.step_ns


@pytest.mark.parametrize("prefetch", [True, False])
def test_pages_that_kernels_wait_for_are_found_beneath_them(tmp_path: Path, prefetch: bool) -> None:
    found = shared_memory(tmp_path, (10, 4), prefetch=prefetch)
    assert found.verdict.sentence.startswith("GPU-bound: GPU busy 100 % of the 11.0 ms in which the program uses it")
    finding = next(f for f in found.findings if f.code == "NSX121" and f.verdict == "found")
    assert (
        "For 5.00 ms in the capture (45 %)" in finding.detail
        and "(1.00 ms), or kernels wait for pages (4.00 ms)" in finding.detail
    )
    assert found.answer.do[0].code == "NSX121", "nearly half of the time is worth more than another look at the kernel"
    assert ("cudaMemPrefetchAsync" in finding.fix) == (not prefetch)
    assert ("prefetches some of them already" in finding.detail) == prefetch
