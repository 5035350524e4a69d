"""NSX127 by operators: gradients that are reset before anything reads them, and programs whose gradients are all needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined

MAKES, LOSS, STEP = 12, 14, 16
SOURCE = {MAKES: "fake = generator(z)", LOSS: "critic(fake).mean().backward()", STEP: "opt.step()"}
#: The operators of a step by number: the generator, the critic, then what their backward makes, and the gradients.
GENERATOR, CRITIC, OF_CRITIC, TO_FAKE, OF_GENERATOR, CAST, CRITIC_GRAD, GENERATOR_GRAD = range(1, 9)


class Trained(Lined):
    """A program whose operators have nodes of autograd."""

    first = 0  # of the step

    @contextmanager
    def noted_as(
        self, name: str, number: int, made: tuple[int, ...], seq: int = -1, last: str = "[64, 64]"
    ) -> Iterator[None]:
        begin = self.t
        self.host(2)
        yield
        if self.noted is not None:
            given = ", ".join(f"({self.first + max(each, 0)},{-1 if each < 0 else 0})" for each in made)
            node = f", seq = {self.first + seq}" if seq >= 0 else ""
            sizes = ", ".join([*("[64, 64]" for _ in made[1:]), last])
            text = f"{name}{node}, op_id = {self.first + number}, sizes = [{sizes}], input_op_ids = [{given}]"
            self.main.add_range(text, begin, self.t)

    def op(self, name: str, number: int, *made: int, seq: int = -1, us: float = 0) -> None:
        with self.noted_as(f"aten::{name}", number, made, seq):
            if us:
                self.launch(us, "nvjet_gemm")


def adversarial(program: Trained, number: int, read: tuple[int, ...], *, kind: str = "") -> None:
    """A generator's result in a critic's loss, 300 us each way and weight; an optimizer reads the gradients ``read``."""
    program.first = 100 * (number + 1)
    with program.line(MAKES), program.range("forward"), program.range("generator:Generator"):
        program.op("linear", GENERATOR, -1, -1, seq=1, us=300)
    with program.line(LOSS):
        with program.range("forward"), program.range("critic:Critic"):
            program.host(1)
            with program.range("critic.base:Linear"):
                program.op("linear", CRITIC, GENERATOR, -1, seq=2, us=300)
        with program.range("backward"):
            with program.noted_as("LinearBackward0", 20, (CRITIC,), seq=2), program.range("critic:Critic"):
                with program.range("critic.base:Linear"):
                    program.op("mm", OF_CRITIC, CRITIC, GENERATOR, us=300)
                with program.range(f"critic.{kind if kind == 'adapter' else 'base'}:Linear"):
                    program.op("mm", TO_FAKE, CRITIC, -1, us=300)
            gradient(program, 30, CRITIC_GRAD, OF_CRITIC)
            with program.noted_as("LinearBackward0", 21, (TO_FAKE,), seq=1):
                if kind == "custom kernel":
                    program.launch(300, "triton_linear_backward")
                program.op("mm", OF_GENERATOR, TO_FAKE, -1, us=300)
            gradient(program, 31, GENERATOR_GRAD, OF_GENERATOR)
    with program.line(STEP), program.range("optimizer Adam"):
        if kind == "collective":
            with program.noted_as("c10d::allreduce_", 40, (-1,)):
                program.host(1)
        if kind == "clipped":
            program.op("_foreach_norm", 41, CRITIC_GRAD, GENERATOR_GRAD, us=10)
        if kind == "foreign optimizer":
            program.launch(50, "multi_tensor_apply")
        program.op("_fused_adam_", 42, -1, *read, -1, us=50)
        if kind in {"factor", "number"}:
            with program.noted_as("aten::mul", 43, (-1, OF_GENERATOR), last="[]" if kind == "number" else "[64, 64]"):
                program.host(1)
    program.sync()


def gradient(program: Trained, number: int, made: int, given: int) -> None:
    """Torch adds a gradient to its parameter."""
    with program.noted_as("torch::autograd::AccumulateGrad", number, (given,)):
        program.op("detach", made, given)


def findings(folder: Path, *read: int, kind: str = "", settings: dict[str, object] | None = None) -> list[Finding]:
    def body(program: Lined, number: int) -> None:
        assert isinstance(program, Trained)
        adversarial(program, number, read, kind=kind)

    return Trained(SOURCE, settings).run(body).found(folder, "NSX127")


def test_a_backward_of_which_nothing_is_needed(tmp_path: Path) -> None:
    """The critic alone is trained: what runs back into the generator can go, to the line that calls it."""
    (found,) = findings(tmp_path, CRITIC_GRAD)
    assert found.where["line"] == MAKES and [way.name for way in found.remedies] == ["detached"]
    assert "1 of 2 gradients per step" in found.detail and "Generator" in found.detail
    # The gradient of the generator's weights, and that of the critic's input, which only leads there.
    assert found.saving_ns_per_step == pytest.approx(600_000, rel=0.1)


@pytest.mark.parametrize(("kind", "remedies"), [("number", ["detached"]), ("factor", [])])
def test_a_number_of_python_in_the_memory_of_a_gradient_does_not_read_it(
    kind: str, remedies: list[str], tmp_path: Path
) -> None:
    """Torch names it by its place in memory; it has no dimensions. What has those of the gradient may be the gradient."""
    given = findings(tmp_path, CRITIC_GRAD, kind=kind)
    assert [way.name for each in given for way in each.remedies] == remedies


def test_weights_whose_gradients_nothing_reads(tmp_path: Path) -> None:
    """The generator alone is trained, through the critic: gradients of the critic's weights can go, that of its input cannot."""
    (found,) = findings(tmp_path, GENERATOR_GRAD, settings={})
    assert [way.name for way in found.remedies] == ["frozen"] and "Critic" in found.detail
    assert found.saving_ns_per_step == pytest.approx(300_000, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "paste"), [("", "critic.requires_grad_(False)"), ("adapter", "model.base.requires_grad_(False)")]
)
def test_the_largest_part_of_which_nothing_is_trained_is_frozen(kind: str, paste: str, tmp_path: Path) -> None:
    (found,) = findings(tmp_path, GENERATOR_GRAD, settings={}, kind=kind)
    assert found.paste.startswith(paste) and paste.partition(".requires")[0] in found.fix


