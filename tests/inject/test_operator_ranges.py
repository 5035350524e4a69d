"""Operators with shapes (X-ray steps) on a CPU torch: its missing NVTX is put in, by an extension that writes down the ranges.

A torch built with CUDA sends the same texts through NVTX; nothing else of it is needed to see what is recorded, when, and that
the program does not notice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nsysx_probe.backend
import nsysx_probe.operator_ranges
import nsysx_probe.output
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nsysx.events import attribute, correlate, nvtx_ranges, work_operators
from nsysx.reading.load import load
from tests.builder import Report

INJECT = Path(__file__).resolve().parents[2] / "nsysx" / "inject"

EXTENSION = """
#include <Python.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <cstdio>
#include <cstdlib>
#include <mutex>
namespace p = torch::profiler::impl;
std::mutex one;
FILE* tape = fopen(getenv("TAPE"), "w");
void put(const char* a, const char* b) { std::lock_guard<std::mutex> g(one); fprintf(tape, "%s%s\\n", a, b); fflush(tape); }
struct Stubs : p::ProfilerStubs {
  void record(c10::DeviceIndex*, p::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const p::ProfilerVoidEventStub*, const p::ProfilerVoidEventStub*) const override { return 0; }
  void mark(const char*) const override {}
  void rangePush(const char* text) const override { put("+", text); }
  void rangePop() const override { put("-", ""); }
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}
} stubs;
PyModuleDef module = {PyModuleDef_HEAD_INIT, "withnvtx", nullptr, -1, nullptr};
PyObject* step(PyObject*, PyObject* number) { put("=", PyUnicode_AsUTF8(number)); Py_RETURN_NONE; }
PyMethodDef methods[] = {{"step", step, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
extern "C" PyObject* PyInit_withnvtx() {
  p::registerCUDAMethods(&stubs);
  module.m_methods = methods;
  return PyModule_Create(&module);
}
"""

PROGRAM = """
import hashlib, os, sys
import torch, withnvtx
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, 5))
opt = torch.optim.AdamW(net.parameters())
for i in range(10):
    withnvtx.step(str(i))
    x = torch.randn(2, 3, 8)
    if i == 7:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            net(x)
        assert any(e.name == "aten::conv1d" for e in seen.events())
    loss = net(x).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
state = hashlib.sha256()
for value in [*net.state_dict().values(), torch.get_rng_state()]:
    state.update(value.numpy().tobytes())
print(state.hexdigest())
"""

#: What there is of Triton without a device: launches that do nothing.
TRITON = """
class JITFunction:
    def __init__(self, name, src="", **scope):
        self.__name__, self.src, self.__globals__, self.runs = name, src, scope, 0

    def run(self, *args, grid, warmup, **kwargs):
        self.runs += not warmup
        return self.runs

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)
"""
TUNED = """
class Autotuner:
    def __init__(self, fn):
        self.fn, self.tuned = fn, False

    def run(self, *args, **kwargs):
        for _ in range(1 if self.tuned else 5):
            self.fn.run(*args, **kwargs)
        self.tuned = True
"""
LAUNCHES = """
import os, sys
import torch, withnvtx
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "without_device"))
torch.version.cuda = None  # with torch for CUDA, launches make no steps before a device is used
from triton.runtime.jit import JITFunction
from triton.runtime.autotuner import Autotuner
function = type(JITFunction.run)
scale = JITFunction("scale", "def scale(x, y): tl.store(y, tl.load(x))")
inner = JITFunction("inner", "def inner(a, b): return tl.dot(a, b)")
product = JITFunction("product", "def product(x, y): tl.store(y, inner(x, x))", inner=inner)
tuned = Autotuner(product)
before = JITFunction.run.__code__
try:
    torch.cuda.get_device_capability()  # Triton asks before it compiles its first kernel
except Exception:
    pass
x, y = torch.ones(4, 8), torch.empty(4, 1).expand(4, 8)
for i in range(12):
    withnvtx.step(str(i))
    scale[(1,)](x, y)
    scale.run(x, y, grid=None, warmup=True)
    tuned.run(x, y=y, grid=(1,), warmup=False)
    torch.relu(x)
assert (scale.runs, product.runs) == (12, 16)
net = torch.nn.Linear(8, 8)
net(x)
for i in range(12, 30):
    withnvtx.step(str(i))
    scale[(1,)](x, y)
    net(x)
