"""Programs that torch runs on the CPU, as an X-ray would have recorded them on a GPU: operators with what made their arguments, by line."""

from __future__ import annotations

import linecache
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch.profiler import record_function

from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import is_view
from nsysx.inject.nsysx_probe.layer_options import layer_options
from tests.events.traced import _MODULE, _STEP, _Range, _ranges_of
from tests.findings import Program
from tests.findings.lined import FILE, Lined
from tests.ranks.test_rank_table import KERNELS, noted

_LINE, _HOST, _NODE = "line ", "from host", "autograd::engine::evaluate_function: "
_OF_PACKAGES = "torch_cluster::"
#: What is one kernel on a GPU, and those of it that copy from and to lists besides.
_ONE_KERNEL, _COPY_LISTS = (_OF_PACKAGES, "c10d::"), ("c10d::allgather_", "c10d::reduce_scatter_")
_FUNCTIONAL = "_c10d_functional::"
_OPERATORS = ("aten::", "c10d::", _OF_PACKAGES)
_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: What NCCL calls collectives: that of an operator's name.
_OF_NCCL = {
    "allreduce": "ncclAllReduce", "_allgather": "ncclAllGather", "allgather": "ncclAllGather", "broadcast": "ncclBroadcast",
    "alltoall": "ncclAlltoAll", "send": "ncclSend", "recv": "ncclSend",
}  # fmt: skip
_ELEMENT_BYTES = 4
#: What sorts on a GPU, whatever it calls on the CPU.
_SORTS = ("randperm",)
#: Operators that launch nothing, and those that read a number back on a GPU.
_NO_WORK = (
    "empty", "empty_like", "empty_strided", "new_empty", "resolve_conj", "resolve_neg", "lift_fresh", "detach_", "to", "set_", "item",
    "result_type", "resize_", "_has_compatible_shallow_copy_type", "requires_grad_", "is_nonzero", "sparse_coo_tensor", "values", "indices",
    "_values", "_indices", "contiguous", "_coalesced_", "coalesce", "record_stream", "is_coalesced", "_nnz",
)  # fmt: skip
_READS = ("nonzero", "_unique2", "unique_dim", "unique_consecutive", "_local_scalar_dense", "bincount", "_coalesce")
_SLOW = (
    "argsort",
    "sort",
    "_unique2",
    "topk",
    "_cdist_forward",
    "nonzero",
    "searchsorted",
    "histc",
    "_coalesce",
    "randperm",
)


class _Recorded(Lined):
    """A program whose backward runs on a thread of its own, as on a GPU."""

    def __init__(self, source: Mapping[int, str]) -> None:
        super().__init__(source)
        self.autograd = self.process.thread(150, "pt_autograd_0")
        self.slow = tuple[str, ...]()
        self.ranks = self.adding_up = 0
        self.in_module = self.within_nodes = False

    @contextmanager
    def line(self, number: int, function: str = "step") -> Iterator[None]:
        """Run a line of the program; that of a hook is noted on autograd's thread."""
        if self.main is not self.autograd:
            with super().line(number, function):
                yield
            return
        begin = self.t
        yield
        if self.noted is not None:
            self.main.line(f"{FILE}:{number} {function}", begin, self.t)


def launched_slowly(monkeypatch: pytest.MonkeyPatch, most_us: float) -> None:
    """Have kernels of programs take so long at most, and the host 8 us more for each: it sets the pace."""
    launch = Program.launch

    def slow(program: Program, us: float, *args: Any, **kind: Any) -> None:
        program.host(8)
        launch(program, min(us, most_us), *args, **kind)

    monkeypatch.setattr(Program, "launch", slow)


def from_host(tensor: Any) -> Any:
    """Return a tensor as a copy from the host would make it."""
    with record_function(_HOST):
        return tensor.clone()


