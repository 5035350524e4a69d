"""What the probe reads of a program's settings, on CPU torch: everything that is said is so, and the program does not notice."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from nsysx_probe import (
    batch_padding,
    loader_settings,
    settings_card,
    settings_groups,
    settings_objects,
    settings_state,
    variable_places,
)
from nsysx_probe.settings_reader import SettingsReader
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.counted_calls import calls_of
from tests.inject.own_process import as_one_rank
from tests.inject.test_probe import Lab, armed

pytestmark = pytest.mark.filterwarnings("ignore")


def train(net: nn.Module, optimizer: Any = None, *, steps: int = 4, micro: int = 1, width: int = 8) -> Any:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.01)
    dtype = next(net.parameters()).dtype
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro):
            net(torch.randn(2, width, dtype=dtype)).sum().backward()
        optimizer.step()
    return optimizer


def line_here() -> int:
    return sys._getframe(1).f_lineno


def settings(lab: Lab) -> dict[str, Any]:
    found = lab.probe.settings.record(last=True)
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def test_variables_that_libraries_read_when_they_run_count_as_they_are_then() -> None:
    set_by_the_program = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HOME": "/home/me"}
    assert settings_state.read_late(set_by_the_program) == {"TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.parametrize(
    ("lines", "began", "line"),
    [
        (["import os", "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'"], "", 2),
        (["if debug: os.environ[\"CUDA_LAUNCH_BLOCKING\"] = '1'"], "", 1),
        (["os.environ.setdefault('CUDA_LAUNCH_BLOCKING', '1')"], "", 1),
        (["os.environ.update(CUDA_LAUNCH_BLOCKING='1')"], "", 1),
        (["os.putenv('CUDA_LAUNCH_BLOCKING', '1')"], "", 1),
        (["os.environ['CUDA_LAUNCH_BLOCKING'] = '1'"], "CUDA_LAUNCH_BLOCKING=1", None),  # the shell did
        (["os.environ['CUDA_LAUNCH_BLOCKING'] = '1'"] * 2, "", None),  # which of them ran is not known
        (["# os.environ['CUDA_LAUNCH_BLOCKING'] = '1'"], "", None),
        (["if os.environ['CUDA_LAUNCH_BLOCKING'] == '1': wait()"], "", None),
        (["print(os.environ['CUDA_LAUNCH_BLOCKING'])"], "", None),
    ],
)
def test_a_variable_that_the_main_file_sets_has_its_line(
    lines: list[str], began: str, line: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, environ = tmp_path / "train.py", tmp_path / "environ"
    main.write_text("\n".join(lines))
    environ.write_text(f"HOME=/home/me\0{began}\0")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(main), raising=False)
    found = variable_places.places({"CUDA_LAUNCH_BLOCKING": "1", "HOME": "/home/you"}, str(environ))
    assert found == ({} if line is None else {"CUDA_LAUNCH_BLOCKING": f"{main}:{line}"})
    assert variable_places.places({"CUDA_LAUNCH_BLOCKING": "1"}, str(tmp_path / "none")) == {}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel keeps no schedule statistics")
def test_a_main_thread_without_a_core_is_seen_to_wait() -> None:
    """Two threads of two processes on one core: each has about half of it. The program is a child, whose cores may be changed."""
    program = """
import json, os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.insert(0, sys.argv[1])
from nsysx_probe import settings_state
if not (other := os.fork()):
    while True: pass
