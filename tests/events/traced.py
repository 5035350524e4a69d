"""Operators that a program runs on the CPU, as of an X-ray step: what made their arguments, their sizes, and which are trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch.overrides import TorchFunctionMode
from torch.profiler import ExecutionTraceObserver, record_function

from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, _passed_on

_STEP, _MODULE = "traced step ", "traced module "
#: What products on the CPU ask of their factors, and those on a GPU do not: the factors come back as they are.
_OF_CPU_PRODUCTS = ("aten::resolve_conj", "aten::resolve_neg")


class _KeepsResults(TorchFunctionMode):
    """Keeps what the program's calls return: torch numbers a tensor by where it lies, and what takes its place would be taken for it."""

    def __init__(self) -> None:
        super().__init__()
        self.results = list[object]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.results.append(result)
        return result


@dataclass
class _Range:
    """A range of a trace: an operator, a node of autograd, a step or a module; ``first`` to ``last`` of its thread's time."""

    node: Mapping[str, Any]
    parent: _Range | None
    name: str = field(init=False)  # asked for ten times in each step
    first: int = 0
    last: int = 0
    number: int = 0
    inner: list[_Range] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)
    sizes: str = ""

    def __post_init__(self) -> None:
        self.name = str(self.node["name"])

    @cached_property
    def sequence(self) -> int:
        return next((int(each["value"]) for each in self.node["attrs"] if each["name"] == "seq_id"), -1)

    @property
    def in_backward(self) -> bool:
        return "autograd::" in self.name or (self.parent is not None and self.parent.in_backward)


def traced(step: Callable[[], object], folder: Path, model: Any = None) -> tuple[OperatorFlow, OperatorFlow, Flags]:
    """Return the operators of the third of four steps, those of the second, and which of the third's are trained.

    ``model``: a network whose calls of modules are noted.
    """
    ranges = _ranges_of(step, folder, model)
    ran = {each.sequence for each in ranges if each.in_backward and not each.name.startswith("aten::")}
    steps = [each for each in ranges if each.name.startswith(_STEP)]
    before, flow = (_flow(ranges, each) for each in steps[:2])
    trained, last = np.zeros(len(flow.names), np.bool_), dict[int, int]()
    for row in flow.outermost:
        if flow.sequence[row] in ran - {-1}:
            last[flow.sequence[row]] = row
    for row in last.values():
        trained[row : int(np.searchsorted(flow.start_ns, flow.end_ns[row]))] = True
    return flow, before, trained


def _ranges_of(step: Callable[[], object], folder: Path, model: Any) -> list[_Range]:
    """Return what torch notes while steps run, in order of time."""
    noted = list[Any]()

    def enter(name: str) -> None:
        noted.append(record_function(name))
        noted[-1].__enter__()

    for name, module in model.named_modules() if model is not None else ():
        text = f"{_MODULE}{name}:{type(module).__name__}"
        module.register_forward_pre_hook(lambda *_, text=text: enter(text))
        module.register_forward_hook(lambda *_: noted.pop().__exit__(None, None, None))
    step()
    observer, path = ExecutionTraceObserver(), folder / "trace.json"
    observer.register_callback(str(path))
    observer.start()
    with _KeepsResults():
        for number in range(3):
            enter(f"{_STEP}{number}")
            step()
            noted.pop().__exit__(None, None, None)
    observer.stop()
    observer.unregister_callback()
    nodes = sorted(json.loads(path.read_text())["nodes"], key=lambda node: node["id"])
    by_id, roots = dict[int, _Range](), list[_Range]()
    for node in nodes:
        parent = by_id.get(node["ctrl_deps"])
        by_id[node["id"]] = _Range(node, parent)
        (roots if parent is None else parent.inner).append(by_id[node["id"]])
    makers = dict[int, tuple[int, int]]()
    clock = iter(range(10, 1 << 40, 10))
    for root in roots:
        _follow(root, makers, clock)
    return list(by_id.values())


def _follow(each: _Range, makers: dict[int, tuple[int, int]], clock: Iterator[int]) -> None:
    """Note when a range begins and ends, and what made its arguments: torch names a tensor after the last operator that returned it."""
    each.first = each.number = next(clock)
    given = list(_tensors(each.node["inputs"]))
    each.made = [makers.get(tensor, (-1, -1)) for tensor, _ in given]
    each.sizes = ", ".join(map(str, (size for _, size in given)))
    for inner in each.inner:
        _follow(inner, makers, clock)
    for which, (tensor, _) in enumerate(_tensors(each.node["outputs"])):
        if tensor >= 0 and each.name not in _OF_CPU_PRODUCTS:
            makers[tensor] = (each.number, which)
    each.last = next(clock)


def _tensors(values: Mapping[str, Any]) -> Iterator[tuple[int, list[int]]]:
    """Return the number and the size of each argument or result, lists taken apart; -1 and no size for what is no tensor."""
    for value, kind, shape in zip(values["values"], values["types"], values["shapes"], strict=True):
        if kind.startswith("Tensor"):
            yield (value[0], shape) if value else (-1, [])
        elif kind.startswith("GenericList[Tensor"):  # of a list of lists torch notes nothing
            kinds = kind[len("GenericList[") : -1].split(",")
            yield from _tensors({"values": value, "types": kinds, "shapes": shape})
        else:
            yield -1, []


def _flow(ranges: list[_Range], step: _Range) -> OperatorFlow:
    inside = [each for each in ranges if step.first < each.first < step.last and not each.in_backward]
    ops = [each for each in inside if each.name.startswith("aten::")]
    later = [each for each in ranges if each.first > step.last and each.name.startswith("aten::")]
    starts, ends = (np.array([getattr(op, key) for op in ops], np.int64) for key in ("first", "last"))
    names, numbers, sizes = [op.name for op in ops], [op.number for op in ops], [op.sizes for op in ops]
    named = [tuple(number if which >= 0 else -1 for number, which in op.made) for op in ops]
    calls = [
        ModuleCall(
            *each.name.removeprefix(_MODULE).rsplit(":", 1), thread=1, start_ns=each.first, end_ns=each.last,
            first=int(np.searchsorted(starts, each.first)), last=int(np.searchsorted(starts, each.last)),
        )
        for each in inside if each.name.startswith(_MODULE)
    ]  # fmt: skip
    return OperatorFlow(
        names,
        numbers,
        made=_passed_on(named, sizes, numbers, names, [(op.first, op.last) for op in ops]),
        size=sizes,
        calls=tuple(calls),
        thread=1,
        start_ns=starts,
        end_ns=ends,
        sequence=[op.sequence for op in ops],
        read_later=frozenset(number for op in later if not op.in_backward for number, _ in op.made if number >= 0),
        follows=True,
        which=[tuple(which for _, which in op.made) for op in ops],
    )