def recorded(
    step: Callable[[], object],
    model: Any,
    file: str,
    folder: Path,
    first: int = 3,
    slow: tuple[str, ...] = (),
    ranks: int = 0,
    adding_up: int = 0,
    within_nodes: bool = False,
) -> Lined:
    """Return the program whose steps these are, with the lines of ``file``; ``first``: so many of its X-ray steps, all by default.

    ``slow``: operators that are one kernel on a GPU which takes long, whatever they call on the CPU. ``ranks``: collectives are those of
    NCCL among so many, with its notes, and a network's calls are forwards; ``adding_up``: so many of them, where others,
    make reductions. ``within_nodes``: autograd's nodes have what they were given, and the operators that they run.
    """
    ranges = _ranges_of(_with_lines(step, file), folder, model)
    trees = [each for each in ranges if each.name.startswith(_STEP)]
    text = {each.name.split()[1] for each in ranges if each.name.startswith(_LINE)}
    program = _Recorded({int(number): linecache.getline(file, int(number)).rstrip("\n") for number in text})
    program.slow, program.ranks, program.adding_up = slow, ranks, adding_up
    program.within_nodes = within_nodes
    options = layer_options({FILE: Path(file).read_text()}, {FILE: set(map(int, text))})
    program.probe["options_of_layers"] = [option._asdict() for option in options]
    for comm, size in enumerate((ranks, adding_up), 5):
        if size:
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=comm, of=size, Rank=0)

    def body(program: Lined, number: int) -> None:
        assert isinstance(program, _Recorded)
        at = number - 8
        _emit(program, trees[at if 0 <= at < len(trees) else 1].inner)
        program.sync()

    return program.run(body, 8, first)


def _with_lines(step: Callable[[], object], file: str) -> Callable[[], None]:
    """Return a step that notes the lines of a file which it runs."""
    open_in = dict[FrameType, Any]()

    def leave(frame: FrameType) -> None:
        if frame in open_in:
            open_in.pop(frame).__exit__(None, None, None)

    def of_frame(frame: FrameType, event: str, _: object) -> Any:
        leave(frame)
        if event == "line":
            open_in[frame] = record_function(f"{_LINE}{frame.f_lineno} {frame.f_code.co_qualname.replace(' ', '')}")
            open_in[frame].__enter__()
        return of_frame

    def of_call(frame: FrameType, event: str, _: object) -> Any:
        return of_frame if frame.f_code.co_filename == file else None

    def run() -> None:
        before = sys.gettrace()
        sys.settrace(of_call)
        try:
            step()
        finally:
            sys.settrace(before)

    return run


@contextmanager
def _around(program: Lined, each: _Range) -> Iterator[None]:
    if each.name.startswith(_LINE):
        _, number, function = each.name.split(maxsplit=2)
        with program.line(int(number), function.split("<locals>.")[-1]):
            yield
    elif each.name.startswith(_MODULE):
        path, cls = each.name.removeprefix(_MODULE).rsplit(":", 1)
        outermost, program.in_module = program.ranks and not program.in_module, True
        name = "net" + (f".{path}" if path else "") + f":{cls}"
        with program.range("forward") if outermost else nullcontext(), program.range(name):
            yield
        program.in_module = not outermost
    elif each.name.startswith("Optimizer.step"):
        with program.range("optimizer"):
            yield
    elif each.name.startswith("Optimizer.zero_grad"):
        with program.range("zero_grad"):
            yield
    else:
        yield


def _emit(program: _Recorded, several: Sequence[_Range], *, host: bool = False) -> None:
    nodes = [each.name.startswith(_NODE) for each in several]
    for index, each in enumerate(several):
        if nodes[index]:
            if not index or not nodes[index - 1]:
                begin = program.t
            _node(program, each)
            if index + 1 == len(nodes) or not nodes[index + 1]:
                program.main.add_range("backward", begin, program.t, domain="nsysx")
            continue
        begin = program.t
        program.host(1)
        with _around(program, each):
            if not each.name.startswith(_ONE_KERNEL) or each.name in _COPY_LISTS:
                _emit(program, each.inner, host=host or each.name == _HOST)
            if each.name.startswith(_OPERATORS):
                _launch(program, each, host)
        functional = program.ranks and each.name.startswith(_FUNCTIONAL)
        if program.noted is not None and (functional or each.name.startswith(_OPERATORS)):
            makers = ", ".join(f"({number if which >= 0 else 0},{which})" for number, which in each.made)
            seq = f"seq = {each.sequence}, " if each.sequence >= 0 else ""
            text = f"{each.name}, {seq}op_id = {each.number}, sizes = [{each.sizes}], input_op_ids = [{makers}]"
            program.main.add_range(text, begin, program.t)


def _node(program: _Recorded, each: _Range) -> None:
    """A node of autograd, on its thread: a kernel, and what is known of it."""
    main, program.main = program.main, program.autograd
    _node_alone(program, each)
    program.main = main


