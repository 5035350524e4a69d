"""NSX127, collectives that lines of the program make, and ranks that share cores: with the fault, and without it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _costly_collectives, _costly_when
from nsysx.findings._case import Case
from nsysx.inject.nsysx_probe import settings_state
from nsysx.model import Finding
from nsysx.saving import Saving
from tests.findings.lined import FILE, Lined
from tests.ranks.test_rank_table import noted

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SOURCE = {
    20: "y = net(x)",
    21: "loss.backward()",
    30: "dist.all_reduce(value)",
    31: "seen += value.item()",
    40: "work()",
    60: "dist.all_reduce(seconds)",
}


def metrics(
    program: Lined,
    number: int,
    *,
    reads: bool = True,
    stream: int = 7,
    every: int = 1,
    us: float = 100,
    last: bool = False,
) -> None:
    """A step whose values are reduced over all ranks and, with ``reads``, read by the host."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(21), program.range("backward"):
        program.launch(1000)
        program.launch(300, REDUCE, stream=20)
    if number % every == 0:
        with program.line(30):
            program.launch(us, REDUCE, stream=stream)
        if reads:
            with program.line(31):
                program.copy(2, "DtoH", bytes=4, stream=stream)
    with program.line(40):
        program.host(200)
        program.launch(100)
    if last:
        with program.line(60):
            program.launch(us, REDUCE, stream=stream)


def found(folder: Path, source: dict[int, str] | None = None, **how: Any) -> dict[str, Finding]:
    program = Lined({**SOURCE, **(source or {})}).run(lambda p, n: metrics(p, n, **how))
    return {f.evidence[0]["setting"]: f for f in program.found(folder, "NSX127")}


def test_what_metrics_are_made_of_is_counted_on_each_rank(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {30: "dist.all_gather(parts, predicted)"}).values()
    assert [r.name for r in finding.remedies] == ["counted-apart"] and finding.where["line"] == 30


def test_metrics_that_are_reduced_and_read_in_each_step_are_told_with_their_line(tmp_path: Path) -> None:
    (finding,) = found(tmp_path).values()
    assert finding.evidence[0]["setting"] == "metrics in each step"
    assert (finding.where["file"], finding.where["line"]) == (FILE, 30)
    assert "dist.all_reduce(value)" in finding.detail and [r.name for r in finding.remedies] == ["collective-rarely"]
    # The all-reduce, the copy, and of 200 us of host code what the GPU waits for.
    assert 250_000 < (finding.saving_ns_per_step or 0) < 350_000


def test_a_read_is_found_behind_each_collective_of_a_function(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, last=True).values()
    assert finding.evidence[0]["setting"] == "metrics in each step" and finding.where["line"] == 30


@pytest.mark.parametrize(
    ("reads", "told"),
    [
        ({24: "total += mean_of_ranks(loss).item()"}, True),
        ({26: "total += mean.item()"}, True),  # behind the line that calls the helper
        ({24: "mean = mean_of_ranks(loss)"}, False),  # nothing is read
        ({46: "print(mean.item())"}, False),  # far from it: of something else
    ],
)
def test_a_helper_reduces_and_its_caller_reads(reads: dict[int, str], told: bool, tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(1000)
        with program.line(24):
            program.host(5)
            with program.line(30, "mean_of_ranks"):
                program.launch(100, REDUCE)
            if 24 in reads:
                program.copy(2, "DtoH", bytes=4)
        for line in set(reads) - {24}:
            with program.line(line):
                program.copy(2, "DtoH", bytes=4)
        with program.line(50):
            program.launch(300)

    program = Lined({**SOURCE, 24: "mean = mean_of_ranks(loss)", **reads}).run(body)
    named = {f.evidence[0]["setting"]: f for f in program.found(tmp_path, "NSX127")}
    assert ("metrics in each step" in named) == told
    assert all((f.where["file"], f.where["line"]) == (FILE, 30) for f in named.values())


GATHERS = "dist.all_gather(parts, own)"


@pytest.mark.parametrize(
    ("gather", "behind", "us", "told"),
    [
        (GATHERS, "everyone = torch.cat(parts)", 60, True),
        (GATHERS, "everyone = torch.stack(parts).mean(0)", 60, True),
        (GATHERS, "total = sum(parts)", 60, False),  # each part is used alone
        ("dist.all_gather_into_tensor(everyone, own)", "both = torch.cat([everyone, more])", 60, False),
        ("parts = torch.distributed.nn.functional.all_gather(own)", "everyone = torch.cat(parts)", 60, False),
        (GATHERS, "everyone = torch.cat(parts)", 2, False),  # too little to matter
    ],
)
def test_a_gather_into_a_list_that_is_put_together_copies_twice_more(
    gather: str, behind: str, us: float, told: bool, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(1000)
        with program.line(34):
            program.launch(100, "ncclDevKernel_AllGather_RING_LL", stream=20)
            program.launch(us, "copy_kernel")
        with program.line(36):
            program.launch(us, "CatArrayBatchedCopy")

    program = Lined({**SOURCE, 34: gather, 36: behind}).run(body)
    named = {f.evidence[0]["setting"]: f for f in program.found(tmp_path, "NSX127")}
    assert ("gathers into lists" in named) == told
    if told:
        finding = named["gathers into lists"]
        assert (finding.where["file"], finding.where["line"]) == (FILE, 34)
        assert [r.name for r in finding.remedies] == ["gathered-into-one"]
        assert finding.saving_ns_per_step == pytest.approx(2 * us * 1_000, rel=0.1)


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ({}, {"reads": False, "stream": 20}),  # nothing waits for it, and it has a stream of its own
        ({30: "dist.all_reduce(p.grad)"}, {"stream": 20}),  # a gradient, not a metric
        ({}, {"every": 3, "stream": 20}),  # now and then
    ],
)
def test_no_other_collective_is_called_a_metric(source: dict[int, str], how: dict[str, Any], tmp_path: Path) -> None:
    assert not found(tmp_path, source, **how)