end = time.perf_counter() + 0.6
while time.perf_counter() < end: pass
os.kill(other, 9)
print(json.dumps(settings_state._main_thread()))
"""
    probe = Path(settings_state.__file__).parents[1]
    counted = json.loads(
        subprocess.run([sys.executable, "-c", program, probe], capture_output=True, text=True, check=True).stdout
    )
    assert counted["waited_for_core_ns"] > 0.2 * counted["ran_ns"] > 0


def test_only_listed_variables_have_values_and_nothing_else_is_named() -> None:
    found = settings_state.environment(
        {
            "CUDA_LAUNCH_BLOCKING": "1",
            "NCCL_TOPO_FILE": "/home/me/secret.xml",
            "HF_TOKEN": "hush",
            "MASTER_ADDR": "10.0.0.1",
            "CUDA_INJECTION64_PATH": "/opt/nsys",
            "OMP_NUM_THREADS": "7" * 500,
        }
    )
    assert found == {"values": {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "7" * 100}, "names": ["NCCL_TOPO_FILE"]}


def test_switches_are_read_as_they_are() -> None:
    with torch.autograd.set_detect_anomaly(True):
        torch.use_deterministic_algorithms(True)
        try:
            found = settings_state.switches(torch)
        finally:
            torch.use_deterministic_algorithms(False)
    assert found["anomaly"] is True
    assert found["deterministic"] is True
    assert found["autograd_profiler"] is False
    assert found["cudnn_benchmark"] is False
    after = settings_state.switches(torch)
    assert (after["anomaly"], after["deterministic"]) == (False, False)


def test_tf32_is_what_torch_would_use() -> None:
    assert settings_state.switches(torch)["matmul_tf32"] is False
    torch.set_float32_matmul_precision("high")
    try:
        assert settings_state.switches(torch)["matmul_tf32"] is True
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_a_torch_lacks_is_unknown() -> None:
    class Old:
        class _C:
            pass

        class autograd:
            pass

    found = settings_state.switches(Old)
    assert found["anomaly"] is None
    assert found["matmul_tf32"] is None
    assert found["sdpa"] == {"flash": None, "efficient": None, "math": None, "cudnn": None}


def test_the_lines_that_make_tables_of_embeddings() -> None:
    class Rows(nn.Embedding):
        pass

    with armed() as lab:
        bags, made = [nn.EmbeddingBag(n, 4, mode="sum") for n in (9, 9, 7)], line_here()
        rows, lines = Rows(5, 2), [made, line_here()]
        net = nn.Linear(8, 4)
        train(net)
        tables = settings(lab)["tables"]
        (texts,) = lab.probe.status.record()["source"].values()
    told = [(row["class"], row["rows"], row["width"], row["made"]) for row in tables]
    assert told == [
        *(("EmbeddingBag", n, 4, f"{__file__}:{lines[0]}") for n in (9, 7)),
        ("Rows", 5, 2, f"{__file__}:{lines[1]}"),
    ]
    assert "nn.EmbeddingBag(n, 4" in texts[str(made)] and len(bags) + rows.num_embeddings == 8


def test_an_optimizer_its_parameters_and_its_gradients() -> None:
    with armed() as lab:
        net = nn.Linear(8, 4)
        net.double()
        train(net, torch.optim.AdamW(net.parameters(), foreach=True))
        found = settings(lab)
    (optimizer,) = found["optimizers"]
    assert optimizer["class"] == "AdamW"
    assert (optimizer["fused"], optimizer["foreach"], optimizer["takes_fused"]) == (None, True, True)
    assert (optimizer["groups"], optimizer["parameters"], optimizer["elements"]) == (1, 2, 36)
    assert optimizer["devices"] == {"cpu": 2}
    assert optimizer["state_devices"] == {"cpu": 4}
    assert optimizer["gradients"] == {"dtypes": {"float64": 2}, "without": 0}
    assert found["networks"][0]["dtypes"] == {"float64": 36}
    assert found["networks"][0]["float64_in"] == ["Linear"]
    assert (found["networks"][0]["package"], found["networks"][0]["logits_to_keep"]) == ("torch", False)
    assert found["step"] == 1


def test_an_optimizer_that_is_gone_when_its_step_ends_is_as_it_was_in_the_window_before() -> None:
    """The program's last step ends with the program: what its functions held is gone by then."""
    with armed() as lab:
        net = nn.Linear(8, 4)
        train(net, torch.optim.AdamW(net.parameters(), foreach=True))
        reader = lab.probe.settings
        gc.collect()
        before = reader.record(last=False)
        reader.begin(9)
        reader.stepping(torch.optim.SGD(net.parameters()))
        gc.collect()
        reader.end()
        after = settings(lab)
        reader.begin(10)
        reader.end()
        assert settings(lab)["optimizers"] == [], "in a step in which none steps there is none"
    assert before is not None and after["step"] == 9
    assert [each["class"] for each in after["optimizers"]] == ["AdamW"]
    assert after["optimizers"] == before["optimizers"]


def test_results_of_modules_are_counted_by_their_numbers() -> None:
    with armed() as lab:
        train(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)))
        found = settings(lab)["activations"]
    assert found["dtypes"] == {"float32": {"count": 4, "elements": 2 * (32 + 32 + 4 + 4)}}
    assert found["largest"] == {"module": "0", "dtype": "float32", "shape": [2, 32], "bytes": 256}
    assert found["float64_in"] == []


def test_autocast_checkpoints_and_backwards_of_one_step() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                with torch.autocast("cpu", torch.bfloat16):
                    x = checkpoint(self.fc, x, use_reentrant=False)
            return x

    with armed() as lab:
        train(Net(), micro=2)
        found = settings(lab)
    assert found["autocast"]["regions"] >= 6
    assert set(found["autocast"]["dtypes"]) == {"cpu:bfloat16"}
    assert found["checkpoints"] == 6
    assert (found["backwards"], found["reducing"]) == (2, None)


def test_functions_have_their_own_code_outside_the_watched_step() -> None:
    enter, recompute = torch.autocast.__enter__.__code__, checkpoint.__wrapped__.__code__
    with armed() as lab:
        train(nn.Linear(8, 4))
        assert settings(lab)["step"] == 1
        assert torch.autocast.__enter__.__code__ is enter
        assert checkpoint.__wrapped__.__code__ is recompute
    assert not lab.probe.settings.watching


def test_loaders_and_how_often_they_make_iterators() -> None:
    with armed() as lab:
        net = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)
        made = line_here() - 1
        for _ in range(5):
            for (x,) in loader:
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
        (found,) = settings(lab)["loaders"]
        del loader  # the record is written when the program has ended, too
        sources = lab.probe.status.record()["source"][__file__]
    assert (found["workers"], found["pin_memory"], found["batch_size"]) == (0, False, 4)
    assert (found["iterators"], found["first_step"], found["last_step"]) == (5, 0, 8)
    assert found["samples"] is None  # a class of torch makes them
    assert found["made"] == f"{__file__}:{made}"
    assert sources[str(made)].strip() == "loader = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)"


@pytest.mark.parametrize("several", [False, True])
def test_loaders_that_a_line_makes_one_after_the_other_are_one_and_those_that_live_side_by_side_are_several(
    several: bool,
) -> None:
    with armed() as lab:
        net = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        kept = []
        for _ in range(5):
            loader = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)
            kept += [loader] if several else []
            for (x,) in loader:
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
        rows = settings(lab)["loaders"]
    told = [(row["iterators"], row["made_again"], row["first_step"], row["last_step"]) for row in rows]
    assert told == ([(1, 0, 2 * i, 2 * i) for i in range(5)] if several else [(5, 4, 0, 8)])


def checksum(numbers: list[int]) -> int:
    return zlib.crc32(repr([len(numbers), *numbers]).encode())


