"""The verdict: what limits the step, in words and numbers that cannot be read two ways."""

from __future__ import annotations

import json
import re

import pytest

from nsysx import pipeline
from tests.builder import Report, Thread, case_a
from tests.findings import Program

US, MS = 1_000, 1_000_000


def verdict(report: Report, path, **options):
    return pipeline.summarize([report.write(path / "r.sqlite")], every_table=False, **options).verdict


def steps(thread: Thread, count: int, work, length: int = 1_000 * US) -> None:
    """Add ``count`` steps in ranges of the user's own; ``work`` adds the calls of one, given its begin."""
    for i in range(count):
        at = i * length
        work(at)
        thread.add_range(f"step {i}", at, at + length - 10)


def words(found) -> str:
    return " ".join([found.sentence, *found.evidence])


def test_percentages_are_written_one_way(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")

    def work(at):
        thread.launch(at=at + 10 * US, dur=5 * US, gpu_start=at + 20 * US, gpu_dur=980 * US)
        thread.sync(at=at + 30 * US, dur=971 * US)

    steps(thread, 12, work)
    found = verdict(report, tmp_path, step_range="^step ")
    assert found.code == "gpu_bound"
    assert "GPU busy 98 % of 1.00 ms" in found.sentence
    assert not re.search(r"\d%", words(found))


def test_a_step_that_runs_dry_behind_a_sync_names_the_module_in_quotes(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")

    def work(at):
        thread.launch(at=at + 10 * US, dur=5 * US, gpu_start=at + 20 * US, gpu_dur=300 * US)
        thread.sync(at=at + 30 * US, dur=292 * US)
        thread.add_range("head:Linear", at + 595 * US, at + 615 * US, domain="nsysx")
        thread.launch(at=at + 600 * US, dur=5 * US, gpu_start=at + 610 * US, gpu_dur=200 * US)

    steps(thread, 12, work)
    found = verdict(report, tmp_path, step_range="^step ")
    assert found.code == "sync_bound"
    assert "0.29 ms of it after host syncs in cudaStreamSynchronize" in found.sentence
    # 290 of 500 us of idle time end with the work of the head; the rest lies outside modules.
    assert "58 % of the GPU's idle time is before work of module 'head'" in found.evidence
    assert "before work of module '('" not in words(found)


def test_first_calls_make_a_capture_without_steps_start_up(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")
    at = 0
    for i in range(6):
        load = thread.call("cuLibraryLoadData", at, 4_000 * US)
        thread.launch(at=load.end + 10 * US, dur=5 * US, kernel=f"k{i}", gpu_start=load.end + 20 * US, gpu_dur=100 * US)
        at = load.end + 2_000 * US
    found = verdict(report, tmp_path)
    assert found.code == "warmup"
    assert "in loading of kernels and libraries" in found.sentence
    assert "of the step" not in words(found)
    assert any("--step-range" in line for line in found.evidence)


def test_a_capture_without_steps_is_not_blamed_on_its_syncs(tmp_path):
    """Experiments one after the other: the pauses after a synchronize are other parts of the program, not its cost."""
    report = Report()
    thread = report.process(100).thread(100, "python")
    at, pauses = 0, (900, 100, 1_700, 300, 1_100, 2_500, 60)
    for i, pause in enumerate(pauses):
        thread.launch(at=at, dur=5 * US, kernel=f"k{i}", gpu_start=at + 10 * US, gpu_dur=(400 + 90 * i) * US)
        done = at + (410 + 90 * i) * US
        thread.sync(at=at + 20 * US, dur=done - at - 18 * US)
        at = done + pause * US
    found = verdict(report, tmp_path)
    assert found.code in ("launch_bound", "unknown")
    assert "of the step" not in words(found)
    assert "Synchronize" not in found.sentence


def test_a_busy_capture_without_steps_is_said_to_be_one(tmp_path):
    found = verdict(case_a(), tmp_path)
    assert found.code == "gpu_bound"
    assert "from its first to its last work" in found.sentence
    assert "whole capture" in found.evidence[0]


def test_without_gpu_rows_nothing_is_concluded_and_no_wait_is_split(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")
    thread.launch(at=0, dur=5 * US)
    thread.sync(at=10 * US, dur=500 * US)
    summary = pipeline.summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert summary.verdict.code == "unknown"
    (wait,) = summary.rows("waits")
    assert wait["total_ns"] == 500 * US
    for part in ("backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns"):
        assert wait[part] is None


@pytest.mark.parametrize("steady", [True, False])
def test_copies_that_nothing_hides(tmp_path, steady):
    report = Report()
    thread = report.process(100).thread(100, "python")

    def work(at):
        thread.memcpy(
            at=at + 5 * US, dur=800 * US, pageable=True, gpu_start=at + 10 * US, gpu_dur=790 * US, bytes=1 << 20
        )
        thread.launch(at=at + 806 * US, dur=5 * US, gpu_start=at + 815 * US, gpu_dur=180 * US)

    steps(thread, 8, work)
    found = verdict(report, tmp_path, step_range="^step ", steps=None if steady else "all")
    assert found.code == "copy_bound"
    assert ("0.79 of 1.00 ms" if steady else "from its first to its last work") in found.sentence
    assert "idle time lies before" not in words(found)


def test_steps_that_grow_and_gradients_that_are_accumulated_are_said(tmp_path):
    report = Report()
    main = report.process(100).thread(100, "python")
    t = 20_000
    for i in range(16):
        work = 100_000 + i * 20_000
        begin = t
        for _ in range(3):
            for phase in ("forward", "backward"):
                main.add_range(phase, t, t + work, domain="nsysx")
                main.launch(t + 1_000, 5_000, kernel=phase, gpu_start=t + 10_000, gpu_dur=work - 12_000)
                t += work + 1_000
        main.add_range("optimizer AdamW", t, t + 20_000, domain="nsysx")
        main.launch(t + 1_000, 5_000, kernel="adam", gpu_start=t + 8_000, gpu_dur=9_000)
        t += 21_000
        main.add_range(f"step {i}", begin, t - 500, domain="nsysx")
    sentence, evidence = (said := verdict(report, tmp_path)).sentence, said.evidence
    assert (
        sentence.startswith("GPU-bound: on average GPU busy 94 % of") and "Step time grows from 807 us to" in sentence
    )
    assert not any("Step time grows" in line for line in evidence)  # once
    assert "A step is 3 forward and backward passes before one optimizer step: gradients are accumulated" in evidence


@pytest.mark.parametrize("within", [True, False])
def test_gradients_that_a_network_asks_for_are_not_accumulated(tmp_path, within):
    """Passes of ``torch.autograd.grad`` inside of a forward, or behind it with other phases between, which end in no parameter."""
    report = Report()
    main = report.process(100).thread(100, "python")
    t = 20_000

    def phase(name: str, begin: int, length: int) -> None:
        main.add_range(name, begin, begin + length, domain="nsysx")
        main.launch(begin + 1_000, 5_000, kernel=name, gpu_start=begin + 10_000, gpu_dur=length - 12_000)

    for i in range(16):
        begin = t
        if within:
            main.add_range("forward", t, t + 600_000, domain="nsysx")
        for _ in range(3):
            phase("backward" if within else "forward", t + 10_000, 90_000)
            if not within:
                phase("backward", t + 110_000, 80_000)
                main.add_range("TanhBackward0, seq = 7", t + 120_000, t + 150_000)
            t += 200_000
        phase("loss", t, 50_000)
        phase("backward", t + 60_000, 200_000)
        main.add_range("TanhBackward0, seq = 8", t + 70_000, t + 90_000)
        main.add_range("torch::autograd::AccumulateGrad, op_id = 9", t + 100_000, t + 110_000)
        t += 270_000
        main.add_range("optimizer AdamW", t, t + 20_000, domain="nsysx")
        main.launch(t + 1_000, 5_000, kernel="adam", gpu_start=t + 8_000, gpu_dur=9_000)
        t += 21_000
        main.add_range(f"step {i}", begin, t - 500, domain="nsysx")
    assert not any("accumulated" in line or "backward passes" in line for line in verdict(report, tmp_path).evidence)


@pytest.mark.parametrize(("pause_us", "told"), [(10_000, True), (90, False)])
def test_a_mean_that_no_step_takes_is_never_told_alone(tmp_path, pause_us, told):
    """Every tenth step pauses; a pause that moves the mean by 1 % is not worth the words."""
    report = Report()
    main = report.process(100).thread(100, "python")
    t = 20_000
    for i in range(31):
        pause = pause_us * US if i % 10 == 9 else 0
        main.add_range(f"step {i}", t, t + 990 * US + pause, domain="nsysx")
        main.launch(t + pause + 10 * US, 5 * US, kernel="k", gpu_start=t + pause + 20 * US, gpu_dur=600 * US)
        t += MS + pause
    said = verdict(report, tmp_path)
    assert ("Usually 1.00 ms; every 10th step takes 11.00 ms" in said.sentence) == told
    assert ("on average the GPU idles" in said.sentence) == told


@pytest.mark.parametrize(
    ("every", "kind", "told"),
    [
        (2, "compile", "recompilation by torch.compile"),
        (2, "gc", "garbage collection"),
        (2, "", ""),
        (40, "compile", ""),
    ],
)
def test_pauses_of_python_that_take_most_of_the_idle_time_are_told(tmp_path, every, kind, told):
    """In each second step, in none, and in one so seldom that other host code takes more."""

    def body(program: Program, number: int) -> None:
        for _ in range(4):
            program.launch(20)
            program.host(300)
        if number % every == every - 1:
            program.host(8_000)
            if kind:
                said = {"ago_ns": 0, "ns": 8 * MS, "thread": 100}
                program.main.mark(f"{kind} {json.dumps(said)}", at=program.t, domain="nsysx")
        program.launch(20)

    found = Program().steps(body, 42).summary(tmp_path).verdict
    assert found.code == "launch_bound"
    if told:
        assert re.search(rf"the GPU idles [\d.]+ of [\d.]+ ms, [\d.]+ ms of it in {told}\.", found.sentence)
        assert found.idle_at == {"near": told}
    else:
        assert not found.idle_at
        assert " of it in " not in found.sentence
