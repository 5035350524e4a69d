"""Each change in a real process on the CPU: it takes effect, it knows that it did, and it alters what it says and no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.inject.nsysx_probe import changes
from nsysx.inject.nsysx_probe.changes import array_types, threads
from nsysx.trying.same import difference
from nsysx.trying.trial_run import Runner, RunPlan, RunTimeouts, TrialRun
from tests.light_torch import LIGHT_LINE
from tests.trying import every_change

HEAD = """
import os, sys, time, torch
from torch import nn
torch.manual_seed(0)
"""
#: For programs that neither compile nor have workers.
LIGHT = LIGHT_LINE + HEAD
#: An update by hand: making an optimizer loads the compiler, which takes as long as loading torch.
BY_HAND = "loss.backward()\n    for p in net.parameters(): p.data -= 1e-2 * p.grad; p.grad = None\n"
#: A network whose forward is torch's own, data that differ from batch to batch, and a loss that is read.
PROGRAM = (
    LIGHT
    + """
net = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
data = torch.utils.data.DataLoader([torch.full((3, 8), float(i)) for i in range(40)], batch_size=2)
read = []
for batch in data:
    opt.zero_grad(); loss = net(batch).square().mean(); loss.backward(); opt.step()
    read.append(loss.item())
    print(read[-1], file=open("read", "a"))
"""
)
SLOW = (
    HEAD
    + """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.full((4,), float(i))
net = nn.Linear(4, 1)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    loss = net(batch).square().mean(); """
    + BY_HAND.replace("1e-2", "1e-9")
)
PARALLEL = (
    LIGHT
    + """
import torch.distributed as dist
torch.manual_seed(int(os.environ["RANK"]))
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 8), find_unused_parameters=True); opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for i in range(60):
    opt.zero_grad()
    for part in range(3): net(torch.randn(4, 8)).square().mean().backward()
    opt.step()
time.sleep(0.5); dist.destroy_process_group()  # gloo's threads may need the GIL: test_frameworks
"""
)
#: `bound-reads` answers reads of the device; here it does so on the CPU.
ON_CPU = """
def arm(torch, watch):
    from nsysx_probe.changes import reads
    reads.answer(torch, watch, lambda tensor: tensor.requires_grad)
def hang(torch, watch):
    import subprocess, time
    def never():
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)
    watch.took(here=False)
    watch.at_step.setdefault(6, []).append(never)
CHANGES = (Change("reads-of-the-cpu", "reads", "", arm, alters="computation", beware="a bound"), Change("hang", "", "", hang))
"""

Ran = Callable[..., TrialRun]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Runs a program once with these changes; returns what became of it."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "on_cpu.py").write_text(ON_CPU)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NSYSX_CHANGES", str(tmp_path / "changes"))
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # threads of one process that wait for each other on a busy machine take seconds

    def run(
        program: str, *names: str, words: tuple[str, ...] = (), plan: RunPlan | None = None, step_s: float = 300
    ) -> TrialRun:
        (tmp_path / "train.py").write_text(program)
        known = changes.changes_by_name()
        runner = Runner([sys.executable, *words, "train.py"])
        limits = RunTimeouts(300, 300, step_s, time.monotonic() + 400)
        return runner.run([known[name] for name in names], plan or RunPlan(3, 10), limits)

    return run


def took(run: TrialRun) -> dict[str, int]:
    assert run.outcome == "measured", (run.outcome, run.reason, run.where)
    return {name: seen["took"] for name, seen in run.record["changes"].items()}


#: Changes for which `every_change` has nothing to do, and what they need.
NOT_IN_THE_PROGRAM = {
    "non-blocking": "memory that CUDA pins", "pinned-copies": "a copy to a GPU", "near-gpu": "a GPU", "cuda-graph": "a GPU",
    "bound-reads": "a read of a GPU", "sdpa-efficient": "a GPU that has this attention", "sdpa-cudnn": "a GPU that has this attention",
}  # fmt: skip


def test_every_change_takes_effect_and_alters_what_it_says() -> None:
    """All that there are, without a list of them: who writes one is told here if the program has nothing for it to do."""
    environ = {**os.environ, **every_change.ENVIRONMENT}
    run = [sys.executable, "-m", every_change.__name__]
    done = subprocess.run(run, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made, known = {each["name"]: each for each in json.loads(done.stdout)}, changes.changes_by_name({})
    assert made.keys() == known.keys()
    left = {name for name, each in made.items() if each["error"] or not each["took"]}
    assert left == NOT_IN_THE_PROGRAM.keys(), (
        "give the program of every_change.py something to do for it, or name what it needs in NOT_IN_THE_PROGRAM",
        [made[name] for name in left - NOT_IN_THE_PROGRAM.keys()],
    )
    unchanged = made["nothing"]["losses"]
    assert len(unchanged) == every_change.STEPS
    for name, each in made.items():
        assert each["why_not"] or each["took"], f"{name}: it says why it does not apply"
        assert not each["where"] or f"{every_change.__name__.rpartition('.')[2]}.py:" in each["where"], each
        if name in left or known[name].alters == "computation":
            continue
        same = unchanged if known[name].alters in ("speed", "memory") else pytest.approx(unchanged, rel=0.01)
        assert each["losses"] == same, f"{name}: it alters more than {known[name].alters}"


#: What the program sets and what only costs time, each in its own way: held for its steps, given as an argument, or in the environment.
COSTLY = (
    "import os; os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n"
    + HEAD
    + """