@pytest.mark.parametrize("unread", [100, 120])
def test_layers_in_which_adapters_train_are_not_frozen_whole(unread: int, tmp_path: Path) -> None:
    """Their products stand in the same modules as those of the weights below: of 120 elements of the critic an optimizer holds 20."""
    (found,) = findings(tmp_path, GENERATOR_GRAD, settings={"unheld": {"Critic": [unread, 120]}})
    assert [way.name for way in found.remedies] == ["frozen"]
    assert found.paste.startswith("critic.requires_grad_(False)") is (unread == 120)


@pytest.mark.parametrize(("held", "remedy"), [(200, "frozen-meanwhile"), (199, "frozen"), (None, "frozen")])
def test_a_network_that_another_loss_trains_is_frozen_for_this_one_alone(
    held: int | None, remedy: str, tmp_path: Path
) -> None:
    """As the critic of a GAN, where optimizers hold all elements that the networks have; no longer where one element is in none."""
    networks = [{"class": "Critic", "dtypes": {"float32": 120}}, {"class": "Generator", "dtypes": {"float32": 80}}]
    optimizers = [] if held is None else [{"elements": held - 80}, {"elements": 80}]
    (found,) = findings(tmp_path, GENERATOR_GRAD, settings={"networks": networks, "optimizers": optimizers})
    assert [way.name for way in found.remedies] == [remedy]


@pytest.mark.parametrize("buffer", [False, True])
def test_gradients_that_are_parts_of_a_buffer(buffer: bool, tmp_path: Path) -> None:
    """Operators that read the buffer do not name its parts; what all of them read is not told by the probe's look, either."""
    readers = ["Generator"] if buffer else []
    settings = {"gradient_readers": readers, "unread": {"Generator": [0]} if buffer else {}, "unheld": {}}
    assert bool(findings(tmp_path, CRITIC_GRAD, settings=settings)) is not buffer


def test_operators_that_name_all_gradients_are_believed(tmp_path: Path) -> None:
    settings = {"gradient_readers": [], "unread": {"Generator": [0]}}
    assert findings(tmp_path, CRITIC_GRAD, GENERATOR_GRAD, settings=settings) == []


@pytest.mark.parametrize("kind", ["", "clipped", "collective", "custom kernel", "foreign optimizer"])
def test_what_may_read_gradients(kind: str, tmp_path: Path) -> None:
    """An optimizer that reads both, one that no operator names, clipping, buffers of ranks, kernels that torch does not see."""
    read = (CRITIC_GRAD,) if kind else (CRITIC_GRAD, GENERATOR_GRAD)
    assert findings(tmp_path, *read, kind=kind) == []
