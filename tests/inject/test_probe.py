"""The probe on CPU torch with a backend that writes down what it is told. Every case is one that some way of hooking breaks."""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import os
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nsysx_probe.backend
import nsysx_probe.probe
import nsysx_probe.step_follower
import pytest
import torch
import torch.nn.functional as F
from nsysx_probe import ranges
from nsysx_probe.probe_bounds import CALLS_OF_SERVER
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.inject.own_process import as_one_rank

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.filterwarnings("ignore")


class Tape:
    """A backend that keeps every call, by thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str]] = []
        self.open: dict[int, list[str]] = collections.defaultdict(list)
        self.spans: dict[int, str] = {}
        self.backend = nsysx_probe.backend.Backend("tape", str, self.push, self.pop, self.mark, self.start, self.end)

    def _note(self, what: str, text: str) -> None:
        self.calls.append((threading.get_ident(), what, text))

    def push(self, text: str) -> None:
        self.open[threading.get_ident()].append(text)
        self._note("push", text)

    def pop(self) -> None:
        self._note("pop", self.open[threading.get_ident()].pop())

    def mark(self, text: str) -> None:
        self._note("mark", text)

    def start(self, text: str) -> int:
        self._note("start", text)
        self.spans[len(self.calls)] = text
        return len(self.calls)

    def end(self, token: int) -> None:
        self._note("end", self.spans.pop(token))

    def labels(self, *kinds: str) -> list[ranges.Label]:
        found = [ranges.decode(text) for _, what, text in self.calls if what in ("push", "mark", "start")]
        return [label for label in found if not kinds or label.kind in kinds]

    def modules(self) -> list[str]:
        return [label.name for label in self.labels("module")]

    def texts(self, *kinds: str) -> list[str]:
        return [
            text
            for _, what, text in self.calls
            if what in ("push", "mark", "start") and (not kinds or ranges.decode(text).kind in kinds)
        ]

    def tree(self) -> list[str]:
        """What was pushed, indented by what was open on the thread."""
        depth: collections.Counter[int] = collections.Counter()
        lines = []
        for thread, what, text in self.calls:
            if what in ("push", "mark"):
                lines.append("  " * depth[thread] + text)
            depth[thread] += {"push": 1, "pop": -1}.get(what, 0)
        return lines


class Lab:
    """One armed probe and its tape."""

    def __init__(self, **environ: str) -> None:
        self.tape = Tape()
        self.probe = nsysx_probe.probe.Probe(
            torch, self.tape.backend, {"NSYSX_MARKS": "all", "NSYSX_PAUSES": "0", **environ}
        )
        self.probe.arm()

    def close(self) -> None:
        self.probe.exit()
        self.probe.disarm()


@contextlib.contextmanager
def armed(**environ: str) -> Iterator[Lab]:
    lab = Lab(**environ)
    try:
        yield lab
    finally:
        lab.close()
    assert lab.probe.out.errors == []
    assert not any(lab.tape.open.values()), "a range was left open"
    assert not lab.tape.spans
    counted = collections.Counter(label.kind for label in lab.tape.labels())
    assert {k: v for k, v in lab.probe.out.counted().items() if v} == dict(counted)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with armed() as one:
        yield one


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(F.gelu(self.fc1(self.ln(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


BLOCK = ["blocks.{}", "blocks.{}.ln", "blocks.{}.fc1", "blocks.{}.fc2"]
NET = ["", "blocks", *[p.format(i) for i in (0, 1) for p in BLOCK], "head"]


# ---- names -----------------------------------------------------------------------------------------------------------


def test_every_module_call_has_its_path_and_class(lab: Lab) -> None:
    Net()(torch.randn(2, 8))
    assert lab.tape.modules() == NET
    assert lab.tape.labels("module")[0].cls == "Net"
    assert "blocks.1.fc2:Linear" in lab.tape.texts("module")


def test_roots_are_told_apart(lab: Lab) -> None:
    x = torch.randn(2, 8)
    net, disc, other = Net(), Block(), Block()
    loss = nn.CrossEntropyLoss()
    loss(net(x), torch.tensor([0, 1]))
    disc(x)
    other(x)
    texts = lab.tape.texts("module")
    assert "CrossEntropyLoss:CrossEntropyLoss" in texts
    assert "Block:Block" in texts
    assert "Block.fc1:Linear" in texts
    assert "Block#1.fc1:Linear" in texts


def test_a_loss_called_first_does_not_take_the_empty_path(lab: Lab) -> None:
    nn.MSELoss()(torch.randn(2), torch.randn(2))
    Net()(torch.randn(2, 8))
    assert lab.tape.modules() == ["MSELoss", *NET]


def test_a_module_made_in_forward_keeps_one_name(lab: Lab) -> None:
    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Softmax(dim=-1)(self.fc(x))

    net = Soft()
    for _ in range(20):
        net(torch.randn(2, 8))
    assert set(lab.tape.modules()) == {"", "fc", "Softmax"}
    assert lab.probe.naming.walks <= 8


def test_a_module_added_later_is_found_in_its_root(lab: Lab) -> None:
    net = Net()
    net(torch.randn(2, 8))
    net.blocks.append(Block())
    net(torch.randn(2, 8))
    assert "blocks.2.fc1" in lab.tape.modules()


def test_wrapper_parts_are_no_part_of_the_path(lab: Lab) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.module = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    Wrapper(Net())(torch.randn(2, 8))
    assert lab.tape.modules() == ["", *NET]
    assert [label.cls for label in lab.tape.labels("module")][:2] == ["Wrapper", "Net"]


def test_module_is_kept_where_it_is_the_users_own_name(lab: Lab) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(8, 8)
            self.head = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.module(x))

    Own()(torch.randn(2, 8))
    assert lab.tape.modules() == ["", "module", "head"]


def test_shared_modules_keep_the_first_path_and_list_the_others(lab: Lab) -> None:
    net = Net()
    net.blocks[1].fc1 = net.blocks[0].fc1
    net(torch.randn(2, 8))
    assert lab.tape.modules().count("blocks.0.fc1") == 2
    assert lab.probe.naming.aliases == {"blocks.0.fc1": ["blocks.1.fc1"]}


def test_a_module_that_holds_itself_ends_the_walk(lab: Lab) -> None:
    net = Net()
    net.blocks[0].__dict__["_modules"]["back"] = net
    net(torch.randn(2, 8))
    assert lab.tape.modules() == NET


def test_hostile_names_stay_inside_the_grammar(lab: Lab) -> None:
    net = nn.Module.__new__(type("A b:c\n", (nn.Sequential,), {}))
    net.__init__()
    net.add_module("x y:z", nn.Linear(8, 8))
    net(torch.randn(2, 8))
    assert [(label.kind, label.name, label.cls) for label in lab.tape.labels("module")] == [
        ("module", "", "A_b_c_"),
        ("module", "x_y_z", "Linear"),
    ]


def test_a_dead_module_leaves_nothing_behind(lab: Lab) -> None:
    for _ in range(3):
        net = Net()
        net(torch.randn(2, 8))
        del net
    assert set(lab.tape.modules()) == set(NET)
    assert lab.probe.naming.names == {}
    assert lab.probe.naming.entries == {}


def test_depth_and_only() -> None:
    with armed(NSYSX_DEPTH="1") as lab:
        Net()(torch.randn(2, 8))
        assert lab.tape.modules() == ["", "blocks", "head"]
    with armed(NSYSX_ONLY=r"fc\d$") as lab:
        Net()(torch.randn(2, 8)).sum().backward()
        assert lab.tape.modules() == ["blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc1", "blocks.1.fc2"]
        assert "" not in {label.name for label in lab.tape.labels("backward_module")}


def test_bad_options_are_said_and_ignored() -> None:
    lab = Lab(NSYSX_DEPTH="many", NSYSX_ONLY="(", NSYSX_STEPS="5:2")
    try:
        Net()(torch.randn(2, 8))
        assert lab.tape.modules() == NET
        assert len(lab.probe.out.errors) == 3
    finally:
        lab.close()


# ---- the program stays what it was -----------------------------------------------------------------------------------


def test_function_objects_are_the_same_and_get_their_code_back() -> None:
    watched: list[Any] = [
        nn.Module.__call__,
        nn.Module.zero_grad,
        nn.Module.compile,
        torch.autograd.graph._engine_run_backward,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        torch.optim.Optimizer.__init__,
        nn.utils.clip_grad_norm_.__wrapped__,
    ]
    before = [f.__code__ for f in watched]
    engine = torch.autograd.Variable._execution_engine
    call = nn.Module.__call__
    with armed():
        assert nn.Module.__call__ is call
        assert all(f.__code__ is not code for f, code in zip(watched, before, strict=True))
    assert [f.__code__ for f in watched] == before
    assert torch.autograd.Variable._execution_engine is engine


def _failing() -> str:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.missing(x)

    net = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Bad()))
    try:
        net(torch.randn(2, 8))
    except AttributeError:
        return traceback.format_exc()
    raise AssertionError


def _failing_backward() -> str:
    try:
        torch.randn(2).sum().backward()
    except RuntimeError:
        return traceback.format_exc()
    raise AssertionError


def _failing_loader() -> str:
    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise KeyError(index)

    try:
        next(iter(DataLoader(Data())))
    except KeyError:
        return traceback.format_exc()
    raise AssertionError


def _failing_clip() -> str:
    try:
        nn.utils.clip_grad_norm_([torch.nn.Parameter(torch.randn(1))], "x")
    except ValueError:
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize("fails", [_failing, _failing_backward, _failing_loader, _failing_clip])
def test_tracebacks_are_identical_to_the_letter(fails: Callable[[], str]) -> None:
    bare = fails()
    with armed():
        probed = fails()
    assert probed == bare


def test_a_warning_points_at_the_same_line() -> None:
    class Warns(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for level in range(1, 6):
                warnings.warn(f"level {level}", stacklevel=level)
            return x

    def caught() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            nn.Sequential(Warns())(torch.randn(2))
        return [(w.filename, w.lineno) for w in found]

    bare = caught()
    with armed():
        assert caught() == bare


def test_an_exception_closes_what_was_open(lab: Lab) -> None:
    _failing()
    _failing_backward()
    _failing_loader()
    opt = torch.optim.SGD(Net().parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: 1 / 0)
    nn.Linear(8, 8)(torch.randn(2, 8))


def _train(net: nn.Module, steps: int = 3, **how: Any) -> list[float]:
    torch.manual_seed(0)
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def test_numbers_are_bit_identical() -> None:
    torch.manual_seed(1)
    net = Net()
    bare = _train(copy.deepcopy(net))
    with armed():
        probed = _train(copy.deepcopy(net))
    assert probed == bare


def test_in_place_operations(lab: Lab) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    out = net(torch.randn(2, 8))
    out += 1
    out[:, :2].mul_(2)
    out.relu_()
    out.sum().backward()
    assert net[0].weight.grad is not None


@pytest.mark.parametrize("result", ["tensor", "tuple", "list", "dict", "nested", "none", "number", "dataclass"])
def test_any_result(lab: Lab, result: str) -> None:
    import dataclasses

    @dataclasses.dataclass
    class Out:
        a: torch.Tensor
        b: torch.Tensor

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            h = self.fc(x)
            a, b = h * 2, h.tanh()
            made = {
                "tensor": a,
                "tuple": (a, b),
                "list": [a, None, b],
                "dict": collections.OrderedDict(a=a, b=b),
                "nested": {"a": (a, {"b": b})},
                "none": None,
                "number": 3,
                "dataclass": Out(a, b),
            }
            self.kept = a
            return made[result]

    net = Many()
    out = net(torch.randn(2, 8))
    assert type(out) is {"none": type(None), "number": int}.get(result, type(out))
    (net.kept.sum()).backward()
    marks = lab.tape.texts("backward_module")
    assert marks[-1] == "bwd fc:Linear"
    if result not in ("none", "number"):
        assert marks[0] == "bwd :Many"


def test_double_backward(lab: Lab) -> None:
    net = Net()
    x = torch.randn(2, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert net.head.weight.grad is not None


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recompute_is_told_apart(lab: Lab, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checked(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(x)

    x = torch.randn(2, 8, requires_grad=True)
    Checked()(x).sum().backward()
    again = [label.name for label in lab.tape.labels("module") if "recompute" in label.flags]
    assert sorted(again) == sorted(p.format(i) for i in (0, 1) for p in BLOCK)
    assert lab.tape.modules().count("blocks.0.fc1") == 2
    assert [label.name for label in lab.tape.labels("phase")].count("forward") == 1
    marked = {label.name for label in lab.tape.labels("backward_module")}
    assert {"blocks.0.fc1", "blocks.1.fc2", "head"} <= marked


def test_recurrent_attention_and_quantized_modules(lab: Lab) -> None:
    nn.LSTM(8, 8, num_layers=2)(torch.randn(3, 2, 8))[0].sum().backward()
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    layer(torch.randn(2, 3, 8)).sum().backward()
    with torch.inference_mode():
        layer.eval()(torch.randn(2, 3, 8))
    with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
        torch.ao.quantization.quantize_dynamic(Net().eval(), {nn.Linear}, dtype=torch.qint8)(torch.randn(2, 8))


def test_script_and_trace(lab: Lab) -> None:
    net, x = Net().eval(), torch.randn(2, 8)
    expected = net(x)
    scripted = torch.jit.script(net)
    assert torch.equal(scripted(x), expected)
    traced = torch.jit.trace(net, x)
    assert torch.equal(traced(x), expected)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    assert b"nsysx" not in buffer.getvalue()
    assert {label.cls for label in lab.tape.labels("module") if label.name.startswith("Net")} == {"Net"}


def test_fx_export_and_functorch(lab: Lab) -> None:
    net, x = Net(), torch.randn(2, 8)
    expected = net(x)
    graph = torch.fx.symbolic_trace(net)
    assert "nsysx" not in graph.code
    assert torch.equal(graph(x), expected)
    for strict in (False, True):
        program = torch.export.export(net, (x,), strict=strict)
        # The program names its own file, which lies in the checkout, and that is called nsysx by whoever clones it.
        assert "nsysx" not in str(program).replace(str(ROOT), "")
        assert torch.equal(program.module()(x), expected)
    params = dict(net.named_parameters())

    def loss(p: Any, row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, p, (row[None],)).square().sum()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
    assert grads["head.weight"].shape == (2, 4, 8)
    torch.func.jacrev(lambda r: net(r))(x[0])
    from torch.fx.experimental.proxy_tensor import make_fx

    make_fx(lambda r: net(r))(x)
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fresh = Net()
        fresh(mode.from_tensor(torch.randn(2, 8))).sum()
    net(x).sum().backward()


def test_copies_run_their_own_weights_and_pickle(lab: Lab) -> None:
    net, x = Net(), torch.randn(2, 8)
    net(x).sum().backward()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.count_nonzero(twin(x)) == 0
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
    assert b"nsysx" not in pickle.dumps(net)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    assert set(vars(net)) == set(vars(Net()))
    assert not any("nsysx" in key for key in vars(net(x)))


def test_users_tensor_subclasses_and_modes_see_nothing_of_us() -> None:
    seen: list[str] = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    net = Net()

    def run() -> list[str]:
        seen.clear()
        net(torch.randn(2, 8).as_subclass(Loud)).sum().backward()
        with Mode():
            net(torch.randn(2, 8)).sum().backward()
        return list(seen)

    bare = run()
    with armed() as lab:
        assert run() == bare
        assert "blocks.0.fc1" in {label.name for label in lab.tape.labels("backward_module")}


def test_inference_mode_and_anomaly_mode(lab: Lab) -> None:
    net = Net()
    with torch.inference_mode():
        net(torch.randn(2, 8))
    with torch.autograd.detect_anomaly(check_nan=True):
        net(torch.randn(2, 8)).sum().backward()
    assert [label.name for label in lab.tape.labels("phase")][:2] == ["evaluation", "forward"]


def test_users_own_hooks_still_run_in_order(lab: Lab) -> None:
    order: list[str] = []
    net = Net()
    net.head.register_forward_hook(lambda *_: order.append("forward"))
    net.head.register_full_backward_hook(lambda *_: order.append("full backward"))
    out = net(torch.randn(2, 8))
    out.register_hook(lambda g: order.append("tensor") or g * 2)
    out.sum().backward()
    assert order == ["forward", "tensor", "full backward"]


def test_data_parallel_replicas_have_the_paths_of_the_original(lab: Lab) -> None:
    net = Net()
    net(torch.randn(2, 8))

    def replica(module: nn.Module) -> nn.Module:
        twin = module._replicate_for_data_parallel()
        for name, child in module._modules.items():
            twin._modules[name] = replica(child)
        twin._parameters = dict(module._parameters)
        return twin

    twin = replica(net)
    thread = threading.Thread(target=lambda: twin(torch.randn(2, 8)))
    thread.start()
    thread.join()
    assert lab.tape.modules() == NET + NET
    assert len(lab.tape.labels("phase")) == 1
    wrapped = nn.DataParallel(Net())
    wrapped(torch.randn(2, 8))


# ---- torch.compile -------------------------------------------------------------------------------------------------


@pytest.fixture
def dynamo() -> Iterator[Any]:
    torch._dynamo.reset()
    yield torch._dynamo
    torch._dynamo.reset()


def test_a_compiled_module_is_one_region(lab: Lab, dynamo: Any) -> None:
    net, x = Net(), torch.randn(2, 8)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), net(x))
    compiled(x).sum().backward()
    texts = lab.tape.texts("module")
    assert texts[0] == ":Net compiled"
    assert texts[1] == ":Net", "the plain module, called by itself"
    assert texts[len(NET) + 1 :] == [":Net compiled"]
    assert lab.tape.labels("backward_module")[0].name == ""


def test_module_compile_after_the_first_call(lab: Lab, dynamo: Any) -> None:
    net, x = Net(), torch.randn(2, 8)
    net(x)
    net.compile(backend="eager", fullgraph=True)
    net(x)
    assert lab.tape.texts("module")[len(NET) :] == [":Net compiled"]


def test_compile_makes_no_more_graphs_and_no_more_compilations(dynamo: Any) -> None:
    class Breaks(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
                torch._dynamo.graph_break()
            return self.head(x)

    def graphs() -> tuple[int, int, list[str]]:
        dynamo.reset()
        count = torch._dynamo.testing.CompileCounter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net = torch.compile(Breaks(), backend=count)
            for _ in range(3):
                net(torch.randn(2, 8)).sum().backward()
        return count.frame_count, count.op_count, [str(w.message) for w in caught]

    import torch._dynamo.testing

    bare = graphs()
    with armed():
        assert graphs() == bare
    with armed() as lab:
        net = Breaks()
        once = torch.compile(net, backend="eager")
        once(torch.randn(2, 8))
        lab.probe.disarm()
        counters = dict(torch._dynamo.utils.counters["stats"])
        once(torch.randn(2, 8))
        assert dict(torch._dynamo.utils.counters["stats"]) == counters, "turning the probe off compiles nothing again"


def test_compiled_autograd(lab: Lab, dynamo: Any) -> None:
    net = Net()
    bare = torch.autograd.grad(net(torch.ones(2, 8)).sum(), net.head.weight)[0]
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        net(torch.ones(2, 8)).sum().backward()
    assert torch.allclose(net.head.weight.grad, bare)


# ---- phases and backward ---------------------------------------------------------------------------------------------


def test_backward_lands_on_modules_and_functional_code_on_its_caller(lab: Lab) -> None:
    net = Net()
    F.cross_entropy(net(torch.randn(2, 8)), torch.tensor([0, 1])).backward()
    block = ["bwd blocks.{0}:Block", "bwd blocks.{0}.fc2:Linear", "bwd blocks.{0}:Block", "bwd blocks.{0}.fc1:Linear"]
    block.append("bwd blocks.{0}.ln:LayerNorm")
    assert lab.tape.texts("backward_module") == ["bwd head:Linear", *[b.format(i) for i in (1, 0) for b in block]]


def test_every_node_is_marked_by_the_right_module(lab: Lab) -> None:
    """Against the truth: which module was innermost when each autograd node was made."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
            self.drop = nn.Dropout(0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.q(x), self.k(x), self.v(x)
            weights = self.drop((q @ k.transpose(-1, -2) * 0.5).softmax(-1))
            return self.out((weights @ v).relu())

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.attn, self.mlp = Attention(), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attn(self.ln1(x))
            return x + self.mlp(self.ln2(x)) * 0.5

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(8, 8)
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x).tanh()
            for layer in self.layers:
                x = layer(x)
            return x.square().mean()

    net = Model()
    owner: dict[str, str] = {}
    stack: list[str] = []
    names = {m: n for n, m in net.named_modules()}

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                todo = [result.grad_fn]
                while todo:  # an operation may make several nodes
                    node = todo.pop()
                    key = node.metadata.setdefault("test id", f"{len(owner)}")
                    if key not in owner and not node.name().endswith("AccumulateGrad"):
                        owner[key] = stack[-1] if stack else "loss"
                        todo.extend(n for n, _ in node.next_functions if n is not None)
            return result

    def leave(*_: Any) -> None:
        stack.pop()

    for module in net.modules():
        module.register_forward_pre_hook(lambda m, _: stack.append(names[m]))
        module.register_forward_hook(leave)
    with Mode():
        loss = net(torch.randn(1, 3, 8))
    ran: list[tuple[str, str]] = []

    def watch(node: Any) -> None:
        key = node.metadata.get("test id")
        if key is None or "watched" in node.metadata:
            return
        node.metadata["watched"] = True

        def now(*_: Any) -> None:
            marks = lab.tape.texts("backward_module")
            found = ranges.decode(marks[-1]).name if marks else "loss"
            if not node.name().endswith("AccumulateGrad") and not node.name().startswith(
                ("TBackward", "TransposeBackward")
            ):
                ran.append((f"{node.name()} of {owner[key]}", found))

        node.register_hook(now)
        for following, _ in node.next_functions:
            if following is not None:
                watch(following)

    watch(loss.grad_fn)
    loss.backward()
    wrong = [(truth, found) for truth, found in ran if truth.split(" of ")[1] != found]
    assert len(ran) > 60
    assert wrong == []