@pytest.mark.parametrize(("stream", "us", "told"), [(7, 100, True), (20, 100, False), (7, 2, False)])
def test_collectives_on_the_stream_of_the_computation_are_told(
    stream: int, us: float, told: bool, tmp_path: Path
) -> None:
    named = found(tmp_path, reads=False, stream=stream, us=us)
    assert list(named) == ["stream of collectives"] * told
    for finding in named.values():
        assert (finding.where["file"], finding.where["line"]) == (FILE, 30)
        assert [r.name for r in finding.remedies] == ["async-collectives"]
        assert finding.saving_ns_per_step == pytest.approx(100_000, rel=0.1)


@pytest.mark.parametrize(
    ("allowed", "cores", "told"),
    [
        (("0", "0"), 8, True),  # both on one core
        (("0-2", "0-2"), 8, True),
        (("0-2", "1-4"), 8, False),  # five cores for two ranks
        (("0", "1"), 8, False),  # few, but each its own: another rule's
        (("0-3", "0-3"), 8, False),
        (("0-1", "0-1"), 2, False),  # the machine has no more
        ((None, None), 8, False),  # not recorded
    ],
)
def test_ranks_on_the_same_few_cores_are_told(
    allowed: tuple[str | None, ...], cores: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [100 + r for r in range(len(allowed))]
    probe = [
        {"pid": 100 + r, "settings": {"cpu": {"cores": cores, "allowed_cores": text}}} for r, text in enumerate(allowed)
    ]
    profile = SimpleNamespace(trace=SimpleNamespace(capture=SimpleNamespace(probe=probe)))
    monkeypatch.setattr(_costly_collectives.peers, "ranks", lambda _: processes)
    shown = SimpleNamespace(profile=profile, process=processes[0], step_ns=100, taken_by=lambda parts: 50)
    case = cast(Case, shown)
    text = _costly_collectives.shared_cores(case, RecordedSettings(probe[0]["settings"]))  # type: ignore[arg-type]
    assert bool(text) == told and (not told or f"cores {allowed[0]}" in text)


@pytest.mark.parametrize(("workers", "waits", "told"), [(8, 50, True), (1, 50, False), (8, 1, False)])
def test_workers_on_the_few_cores_of_their_rank_are_told(
    workers: int, waits: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cores of 32 for a rank, its loader's workers among them, and a GPU that waits for half of a step."""
    record = {"cpu": {"cores": 32, "allowed_cores": "0-1"}, "loaders": [{"workers": workers}]}
    profile = SimpleNamespace(trace=SimpleNamespace(capture=SimpleNamespace(probe=[{"pid": 100, "settings": record}])))
    monkeypatch.setattr(_costly_collectives.peers, "ranks", lambda _: [100])
    shown = SimpleNamespace(profile=profile, process=100, step_ns=100, taken_by=lambda parts: waits)
    text = _costly_collectives.shared_cores(cast(Case, shown), RecordedSettings(record))  # type: ignore[arg-type]
    assert bool(text) == told and (not told or "8 workers" in text)


@pytest.mark.parametrize(
    ("us", "text", "told"),
    [
        (600, SOURCE[30], True),
        (20, SOURCE[30], False),
        (600, "comm.Allreduce(MPI.IN_PLACE, host)", True),
        (600, "loss = MPI.COMM_WORLD.allreduce(loss)", True),
        (600, "dist.send(hidden, 1)", True),
        (600, "frame.reduce(loss)", False),
    ],
)
def test_a_collective_that_launches_nothing_and_holds_the_host_goes_through_the_cpu(
    us: int, text: str, told: bool, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(1000)
        program.sync()
        with program.line(30):
            program.host(us)
        with program.line(40):
            program.launch(100)

    lines = Lined(SOURCE | {30: text}).run(body)
    named = {f.evidence[0]["setting"]: f for f in lines.found(tmp_path, "NSX127")}
    assert list(named) == ["collectives through the CPU"] * told
    for finding in named.values():
        assert ("unless this MPI takes memory" in finding.detail) == ("COMM_WORLD" in text or "comm." in text)
        assert (finding.where["line"], [r.name for r in finding.remedies]) == (30, ["group-on-gpu"])
        assert us * 900 < (finding.saving_ns_per_step or 0) <= us * 1_100


@pytest.mark.parametrize(("cores", "text"), [([0, 1, 2, 3, 8], "0-3,8"), ([5], "5"), ([0, 2, 3], "0,2-3"), ([], "")])
def test_cores_are_noted_as_ranges_and_read_back(cores: list[int], text: str) -> None:
    assert settings_state._ranges(cores) == text
    assert sorted(_costly_collectives._cores(text)) == cores


@pytest.mark.parametrize(
    ("replayed_ms", "bound_ms", "launching_ms", "likely_ms", "most_ms"),
    [
        (9, 12, 2, 9, 12),  # they agree
        (1, 12, 2, 6.5, 12),  # the replay of recorded hosts, which tracing made late, hides it
        (1, 12, 20, 1, 12),  # the hosts are late without the profiler, too
        (15, 12, 2, 15, 15),
    ],
)
def test_hosts_that_tracing_made_late_do_not_hide_what_early_reductions_take(
    replayed_ms: float,
    bound_ms: float,
    launching_ms: float,
    likely_ms: float,
    most_ms: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ms = 1_000_000
    replayed = Saving(round(replayed_ms * ms), "replayed", error_ns=ms // 2, source="replay")
    bound = Saving(round(bound_ms * ms), "gone", bound=True)
    monkeypatch.setattr(_costly_when._costly_jobs, "on_all_ranks", lambda case, name: replayed)
    monkeypatch.setattr(_costly_when, "_without_early_reductions", lambda case, settings: bound)
    case: Any = SimpleNamespace(lost_to=lambda limit: launching_ms * ms)
    saving = _costly_when.reduced_once(case, None)
    assert (saving.likely_ns, saving.most_ns) == (likely_ms * ms, most_ms * ms)
    assert not saving.bound


@pytest.mark.parametrize(
    ("size", "reads", "told"),
    [(32, True, True), (32, False, False), (1 << 20, True, False)],  # the message itself, and what follows it
)
def test_sizes_that_are_received_and_read_before_each_message_are_agreed_on_once(
    size: int, reads: bool, told: bool, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        if not number:
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=1)
        for _ in range(4):
            with program.line(30):
                start = program.t
                program.launch(100, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)")
                noted(program.main, "ncclRecv", start, program.t, comm=5, size=size, peer=0)
            with program.line(31):
                if reads:
                    program.copy(2, "DtoH", bytes=8)
                program.host(100)
            with program.line(20), program.range("forward"), program.range("net:Net"):
                program.launch(300)
        program.sync()

    source = {30: "dist.recv(shape, src=0)", 31: "rows, width = shape.tolist()", 20: "y = net(x)"}
    named = {f.evidence[0]["setting"]: f for f in Lined(source).run(body).found(tmp_path, "NSX127")}
    assert ("metrics in each step" in named) is told
    if told:
        finding = named["metrics in each step"]
        assert finding.title.startswith("Sizes are sent before each message") and finding.where["line"] == 30
        assert [way.name for way in finding.remedies] == ["sizes-agreed-once"]
