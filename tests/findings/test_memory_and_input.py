"""NSX104, 105, 106: memory calls, copies and data loading in steady steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.findings import _case_frames, nsx106_input_starvation
from nsysx.replay import engine
from nsysx.saving import Saving
from tests.findings import Program, empty, healthy, said_of, stepless
from tests.findings.lined import Lined


def thrashing(program: Program, number: int) -> None:
    """A step of 2 ms with 1 ms of allocation and free calls in which the device idles."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(10):
            program.launch(200)
        program.sync()
        for _ in range(4):
            program.call("cudaFree_v3020", 150)
        program.call("cudaMalloc_v3020", 400)


def test_memory_calls_in_steady_steps_are_thrash(tmp_path: Path) -> None:
    finding = Program().steps(thrashing).finding(tmp_path, "NSX104")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == pytest.approx(1_000_000, rel=0.01)
    assert finding.saving_ns_per_step == pytest.approx(1_000_000, rel=0.02)
    assert "flushed" in finding.detail
    assert finding.where["module"] == "net"


@pytest.mark.parametrize(
    ("python", "torch", "native"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_program_of_another_language_is_told_of_its_own_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: bool, torch: bool, native: bool
) -> None:
    seen = _case_frames.program_of
    monkeypatch.setattr(_case_frames, "program_of", lambda profile: replace(seen(profile), python=python, torch=torch))
    finding = Program().steps(thrashing).finding(tmp_path, "NSX104")
    assert ("the pool of cudaMallocAsync" in finding.fix) == native and ("expandable_segments" in finding.fix) != native
    assert bool(finding.remedies) == (torch and not native)


def warming(program: Program, number: int) -> None:
    """A step that allocates; the first also loads code for 2 ms."""
    if number == 0:
        program.call("cuLibraryLoadData", 2_000)
    thrashing(program, number)


@pytest.mark.parametrize(("code", "steps"), [("NSX104", None), ("NSX103", "all")])
def test_another_process_of_the_report_adds_nothing(tmp_path: Path, code: str, steps: str | None) -> None:
    alone = Program().steps(warming).finding(tmp_path, code, steps=steps)
    both, peer = Program().steps(warming), Program()
    peer.report, peer.process = both.report, both.report.process(200)
    peer.main = peer.process.thread(200, "python")
    peer.steps(warming)
    together = both.finding(tmp_path, code, steps=steps)
    assert alone.verdict == "found"
    assert (together.title, together.detail) == (alone.title, alone.detail)


def test_steps_without_memory_calls_are_clear_and_unknown_steps_cannot_be_told(tmp_path: Path) -> None:
    assert Program().steps(healthy).finding(tmp_path, "NSX104").verdict == "clear"
    assert stepless(thrashing).finding(tmp_path, "NSX104").verdict == "cannot_tell"
    assert empty().finding(tmp_path, "NSX104").verdict == "cannot_tell"


def uploading(program: Program, number: int) -> None:
    """2 ms of pageable upload in front of 4 ms of kernels."""
    program.copy(2000, bytes=20 << 20)
    healthy(program, number)


def test_a_pageable_upload_is_exposed(tmp_path: Path) -> None:
    finding = Program().steps(uploading).finding(tmp_path, "NSX105")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == pytest.approx(2_000_000, rel=0.01)
    assert finding.saving_ns_per_step == pytest.approx(2_000_000, rel=0.05)
    assert "pageable" in finding.detail
    assert finding.fix.startswith("Pin what is copied")  # no loader was seen


@pytest.mark.parametrize(("host_us", "advice"), [(250, "Pin what is copied"), (450, "Create this data on the GPU")])
def test_data_that_the_cpu_makes_before_its_copy_is_made_on_the_gpu(
    tmp_path: Path, host_us: float, advice: str
) -> None:
    """From a twentieth of the step on, of 6 ms and what the CPU takes."""

    def body(program: Program, number: int) -> None:
        program.sync()
        program.host(host_us)
        uploading(program, number)

    assert Program().steps(body).finding(tmp_path, "NSX105").fix.startswith(advice)


@pytest.mark.parametrize(("made_at", "advice"), [(31, "Create this data on the GPU"), (30, "Pin what is copied")])
def test_what_another_line_makes_is_not_made_where_it_is_copied(tmp_path: Path, made_at: int, advice: str) -> None:
    """That line has a rule of its own, which names it."""

    def body(program: Lined, number: int) -> None:
        program.sync()
        with program.line(made_at):
            program.host(3000)
        with program.line(31):
            program.copy(2000, bytes=20 << 20)
        with program.line(32):
            healthy(program, number)

    said = said_of(Lined({30: "x = make(rows)", 31: "x = x.cuda()"}).run(body).write(tmp_path))
    finding = next(f for f in said if f.code == "NSX105")
    assert finding.fix.startswith(advice)
    if made_at == 30:
        assert any(f.code == "NSX123" and f.where.get("line") == 30 for f in said)


def test_the_wait_behind_an_upload_is_counted_once(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.copy(2000, bytes=20 << 20)
        program.sync()
        healthy(program, number)

    program = Program().steps(body)
    assert program.finding(tmp_path, "NSX105").verdict == "found"
    assert program.finding(tmp_path, "NSX101").verdict == "clear"


def test_a_copy_behind_kernels_is_clear(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.copy(1000, pageable=False, stream=13)

    assert Program().steps(body).finding(tmp_path, "NSX105").verdict == "clear"
    assert empty().finding(tmp_path, "NSX105").verdict == "cannot_tell"


def starving(program: Program, number: int) -> None:
    """10 ms of loading, the device idle meanwhile, then 4 ms of kernels and a wait."""
    with program.range("data DataLoader"):
        program.host(10_000)
    healthy(program, number)
    program.sync()


def test_a_device_that_idles_for_data_starves(tmp_path: Path) -> None:
    finding = Program().steps(starving).finding(tmp_path, "NSX106")
    assert finding.verdict == "found"
    assert finding.saving_ns_per_step == pytest.approx(10_000_000, rel=0.01)
    assert finding.where == {"module": "DataLoader", "phase": "data"}


def test_the_idle_time_bounds_what_a_loader_costs_without_a_replay(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)
    finding = Program().steps(starving).finding(tmp_path, "NSX106")
    assert finding.verdict == "found"
    assert finding.saving_ns_per_step == pytest.approx(10_000_000, rel=0.01)
    assert finding.saving.bound
    assert "DataLoader(" in finding.fix


def test_a_range_named_data_is_no_data_loader(tmp_path: Path) -> None:
    """A CuPy program may call a range `data`; it has no DataLoader to give workers to."""
    program = Program()
    for number in range(8):
        begin = program.t
        with_data = program.t
        program.host(5_000)
        program.main.add_range("data", with_data, program.t)
        program.launch(2_000, "cupy_add__float64")
        program.sync()
        program.main.add_range(f"step {number}", begin, program.t)
    finding = program.finding(tmp_path, "NSX106")
    assert finding.verdict == "found"
    assert "DataLoader" not in finding.fix


def test_pinned_memory_is_not_to_be_pinned(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.copy(2000, bytes=20 << 20, pageable=False)
        healthy(program, number)

    finding = Program().steps(body).finding(tmp_path, "NSX105")
    assert finding.verdict == "found"
    assert "Pin the memory" not in finding.fix
    assert "separate stream" in finding.fix


def test_loading_behind_a_busy_device_is_clear(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        with program.range("data DataLoader"):
            program.host(1_000)

    assert Program().steps(body).finding(tmp_path, "NSX106").verdict == "clear"
    assert Program().steps(healthy).finding(tmp_path, "NSX106").verdict == "cannot_tell"


def test_what_fsdp_copies_is_no_batch(tmp_path: Path) -> None:
    """Parameters that are kept on the host, and what a module copies: neither is a batch that a loader could pin."""

    def copying(name: str) -> Callable[[Program, int], None]:
        def body(program: Program, number: int) -> None:
            healthy(program, number)
            with program.range("forward"), program.range(name):
                program.copy(1000, bytes=10 << 20)

        return body

    gathered = Program().steps(copying("FSDP.layer:Linear")).finding(tmp_path, "NSX105")
    assert "parameters" in gathered.fix and "batch" not in gathered.fix + gathered.paste
    made = Program().steps(copying("mask:Mask")).finding(tmp_path, "NSX105")
    assert "Create this data on the GPU" in made.fix and "batch" not in made.fix + made.paste


@pytest.mark.parametrize(
    ("size", "every", "reduce"), [(1 << 20, 1, True), ((1 << 20) - 1, 1, False), (1 << 24, 4, False)]
)
def test_what_a_step_copies_whole_to_the_host_is_reduced_first(
    tmp_path: Path, size: int, every: int, reduce: bool
) -> None:
    """From 1 MB in each step; what only some steps copy, like a checkpoint, is wanted whole."""

    def body(program: Program, number: int) -> None:
        program.launch(500)
        if number % every == 0:
            program.copy(800, "DtoH", bytes=size)

    finding = Program().steps(body, 12).finding(tmp_path, "NSX105")
    assert finding.verdict == "found"
    assert finding.fix.startswith("Select or reduce on the GPU") == reduce


@pytest.mark.parametrize(
    ("stream", "waits", "advice"),
    [(7, False, "a stream of their own"), (7, True, "a step later"), (9, False, "Launch the next kernels before")],
)
def test_what_is_pinned_and_asynchronous_already_is_not_advised(
    tmp_path: Path, stream: int, waits: bool, advice: str
) -> None:
    """A result of 4 MB that goes to pinned memory in each step: what still exposes it decides the advice."""

    def body(program: Program, number: int) -> None:
        program.launch(500)
        program.sync()
        program.copy(800, "DtoH", bytes=4 << 20, pageable=False, stream=stream)
        if waits:
            program.sync()
        else:
            program.host(900)
            program.launch(500)

    (finding,) = (f for f in Program().steps(body, 12).findings(tmp_path, "NSX105") if f.verdict == "found")
    assert advice in finding.fix
    assert "o pinned memory with non_blocking" not in finding.fix and "Select or reduce" not in finding.fix


def test_an_upload_on_a_stream_of_its_own_is_to_begin_sooner(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.copy(2000, bytes=20 << 20, pageable=False, stream=9)
        program.host(2000)
        healthy(program, number)
        program.sync()

    (finding,) = (f for f in Program().steps(body).findings(tmp_path, "NSX105") if f.verdict == "found")
    assert finding.fix.startswith("Launch the copy of the next batch before")


def pinning(often: dict[int, int]) -> Program:
    """A program whose loader's pin thread allocates, for so many us in these steps, while backward runs."""
    program = Program()
    pin = program.process.thread(103, "pt_data_pin")

    def body(program: Program, number: int) -> None:
        if number in often:
            pin.call("cudaHostAlloc_v3020", program.t + 200_000, often[number] * 1_000)
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.launch(200)
        with program.range("backward"):
            for _ in range(20):
                program.launch(200)
        program.sync()

    return program.steps(body, 12)


def test_what_the_pin_thread_pays_once_is_its_own_and_no_module_is_to_blame(tmp_path: Path) -> None:
    """841 ms of host memory are pinned once, in steps of 8 ms that the GPU limits: 76 ms a step are no figure of such a step."""
    summary = pinning({6: 841_000}).summary(tmp_path)
    (memory,) = (f for f in summary.findings or () if f.code == "NSX104")
    assert memory.where == {"near": "on the loader's pin thread"}
    assert memory.title == "Allocator calls take 841.0 ms of CPU time in 1 of 11 steps"
    assert "loader's pin thread allocates once" in memory.fix and "module" not in memory.fix
    (first,) = (f for f in summary.findings or () if f.code == "NSX103")
    assert first.verdict == "clear"
    assert "841.0 ms of CPU time in this run is one-time cost" in first.detail


def test_what_the_pin_thread_pays_in_each_step_is_told_per_step(tmp_path: Path) -> None:
    memory = pinning(dict.fromkeys(range(12), 300)).finding(tmp_path, "NSX104")
    assert memory.title == "Allocator calls take 300 us of CPU time in each step"
    assert memory.where == {"near": "on the loader's pin thread"}


#: What a worker counted in a batch of 16 samples: 10 ms, 8 of them in one line of ``decode``.
BATCH = {
    "samples": 16, "wall_ns": 10_000_000, "cpu_ns": 9_500_000,
    "lines": [["/job/data.py", 28, "decode", 64, 8_000_000], ["/job/data.py", 40, "Tiles.__iter__", 16, 500_000]],
    "calls": [["/job/data.py", 27, "decode", 64], ["/job/data.py", 39, "Tiles.__iter__", 1]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("often", "workers", "says"),
    [
        (64, 4, "runs 4 times for each one that a worker hands out, and there are 4 workers"),
        (64, 8, "runs 4 times for each one that a worker hands out; more workers"),
        (
            16,
            4,
            "in place of 4 workers gives 2.00x at most, which is not enough; most of their time is at data.py:28 decode",
        ),
    ],
)
def test_what_a_worker_does_again_for_each_sample_goes_before_more_workers(
    often: int, workers: int, says: str, tmp_path: Path
) -> None:
    counted = {**BATCH, "calls": [["/job/data.py", 27, "decode", often]]}
    settings = {"loaders": [{"workers": workers, "iterators": 1, "batch_size": 16}], "cpu": {"allowed": 32}}
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "worker": counted, "settings": settings}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    finding = Program().steps(starving).finding(tmp_path, "NSX106")
    assert says in finding.fix
    assert ("num_workers" in finding.fix) == (often == 16)
    assert (finding.where["file"], finding.where["line"]) == ("/job/data.py", 28)
    assert "80 % of its time is at data.py:28 decode, which runs 64 times." in finding.detail


def fed(program: Program, number: int) -> None:
    """A step of 3 ms of GPU work whose batch is there."""
    with program.range("data DataLoader"):
        program.host(10)
    for _ in range(15):
        program.launch(200)


@pytest.mark.parametrize(
    ("workers", "ahead", "steps", "told"),
    [(2, 4, 8, True), (3, 4, 8, False), (2, 2, 8, False), (2, None, 8, False)],
    ids=["slow", "as fast as the steps", "more steps than batches ahead", "not known how many"],
)
def test_steps_that_live_on_batches_made_ahead_do_not_hide_slow_workers(
    workers: int, ahead: int | None, steps: int, told: bool, tmp_path: Path
) -> None:
    """A worker takes 10 ms for a batch: two give one every 5 ms, and a step takes 3 ms."""
    loader = {"workers": workers, "iterators": 1, "batch_size": 16, "prefetch_factor": ahead}
    settings = {"loaders": [loader], "cpu": {"allowed": 32}}
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "worker": BATCH, "settings": settings}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    whole = Program().steps(fed, steps).summary(tmp_path)
    (finding,) = (f for f in whole.findings or () if f.code == "NSX106")
    assert (finding.verdict == "found") == told
    if told:
        assert "2 workers give a batch every 5.00 ms" in finding.title
        assert finding.saving.likely_ns is None and "about 5.00 ms" in finding.saving.confidence
        assert whole.answer.do[0].code == "NSX106" and whole.answer.worth.startswith("These steps lived on")


@pytest.mark.parametrize("damaged", [{"lines": [[1, 2]]}, {"samples": 0}, {"wall_ns": "long"}, {"lines": []}])
def test_what_a_worker_counted_is_left_out_where_it_is_damaged(damaged: dict[str, object], tmp_path: Path) -> None:
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "worker": {**BATCH, **damaged}}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    finding = Program().steps(starving).finding(tmp_path, "NSX106")
    assert "One worker was followed" not in finding.detail and "file" not in finding.where


MS = 1_000_000


@pytest.mark.parametrize(("wait_ms", "least_ms", "most_ms"), [(144, 106, 150), (8, 140, 150)], ids=["long", "short"])
def test_new_workers_give_no_more_batches_than_they_can(wait_ms: int, least_ms: int, most_ms: int) -> None:
    """Of a step of 160 ms a loader that is always ready saves 145, but eight workers may need 54 ms for a batch that takes one 144."""
    case: Any = SimpleNamespace(step_ns=160 * MS)
    free = Saving(145 * MS, "replayed", error_ns=5 * MS)
    worth = nsx106_input_starvation._as_workers_can(case, free, wait_ms * MS)
    assert worth.likely_ns is not None and worth.error_ns is not None
    assert (worth.likely_ns - worth.error_ns, worth.likely_ns + worth.error_ns) == (least_ms * MS, most_ms * MS)
    assert (worth == free) == (wait_ms == 8)