def _node_alone(program: _Recorded, each: _Range) -> None:
    begin, name = program.t, each.name.removeprefix(_NODE)
    if program.within_nodes and name == _ACCUMULATES and not any(inner.name == name for inner in each.inner):
        return  # its gradient is asked for, and not added
    if name == _ACCUMULATES:
        inner = next((inner for inner in each.inner if inner.name == _ACCUMULATES), each)
        for added in (made for made in inner.inner if made.name == "aten::add_"):  # to a gradient that is there
            program.launch(5, "add")
            if program.noted is not None:
                label = f"{added.name}, op_id = {added.number}, sizes = [{added.sizes}], input_op_ids = []"
                program.main.add_range(label, begin + 100, program.t)
        _emit(program, [made for made in inner.inner if made.name.startswith(_LINE)])  # a hook behind it
        text = f"{name}, op_id = {inner.number}, sizes = [{inner.sizes}]"
    else:
        program.launch(20, "backward")
        for sends in (inner for inner in each.inner if program.ranks and inner.name.startswith("c10d::")):
            _send_in_node(program, sends)
        node = next((inner for inner in each.inner if inner.sequence >= 0), each)
        text = f"{name}, seq = {node.sequence}"
        if program.within_nodes:
            text += f", op_id = {node.number}, sizes = [{node.sizes}], input_op_ids = [{_makers(node)}]"
            _note_within(program, node.inner, begin)
    program.host(1)
    if program.noted is not None:
        program.main.add_range(text, begin, program.t)


def _makers(each: _Range) -> str:
    return ", ".join(f"({number if which >= 0 else 0},{which})" for number, which in each.made)


def _note_within(program: _Recorded, operators: Sequence[_Range], begin: float) -> None:
    """Note the operators of a node, with the number of the node that each makes in turn."""
    for made in operators:
        if made.name.startswith("aten::") and made.sequence >= 0 and program.noted is not None:
            text = f"{made.name}, seq = {made.sequence}, op_id = {made.number}, sizes = [{made.sizes}], input_op_ids = [{_makers(made)}]"
            program.main.add_range(text, begin + 100, program.t)


def _send_in_node(program: _Recorded, each: _Range) -> None:
    begin = program.t
    _send(program, each)
    if program.noted is not None:
        makers = ", ".join(f"({number if which >= 0 else 0},{which})" for number, which in each.made)
        text = f"{each.name}, op_id = {each.number}, sizes = [{each.sizes}], input_op_ids = [{makers}]"
        program.main.add_range(text, begin, program.t)


def _same(each: _Range) -> list[_Range]:
    return [inner for inner in each.inner if inner.name == each.name]


def _launch(program: _Recorded, each: _Range, host: bool) -> None:
    name = each.name.split("::")[1]
    if host and name == "clone":
        program.copy(5, pageable=False)
    elif name in _READS:
        program.launch(60 if name in (*_SLOW, *program.slow) else 10, name)
        program.copy(2, "DtoH", bytes=8)
        program.sync()
    elif each.name.startswith(_OF_PACKAGES):
        program.launch(60, name)
    elif (
        each.name.startswith("c10d::")
        or name in program.slow
        or (
            not any(inner.name.startswith("aten::") for inner in (each.inner if name not in _SORTS else _same(each)))
            and not is_view(each.name)
            and name not in _NO_WORK
        )
    ):
        if each.name.startswith("c10d"):
            _send(program, each)
        else:
            program.launch(60 if name in (*_SLOW, *program.slow) else 10, name)


def _send(program: _Recorded, each: _Range) -> None:
    """A collective: of the kind that its operator says where NCCL notes it."""
    kind = next((nccl for name, nccl in _OF_NCCL.items() if each.name.startswith(f"c10d::{name}")), "")
    slow = each.name.split("::")[1] in program.slow
    if not program.ranks or not kind:
        program.launch(60 if slow else 10, "ncclDevKernel_SendRecv")
        return
    begin = program.t
    program.launch(60 if slow else 10, KERNELS[kind])
    numbers = max((math.prod(size) for size in sizes_of(each.sizes) if size), default=0)
    if (
        program.noted is not None and each.inner
    ):  # what came bears the number of what is within, which NCCL's collectives note
        text = f"record_param_comms, op_id = {each.inner[-1].number}, sizes = [], input_op_ids = []"
        program.main.add_range(text, begin, program.t)
    comm = 6 if program.adding_up and kind == "ncclAllReduce" else 5
    noted(program.main, kind, begin, program.t, comm=comm, size=_ELEMENT_BYTES * numbers)