@pytest.mark.parametrize("workers", [0, 1])
def test_the_samples_that_are_drawn_in_the_watched_step_are_noted_and_stay_as_they_are(workers: int) -> None:
    """With a worker two batches were drawn before the first step, so what the second step draws is the fourth one."""
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3)).tolist()
    follow = torch.utils.data.dataloader._BaseDataLoaderIter._next_index
    before, rows = follow.__code__, list[int]()
    with armed() as lab:
        net = nn.Linear(1, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = TensorDataset(torch.arange(24.0).unsqueeze(1))
        sampler = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(3))
        for (x,) in DataLoader(data, 4, sampler=sampler, num_workers=workers):
            rows += [int(row) for row in x[:, 0]]
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        found = settings(lab)
        assert follow.__code__ is before
    assert rows == order
    batch = found["step"] + (2 if workers else 0)
    (loader,) = found["loaders"]
    assert loader["sampler"] == "RandomSampler" and loader["drawn"] == [checksum(order[4 * batch : 4 * batch + 4])]


class _Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(24))


@pytest.mark.parametrize("data", [_Stream(), TensorDataset(torch.zeros(6))], ids=["no numbers", "one at a time"])
def test_what_two_ranks_may_draw_alike_by_chance_is_not_noted(data: Any) -> None:
    with armed() as lab:
        net = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in DataLoader(data, 4 if isinstance(data, _Stream) else 1):
            train(net, optimizer, steps=1)
        (found,) = settings(lab)["loaders"]
    assert found["drawn"] == []


ROWS = torch.randn(24, 8, generator=torch.Generator().manual_seed(3))


def test_what_is_in_a_batch_with_numbers_is_noted_too() -> None:
    """Datasets of each rank have samples with the same numbers."""

    def noted(rows: torch.Tensor) -> tuple[list[int], list[int]]:
        with armed() as lab:
            net = nn.Linear(8, 4)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in DataLoader(TensorDataset(rows), 4):
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
            (found,) = settings(lab)["loaders"]
        return found["drawn"], found["batches"]

    first, again, other = noted(ROWS), noted(ROWS.clone()), noted(ROWS + 1)
    assert first == again and len(first[1]) == 1
    assert other[0] == first[0] and other[1] != first[1]


class _Rows(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("rows", "told"),
    [(ROWS, True), (torch.zeros(24, 8), False), ((ROWS > 0).to(torch.int64), False)],
    ids=["values", "zeros", "mask"],
)
def test_batches_of_a_stream_are_noted_where_their_values_tell_them_from_others(
    rows: torch.Tensor, told: bool, workers: int
) -> None:
    """Two ranks with the same rows note the same number, and one whose rows differ another one; the batches stay as they are."""

    def noted(rows: torch.Tensor) -> list[int]:
        seen = []
        with armed() as lab:
            net = nn.Linear(8, 4)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x in DataLoader(_Rows(rows), 4, num_workers=workers):
                seen.append(x.clone())
                optimizer.zero_grad()
                net(x.float()).sum().backward()
                optimizer.step()
            (found,) = settings(lab)["loaders"]
        assert torch.equal(torch.cat(seen), rows) and found["drawn"] == []
        return list(found["batches"])

    first = noted(rows)
    assert len(first) == told and noted(rows.clone()) == first
    other = rows.clone()
    other[:, 0] += 1
    assert (noted(other) != first) is told


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (torch.randn(1024, 64), True),
        ({"ids": torch.arange(64), "mask": torch.ones(64)}, True),
        ([torch.zeros(1 << 20), torch.ones(4)], False),
        (torch.randn(8, 64).to("meta"), False),  # not on the CPU: its values are never asked for
        ([torch.arange(64)] * 9, False),  # more than is looked at: the rest may differ
        (torch.empty(0), False),
        ("text", False),
    ],
)
def test_a_checksum_is_made_of_few_numbers_on_the_cpu(batch: Any, told: bool) -> None:
    number = loader_settings.checksum(torch, batch)
    assert (number is not None) is told and loader_settings.checksum(torch, batch) == number


def test_a_checksum_looks_at_no_more_numbers_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, listed = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: sizes.append(self.numel()) or listed(self))
    loader_settings.checksum(torch, [torch.randn(1 << n) for n in range(4, 11)])
    assert len(sizes) == 7 and max(sizes) == 256