print(JITFunction.run.__code__ is before)
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the extension; return its folder."""
    folder = tmp_path_factory.mktemp("withnvtx")
    (folder / "withnvtx.cpp").write_text(EXTENSION)
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    words = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", "withnvtx.cpp", "-o", "withnvtx.so"]
    words += [f"-I{path}" for path in includes] + [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
    if not torch.compiled_with_cxx11_abi():
        words.append("-D_GLIBCXX_USE_CXX11_ABI=0")
    subprocess.run(words, cwd=folder, check=True, timeout=600)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "launches.py").write_text(LAUNCHES)
    runtime = folder / "without_device" / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (runtime.parent / "__init__.py").touch()  # or the one that torch for CUDA brings is found before it
    (runtime / "jit.py").write_text(TRITON)
    (runtime / "autotuner.py").write_text(TUNED)
    return folder


def run(
    folder: Path, scratch: Path, program: str = "program.py", **extra: str
) -> tuple[str, list[str], dict[str, Any]]:
    """Return what the program printed, the tape, and what the probe wrote."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSX_", "NVTX_"))}
    environ |= {
        "TAPE": str(scratch / "tape"),
        "PYTHONPATH": f"{INJECT}:{folder}",
        "NSYSX_PROBE_DIR": str(scratch),
    } | extra
    words = [sys.executable, str(folder / program)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    probe = next(iter(scratch.glob("probe-*.json")))
    return done.stdout, (scratch / "tape").read_text().splitlines(), json.loads(probe.read_text())


def by_step(tape: list[str]) -> dict[int, list[str]]:
    """Return the texts of the ranges that began in each step."""
    found: dict[int, list[str]] = {}
    for line in tape:
        if line.startswith("="):
            found[int(line[1:])] = []
        elif line.startswith("+"):
            found[max(found)].append(line[1:])
    return found


@pytest.fixture(scope="module")
def recorded(extension: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str], dict[str, Any]]:
    """Return what ``run`` says of the program with its operators recorded."""
    return run(extension, tmp_path_factory.mktemp("ops"), NSYSX_XRAY="all", NSYSX_FORCE="1")


@pytest.fixture
def tape_of_a_step(recorded: tuple[str, list[str], dict[str, Any]]) -> list[str]:
    """Return the ranges of one step."""
    tape = recorded[1]
    return tape[tape.index("=1") + 1 : tape.index("=2")]


def test_operators_of_marked_steps_with_shapes_and_the_program_does_not_notice(
    extension: Path, recorded: tuple[str, list[str], dict[str, Any]], tmp_path: Path
) -> None:
    bare, nothing, _ = run(extension, tmp_path, NSYSX_PROBE="0")
    printed, tape, probe = recorded
    assert not [line for line in nothing if line.startswith("+")]
    assert printed == bare, "weights and random state"
    steps = by_step(tape)
    marked = probe["marked_steps"]
    assert marked[:2] == [0, 1] and 9 not in marked
    for number, texts in steps.items():
        products = [t for t in texts if t.startswith("aten::addmm, ")]
        # The first step is left out: it compiles.
        assert len(products) == (1 if number in marked and number else 0), number
        assert all("sizes = [[5], [2, 24], [24, 5], [], []]" in t for t in products)
    assert any(t.startswith("AddmmBackward0, seq = ") for t in steps[1]), "the backward, on whatever thread"
    pushes = sum(line.startswith("+") for line in tape)
    assert pushes == sum(line.startswith("-") for line in tape), "every range is closed"
    assert probe["operators"]["shapes"] and probe["operators"]["why_not"] is None and not probe["errors"]


def flops_of(tape: list[str], folder: Path) -> int:
    """Return the FLOPs that the reader finds in the operators of a tape."""
    report, open_ = Report(), list[tuple[str, int]]()
    main = report.process(1).thread(1)
    for at, line in enumerate(tape):
        if line.startswith("+"):
            open_.append((line[1:], at))
        elif open_:
            main.add_range(*open_.pop(), at)
    # Work in each operator, that begins right after its innermost range does.
    for at, line in enumerate(tape):
        if line.startswith("+") and not tape[at + 1].startswith("+"):
            main.launch(at=10 * at + 1, dur=1, gpu_start=10 * at + 5, gpu_dur=1)
    for row in report.rows["NVTX_EVENTS"]:
        row["start"], row["end"] = 10 * row["start"], 10 * row["end"]
    trace = load(report.write(folder / "r.sqlite"))
    ranges = nvtx_ranges.read(trace)
    found = work_operators.find(trace, ranges, attribute.attribute(trace, correlate.correlate(trace), ranges))
    assert not [why for why in found.rows["why_not"].to_list() if why]
    return int(found.rows["flops"].sum())


def test_what_torch_writes_gives_the_flops_that_torch_counts(tape_of_a_step: list[str], tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv1d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(24, 5)
    )
    with FlopCounterMode(display=False) as counter:
        net(torch.randn(2, 3, 8)).sum().backward()
    assert flops_of(tape_of_a_step, tmp_path) == counter.get_total_flops()