def test_training_phases(lab: Lab) -> None:
    net, loss = Net(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(4, 8), torch.tensor([0, 1, 2, 3])), batch_size=2)
    for x, y in loader:
        opt.zero_grad()
        loss(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    names = [label.name for label in lab.tape.labels("phase")]
    one = ["data", "zero_grad", "forward", "loss", "backward", "clip", "optimizer"]
    assert names == ["data", *one, *one, "data"]
    assert lab.tape.texts("step") == ["step 0", "step 1"]


def test_clip_is_seen_by_those_who_imported_it_before() -> None:
    from torch.nn.utils import clip_grad_norm_, clip_grad_value_

    with armed() as lab:
        p = nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        clip_grad_norm_([p], 1.0)
        clip_grad_value_([p], 1.0)
        assert lab.tape.texts("phase") == ["clip", "clip"]


def test_every_way_into_the_engine(lab: Lab) -> None:
    def tensor() -> torch.Tensor:
        return torch.ones(2, requires_grad=True).square().sum()

    def backwards() -> int:
        return [label.name for label in lab.tape.labels("phase")].count("backward")

    tensor().backward()
    assert backwards() == 1
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(x.square().sum(), x)
    assert backwards() == 2
    torch.autograd.backward([tensor(), tensor()])
    assert backwards() == 3
    y = tensor()
    torch.autograd.Variable._execution_engine.run_backward(  # as Megatron does
        (y,), (torch.ones_like(y),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
    assert backwards() == 4
    assert isinstance(torch.autograd.Variable._execution_engine, torch._C._ImperativeEngine)


def test_lbfgs_and_a_skipping_scaler(lab: Lab) -> None:
    net = Net()
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2)
    x = torch.randn(2, 8)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        net(x)
        opt.step(closure)
    tree = [line for line in lab.tape.tree() if line.strip().startswith(("step", "forward", "backward", "optimizer"))]
    assert "  optimizer LBFGS" in tree
    assert "    forward Net" in tree
    assert lab.tape.texts("step") == ["step 0", "step 1", "step 2"]


def test_scaler_steps_count_even_if_skipped(lab: Lab) -> None:
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for index in range(4):
        opt.zero_grad()
        loss = net(torch.randn(2, 8)).sum() * (float("inf") if index == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    assert lab.tape.texts("step") == [f"step {i}" for i in range(4)]
    phases = lab.tape.texts("phase")
    assert phases.count("optimizer GradScaler") == 4
    assert phases.count("optimizer SGD") == 3


def test_optimizer_in_backward_is_no_border(lab: Lab) -> None:
    net = Net()
    opts = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda q: opts[q].step())
    for x in DataLoader(torch.randn(8, 8), batch_size=2):
        net(x).sum().backward()
    assert lab.probe.steps.rule == "backward/fetch"
    assert len(lab.tape.texts("step")) == 4


def test_evaluation_between_training_makes_no_steps(lab: Lab) -> None:
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.randn(8, 8)
    for _ in range(2):
        net.train()
        for x in DataLoader(data, batch_size=4):
            opt.zero_grad()
            net(x).sum().backward()
            opt.step()
        net.eval()
        for x in DataLoader(data, batch_size=2):
            with torch.no_grad():
                net(x)
    assert lab.tape.texts("step") == [f"step {i}" for i in range(4)]
    depth = 0
    for _, what, text in lab.tape.calls:
        if text.startswith("step "):
            depth += {"push": 1, "pop": -1}[what]
        elif text.startswith("evaluation"):
            assert depth == 0


def test_loader_workers_by_fork_record_nothing(lab: Lab) -> None:
    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            net = nn.Linear(2, 2)
            with torch.no_grad():
                net(torch.ones(2))
            return torch.tensor([os.getpid(), int(nsysx_probe_is_off())])

    def nsysx_probe_is_off() -> bool:
        return nn.Module.__call__.__code__.co_names[0] == "_compiled_call_impl"

    lab.probe.forked_in_tests = True
    os.register_at_fork(after_in_child=lambda: lab.probe.forked())
    rows = torch.cat(list(DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")))
    assert os.getpid() not in rows[:, 0].tolist()
    assert rows[:, 1].tolist() == [1, 1, 1, 1]
    assert [label.name for label in lab.tape.labels("phase")] == ["data"] * 4


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_gradient_accumulation_is_one_step(lab: Lab) -> None:
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for index, x in enumerate(DataLoader(torch.randn(16, 8), batch_size=2)):
        net(x).sum().backward()
        if index % 4 == 3:
            opt.step()
            opt.zero_grad()
    assert lab.tape.texts("step") == ["step 0", "step 1"]
    assert lab.probe.steps.closed_by == "loader end"


def test_iterable_loader_leaves_an_empty_last_step_that_is_named(lab: Lab) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.randn(8) for _ in range(4)])

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in DataLoader(Stream(), batch_size=2):
        net(x).sum().backward()
        opt.step()
    lab.probe.steps.exit()
    assert lab.tape.texts("step") == ["step 0", "step 1", "step 2"]
    assert lab.probe.steps.empty == [2]


def test_user_steps_rule(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    import nsysx

    monkeypatch.setattr(nsysx_probe.probe, "_probe", lab.probe)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        nsysx.step()
        for _ in range(2):
            net(torch.randn(2, 8)).sum().backward()
            opt.step()
    assert lab.tape.texts("step") == ["step 0", "step 1", "step 2"]
    assert lab.probe.steps.rule == "user"


def test_user_step_does_nothing_without_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    import nsysx

    monkeypatch.setattr(nsysx_probe.probe, "_probe", None)
    nsysx.step()
    monkeypatch.delitem(sys.modules, "nsysx_probe.probe")
    nsysx.step()


def test_what_is_sent_at_the_exit_leaves_the_process_at_once() -> None:
    """Ctrl-C ends Python by its signal, behind all that runs at an exit: nsys then sends nothing that it still keeps there."""
    lab = Lab()
    lab.probe.out.backend.flush = lambda: lab.tape._note("flush", "")
    _train(Net(), steps=1)
    lab.close()
    assert [what for _, what, _ in lab.tape.calls][-2:] == ["mark", "flush"]
    assert lab.tape.labels("info")[-1] == ranges.decode(lab.tape.calls[-2][2])


def test_steps_in_another_thread_end_at_exit() -> None:
    with armed() as lab:

        def train() -> None:
            _train(Net(), steps=3)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert [w for _, w, t in lab.tape.calls if t.startswith("step")].count("start") >= 2


def _asked(net: nn.Module, times: int) -> None:
    with torch.no_grad():
        for _ in range(times):
            net(torch.randn(2, 8))


def _in_thread(work: Callable[[], None]) -> int:
    """Run something in another thread, and return its number."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert thread.ident is not None
    return thread.ident


@pytest.mark.parametrize("warmed_up", [0, 3])
def test_a_server_in_another_thread_makes_the_steps(warmed_up: int) -> None:
    net = Net().eval()
    with armed() as lab:
        _asked(net, warmed_up)
        server = _in_thread(lambda: _asked(net, 40))
        began = [thread for thread, what, text in lab.tape.calls if text.startswith("step") and what == "start"]
        assert lab.probe.phases.driver == server
        assert began[-20:] == [server] * 20 and len(began) <= 40 - CALLS_OF_SERVER + 3
        assert lab.probe.steps.count in (40 - CALLS_OF_SERVER, 40 - CALLS_OF_SERVER - 1)


def test_a_thread_that_looks_at_an_example_makes_no_steps() -> None:
    net, other = Net().eval(), Net().eval()
    with armed() as lab:
        for _ in range(20):
            _asked(net, 1)
            _in_thread(lambda: _asked(other, CALLS_OF_SERVER))
        assert lab.probe.phases.driver == threading.get_ident()
        assert lab.probe.steps.count in (19, 20)
    with armed() as lab:
        _in_thread(lambda: _asked(other, CALLS_OF_SERVER))
        assert lab.probe.phases.driver is None and not lab.probe.steps.count
    with armed() as lab:
        _train(net, steps=3)
        _in_thread(lambda: _asked(other, 3 * CALLS_OF_SERVER))
        assert lab.probe.phases.driver == threading.get_ident() and lab.probe.steps.count == 3


def test_capture_window() -> None:
    lab = Lab(NSYSX_STEPS="2:4")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            opt.zero_grad()
            net(torch.randn(2, 8)).sum().backward()
            opt.step()
        assert lab.tape.texts("step") == ["step 2", "step 3"]
        assert lab.tape.modules() == NET * 2
        assert [label.name for label in lab.tape.labels("phase")].count("backward") == 2
        assert not lab.probe.armed
        assert nn.Module.__call__.__code__.co_names[0] == "_compiled_call_impl"
        assert not any(lab.tape.open.values())
        assert all("CUDA" in e for e in lab.probe.out.errors)
    finally:
        lab.close()


def _steps(net: nn.Module, count: int) -> None:
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(count):
        opt.zero_grad()
        net(torch.randn(2, 8)).sum().backward()
        opt.step()


def test_direct_children_open_a_phase_only_outside_of_their_network(lab: Lab) -> None:
    net = Net()
    net(torch.randn(2, 8)).sum().backward()
    net.head(torch.randn(2, 8)).sum().backward()
    forwards = [text for text in lab.tape.texts("phase") if text.startswith("forward")]
    assert forwards == ["forward Net", "forward Linear"]


def test_timing_run_has_borders_and_no_ranges(tmp_path: Path) -> None:
    with armed(NSYSX_TIMING="1", NSYSX_STEPS="2:5") as lab:
        _steps(Net(), 8)
        timing = lab.probe.borders.timing
        assert timing is not None
        facts = timing.record()
    assert facts["clock"] == "cpu"
    assert list(facts["steps_ns"]) == [2, 3, 4]
    assert all(ns > 0 for ns in facts["steps_ns"].values())
    assert lab.tape.calls == []


# ---- failure of ours -------------------------------------------------------------------------------------------------


def test_a_backend_that_fails_ends_the_probe_and_nothing_else() -> None:
    lab = Lab()

    def explode(_text: str) -> None:
        raise OSError("no")

    lab.tape.backend.push = explode  # type: ignore[method-assign]
    lab.tape.backend.prepare = explode  # type: ignore[method-assign]
    try:
        losses = _train(Net())
        assert len(losses) == 3
        assert lab.probe.out.errors
    finally:
        lab.close()


def test_an_unfinished_module_fails_with_its_own_error(lab: Lab) -> None:
    class Unfinished(nn.Module):
        def __init__(self) -> None:
            pass

        def forward(self) -> int:
            return 1

    with pytest.raises(AttributeError) as probed:
        Unfinished()()
    lab.probe.out.errors.clear()
    lab.probe.steps.exit()
    lab.probe.disarm()
    with pytest.raises(AttributeError) as bare:
        Unfinished()()
    assert str(probed.value) == str(bare.value)


# ---- distributed, one rank --------------------------------------------------------------------------------------------


@as_one_rank
def test_ddp() -> None:
    with armed() as lab:
        net = nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            opt.zero_grad()
            net(torch.randn(2, 8)).sum().backward()
            opt.step()
    assert lab.tape.modules() == ["", *NET] * 2
    assert lab.tape.texts("module")[:2] == [":DistributedDataParallel", ":Net"]
    assert lab.tape.texts("phase").count("forward DistributedDataParallel") == 2
    assert "bwd blocks.0.fc1:Linear" in lab.tape.texts("backward_module")


@as_one_rank
def test_parts_of_a_region_that_ddp_cuts_at_its_buckets_have_the_name_of_the_region() -> None:
    """DDP's optimizer cuts each block's graph in two: torch calls the parts as modules of its own, of which no program knows."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(640, 640), nn.Linear(640, 640)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.up(x).relu())

    with armed() as lab:
        net = nn.Sequential(Block(), Block(), nn.Linear(640, 4))
        for block in net[:2]:
            block.compile(backend="aot_eager", dynamic=False)
        job = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
        with parts_of_regions() as parts:
            for _ in range(2):
                job(torch.randn(2, 640)).sum().backward()
    assert len(parts) >= 2, "torch cut no graph"
    inside = [":DistributedDataParallel", ":Sequential", "0:Block compiled", "1:Block compiled", "2:Linear"]
    assert lab.tape.texts("module") == inside * 2
    assert lab.tape.texts("backward_module") == ["bwd 2:Linear", "bwd 1:Block compiled", "bwd 0:Block compiled"] * 2


@contextlib.contextmanager
def parts_of_regions() -> Iterator[list[object]]:
    """The parts of graphs that DDP's optimizer of torch.compile makes meanwhile."""
    from torch._dynamo.backends import distributed

    made: list[object] = []
    compile_part = distributed.SubmodCompiler.compile_submod

    def noted(*given: Any, **more: Any) -> object:
        made.append(compile_part(*given, **more))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed.SubmodCompiler, "compile_submod", noted)
        yield made


@as_one_rank
def test_fsdp2() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with armed() as lab:
        mesh = init_device_mesh("cpu", (1,))
        net = Net()
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        opt = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.randn(2, 8)).sum().backward()
            opt.step()
            opt.zero_grad()
    assert lab.tape.modules() == NET * 2
    assert lab.tape.texts("module")[:3] == [":Net", "blocks:Sequential", "blocks.0:Block"]
    assert "bwd blocks.0.fc1:Linear" in lab.tape.texts("backward_module")


# ---- steps, as a machine of its own ----------------------------------------------------------------------------------


class Loop:
    """Feeds events to Steps and writes down the borders with what was between them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.steps = nsysx_probe.step_follower.StepFollower(
            lambda index: self.log.append(f"[{index}"), lambda: self.log.append("]")
        )

    def __call__(self, *events: str, times: int = 1) -> Loop:
        steps = self.steps
        calls: dict[str, Callable[[], Any]] = {
            "made": steps.made_optimizer,
            "fetch": steps.fetch,
            "stop": steps.epoch_end,
            "eval fetch": lambda: steps.fetch(training=False),
            "eval": lambda: (steps.forward(False), steps.forward_end()),
            "act": lambda: (steps.forward(False, acts=True), steps.forward_end()),
            "fwd": lambda: (steps.forward(), steps.forward_end()),
            "bwd": lambda: (steps.backward(), steps.backward_end()),
            "opt": lambda: steps.optimizer_end("a"),
            "opt b": lambda: steps.optimizer_end("b"),
            "step": steps.step,
            "exit": steps.exit,
        }
        for _ in range(times):
            for event in events:
                calls[event]()
                self.log.append(event)
        return self

    def text(self) -> str:
        return " ".join(self.log)


def test_training_with_a_loader_and_evaluation() -> None:
    loop = Loop()("made", "eval fetch", "eval", "eval fetch", "eval")
    loop("fetch", "fwd", "bwd", "opt", times=2)("stop", "eval fetch", "eval")("fetch", "fwd", "bwd", "opt")("exit")
    assert loop.text() == (
        "made eval fetch eval eval fetch eval [0 fetch fwd bwd opt ] [1 fetch fwd bwd opt ] stop eval fetch eval "
        "[2 fetch fwd bwd opt ] exit"
    )


def test_what_acts_behind_step_after_step_is_a_part_of_each() -> None:
    """A rollout or a teacher; an evaluation of the trained network stays outside, however often it comes."""
    loop = Loop()("made")("fwd", "bwd", "opt", "act", times=5)("fwd")
    assert loop.text() == (
        "made [0 fwd bwd opt ] act [1 fwd bwd opt ] act [2 fwd bwd opt ] act [3 fwd bwd opt act ] [4 fwd bwd opt act ] [5 fwd"
    )
    assert " ] eval [4 fwd" in Loop()("made")("fwd", "bwd", "opt", "eval", times=5).text()
    now_and_then = Loop()("made")("fwd", "bwd", "opt", "act", "fwd", "bwd", "opt", times=5)
    assert "opt act" not in now_and_then.text()


def test_training_without_a_loader() -> None:
    loop = Loop()("made")("fwd", "bwd", "opt", times=3)("exit")
    assert loop.text() == "made [0 fwd bwd opt ] [1 fwd bwd opt ] [2 fwd bwd opt ] exit"
    assert loop.steps.rule == "optimizer/forward"


def test_accumulation_and_teacher() -> None:
    loop = Loop()("made")("fetch", "eval", "fwd", "bwd", "fetch", "eval", "fwd", "bwd", "opt", times=2)
    assert loop.text() == (
        "made [0 fetch eval fwd bwd fetch eval fwd bwd opt ] [1 fetch eval fwd bwd fetch eval fwd bwd opt"
    )


def test_two_optimizers_in_turn() -> None:
    with_loader = Loop()("made")("fetch", "fwd", "bwd", "opt", "fwd", "bwd", "opt b", times=2)
    assert with_loader.text() == "made [0 fetch fwd bwd opt fwd bwd opt b ] [1 fetch fwd bwd opt fwd bwd opt b"
    without = Loop()("made")("fwd", "bwd", "opt", "fwd", "bwd", "opt b", times=3)
    assert without.text().endswith("] [2 fwd bwd opt fwd bwd opt b ] [3 fwd bwd opt fwd bwd opt b")


def test_one_batch_used_again_and_again() -> None:
    loop = Loop()("made", "fetch")("fwd", "bwd", "opt", times=5)
    assert loop.text() == "made [0 fetch fwd bwd opt fwd bwd opt ] [1 fwd bwd opt ] [2 fwd bwd opt ] [3 fwd bwd opt"


def test_inference() -> None:
    loop = Loop()("eval fetch", "eval", times=3)("exit")
    assert loop.text() == "[0 eval fetch eval ] [1 eval fetch eval ] [2 eval fetch eval ] exit"
    assert loop.steps.rule == "forward/fetch"
    loop = Loop()("eval", times=3)("exit")
    assert loop.text() == "[0 eval ] [1 eval ] [2 eval ] exit"


def test_a_look_at_shapes_before_training_is_no_step() -> None:
    assert Loop()("fwd", "made")("fwd", "bwd", "opt").text() == "fwd made [0 fwd bwd opt"


def test_a_custom_optimizer_and_a_network_without_modules() -> None:
    assert Loop()("fetch", "fwd", "bwd", times=2).text() == "[0 fetch fwd bwd ] [1 fetch fwd bwd"
    assert Loop()("made")("bwd", "opt", times=2).text() == "made [0 bwd opt ] [1 bwd opt"


def test_the_user_knows_best() -> None:
    loop = Loop()("made")("fetch", "fwd", "bwd", "opt")("step", "fetch", "opt", "fetch", "opt", times=2)("exit")
    assert loop.text() == (
        "made [0 fetch fwd bwd opt ] [1 step fetch opt fetch opt ] [2 step fetch opt fetch opt ] exit"
    )


def test_an_optimizer_that_is_replaced() -> None:
    loop = Loop()("made")("fetch", "fwd", "bwd", "opt", times=2)("fetch", "fwd", "bwd", "opt b", times=12)
    assert loop.steps.key == "b"
    assert loop.steps.index >= 5
