"""Work of a training step that no gradient needs, constants that each layer makes again, and Python that another thread runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx135_weights_in_calls import operator

METRIC, LOSS, LAYER = 7, 5, 9
SOURCE = {LOSS: "loss = criterion(net(x))", METRIC: "self.track(net_output)", LAYER: "return self.conv(x, graph)"}


def trained(program: Lined, number: int, made: int, sequence: int, us: float = 200) -> None:
    """An operator whose backward runs later, see ``backward``."""
    begin = program.t
    program.host(5)
    program.launch(us)
    if program.noted is not None:
        label = f"aten::linear, seq = {sequence}, op_id = {number}, sizes = [[64, 64]], input_op_ids = [({made},0)]"
        program.main.add_range(label, begin, program.t)


def backward(program: Lined, *sequences: int) -> None:
    with program.range("backward"):
        for sequence in sequences:
            begin = program.t
            program.launch(100)
            if program.noted is not None:
                program.main.add_range(f"MulBackward0, seq = {sequence}", begin, program.t)


def training(program: Lined, step: int, *, needed: bool = False, function: str = "step", reused: bool = False) -> None:
    """A network (200 us), a metric of its output (20 launches with a pause of 50 us before each), the backward.

    ``needed``: the loss is computed from the metric; ``function``: that of the metric's line; ``reused``: a tensor that is made within
    the loss lies where the metric lay.
    """
    first = 1000 * step + 10
    with program.line(LOSS), program.range("forward"), program.range("net:Net"):
        trained(program, first, max(first - 1, 1), 100 * step + 1)
    with program.line(METRIC, function):
        for each in range(20):
            program.host(50)
            operator(program, "eq", first + 1 + each, [first], 2)
    with program.line(LOSS):
        begin = program.t
        trained(program, first + 50, first + 1 if needed else first, 100 * step + 2, 10)
        if reused and program.noted is not None:
            inner = (
                f"aten::as_strided, seq = -1, op_id = {first + 51}, sizes = [[64]], input_op_ids = [({first + 20},0)]"
            )
            program.main.add_range(inner, begin + 100, begin + 1000)
    backward(program, 100 * step + 2, 100 * step + 1)
    program.sync()


@pytest.mark.parametrize("reused", [False, True])
def test_a_line_whose_results_no_gradient_needs_can_be_left_out(tmp_path: Path, reused: bool) -> None:
    (found,) = Lined(SOURCE).run(lambda program, step: training(program, step, reused=reused)).found(tmp_path, "NSX123")
    assert found.where["line"] == METRIC and "no gradient needs" in found.detail
    assert [way.name for way in found.remedies] == ["metrics-rarely"]
    # Its 20 rounds of 61 us, less what the GPU works of that beside the network.
    assert found.saving_ns_per_step == pytest.approx(1_220_000, rel=0.25)


@pytest.mark.parametrize("kind", [{"needed": True}, {"function": "Net.forward"}], ids=str)
def test_what_the_loss_needs_or_stands_in_a_network_is_no_metric(kind: dict[str, object], tmp_path: Path) -> None:
    found = Lined(SOURCE).run(lambda program, step: training(program, step, **kind)).found(tmp_path, "NSX123")  # type: ignore[arg-type]
    assert not [f for f in found if "no gradient needs" in f.detail]


def layers(
    program: Lined,
    step: int,
    *,
    of_input: bool = False,
    count: int = 5,
    checkpointed: bool = False,
    gathered: bool = False,
    columns: bool = False,
) -> None:
    """``count`` layers that each normalize the graph (4 kernels with a pause before each) and multiply.

    ``of_input``: of the input; ``checkpointed``: what has gradients runs elsewhere; ``gathered``: the four copy lists into memory, as
    FSDP does with the parameters of a layer; ``columns``: each has a column of what is older than the step.
    """
    first = 1000 * step + 10
    operator(program, "rand", first, [-1], 10)
    for layer in range(count):
        at = first + 20 * layer
        if columns:
            operator(program, "select", at + 15, [-1], 5)
        with program.line(LAYER), program.range("forward"), program.range(f"layers.{layer}:GCNConv"):
            for each in range(4):
                program.host(40)
                name, given = ("_foreach_copy_", -1) if gathered else ("ne", first if of_input else -1)
                given = at + 15 if columns else given
                operator(program, name, at + 1 + each, [given], 5)
            if not checkpointed:
                trained(program, at + 9, first, 100 * step + layer + 1, 50)
        if checkpointed:
            trained(program, at + 9, first, 100 * step + layer + 1, 50)
    backward(program, *(100 * step + layer + 1 for layer in reversed(range(count))))
    program.sync()


def constants(folder: Path, **kind: object) -> Finding:
    return Lined(SOURCE).run(lambda program, step: layers(program, step, **kind)).finding(folder, "NSX135")  # type: ignore[arg-type]


def test_constants_that_each_layer_makes_are_made_once(tmp_path: Path) -> None:
    found = constants(tmp_path)
    assert found.verdict == "found" and found.title.startswith("Each of 5 calls of GCNConv computes the same constants")
    assert "cached=True" in found.fix and [way.name for way in found.remedies] == ["constants-of-layers"]
    assert found.saving_ns_per_step == pytest.approx(5 * 4 * 51_000, rel=0.3)


@pytest.mark.parametrize(
    "kind", [{"of_input": True}, {"count": 2}, {"checkpointed": True}, {"gathered": True}, {"columns": True}], ids=str
)
def test_what_depends_on_the_step_or_stands_in_few_layers_is_no_constant(
    kind: dict[str, object], tmp_path: Path
) -> None:
    assert constants(tmp_path, **kind).verdict == "clear"


def threads(program: Lined, step: int, *, long: bool = False) -> None:
    """A step with 2 ms of Python before the only work, while another thread parses; ``long``: it waits in one line."""
    begin = program.t
    other = program.process.thread(101, "python")
    with program.line(LOSS):
        program.host(2_000)
        program.launch(500)
    program.sync()
    if program.noted is None:
        return
    every = 1_600_000 if long else 40_000
    for at in range(begin, begin + 1_600_000, every):
        other.add_range(f"{FILE}:30 parse", at, at + every, domain="nsysx-lines", registered=True, start_end=True)


def test_python_of_another_thread_is_why_lines_are_slow(tmp_path: Path) -> None:
    (found,) = (
        Lined({LOSS: "x = batch.to(device)", 30: "rows = json.loads(text)"}).run(threads).found(tmp_path, "NSX123")
    )
    assert found.where == {"file": FILE, "line": 30}
    assert [way.name for way in found.remedies] == ["processes-for-threads"]
    assert found.saving_ns_per_step == pytest.approx(1_600_000, rel=0.15)


def test_a_thread_that_waits_holds_nobody_up(tmp_path: Path) -> None:
    program = Lined({LOSS: "x = batch.to(device)"}).run(lambda program, step: threads(program, step, long=True))
    assert not [f for f in program.found(tmp_path, "NSX123") if f.where.get("line") == 30]