import numpy as np
torch.use_deterministic_algorithms(True); torch.backends.cudnn.benchmark = True; torch.backends.cuda.enable_flash_sdp(False)
mean, wave = torch.from_numpy(np.ones(62)), torch.as_tensor(np.exp(1j * np.ones(4)))
attention = nn.MultiheadAttention(8, 2, batch_first=True)
wide = nn.Linear(62, 1).double()
opt = torch.optim.SGD([{"params": [p], "weight_decay": 0.1 * (p.dim() > 1)} for p in attention.parameters()], lr=1e-3)
for i in range(40):
    x = torch.randn(2, 3, 8)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        loss = attention(x, x, x)[0].square().mean() + torch.fft.irfft(torch.fft.rfft(mean, n=62), n=62).mean()
        wide(mean)
        loss.backward()
    opt.step(); opt.zero_grad()
assert (mean.dtype, wave.dtype) == (torch.float32, torch.complex64) and not torch.is_anomaly_enabled()
"""
)


def test_what_the_program_sets_is_set_otherwise_and_does_the_same(ran: Ran) -> None:
    names = (
        "no-anomaly",
        "not-deterministic",
        "no-cudnn-benchmark",
        "sdpa-allowed",
        "no-attention-weights",
        "groups-merged",
    )
    made = ran(COSTLY, *names, "float32", "fft-length", "unset-launch-blocking", "cudnn-on")
    counts = took(made)
    assert counts["no-anomaly"] >= 13 and counts["no-attention-weights"] >= 13 and counts["fft-length"] >= 26
    held = (
        "not-deterministic",
        "no-cudnn-benchmark",
        "sdpa-allowed",
        "groups-merged",
        "unset-launch-blocking",
    )
    assert {counts[name] for name in held} == {1}, "once, and they stay"
    assert counts["float32"] == 3, "the arrays, and the model that takes one"
    assert not counts["cudnn-on"] and made.record["changes"]["cudnn-on"]["why_not"] == "cuDNN is on"
    unchanged = ran(COSTLY, "float32", "nothing")
    apart = difference(unchanged.record, made.record)
    assert apart.first_update is not None and apart.first_update < 1e-4, (
        "merged groups hold the parameters in another order"
    )
    first, last = (made.record["losses"][which] for which in ("first", "last"))
    assert first == pytest.approx(unchanged.record["losses"]["first"]) and last == pytest.approx(
        unchanged.record["losses"]["last"]
    )


@pytest.mark.parametrize("twice", [False, True])
def test_a_network_is_graphed_once_no_gradient_of_a_gradient_was_seen(
    monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    """There is no GPU: a tensor says that it is on one, and the graph is only noted."""
    torch = pytest.importorskip("torch")
    kept = ((torch.nn.Module, "__call__"), (torch.autograd, "grad"), (torch.autograd, "backward"))
    for owner, name in kept:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # as they are now, afterwards
    graphs: list[Any] = []
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda module, _samples: graphs.append(module))
    on_gpu = type("OnGpu", (torch.Tensor,), {"is_cuda": True})
    watch = changes.Watch()
    changes.changes_by_name({})["cuda-graph"].arm(torch, watch)
    net, x = torch.nn.Linear(3, 1), torch.ones(2, 3).as_subclass(on_gpu)
    (slope,) = torch.autograd.grad(net(x.requires_grad_()).sum(), x, create_graph=twice)
    assert not graphs and not watch.count, "within the first step"
    for work in watch.at_step[1]:
        work()
    assert graphs == ([] if twice else [net]) and watch.count == len(graphs)
    assert ("gradients of gradients" in watch.why_not) is twice and bool(slope.requires_grad) is twice


def test_networks_are_torchs_own_again_after_two_changes_that_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them stood in torch's place again when the second one ended, and changed what came later, too.

    Steps before the first call of a network do not count: what torch.fx traces begins some.
    """
    torch = pytest.importorskip("torch")
    own = torch.nn.Module.__call__
    monkeypatch.setattr(torch.nn.Module, "__call__", own)  # as it is now, afterwards
    watches = {name: changes.Watch() for name in ("channels-last", "autocast-bf16")}
    for name, watch in watches.items():
        changes.changes_by_name({})[name].arm(torch, watch)
    begins = [work for watch in watches.values() for work in watch.each_step]
    for work in 3 * begins:
        work()
    torch.nn.Conv2d(3, 2, 2)(torch.ones(1, 3, 2, 2))
    assert [watch.count for watch in watches.values()] == [1, 1] and len(begins) == 2
    for work in 2 * begins:
        assert torch.nn.Module.__call__ is not own
        work()
    assert torch.nn.Module.__call__ is own