def recorder(wanted: str = "shapes") -> tuple[Any, Any]:
    """Return the recorder and where it notes what went wrong, in this process."""
    out = nsysx_probe.output.Output(nsysx_probe.backend.nowhere("off"), {}, lambda: None)
    return nsysx_probe.operator_ranges.OperatorRanges(torch, out, wanted), out


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has NVTX")
def test_a_torch_without_nvtx_says_so_and_goes_on() -> None:
    operators, out = recorder()
    operators.in_step(True)
    operators.in_step(False)
    assert "compiled without CUDA" in operators.record()["why_not"] and out.errors == []
    assert not torch.autograd._profiler_enabled()
    assert recorder("off")[0].record() is None


def test_a_profiler_of_the_programs_own_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    native, calls = torch._C._autograd, list[str]()
    operators, out = recorder()
    with monkeypatch.context() as patch:
        patch.setattr(native, "_enable_profiler", lambda *_: calls.append("on"))
        patch.setattr(native, "_disable_profiler", lambda: calls.append("off"))
        operators.in_step(True)
        thread = threading.Thread(target=operators.in_step, args=(False,))
        thread.start()
        thread.join()
        assert calls == ["on"], "another thread has nothing to turn off"
        operators.give_way(None)
        operators.in_step(True)
    assert calls == ["on", "off"] and "its own profiler" in operators.record()["why_not"] and out.errors == []


def test_a_backward_on_several_threads_is_recognized() -> None:
    def node(*devices: str, after: Any = None) -> Any:
        given = [SimpleNamespace(device=device) for device in devices]
        return SimpleNamespace(_input_metadata=given, next_functions=((after, 0), (None, 0)))

    def alone(*nodes: Any) -> bool:
        return nsysx_probe.operator_ranges._one_thread([SimpleNamespace(grad_fn=n) for n in nodes])

    assert alone(node("cuda:0", after=node("cuda:0", "cpu"))), "a node works where its first tensor of a device is"
    assert not alone(node("cuda:0", after=node("cpu")))
    assert not alone(node("cuda:0"), node("cuda:1"))
    real = (torch.ones(2, requires_grad=True) * 2).sum()
    assert nsysx_probe.operator_ranges._one_thread(real) and nsysx_probe.operator_ranges._one_thread(
        [torch.autograd.graph.get_gradient_edge(real)]
    )


def test_without_shapes_where_several_threads_run_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    operators, out = recorder()
    turned = list[bool]()
    with monkeypatch.context() as patch:
        patch.setattr(torch._C._autograd, "_enable_profiler", lambda config, _: turned.append(operators.shapes))
        patch.setattr(torch._C._autograd, "_disable_profiler", lambda: None)
        patch.setattr(nsysx_probe.operator_ranges, "_one_thread", lambda _: False)
        operators.in_step(True)
        operators.before_backward(())
    assert turned == [True, False] and "several threads" in out.errors[0] and operators.record()["shapes"] is False


def test_launches_of_triton_make_steps_until_a_network_does_and_are_operators_of_x_ray_steps(
    extension: Path, tmp_path: Path
) -> None:
    printed, tape, probe = run(extension, tmp_path, "launches.py", NSYSX_XRAY="all", NSYSX_FORCE="1")
    assert printed == "True\n", "a network has come: launches have their own code again"
    assert not probe["errors"]
    launches = {number: [t for t in texts if t.startswith("triton::")] for number, texts in by_step(tape).items()}
    marked = [n for n, texts in launches.items() if n < 12 and texts]
    assert marked and 0 not in marked and len(marked) <= 3, "the first step's tuning and all plain steps have none"
    first, second = launches[marked[0]]
    # What lies on the host is not moved by the device.
    assert first.startswith("triton::scale#0, op_id") and "sizes = [[4, 8], [4, 8]]" in first
    assert second.startswith("triton::product#products, op_id")
    assert probe["steps"]["count"] == 19, "one for each call of the network, beside which launches make no steps"


def test_bytes_of_a_launch_count_each_place_once_and_an_expanded_tensor_as_its_source() -> None:
    from nsysx_probe.kernel_launches import bytes_held

    def tensor(place: int, shape: tuple[int, ...], stride: tuple[int, ...], width: int, device: str = "cuda") -> Any:
        numel = 1
        for size in shape:
            numel *= size
        return SimpleNamespace(
            device=SimpleNamespace(type=device), shape=shape, stride=lambda: stride, data_ptr=lambda: place,
            element_size=lambda: width, numel=lambda: numel,
        )  # fmt: skip

    x, same = tensor(64, (4, 8), (8, 1), 4), tensor(64, (4, 8), (8, 1), 4)
    expanded, empty, host = (
        tensor(512, (4, 8), (0, 1), 2),
        tensor(900, (0, 8), (8, 1), 4),
        tensor(1, (9,), (1,), 8, "cpu"),
    )
    assert bytes_held([x, same, expanded, empty, host]) == 4 * 8 * 4 + 8 * 2