class _Own(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def test_the_line_that_makes_a_sample_is_the_programs_own_also_in_a_subset() -> None:
    loader = DataLoader(torch.utils.data.Subset(_Own(), [0, 1]))
    line = _Own.__getitem__.__code__.co_firstlineno
    assert settings_objects.loader(loader)["samples"] == f"{__file__}:{line}"


class _Shares(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(2))


class _Batches(_Shares):
    def __init__(self) -> None:
        self.drop_last = False


@pytest.mark.parametrize(
    ("options", "method"),
    [({"sampler": _Shares()}, _Shares.__iter__), ({"batch_sampler": _Batches()}, _Batches.__init__), ({}, None)],
)
def test_the_line_that_shares_the_samples_is_the_programs_own(options: dict[str, Any], method: Any) -> None:
    line = method and f"{__file__}:{method.__code__.co_firstlineno}"
    assert settings_objects.loader(DataLoader(_Own(), **options))["shares"] == line


def test_a_scaler_and_anomaly_inside_the_step_alone() -> None:
    with armed() as lab:
        net = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(4):
            with torch.autograd.detect_anomaly():
                optimizer.zero_grad()
                scaler.scale(net(torch.randn(2, 8)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
        found = settings(lab)
    assert found["scalers"] == [{"class": "GradScaler", "enabled": True}]
    assert found["switches"]["anomaly"] is True


def test_a_program_without_steps_has_what_needs_none() -> None:
    with armed() as lab:
        pass
    found = settings(lab)
    assert found["step"] is None
    assert found["networks"] is None
    assert found["switches"]["anomaly"] is False


def test_compilations_breaks_and_their_lines() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = nn.Linear(8, 4)

    @torch.compile(backend="eager")
    def call(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print(end="")
        return net(x)

    with armed() as lab:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for size in (2, 2, 3, 3):
            optimizer.zero_grad()
            call(torch.randn(size, 8)).sum().backward()
            optimizer.step()
        lab.probe.settings.begin(9)
        lab.probe.settings.end()
        found = settings(lab)["compile"]
    assert {"name": "eager", "dynamic": None, "mode": "default", "options": {}} in found["backends"]
    assert any("print" in row["reason"] for row in found["breaks"])
    line = call.__wrapped__.__code__.co_firstlineno + 3
    assert {"file": __file__, "function": "call", "line": line} in found["broken_at"]
    assert any("size mismatch" in row["reason"] for row in found["recompilations"])
    torch._dynamo.reset()


def test_watching_changes_no_compilation() -> None:
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with armed() as lab:
        compiled = torch.compile(net, backend="eager")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        frames = []
        for step in range(6):
            if step in (2, 4):
                lab.probe.settings.begin(step)
            with torch.autocast("cpu", torch.bfloat16):
                loss = compiled(torch.ones(2, 8)).sum()
            loss.backward()
            optimizer.step()
            lab.probe.settings.end()
            frames.append(torch._dynamo.utils.counters["frames"]["total"])
    assert len(set(frames[1:])) == 1
    torch._dynamo.reset()


def test_a_failure_ends_the_watching_and_nothing_else() -> None:
    lab = Lab()
    try:
        lab.probe.settings._seen = {}
        lab.probe.settings.watching = True
        lab.probe.settings.network(nn.Linear(1, 1))
        assert not lab.probe.settings.watching
        assert lab.probe.armed
        assert [e.partition(":")[0] for e in lab.probe.out.errors] == ["settings"]
    finally:
        lab.close()


@pytest.mark.parametrize("modules", [50, 200])
def test_reading_them_is_cheap(modules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of calls once a window for each module, and nothing that could be seen in any other step."""
    reading = SettingsReader._end
    calls: list[int] = []
    monkeypatch.setattr(SettingsReader, "_end", lambda reader: calls.append(calls_of(lambda: reading(reader))))
    with armed() as lab:
        train(nn.Sequential(*(nn.Linear(8, 8) for _ in range(modules))))
        assert settings(lab)["took_ns"] > 0
        assert sum(calls) < 150 * modules
        assert calls_of(lambda: [lab.probe.settings.backward() for _ in range(1_000)]) < 1_010


def test_our_own_recorder_of_operators_is_not_the_programs_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are read before an X-ray turns it on; torch says of both the same."""
    begun = []
    with armed() as lab:
        xray = lab.probe.borders.xray
        monkeypatch.setattr(xray, "begin", lambda index: begun.append((index, lab.probe.settings.watching)))
        train(nn.Linear(8, 4))
        assert begun[0] == (1, True)
        assert settings(lab)["switches"]["autograd_profiler"] is False
    with armed() as lab, torch.autograd.profiler.profile():
        train(nn.Linear(8, 4))
        assert settings(lab)["switches"]["autograd_profiler"] is True


def padded(lengths: list[int], length: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of rows with these lengths."""
    ids, mask = torch.zeros(len(lengths), length, dtype=torch.long), torch.zeros(len(lengths), length, dtype=torch.long)
    for row, n in enumerate(lengths):
        ids[row, :n], mask[row, :n] = torch.arange(1, n + 1), 1
    return ids, mask


@pytest.mark.parametrize("workers", [0, 1])
def test_padding_of_the_batch_that_a_loader_makes(workers: int) -> None:
    with armed() as lab:
        net = nn.Embedding(50, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = [(*(t[0] for t in padded([n])), 1) for n in (10, 20, 30, 20)] * 4
        keys = ("input_ids", "attention_mask", "label")
        loader = DataLoader([dict(zip(keys, row, strict=True)) for row in data], batch_size=4, num_workers=workers)
        for batch in loader:
            optimizer.zero_grad()
            net(batch["input_ids"]).sum().backward()
            optimizer.step()
        found = settings(lab)["padding"]
    assert found == {"name": "attention_mask", "rows": 4, "length": 40, "longest": 30, "real": 80}


@pytest.mark.parametrize("told", [False, True])
def test_what_a_network_is_called_with_is_held_only_where_no_batch_has_told(told: bool) -> None:
    _, mask = padded([10, 20, 30])
    padding, freed = batch_padding.BatchPadding(torch), weakref.ref(mask)
    padding.loaded({"mask": mask.clone()} if told else None)
    padding.called(nn.Identity(), (mask,), {})
    del mask
    assert (freed() is None) is told and (padding.counts is not None) is told
    padding.window_closed()
    assert freed() is None and padding.counts is not None


def test_what_looks_like_padding_and_is_none() -> None:
    ids, mask = padded([10, 20, 30, 40])
    assert batch_padding.padding(torch, (ids, torch.ones(4)))["real"] == 100
    assert batch_padding.padding(torch, {"a": ids.flip(1)})["longest"] == 40, "on the left"
    frames = ids[..., None].float() * torch.rand(4, 40, 3).clamp(min=0.1)
    assert batch_padding.padding(torch, frames)["real"] == 100
    equal, images = padded([30, 30, 30])[0], torch.zeros(4, 3, 32, 32)
    for other in (equal, torch.randint(0, 9, (8, 64)), torch.rand(8, 64), images, mask.bool().numpy(), "text", None):
        assert batch_padding.padding(torch, other) is None


def test_a_mask_tells_padding_to_a_length_that_no_row_has() -> None:
    """Rows of one length are nothing else in ids: they may be of that format."""
    ids, mask = padded([30, 30, 30])
    named = {"input_ids": ids, "Attention_Mask": mask}
    for batch in (named, (named, torch.ones(3)), {**named, "Attention_Mask": mask.float()}, {"pad_mask": mask == 0}):
        found = batch_padding.padding(torch, batch)
        assert found is not None and (found["longest"], found["real"]) == (30, 90)
    assert batch_padding.padding(torch, {"input_ids": ids, "mask": torch.ones_like(mask)}) is None, "all is real"


def test_masks_of_images_of_pairs_and_of_a_loss_tell_no_padding() -> None:
    rows = torch.arange(64)
    figure = torch.stack([(rows < 40 + i).float()[:, None].expand(64, 64) for i in range(8)])
    for name in ("mask", "attention_mask"):
        assert batch_padding.padding(torch, {"image": torch.rand(8, 3, 64, 64), name: figure}) is None
    counted = torch.stack([(rows >= 30 + i).long() for i in range(8)])
    for name in ("loss_mask", "Label_Mask", "response_mask"):
        assert batch_padding.padding(torch, {"x": torch.randint(1, 999, (8, 64)), name: counted}) is None
    assert batch_padding.padding(torch, {"attention_mask": counted}) is not None


@pytest.mark.parametrize(
    "kept", [lambda ones: ones.tril(), lambda ones: ones.triu(1).bool(), lambda ones: ones.tril(-1).float()]
)
def test_a_causal_mask_is_no_padding(kept: Callable[[torch.Tensor], torch.Tensor]) -> None:
    mask = kept(torch.ones(16, 16, dtype=torch.long))
    assert batch_padding.padding(torch, {"attention_mask": mask}) is None


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        return self.table(input_ids).sum()


def called_with(*args: Any, change: Any = None, wrap: Any = None, **kwargs: Any) -> Any:
    """Return the padding that is in the record of a network that is called so in a window of three steps."""
    lab = Lab(NSYSX_STEPS="2:5")
    try:
        net = Texts()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        call = wrap(net) if wrap else net
        for _ in range(8):
            optimizer.zero_grad()
            call(*args, **kwargs).backward()
            optimizer.step()
            if change is not None:
                change.add_(0)
        assert all(error.startswith("cudaProfilerSt") for error in lab.probe.out.errors)
        return settings(lab)["padding"]
    finally:
        lab.close()


def test_padding_of_what_a_network_is_called_with() -> None:
    """It is read once the window has closed; a mask has its name from the call or from the network, whatever torch wraps that in."""
    ids, mask = padded([10, 20, 30, 20])
    whole = {"name": "attention_mask", "rows": 4, "length": 40, "longest": 30, "real": 80}
    assert called_with(input_ids=ids, attention_mask=mask.bool()) == whole
    assert called_with(ids, mask[:, None, None]) == whole, "its dimensions of heads and queries are 1"
    assert called_with(ids, mask, wrap=nn.DataParallel) == whole
    assert called_with(ids, mask, wrap=lambda net: torch.compile(net, backend="eager")) == whole
    assert called_with(ids) == {**whole, "name": "input_ids"}
    large = nn.functional.pad(ids, (0, 40_000))
    assert called_with(large) is None, "it is too large to be held"
    assert called_with(ids, mask, change=mask) == {**whole, "name": "input_ids"}, "the program wrote into the mask"
    full = padded([40] * 4)[0]
    assert called_with(full) is None
    assert called_with(full, labels=torch.where(mask == 0, full, -100)) is None, "a prompt that the loss ignores"
    with armed() as lab:  # no window closes
        train(net := Texts(), steps=0).zero_grad()
        for _ in range(4):
            net(ids, mask).backward()
        assert settings(lab)["padding"] is None


@pytest.mark.parametrize("detached", [False, True])
def test_gradients_that_no_optimizer_reads_before_they_are_reset(detached: bool) -> None:
    """A generator gets gradients from the critic's loss unless its result is detached; clipping is no reset."""

    class Generator(nn.Linear):
        pass

    class Critic(nn.Linear):
        pass

    with armed() as lab:
        generator, critic = Generator(8, 8), Critic(8, 1)
        of_generator, of_critic = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (generator, critic))
        for _ in range(4):
            fake = generator(torch.randn(4, 8))
            loss = critic(fake.detach() if detached else fake).mean()
            of_critic.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
            of_critic.step()
            of_generator.zero_grad()
            (-critic(generator(torch.randn(4, 8))).mean()).backward()
            of_generator.step()
        found = settings(lab)
    assert found["unread"] == ({} if detached else {"Generator": [0]})
    assert found["unread_weights"] == {"Critic": [1]}, (
        "the generator's loss makes some of the critic's, too: the next step resets them"
    )


@pytest.mark.parametrize(
    "kind", ["left", "frozen meanwhile", "added to", "read", "skipped", "micro-steps", "the optimizer first", "hooks"]
)
def test_gradients_of_weights_that_another_loss_leaves(kind: str) -> None:
    """A step begins with a reset of what the one before left of the critic, unless that is read, or nothing was left."""

    class Critic(nn.Linear):
        pass

    with armed() as lab:
        generator, critic = nn.Linear(8, 8), Critic(8, 1)
        of_generator, of_critic = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (generator, critic))
        if kind == "hooks":
            critic.weight.register_hook(lambda g: None)
        for _ in range(4):
            if kind == "the optimizer first":
                of_critic.step()
            if kind != "added to":
                of_critic.zero_grad()
            made = generator(torch.randn(4, 8))
            for _ in range(2 if kind == "micro-steps" else 1):
                critic(made.detach()).mean().backward()
            if kind not in ("skipped", "the optimizer first"):
                of_critic.step()
            of_generator.zero_grad()
            critic.requires_grad_(kind != "frozen meanwhile")
            (-critic(made).mean()).backward()
            critic.requires_grad_(True)
            of_generator.step()
            if kind == "read":
                of_critic.step()
        found = settings(lab)["unread_weights"] or {}
    assert found == ({"Critic": [2 if kind == "micro-steps" else 1]} if kind in ("left", "micro-steps") else {})


@pytest.mark.parametrize("through", [False, True])
def test_gradients_of_a_network_that_no_optimizer_holds(through: bool) -> None:
    """A judge adds up gradients that nothing resets. Its backward is needed where it leads to a network that is trained."""

    class Judge(nn.Linear):
        pass

    with armed() as lab:
        net, judge = nn.Sequential(nn.Linear(8, 8)), Judge(8, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            made = net(torch.randn(4, 8))
            told = judge({"x": [made]}["x"][0] if through else torch.randn(4, 8))
            (told.mean() + made.mean()).backward()
            optimizer.step()
        found = settings(lab)
    assert found["unread"] == ({} if through else {"Judge": [0]})
    assert found["unheld"] == {"Judge": [9, 9]} and found["gradient_readers"] == []


def by_hand(net: nn.Module, optimizer: Any) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad


def by_hand_from_before(net: nn.Module, optimizer: Any) -> None:
    """As old programs write it: no version of a tensor shows it, but that gradients are gone before the next backward."""
    for p in net.parameters():
        p.data.sub_(0.1 * p.grad.data)
        p.grad = None


def zeroed_by_hand(net: nn.Module, optimizer: Any) -> None:
    for p in net.parameters():
        p.data.sub_(0.1 * p.grad.data)
        p.grad.zero_()


def masters(net: nn.Module, optimizer: Any) -> None:
    """Weights of higher precision are updated and copied back."""
    for own, master in zip(net.parameters(), optimizer.param_groups[0]["params"], strict=True):
        master.grad = own.grad.double()
    optimizer.step()
    for own, master in zip(net.parameters(), optimizer.param_groups[0]["params"], strict=True):
        own.data.copy_(master.data)
    net.zero_grad()


def sharpness(net: nn.Module, optimizer: Any) -> None:
    """Weights are moved by a first gradient, the optimizer steps by that of the moved ones."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_(p.grad, alpha=0.01)
    optimizer.zero_grad()
    net(torch.randn(4, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def of_two_losses(net: nn.Module, optimizer: Any) -> None:
    """The gradients of two losses are put together before the optimizer steps."""
    first = [p.grad.clone() for p in net.parameters()]
    optimizer.zero_grad()
    net(torch.randn(4, 8)).mean().backward()
    for p, other in zip(net.parameters(), first, strict=True):
        p.grad = p.grad + other
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "update",
    [by_hand, by_hand_from_before, zeroed_by_hand, masters, sharpness, of_two_losses],
    ids=lambda f: f.__name__,
)
def test_gradients_that_something_else_than_an_optimizer_reads(update: Any) -> None:
    with armed() as lab:
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        held = [p.detach().double() for p in net.parameters()] if update is masters else list(net.parameters())
        other = [nn.Parameter(torch.zeros(2))]
        own = update in (masters, sharpness, of_two_losses)
        optimizer = torch.optim.SGD(held if own else other, lr=0.1)
        for _ in range(4):
            net(torch.randn(4, 8)).mean().backward()
            update(net, optimizer)
            if not own:
                optimizer.step()
        found = settings(lab)
    assert (found["unread"], found["unheld"]) == ({}, {})


def copied(view: torch.Tensor, gradient: torch.Tensor) -> None:
    view.copy_(gradient.flatten())


@pytest.mark.parametrize("how", ["hook", "hook after", "parts of a buffer", "weights in a buffer"])
def test_gradients_that_leave_by_a_hook_or_a_buffer(how: str) -> None:
    """A program that divides its optimizer among ranks: hooks fill or send flat buffers, and an optimizer holds a part of these."""
    with armed() as lab:
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        sizes = [p.numel() for p in net.parameters()]
        gradients, part = torch.zeros(sum(sizes)), nn.Parameter(torch.zeros(sum(sizes)))
        views = dict(zip(net.parameters(), gradients.split(sizes), strict=True))
        for p, view in views.items():
            if how == "hook":
                p.register_hook(lambda g, view=view: copied(view, g))
            elif how == "hook after":
                p.register_post_accumulate_grad_hook(lambda p, view=view: copied(view, p.grad))
            elif how == "parts of a buffer":
                p.grad = view.view_as(p)
        if how == "weights in a buffer":
            for p, view in zip(net.parameters(), part.data.split(sizes), strict=True):
                p.data = view.view_as(p)
        optimizer = torch.optim.AdamW([part], lr=0.1)
        for _ in range(4):
            net(torch.randn(4, 8)).mean().backward()
            if how == "weights in a buffer":
                gradients = torch.cat([p.grad.flatten() for p in net.parameters()])
                net.zero_grad()
            part.grad = gradients.clone()
            optimizer.step()
            gradients.zero_()
        found = settings(lab)
    assert (found["unread"], found["unheld"]) == ({}, {})
    assert found["gradient_readers"] == ([] if how == "weights in a buffer" else ["Sequential"])


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_of_a_base_that_is_not_frozen(frozen: bool) -> None:
    """An optimizer holds the adapter alone: its network trains 72 numbers for nothing, unless they are frozen."""
    with armed() as lab:
        net = nn.Sequential(nn.Linear(8, 8).requires_grad_(not frozen), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(4, 8)).mean().backward()
            optimizer.step()
        found = settings(lab)
    assert found["unheld"] == ({} if frozen else {"Sequential": [72, 90]})


def test_lines_that_save_and_how_long_they_take() -> None:
    with armed() as lab:
        net = nn.Linear(8, 4)
        train(net, steps=2)
        for _ in range(3):
            torch.save(net.state_dict(), io.BytesIO())
        train(net, steps=2)
        (found,) = settings(lab)["saves"]
    assert found["count"] == 3 and found["ns"] > 0
    assert found["place"].rpartition(":")[0] == __file__


@as_one_rank
def test_process_groups_have_their_names_and_the_collectives_of_the_step() -> None:
    from torch import distributed

    own = distributed.new_group([0], group_desc="experts")
    net = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
    net.register_forward_hook(lambda *_: distributed.all_reduce(torch.ones(1), group=own))
    with armed() as lab:
        train(net, micro=2)
        found = settings(lab)["groups"]
    assert all(group["ranks"] == [0] for group in found)
    default, experts = found
    assert (default["description"], default["wrapper"], default["dimension"]) == ("default_pg", "DDP", None)
    assert (experts["description"], experts["wrapper"], experts["collectives"]) == ("experts", None, 2)
    assert default["collectives"] > 0


@pytest.mark.parametrize(
    ("described", "dimension"),
    [("mesh_tp", "tp"), ("mesh_default", None), ("mesh_dim_0", None), ("default_pg", None), (None, None)],
)
def test_a_group_of_a_mesh_has_the_name_of_its_dimension(described: str | None, dimension: str | None) -> None:
    assert settings_groups._dimension(described) == dimension


def test_where_the_program_sets_what_costs_and_its_functions_are_its_own_again() -> None:
    own = torch.autograd.set_detect_anomaly.__init__.__code__
    with armed() as lab:
        torch.autograd.set_detect_anomaly(False)
        assert torch.autograd.set_detect_anomaly.__init__.__code__ is not own
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            first = line_here() - 1
            assert torch.autograd.set_detect_anomaly.__init__.__code__ is own
        torch.backends.cudnn.benchmark = False
        net = nn.Linear(8, 8)
        for _ in DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2):
            train(net, steps=2)
    found = settings(lab)
    assert found["places"] == {"anomaly": f"{__file__}:{first}", "cudnn_benchmark": f"{__file__}:{first + 3}"}
    assert found["loaders"][0]["place"] == f"{__file__}:{first + 5}"


def test_where_objects_are_made_that_have_settings() -> None:
    """A library that makes an optimizer for the program does so where the program calls it: here that is a class of torch."""
    with armed() as lab:
        net = nn.Linear(8, 8)
        optimizer = torch.optim.AdamW(net.parameters())
        loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2, collate_fn=_stacked)
        first = line_here() - 2
        for _ in loader:
            train(net, optimizer, steps=2)
        others = [torch.optim.SGD(net.parameters()) for _ in range(30)]
        del others
        kept = torch.optim.SGD(net.parameters())
        found = settings(lab)
        assert lab.probe.settings.places.made_at(kept) == f"{__file__}:{line_here() - 2}"
    assert found["optimizers"][0]["made"] == f"{__file__}:{first}"
    (about,) = found["loaders"]
    assert about["made"] == f"{__file__}:{first + 1}"
    assert about["place"] == f"{__file__}:{first + 3}"
    assert about["collates"] == f"{__file__}:{_stacked.__code__.co_firstlineno}"


def _stacked(rows: list[Any]) -> torch.Tensor:
    return torch.stack([row[0] for row in rows])


def test_where_switches_are_set_and_regions_are_entered() -> None:
    with armed() as lab:
        torch.set_float32_matmul_precision("high")
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        first = line_here() - 2
        for enabled in (True, False):
            torch.backends.cuda.enable_flash_sdp(enabled)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.amp.GradScaler("cpu", enabled=False)
        torch.amp.GradScaler("cpu")
        net = nn.Linear(8, 8)
        torch.set_default_dtype(torch.float32)
        net.double().float()
        torch.compile(net, backend="eager")
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                net(torch.zeros(2, 8)).sum().backward()
            train(net, steps=1)
        found = settings(lab)
    line = f"{__file__}:"
    assert found["places"] == {
        "no_matmul_tf32": f"{line}{first}",
        "sdpa": f"{line}{first + 4}",
        "scaler": f"{line}{first + 7}",
        "double": f"{line}{first + 10}",
        "compile": f"{line}{first + 11}",
        "autocast": f"{line}{first + 13}",
    }


@as_one_rank
def test_where_a_network_is_sharded_by_what_is_imported_before_the_ranks_meet() -> None:
    from torch import distributed

    with armed() as lab:
        from torch.distributed.fsdp import fully_shard

        distributed.destroy_process_group()
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        fully_shard(nn.Linear(8, 8), mesh=distributed.device_mesh.init_device_mesh("cpu", (1,)))
        assert settings(lab)["places"] == {"FSDP": f"{__file__}:{line_here() - 1}"}


@as_one_rank
def test_where_checkpoints_are_wrapped_around_layers() -> None:
    from torch import distributed
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    with armed() as lab:
        distributed.destroy_process_group()
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        checkpoint_wrapper.apply_activation_checkpointing(layers, check_fn=lambda module: isinstance(module, nn.Linear))
        assert settings(lab)["places"] == {"checkpoint": f"{__file__}:{line_here() - 1}"}


@as_one_rank
def test_an_optimizer_that_is_shared_out_is_one_with_its_part_in_it() -> None:
    with armed() as lab:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        net = nn.Linear(8, 8)
        shared = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=0.1)
        made = line_here() - 1
        train(net, shared)
        (optimizer,) = settings(lab)["optimizers"]
    assert (optimizer["class"], optimizer["elements"]) == ("ZeroRedundancyOptimizer", 72)
    assert optimizer["takes_fused"] and optimizer["made"] == f"{__file__}:{made}"
    assert optimizer["gradients"]["without"] == 0 and optimizer["state_devices"] == {"cpu": 4}
    assert optimizer["shared"] == {
        "ranks": 1, "class": "AdamW", "module": "torch", "parameters": 2, "elements": 72, "state_bytes": 2 * 4 * 72,
        "bucket_view": True, "overlaps": False,
    }  # fmt: skip


@as_one_rank
def test_where_a_schedule_is_made_with_its_micro_batches_and_where_a_hook_of_gradients_is_set() -> None:
    from torch import distributed
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def hook(state: object, bucket: Any) -> Any:
        return distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook(None, bucket)

    hook.__annotations__.clear()  # DDP takes no names in place of types
    with armed() as lab:
        stage = PipelineStage(nn.Linear(8, 8), 0, 1, torch.device("cpu"))
        ScheduleGPipe(stage, n_microbatches=4)
        made = line_here() - 1
        nn.parallel.DistributedDataParallel(nn.Linear(8, 8)).register_comm_hook(None, hook)
        nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(8), nn.BatchNorm1d(8)))
        found = settings(lab)
    assert found["places"] == {
        "stage": f"{__file__}:{made - 1}",
        "schedule": f"{__file__}:{made}",
        "DDP": f"{__file__}:{made + 2}",
        "SyncBatchNorm": f"{__file__}:{made + 3}",
        "comm_hook": f"{__file__}:{made + 2}",
        "comm_hook function": f"{__file__}:{hook.__code__.co_firstlineno}",
    }
    assert found["numbers"] == {"schedule": 4}


@as_one_rank
def test_a_hook_of_torchs_own_has_no_line_of_the_program() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    with armed() as lab:
        nn.parallel.DistributedDataParallel(nn.Linear(8, 8)).register_comm_hook(None, allreduce_hook)
        found = settings(lab)
    assert "comm_hook" in found["places"] and "comm_hook function" not in found["places"]
    assert found["numbers"] == {}


class _Library:
    """Stands for NVIDIA's library: a card of 700 W that may draw 400, held by its temperature, with one process more on it."""

    values: ClassVar = {
        "nvmlDeviceGetEnforcedPowerLimit": 400_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20 | 0x4,
    }

    def __getattr__(self, call: str) -> Any:
        def answer(*given: Any) -> int:
            if call in ("nvmlInit_v2", "nvmlShutdown"):
                return 0
            if call == "nvmlDeviceGetHandleByPciBusId_v2":
                return 0 if given[0] == b"00000000:1b:00.0" else 2
            if call == "nvmlDeviceGetComputeRunningProcesses_v3":
                given[1]._obj.value = 2
                return 0
            if call in self.values:
                given[-1]._obj.value = self.values[call]
                return 0
            return 3  # not supported

        return answer


def test_what_the_driver_says_of_the_card() -> None:
    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    cuda = SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 0, get_device_properties=lambda _device: place
    )
    found = settings_card.card(SimpleNamespace(cuda=cuda), lambda _name: _Library())
    assert found is not None
    known = {
        "power_limit_w": 400.0,
        "default_power_limit_w": 700.0,
        "held_by": ["power limit", "temperature"],
        "others": 1,
    }
    assert {name: value for name, value in found.items() if value is not None} == known
    assert settings_card.card(torch) is None, "this process has started no CUDA"


@pytest.mark.parametrize("keeps", [True, False])
def test_a_network_says_whether_it_makes_only_the_logits_that_are_asked_for(keeps: bool) -> None:
    class Speaks(nn.Linear):
        def forward(self, x: Any, logits_to_keep: int = 0) -> Any:
            return super().forward(x)[:, -logits_to_keep:]

    network = Speaks(4, 4) if keeps else nn.Linear(4, 4)
    assert settings_objects.network(torch, network)["logits_to_keep"] is keeps


def test_a_network_in_a_wrapper_of_ddp_is_named_by_its_own_class() -> None:
    """Made without its group: two networks of a program may be wrapped alike."""
    ddp = nn.parallel.DistributedDataParallel
    wrapper = ddp.__new__(ddp)
    nn.Module.__init__(wrapper)
    wrapper.module = nn.Linear(1, 1)
    assert settings_objects.class_of(wrapper) == "Linear" and settings_objects.class_of(nn.ReLU()) == "ReLU"
    holder = nn.Module()
    holder.module = nn.Linear(1, 1)
    assert settings_objects.class_of(holder) == "Module", "what merely has such an attribute is no wrapper"


def test_an_engine_of_deepspeed_tells_its_stage_and_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stand-in for its engine: what ZeRO parts is empty, and knows how many numbers it has."""

    class Engine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 4)
            self.module.weight.requires_grad_(False)
            self.module.weight.ds_numel = 1000  # type: ignore[assignment]
            zero = SimpleNamespace(overlap_comm=False, reduce_bucket_size=5e6, allgather_bucket_size=int(5e8))
            self._config = SimpleNamespace(zero_optimization_stage=2, gradient_accumulation_steps=16, zero_config=zero)

    monkeypatch.setitem(sys.modules, "deepspeed.runtime.engine", SimpleNamespace(DeepSpeedEngine=Engine))  # type: ignore[misc]
    (told,) = settings_objects.wrappers(Engine())
    assert (told["kind"], told["stage"], told["micro_steps"]) == ("DeepSpeed", 2, 16)
    assert (told["overlap_comm"], told["reduce_bucket_size"], told["prefetch_bucket_size"]) == (False, 5_000_000, None)
    assert (told["elements"], told["trained_elements"]) == (1004, 4)
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.pipe.engine", SimpleNamespace(PipelineEngine=Engine))  # type: ignore[misc]
    assert settings_objects.wrappers(Engine()) == [], "a stage of a pipeline is no copy of a network"


def test_a_wrapper_of_ddp_tells_whether_it_wraps_what_is_compiled() -> None:
    plain, whole = nn.Linear(2, 2), nn.Linear(2, 2)
    whole.compile(backend="eager")
    assert not settings_objects._is_compiled(plain) and settings_objects._is_compiled(whole)
    assert settings_objects._is_compiled(torch.compile(plain, backend="eager"))
