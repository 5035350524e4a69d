"""NSX127: what a network made is handed with its graph to a loss that does not train it, where another loss of the step does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsysx.findings._attached_outputs import _assigned
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_unread import Trained, gradient
from tests.findings.test_untrained import DDP

MAKES, JUDGES, LOSS_D, STEP_D, FOOLS, LOSS_G, STEP_G = 12, 14, 15, 16, 18, 19, 20
SOURCE = {
    MAKES: "made = net_g(noise)",
    JUDGES: "score = net_d(made)",
    LOSS_D: "scaler.scale(hinge(score)).backward(retain_graph=True)",
    STEP_D: "opt_d.step()",
    FOOLS: "fooled = net_d(made)",
    LOSS_G: "hinge(fooled).backward()",
    STEP_G: "opt_g.step()",
}
#: The operators of a step by number: two layers of the generator, the critic, then what the backwards make, and the gradients.
FIRST, MADE, SCORE, FOOLED, OF_D, TO_MADE, TO_FIRST, OF_FIRST = range(1, 9)
AGAIN, GRAD_D, GRAD_G, GRAD_AGAIN = 10, 60, 61, 62


class OnTwoThreads(Trained):
    def __init__(self, source: dict[int, str], settings: dict[str, object]) -> None:
        super().__init__(source, settings)
        self.engine = self.process.thread(101, "pt_autograd_0")


@contextmanager
def backward(program: OnTwoThreads, line: int) -> Iterator[None]:
    """Run a backward on autograd's own thread, while the line waits for it."""
    with program.line(line, "train"), program.range("backward"):
        main, program.main = program.main, program.engine
        yield
        program.main = main


def back_through_generator(program: OnTwoThreads, given: int, offset: int) -> None:
    with program.range("generator:Generator"):
        with program.noted_as("LinearBackward0", 70 + offset, (given,), seq=2):
            program.op("mm", TO_FIRST + offset, given, -1, us=200)
        with program.noted_as("LinearBackward0", 71 + offset, (TO_FIRST + offset,), seq=1):
            program.op("mm", OF_FIRST + offset, TO_FIRST + offset, -1, us=200)


def trained(
    program: OnTwoThreads,
    number: int,
    *,
    attached: bool = True,
    read: bool = False,
    wasted: bool = False,
    sends: bool = False,
) -> None:
    """A critic's loss and its generator's, on one output of that. ``read``: the generator's optimizer steps by both losses.

    ``wasted``: the critic's weights get gradients by the generator's loss. ``sends``: a collective hides what operators make of what.
    """
    program.first = 100 * (number + 1)
    with program.line(MAKES, "train"), program.range("forward"), program.range("generator:Generator"):
        with program.range("generator.first:Linear"):
            program.op("linear", FIRST, -1, -1, seq=1, us=200)
        with program.range("generator.last:Linear"):
            program.op("linear", MADE, FIRST, -1, seq=2, us=200)
    with program.line(JUDGES, "train"), program.range("forward"), program.range("critic:Critic"):
        if not attached:
            program.op("detach", 50, MADE)
        program.op("linear", SCORE, MADE if attached else 50, -1, seq=3, us=100)
    with backward(program, LOSS_D):
        with program.noted_as("LinearBackward0", 22, (SCORE,), seq=3), program.range("critic:Critic"):
            program.op("mm", OF_D, SCORE, -1, us=100)
            if attached:
                program.op("mm", TO_MADE, SCORE, -1, us=100)
        gradient(program, 30, GRAD_D, OF_D)
        if attached:
            back_through_generator(program, TO_MADE, 0)
            gradient(program, 31, GRAD_G, OF_FIRST)
    with program.line(STEP_D, "train"), program.range("optimizer Adam"):
        program.op("_fused_adam_", 40, -1, GRAD_D, -1, us=20)
    if sends:
        with program.noted_as("c10d::allreduce_", 45, (-1,)):
            program.host(1)
    with program.line(FOOLS, "train"), program.range("forward"), program.range("critic:Critic"):
        program.op("linear", FOOLED, MADE, -1, seq=4, us=100)
    with backward(program, LOSS_G):
        with program.noted_as("LinearBackward0", 23, (FOOLED,), seq=4), program.range("critic:Critic"):
            program.op("mm", 55, FOOLED, -1, us=100)
            if wasted:
                program.op("mm", 56, FOOLED, -1, us=100)
        if wasted:
            gradient(program, 33, 63, 56)
        back_through_generator(program, 55, AGAIN)
        gradient(program, 32, GRAD_AGAIN, OF_FIRST + AGAIN)
    with program.line(STEP_G, "train"), program.range("optimizer Adam"):
        program.op("_fused_adam_", 41, -1, GRAD_AGAIN, *([GRAD_G] if read else []), -1, us=20)
    program.sync()


