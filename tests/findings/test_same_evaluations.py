"""NSX130 and NSX109: evaluations that all ranks repeat, and those of ranks that each have samples, weights or a part of the network."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.answer import as_if_chosen
from nsysx.events.between_parts import BetweenPart, BetweenSteps, Collective
from nsysx.events.coverage import BETWEEN, EVALUATION
from nsysx.findings import _ranks_apart, _same_evaluations
from nsysx.findings import nsx130_between_steps as rule
from nsysx.model import Finding
from nsysx.replay.engine import Withheld, unprofiled_of
from tests.findings.lined import FILE
from tests.findings.test_nsx127_costly_settings import CLEAN
from tests.findings.test_ranks_apart import WEIGHTS, Job, step
from tests.findings.test_unrecorded_steps import LATE, MORE, MS
from tests.findings.test_unrecorded_steps import summary as summary_of_long_steps
from tests.render import factory

CALL = {"class": "Net", "place": f"{FILE}:67", "calls": 30, "rows": 96, "weights": 5, "loader": None}


def evaluation(after: int, sums: tuple[int | None, ...] = (11, 12, 13, 14), **more: object) -> dict[str, object]:
    return {**CALL, "step": after, "sums": list(sums), **more}


SAME = [evaluation(9), evaluation(19, weights=6)]
#: What ranks have by which wrapper.
DDP, BUFFERS, FSDP = ({"kind": kind, "buffers": buffers} for kind, buffers in (("DDP", 0), ("DDP", 2), ("FSDP", None)))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finding]:
    """Return what NSX130 says of two ranks whose loop takes twice as long as their steps; ``theirs`` is what the other one evaluates."""

    def told(
        ours: list[dict[str, Any]],
        theirs: list[dict[str, Any]] | None = None,
        *,
        kind: str = "gradients",
        times: float = 2.0,
        line: str = "",
        part: str = EVALUATION,
        **settings: Any,
    ) -> Finding:
        def with_loop(profile: Any) -> Any:
            real = unprofiled_of(profile)
            assert not isinstance(real, Withheld)
            object.__setattr__(profile.steps, "coverage", replace(profile.steps.coverage, parts={part: 1}))
            return replace(real, loop_ns=round(times * real.step_ns))

        monkeypatch.setattr(rule, "measured_loop", lambda case: with_loop(case.profile))
        monkeypatch.setattr(rule, "gpu_works", lambda *_: True)
        ranks = settings.pop("ranks", 2)
        monkeypatch.setattr(_same_evaluations, "peers", SimpleNamespace(ranks=lambda _: [100, *[101] * (ranks - 1)]))
        record = {
            **CLEAN,
            "wrappers": [],
            "backwards": 1,
            "groups": [{"name": "0", "ranks": list(range(ranks))}],
            "optimizers": [{"class": "SGD", "elements": WEIGHTS, "fused": True}],
            "evaluations": ours,
            **settings,
        }
        other = {"evaluations": ours if theirs is None else theirs}
        program = Job({20: "y = net(x)"}, record, {"5": line} if line else {}, other)
        program.run(lambda program, number: step(program, number, trains=True, kind=kind))  # type: ignore[arg-type]
        return program.finding(tmp_path, "NSX130")

    return told


def test_ranks_that_all_evaluate_the_same_are_told_to_share_it(told: Callable[..., Finding]) -> None:
    finding = told(SAME)
    assert finding.verdict == "found" and [way.name for way in finding.remedies] == ["shared-evaluation"]
    assert finding.fix == (
        "Give each rank its own part of the evaluation: both ranks evaluate the same samples, with the same weights"
    )
    assert finding.detail.endswith(
        "Both ranks evaluate the same samples, with the same weights: 30 calls of Net at train.py:67, 96 rows each."
    )
    assert (finding.where["file"], finding.where["line"]) == (FILE, 67)
    assert "rows[dist.get_rank() :: dist.get_world_size()]" in finding.paste and "all_reduce(totals)" in finding.paste
    assert "not means" in finding.condition and "as many calls" not in finding.condition
    row = finding.evidence[0]
    assert row["loop_ns"] - row["loop_then_ns"] == pytest.approx(row["between_ns"] / 2, rel=0.01)
    assert (
        finding.saving.confidence.startswith("1.3x faster over the loop (1.27 to 1.3")
        and finding.saving.likely_ns is None
    )


@pytest.mark.parametrize("part", [EVALUATION, BETWEEN])
def test_what_all_ranks_compute_alike_and_nobody_reads_is_gathered(
    told: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """An index, features, labels of a teacher: it is no evaluation, whatever it is counted as."""
    monkeypatch.setattr(_same_evaluations, "is_unread", lambda _: True)
    forwards = BetweenSteps(np.array([0]), np.array([10]), (BetweenPart("launches", True, 9, 9, 0),), ())
    monkeypatch.setattr(rule, "between_steps", lambda _: forwards)
    finding = told(SAME, part=part)
    assert [way.name for way in finding.remedies] == ["shared-making"]
    assert finding.title.startswith("Between steps what every rank computes alike takes")
    assert finding.detail.endswith(
        "Both ranks compute between steps what nobody reads there, each all of it, of the same samples, with the same weights: 30 calls of "
        "Net at train.py:67, 96 rows each."
    )
    assert "all_gather_into_tensor" in finding.paste and "batch statistics" in finding.condition
    assert "valuat" not in finding.fix + finding.paste + finding.title
    row = finding.evidence[0]
    assert row["loop_ns"] - row["loop_then_ns"] == pytest.approx(row["between_ns"] / 2, rel=0.01)
    other = told(SAME, [evaluation(9, (21, 22, 23, 24)), evaluation(19, (21, 22, 23, 24))])  # each its own part
    assert "shared-making" not in [way.name for way in other.remedies]


def test_how_sure_it_is_rests_on_what_was_compared(told: Callable[..., Finding]) -> None:
    finding = told(SAME)
    summary = replace(factory.summary(), findings=(finding,))
    answer = as_if_chosen(summary, finding)
    assert answer is not None
    cause, size = answer.certainty.parts
    assert cause.reason.endswith("what the ranks' networks were given in the same calls was compared.")
    assert size.reason.endswith("that a part takes its share of the time is assumed.")


@pytest.mark.parametrize(
    ("wrapper", "loader", "paste", "calls"),
    [
        (None, "train.py:9", "Subset(held_out", False),
        (DDP, "train.py:9", "Subset(held_out", False),
        (BUFFERS, "train.py:9", "DistributedSampler(held_out, shuffle=False)", True),
        (FSDP, "train.py:9", "DistributedSampler(held_out, shuffle=False)", True),
        (FSDP, None, "for rows in held_out", True),
    ],
)
def test_what_is_pasted_goes_by_loader_and_wrapper(
    told: Callable[..., Finding], wrapper: dict[str, Any] | None, loader: str | None, paste: str, calls: bool
) -> None:
    """Ranks of FSDP have parts of the weights, which differ."""
    ours = [{**row, "loader": loader} for row in SAME]
    theirs = [{**row, "weights": 7} for row in ours] if wrapper is FSDP else ours
    finding = told(ours, theirs, wrappers=[wrapper] if wrapper else [])
    assert [way.name for way in finding.remedies] == ["shared-evaluation"]
    assert paste in finding.paste and ("as many calls" in finding.condition) is calls


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SAME, [evaluation(9, (21, 22, 23, 24)), evaluation(19, (21, 22, 23, 24))]),  # each its own shard
        (SAME, [evaluation(9, (11, 12, 23, 24)), evaluation(19, (11, 12, 23, 24))]),  # which begin alike
        (SAME, []),  # rank 0 alone evaluates
        (SAME, [evaluation(14), evaluation(24)]),  # in turn
        (SAME, [evaluation(9, calls=29), evaluation(19, calls=29)]),
        (SAME, [evaluation(9, weights=7), evaluation(19, weights=8)]),  # members of an ensemble
        ([evaluation(9, weights=None)], None),
        ([evaluation(9, (None, None, None))], None),  # not known
        ([evaluation(9, (11, 11, 11))], None),  # made up
        ([evaluation(9, (11,), calls=1)], None),  # may be one whole graph
        ([evaluation(9), evaluation(10), evaluation(11)], None),  # part of every step
        ([], None),  # an older capture
    ],
)
def test_ranks_that_evaluate_something_else_are_not(
    told: Callable[..., Finding], ours: list[dict[str, Any]], theirs: list[dict[str, Any]] | None
) -> None:
    assert [way.name for way in told(ours, theirs).remedies] == ["evaluated-rarely"]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("added in forward", {}),  # tensors in parallel
        ("in forward", {}),  # of few numbers
        ("gathered in forward", {}),
        ("sent", {}),  # stages of a pipeline
        ("shuffled", {}),  # experts
        ("features gathered", {}),
        ("gradients", {"groups": [{"ranks": [0, 1]}, {"ranks": [0, 1, 2, 3], "dimension": "tp"}]}),
        ("gradients", {"groups": [{"ranks": [0, 1], "dimension": "dp_shard_cp"}]}),
        ("gradients", {"groups": [{"ranks": [0, 1], "description": "CONTEXT_PARALLEL_GROUP"}]}),
        ("gradients", {"groups": []}),
        ("gradients", {"line": 'model.load_state_dict(torch.load(f"member{rank}.pt"))'}),
        ("gradients", {"ranks": 1}),
    ],
)
def test_ranks_that_must_be_given_the_same_are_not(
    told: Callable[..., Finding], kind: str, more: dict[str, Any]
) -> None:
    assert [way.name for way in told(SAME, kind=kind, **more).remedies] == ["evaluated-rarely"]


def test_messages_of_a_recorded_evaluation_are_of_ranks_that_share_it(
    told: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = frozenset({"allgather"}), frozenset[str]()
    monkeypatch.setattr(_ranks_apart, "_kinds_in_forwards", lambda _: gathered)
    assert [way.name for way in told(SAME).remedies] == ["evaluated-rarely"]
    assert [way.name for way in told(SAME, wrappers=[FSDP]).remedies] == ["shared-evaluation"]


@pytest.mark.parametrize(
    ("kind", "size", "alone"),
    [
        ("allgather", 100 << 20, False),  # of parts that each has made
        ("allgather", None, False),
        ("alltoall", 100 << 20, False),
        ("allgather", 10 << 10, True),
        ("allreduce", 100 << 20, True),  # as each averages its weights before it
        ("broadcast", 100 << 20, True),
    ],
)
def test_ranks_that_put_large_parts_together_between_steps_may_share_it_already(
    told: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch, kind: str, size: int | None, alone: bool
) -> None:
    recorded = BetweenSteps(np.array([0]), np.array([10]), (), (Collective(kind, 10, 100, size),))
    monkeypatch.setattr(_ranks_apart, "between_steps", lambda _: recorded)
    assert ([way.name for way in told(SAME).remedies] == ["shared-evaluation"]) is alone


def test_a_small_evaluation_and_other_code_between_steps_are_no_evaluation_to_share(
    told: Callable[..., Finding],
) -> None:
    assert told(SAME, times=1.04).verdict == "clear"
    assert [way.name for way in told(SAME, part=BETWEEN).remedies] == ["beside-the-loop"]


@pytest.mark.parametrize(
    ("ranks", "calls", "least", "likely", "most"),
    [(2, 30, 0.425, 0.5, 0.5), (4, 30, 0.623, 0.733, 0.75), (8, 9, 0.661, 0.778, 0.875), (2, 3, 0.283, 0.333, 0.5)],
)
def test_batches_stay_whole(ranks: int, calls: int, least: float, likely: float, most: float) -> None:
    same = _same_evaluations.SameEvaluation(ranks, "Net", calls, 4, {}, loaded=False, wrapped=False)
    saved = same.saved_ns(1e6, 1e6, works=True)
    assert [ns / 1e6 for ns in saved] == pytest.approx([least, likely, most], abs=1e-3)
    assert same.saved_ns(1e6, 1e6, works=False) == saved._replace(least_ns=0)
    assert same.everyone == ("both ranks" if ranks == 2 else f"all {ranks} ranks")


@pytest.mark.parametrize(("busy_ms", "works"), [(8, True), (3, False)])
def test_whether_the_gpu_works_between_steps(busy_ms: int, works: bool, tmp_path: Path) -> None:
    """Ten milliseconds between steps; a kernel that began in the step before counts from there on."""
    ops = pl.DataFrame(
        {
            "process": [100, 100, 7],
            "start_ns": [0, 90 * MS, 95 * MS],
            "end_ns": [50 * MS, (95 + busy_ms) * MS, 105 * MS],
        }
    )
    case = SimpleNamespace(process=100, profile=SimpleNamespace(attributed=SimpleNamespace(gpu_ops=ops)))
    recorded = BetweenSteps(np.array([95 * MS]), np.array([105 * MS]), (), ())
    assert _same_evaluations.gpu_works(case, recorded) is works  # type: ignore[arg-type]
    assert not _same_evaluations.gpu_works(case, None)  # type: ignore[arg-type]


def test_an_evaluation_that_only_steps_without_the_profiler_show_is_shared_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = _same_evaluations.SameEvaluation(2, "Net", 30, 96, {}, loaded=False, wrapped=False)
    monkeypatch.setattr("nsysx.findings._unrecorded_steps.same_evaluation", lambda _: same)
    noted = {"steps": 10, "samples": 100, "places": [["/job/train.py", 71, "evaluate", 90, False]]}
    found = summary_of_long_steps(
        tmp_path, LATE, workers=0, long_steps=noted, source={"/job/train.py": {"71": "y = net(x)"}}
    )
    finding = next(f for f in found.findings or () if f.code == "NSX109")
    assert finding.fix.startswith("Give each rank its own part of the evaluation")
    assert finding.saving.likely_ns == pytest.approx(0.475 * 10 * MORE / 60, rel=0.02)
    assert json.dumps(finding.evidence) is not None