def test_lengths_of_transforms() -> None:
    assert [array_types.next_length(n) for n in (1, 62, 64, 127, 32_767)] == [1, 63, 64, 128, 32_768]


def test_a_read_is_answered_from_the_step_before(ran: Ran, tmp_path: Path) -> None:
    steps = PROGRAM.replace("opt = torch.optim.AdamW(net.parameters(), lr=1e-2)\n", "").replace("opt.zero_grad(); ", "")
    program = steps.replace("loss.backward(); opt.step()\n", BY_HAND)
    assert "opt" not in program.replace(LIGHT_LINE, "").replace("options", "")
    unchanged = ran(program)
    real = (tmp_path / "read").read_text().split()
    (tmp_path / "read").unlink()
    bound = ran(program, "reads-of-the-cpu")
    answered = (tmp_path / "read").read_text().split()
    assert len(answered) >= 12 and took(bound)["reads-of-the-cpu"] >= 12
    assert unchanged.outcome == "measured"
    count = min(len(real), len(answered))
    assert answered[0] == real[0], "the first step has none before it"
    assert answered[1:count] == real[: count - 1] and len(set(real)) == len(real), "the training is the same"


def test_changes_are_turned_off_and_on_in_blocks_of_one_run(ran: Ran, tmp_path: Path) -> None:
    """In the blocks without them the program is what it was: its own arguments, a gradient that is zeroed, a collector that runs.

    It ends in its blocks, and is measured all the same.
    """
    told = (
        "    last = net.weight.is_contiguous(memory_format=torch.channels_last)\n"
        "    print(opt.param_groups[0]['fused'], gc.isenabled(), grads, last, file=open('told', 'a'))\n"
    )
    loop = LOOP.replace("lr=1e-3)", "lr=1e-3, momentum=0.9)").replace("4, 8", "2, 3, 8, 8").replace("(40)", "(61)")
    loop = loop.replace("opt.zero_grad();", "opt.zero_grad(set_to_none=False); grads = net.weight.grad is not None;")
    program = f"import gc\n{LIGHT}net = nn.Conv2d(3, 8, 3)\n{loop}{told}"
    names = ("fused", "set-to-none", "gc-freeze", "channels-last")
    made = ran(program, *names, plan=RunPlan(3, 10, 0.0, 9, 3))
    assert took(made).keys() == set(names) and all(took(made).values())
    assert len(made.block_pairs) in (7, 8) and made.record["steps"] == 13, "the blocks come after the measured steps"
    steps = (tmp_path / "told").read_text().splitlines()
    on, off = "True False False True", "None True True False"
    assert steps[3:13] == [on] * 10
    # What a block's last step leaves, its gradients, is seen in the first step of the next one.
    assert [steps[13 + 3 * n + 1] for n in range(16)] == [off, on, on, off] * 4