def findings(
    folder: Path,
    source: dict[int, str] | None = None,
    noted: dict[str, object] | None = None,
    rounds: int = 1,
    **kinds: bool,
) -> list[Finding]:
    networks = [{"class": "Critic", "dtypes": {"float32": 120}}, {"class": "Generator", "dtypes": {"float32": 80}}]
    settings = {"networks": networks, "optimizers": [{"elements": 120}, {"elements": 80}], **(noted or {})}

    def body(program: Lined, number: int) -> None:
        assert isinstance(program, OnTwoThreads)
        for each in range(rounds):
            trained(program, rounds * number + each, **kinds)

    return OnTwoThreads(SOURCE | (source or {}), settings).run(body).found(folder, "NSX127")


def test_it_is_detached_in_the_line_that_hands_it_on(tmp_path: Path) -> None:
    told_all = findings(tmp_path)
    print([(f.title, f.detail, f.paste, f.where) for f in told_all])
    (told,) = told_all
    assert told.where["line"] == JUDGES and [way.name for way in told.remedies] == ["detached"]
    assert told.paste.splitlines() == [
        f"score = net_d(made.detach())  # line {JUDGES}",
        f"scaler.scale(hinge(score)).backward()  # line {LOSS_D}",
    ]
    assert f"retain_graph=True of line {LOSS_D} is then not needed" in told.fix
    # The generator's backward, and the gradient of the critic's input.
    assert told.saving_ns_per_step == pytest.approx(500_000, rel=0.1)


def test_in_each_round_of_a_step(tmp_path: Path) -> None:
    (told,) = findings(tmp_path, rounds=2)
    assert told.where["line"] == JUDGES and len(told.paste.splitlines()) == 2
    assert told.saving_ns_per_step == pytest.approx(1_000_000, rel=0.1)


@pytest.mark.parametrize(
    ("source", "paste"),
    [
        ({MAKES: "out = net_g(noise)", JUDGES: 'score = net_d(out["image"])'}, 'score = net_d(out["image"].detach())'),
        ({MAKES: "self.made = net_g(noise)", JUDGES: "score = net_d(self.made)"}, "score = net_d(self.made.detach())"),
        ({JUDGES: "score = net_d(torch.cat([made, real]))"}, "score = net_d(torch.cat([made.detach(), real]))"),
        ({JUDGES: "score = net_d(made.float())"}, "score = net_d(made.detach().float())"),
        ({JUDGES: "score = net_d(*made)"}, ""),
        ({JUDGES: "score = net_d(queue.get())"}, ""),
    ],
)
def test_in_the_words_of_that_line(source: dict[int, str], paste: str, tmp_path: Path) -> None:
    (told,) = findings(tmp_path, source)
    assert told.where["line"] == JUDGES and told.paste.partition("  #")[0] == paste


def test_a_graph_that_another_backward_needs_stays_retained(tmp_path: Path) -> None:
    (told,) = findings(tmp_path, {LOSS_D: "hinge(score).backward(create_graph=True, retain_graph=True)"})
    assert told.paste == f"score = net_d(made.detach())  # line {JUDGES}" and "retain_graph" not in told.fix


@pytest.mark.parametrize("kinds", [{"attached": False}, {"read": True}])
def test_what_is_detached_or_read_is_not_told(kinds: dict[str, bool], tmp_path: Path) -> None:
    assert findings(tmp_path, **kinds) == []


def test_a_network_between_a_loss_and_what_learns_is_frozen_at_its_own_call(tmp_path: Path) -> None:
    (told,) = findings(tmp_path, attached=False, wasted=True)
    assert told.where["line"] == FOOLS and [way.name for way in told.remedies] == ["frozen-meanwhile"]
    assert told.paste.splitlines() == [
        f"net_d.requires_grad_(False)  # before line {FOOLS}: {SOURCE[FOOLS]}",
        f"net_d.requires_grad_(True)  # behind line {LOSS_G}: {SOURCE[LOSS_G]}",
    ]
    assert told.saving_ns_per_step == pytest.approx(100_000, rel=0.2)


def test_where_collectives_hide_the_readers_the_probe_tells(tmp_path: Path) -> None:
    noted = {"unread": {"Generator": [0]}, "gradient_readers": [], "unheld": {}, "backwards": 2}
    (told,) = findings(tmp_path, noted=noted, sends=True)
    assert told.where["line"] == JUDGES and told.paste.startswith("score = net_d(made.detach())")


def test_a_wrapped_network_is_called_past_its_wrapper(tmp_path: Path) -> None:
    noted = {"unread_weights": {"Critic": [1]}, "wrappers": [DDP], "gradient_readers": [], "unheld": {}}
    (told,) = findings(tmp_path, noted=noted, attached=False, wasted=True, sends=True)
    assert told.where["line"] == FOOLS and "past its wrapper" in told.fix
    assert told.paste.splitlines() == [
        f"net_d.requires_grad_(False)  # before line {FOOLS}: {SOURCE[FOOLS]}",
        f"fooled = net_d.module(made)  # line {FOOLS}",
        f"net_d.requires_grad_(True)  # behind line {LOSS_G}: {SOURCE[LOSS_G]}",
    ]


def test_names_of_what_a_line_makes() -> None:
    assert _assigned("self.a, b = net(x[c])") == {"self.a", "b"}
