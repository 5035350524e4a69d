"""NSX137: what a frozen network says of one batch in each of several passes over it, and what looks like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._passes_over_batches import made_between_steps
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_needless_work import backward, trained
from tests.findings.test_smaller_operators import operator

ANCHOR, EMBEDS, CALLS, HEAD = 14, 31, 33, 36
SOURCE = {ANCHOR: "anchor = reference.logprobs(tokens)", 20: "out = net(tokens)"}
ROWS = "[64, 128], [128, 128]"
#: A cold start, then 11 steps of a later window: 3 passes over each batch.
PASSES = [(n, n // 3) for n in (1, 2, 3, *range(20, 31))]


def step(program: Lined, number: int, *, kind: str) -> None:
    """A network is trained (600 us); a reference of two parts (600 us) says something of the same tokens, and the loss reads it."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "view", at, [-1, -1], "[64, 128], []")
        trained(program, at + 1, at, number * 10 + 6, 600)
    with program.line(ANCHOR):
        tokens = at + 2
        operator(program, "slice", tokens, [-1, -1], "[64, 129], []")
        if kind == "noise":
            operator(program, "randn_like", at + 3, [tokens, -1], "[64, 128], []", 5)
            operator(program, "add", at + 4, [tokens, at + 3], "[64, 128], [64, 128]", 5)
            tokens = at + 4
        if kind == "of what is trained":
            operator(program, "add", at + 4, [tokens, at + 1], "[64, 128], [64, 128]", 5)
            tokens = at + 4
        with program.line(EMBEDS, "logprobs"), program.range("evaluation"), program.range("embed:Embed"):
            operator(program, "linear", at + 5, [tokens, -1], ROWS, 300)
        with program.line(CALLS, "logprobs"), program.range("evaluation"), program.range("block:Block"):
            operator(program, "linear", at + 6, [at + 5, -1], ROWS, 300)
        with program.line(HEAD, "logprobs"):
            operator(program, "log_softmax", at + 7, [at + 6, -1], "[64, 128], []", 60)
    with program.line(22):
        operator(program, "sub", at + 8, [at + 7, at + 1], "[64, 128], [64, 128]", 5)
    backward(program, number * 10 + 6)
    program.sync()


def row(cls: str, line: int, steps: list[tuple[int, int]], **more: Any) -> dict[str, Any]:
    given = {
        "class": cls,
        "place": f"{FILE}:{line}",
        "steps": [list(pair) for pair in steps],
        "trained": False,
        "drops": False,
    }
    return {**given, **more}


def passes(folder: Path, kind: str = "", steps: list[tuple[int, int]] = PASSES, **more: Any) -> list[Finding]:
    rows = [row("Embed", EMBEDS, steps), row("Block", CALLS, [(n, i) for i, (n, _) in enumerate(steps)], **more)]
    rows = rows[: 1 if kind == "a part that was not looked at" else 2]
    program = Lined(SOURCE, {"given_again": rows}).run(lambda program, number: step(program, number, kind=kind))
    return [f for f in program.found(folder, "NSX137") if "kept-with-batch" in [way.name for way in f.remedies]]


def test_passes_after_the_first_need_no_reference(tmp_path: Path) -> None:
    (found,) = passes(tmp_path)
    assert (found.where["file"], found.where["line"]) == (FILE, ANCHOR)
    assert "the same in 3 steps in a row" in found.title and "Embed and Block" in found.detail
    assert found.saving_ns_per_step == pytest.approx(660_000 * 2 / 3, rel=0.07) and not found.saving.bound
    assert 'batch["anchor"] = reference.logprobs(tokens)' in found.remedies[0].paste


def test_two_passes_are_worth_half_of_it(tmp_path: Path) -> None:
    (found,) = passes(tmp_path, steps=[(n, n // 2) for n, _ in PASSES])
    assert found.saving_ns_per_step == pytest.approx(660_000 / 2, rel=0.07)


@pytest.mark.parametrize("kind", ["noise", "of what is trained", "a part that was not looked at"])
def test_what_each_pass_makes_of_something_new_is_computed_anew(kind: str, tmp_path: Path) -> None:
    assert not passes(tmp_path, kind)


@pytest.mark.parametrize("more", [{"trained": True}, {"trained": None}, {"drops": True}])
def test_networks_that_are_trained_or_draw_say_something_else(more: dict[str, Any], tmp_path: Path) -> None:
    assert not passes(tmp_path, **more)


@pytest.mark.parametrize(
    "steps",
    [
        [(n, i) for i, (n, _) in enumerate(PASSES)],  # new batches
        [(n, 0) for n, _ in PASSES],  # one batch for the whole run
        [(1, 0), (2, 0), (3, 1), (20, 2), (21, 2)],  # no batch was seen from its first pass to its last
    ],
)
def test_steps_without_known_passes_are_silent(steps: list[tuple[int, int]], tmp_path: Path) -> None:
    assert not passes(tmp_path, steps=steps)


def test_a_network_that_is_called_with_gradients_is_none(tmp_path: Path) -> None:
    program = Lined(SOURCE, {"given_again": []}).run(lambda program, number: step(program, number, kind=""))
    assert not [f for f in program.found(tmp_path, "NSX137") if "kept-with-batch" in [way.name for way in f.remedies]]


#: What the first network of each step is given, and behind which steps networks ran without gradients.
LEARNER = row("Net", 20, PASSES, trained=True, learns=True)


@pytest.mark.parametrize(
    ("learner", "ran", "told"),
    [
        (LEARNER, (-1, 2, 20), True),  # behind each third step: rollouts
        (LEARNER, (2, 20, 21), False),  # behind a step after which the batch is the same, too
        (LEARNER, (22, 26), False),  # behind every fourth step
        (
            row("Net", 20, [(n, i) for i, (n, _) in enumerate(PASSES)], learns=True),
            (2, 20),
            False,
        ),  # a new batch in each
        (row("Net", 20, [(n, 0) for n, _ in PASSES], learns=True), (2, 20), False),  # one for all
    ],
)
def test_what_runs_where_the_batch_changes_makes_it(learner: dict[str, Any], ran: tuple[int, ...], told: bool) -> None:
    for calls in (64, 2):  # a few calls test what was learned
        rows = [{"step": step, "class": "Net", "calls": calls} for step in ran]
        settings = RecordedSettings({"given_again": [learner], "evaluations": rows})
        assert made_between_steps(settings) is (told and calls > 2)


def test_a_learner_is_no_frozen_network(tmp_path: Path) -> None:
    assert len(passes(tmp_path)) == 1
    program = Lined(SOURCE, {"given_again": [LEARNER]}).run(lambda program, number: step(program, number, kind=""))
    assert not [f for f in program.found(tmp_path, "NSX137") if "kept-with-batch" in [way.name for way in f.remedies]]