def test_compile_compiles_a_network_whose_forward_is_torchs_own(ran: Ran) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.fail("compile is not tested: torch.compile on the CPU needs a C++ compiler, and there is none here")
    made = ran(HEAD + "net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())\n" + LOOP, "compile")
    assert took(made) == {"compile": 1}, made.record["changes"]
    assert made.start_ns > 1e8, "compiling takes its time in the first step"
    assert all(0 < norm < 10 for point in made.record["weights"]["points"] for norm in point["norms"])


LOOP = """
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for i in range(40):
    opt.zero_grad(); net(torch.randn(4, 8)).square().mean().backward(); opt.step()
"""


def test_workers_are_faster_than_a_slow_sample(ran: Ran) -> None:
    unchanged, workers = ran(SLOW), ran(SLOW, "loader-workers")
    assert took(workers) == {"loader-workers": 1}
    assert workers.step_ns < 0.8 * unchanged.step_ns, "samples sleep, so that a busy machine changes little"
    assert len(unchanged.record["losses"]["last"]) == 1
    assert unchanged.record["losses"] == workers.record["losses"], "the batches are the same"


def test_all_ranks_change_and_stop_together(ran: Ran) -> None:
    launch = (
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-port=0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
    )
    of_wrapper = ("ddp-bucket-view", "no-unused-search", "own-buffers", "ddp-large-buckets")
    made = ran(PARALLEL, *of_wrapper, "no-sync", words=launch)
    assert made.outcome == "measured" and [r["ended"] for r in made.records] == ["measured"] * 2, made
    assert {r["rank"] for r in made.records} == {"0", "1"} and {r["steps"] for r in made.records} == {13}
    for record in made.records:
        seen = record["changes"]
        assert [seen[name]["took"] for name in of_wrapper] == [1] * 4
        assert all(seen[name]["where"].endswith("train.py:9") for name in of_wrapper)
        assert seen["no-sync"]["took"] == 2 * 12, "two of three micro-steps, from the second step on"
    first, second = sorted(made.records, key=lambda r: r["rank"])
    assert first["weights"] == second["weights"] and first["losses"] != second["losses"]
    assert made.record["losses"] == first["losses"], "the same rank in each run, whichever is the slowest"
    assert not processes_here(), "no rank is left"


def processes_here() -> list[str]:
    """Return the other processes that have this folder as theirs and stay: one that was killed takes its time on a busy machine."""
    for _ in range(100):
        here = [p for p in Path("/proc").glob("[0-9]*/cwd") if os.path.realpath(p) == str(Path.cwd())]
        left = [p.parent.name for p in here if int(p.parent.name) != os.getpid()]
        if not left:
            break
        time.sleep(0.1)
    return left


def test_a_change_that_hangs_is_ended_with_all_that_it_started(ran: Ran) -> None:
    """Also what it started in a session of its own. A machine that stands still for five seconds between steps hangs as well."""
    loop = "for i in range(40):\n    loss = net(torch.randn(4, 8)).square().mean(); " + BY_HAND
    made = ran(f"{LIGHT}net = nn.Linear(8, 8)\n{loop}", "hang", step_s=5)
    assert made.outcome == "hangs" and 4 <= made.begun <= 7 and not made.record
    assert not processes_here()


def test_the_cpus_near_a_gpu(tmp_path: Path) -> None:
    assert threads.cpus_of("0-2,8\n") == {0, 1, 2, 8} and threads.cpus_of("\n") == set()
    card = SimpleNamespace(pci_bus_id=0x1B, pci_device_id=0, pci_domain_id=0)
    cuda = SimpleNamespace(get_device_properties=lambda _device: card, current_device=lambda: 0)
    torch: Any = SimpleNamespace(cuda=cuda, __version__="2.13")
    assert threads.near_gpu(torch, tmp_path) == (set(), "the system does not say which CPUs are near the GPU")
    (tmp_path / "0000:1b:00.0").mkdir()
    listed = tmp_path / "0000:1b:00.0" / "local_cpulist"
    allowed = os.sched_getaffinity(0)
    listed.write_text(",".join(map(str, allowed)))
    assert "already" in threads.near_gpu(torch, tmp_path)[1]
    listed.write_text("4000")
    assert threads.near_gpu(torch, tmp_path) == (set(), "the process may use no CPU near the GPU")


def test_workers_make_more_batches_ahead() -> None:
    class DataLoader:
        def __init__(self, dataset: Any, num_workers: int = 0, prefetch_factor: int | None = None) -> None:
            self.prefetch_factor = prefetch_factor

    watch = changes.Watch()
    torch = SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(DataLoader=DataLoader)))
    changes.changes_by_name({})["loader-prefetch"].arm(torch, watch)
    assert DataLoader([]).prefetch_factor is None and watch.count == 0, "without workers it would be an error"
    assert DataLoader([], 2, 16).prefetch_factor == 16 and watch.why_not == "prefetch_factor=16 is set already"
    assert DataLoader([], 2).prefetch_factor == 8 and watch.count == 1


class HostTensor:
    """What `pinned-copies` asks of a tensor of the host, and where it was copied from."""

    device = SimpleNamespace(type="cpu")
    requires_grad, layout, _version = False, "strided", 0
    pins = 0

    def __init__(self, *, pinned: bool = False) -> None:
        self.pinned = pinned

    def is_pinned(self) -> bool:
        return self.pinned

    def is_inference(self) -> bool:
        return False

    def pin_memory(self) -> HostTensor:
        HostTensor.pins += 1
        return HostTensor(pinned=True)

    def to(self, device: str, non_blocking: bool = False) -> tuple[str, bool, bool]:
        return device, self.pinned, non_blocking

    cuda = to


def test_a_batch_is_pinned_once_and_again_if_it_changed() -> None:
    class Tensor(HostTensor):
        pass

    class Device:
        def __init__(self, name: str) -> None:
            self.type = name

    watch = changes.Watch()
    torch = SimpleNamespace(Tensor=Tensor, strided="strided", device=Device)
    changes.changes_by_name({})["pinned-copies"].arm(torch, watch)
    batch: Any = Tensor()
    assert batch.to("cpu") == ("cpu", False, False) and not watch.count
    assert [batch.to("cuda") for _ in range(3)] == [("cuda", True, True)] * 3
    assert HostTensor.pins == 1 and watch.count == 3
    batch._version = 1  # it was written to
    assert batch.to("cuda") == ("cuda", True, True) and HostTensor.pins == 2
    watch.turn(False)
    assert batch.to("cuda") == ("cuda", False, False)
    watch.turn(True)
    learned: Any = Tensor()
    learned.requires_grad = True
    assert learned.to("cuda") == ("cuda", False, False), "a copy of it is part of the graph"


def test_parameters_without_a_shape_yet_are_moved_as_before() -> None:
    """``LazyLinear`` takes only methods that torch has listed: those in their place must be, too."""
    names = ("pinned-copies", "non-blocking", "bound-reads")
    program = (
        "import torch, nsysx_probe.changes as c\n"
        f"for name in {names}:\n"
        "    c.changes_by_name({})[name].arm(torch, c.Watch())\n"
        "    net = torch.nn.LazyLinear(2).to('cpu'); net.weight.cpu()\n"
        "    print(net(torch.ones(1, 3)).shape)\n"
    )
    path = str(Path(changes.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("torch.Size([1, 2])\n" * len(names), "")
