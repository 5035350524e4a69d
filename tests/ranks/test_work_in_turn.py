"""Ranks that have as much GPU work over all steps and not in each of them: the work is what they wait for, not their hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nsysx.answer import certainty
from nsysx.catalogue import StepPart
from nsysx.findings import _divided_comm, _padding, _shares_of_ranks
from nsysx.findings._case import Case
from nsysx.findings._ranks_in_seeds import drawn_alike, without_rank
from nsysx.model import Check, Finding, Summary
from nsysx.pipeline import ReadingOptions, gather, summarize
from nsysx.ranks import work_in_turn
from tests.findings import findings_alone
from tests.findings.lined import FILE, Lined
from tests.ranks.test_straggler import job

MS = 1_000_000
#: The stream of the computation, on which the all-reduce of these jobs begins when that is done.
COMPUTES = 7
#: How long three ranks work in each step (ns): none is always the last, and all have as much in sum.
TURNS = [[(20, 30, 40)[(i + 2 * r) % 3] * MS for i in range(12)] for r in range(3)]
#: In each step one rank works for 40 ms, and all for 30 on average.
EVEN_SAVES = 10 * MS


def read(path: Path) -> tuple[list[Any], Finding, Summary]:
    summary = summarize([path], every_table=False)
    exposed = next(f for f in summary.findings or () if f.code == "NSX110")
    return list(summary.rows("ranks")), exposed, summary


def test_ranks_that_have_more_work_in_turn_are_told_to_even_out_each_step(tmp_path: Path) -> None:
    rows, exposed, summary = read(job(tmp_path / "j.sqlite", TURNS, stream=COMPUTES))
    assert [r["straggler"] for r in rows] == [False] * 3
    assert [r["turn_even_ns"] for r in rows] == pytest.approx([EVEN_SAVES] * 3, rel=0.03)
    for row in rows:
        assert 0 < row["turn_wait_ns"] <= row["exposed_wait_ns"] / row["steps"] + 1
    assert [way.name for way in exposed.remedies] == ["like-batches"]
    assert exposed.saving.likely_ns == pytest.approx(EVEN_SAVES, rel=0.03) and not exposed.saving.bound
    assert (
        summary.verdict is not None and "waiting for ranks with more GPU work in that step" in summary.verdict.sentence
    )


@pytest.mark.parametrize(
    ("own", "idle"),
    [
        (TURNS, "some range"),  # the hosts are late in turn, and what the GPUs compute is the same
        ([[30 * MS] * 12] * 3, ""),
        ([[20 * MS] * 12, [20 * MS] * 12, [40 * MS] * 12], ""),  # one is always the last: a straggler
    ],
    ids=["hosts", "equal", "straggler"],
)
def test_what_others_wait_for_is_not_always_work_in_turn(own: list[list[int]], idle: str, tmp_path: Path) -> None:
    rows, exposed, _ = read(job(tmp_path / "j.sqlite", own, idle=idle, stream=COMPUTES))
    assert {(r["turn_wait_ns"], r["turn_even_ns"]) for r in rows} == {(None, None)}
    assert "like-batches" not in [way.name for way in exposed.remedies]


def test_a_rank_with_more_work_that_waits_as_often_does_not_wait_for_work() -> None:
    """Two ranks, each with 20 or 30 ms of work; the one with less waits 10 ms, or in half of the steps the one with more."""
    work = np.array([[20, 30] * 4, [30, 20] * 4], np.float64)
    less, more = np.where(work == 20, 10.0, 0.0), np.where(work == 30, 10.0, 0.0)
    explained = work_in_turn.waits_for_work(work, less)
    assert explained is not None and (explained == less).all()
    late_at_random = np.where(np.arange(8) < 4, less, more)
    assert work_in_turn.waits_for_work(work, late_at_random) is None
    longer_than_work = 5 * less  # of 50 ms of waiting 10 are for work: something else holds the others up
    assert work_in_turn.waits_for_work(work, longer_than_work) is None


@pytest.mark.parametrize(
    ("saves", "there", "even"), [(8, 10, 16), (20, 20, 20), (0, 0, 20), (15, 10, 25), (20, 40, 10)]
)
def test_all_recorded_steps_save_as_much_of_what_ranks_are_apart_as_the_replayed_ones(
    saves: int, there: int, even: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay holds a few of unlike steps: over all of these the longest rank has 20 more than the mean."""
    replayed = SimpleNamespace(even_in_each_step_ns=lambda: saves, apart_in_each_step_ns=lambda: there)
    monkeypatch.setattr(work_in_turn, "own_times", lambda *_: replayed)
    compared: Any = SimpleNamespace(aligned=None)
    assert work_in_turn._even_ns(compared, (0, 1), np.array([[60.0, 20.0] * 4, [20.0, 60.0] * 4])) == even


def test_what_ranks_are_apart_in_few_unlike_steps_is_known_less_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(*steps: float) -> float:
        monkeypatch.setattr(_shares_of_ranks, "work_in_steps", lambda _: np.array([steps, [0.0] * len(steps)]))
        return _shares_of_ranks._apart_by_chance(cast("Any", None))

    assert apart(*[10.0] * 8) == 0.0 and apart(10.0) == 0.0
    assert apart(*[2.0, 18.0] * 32) < apart(*[2.0, 18.0] * 4)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "rng = np.random.default_rng([self.seed, epoch, self.rank])",
            "rng = np.random.default_rng([self.seed, epoch])",
        ),
        ("self.draw = random.Random(1000 * rank + epoch)", "self.draw = random.Random(epoch)"),
        ("g.manual_seed(cfg.seed + int(os.environ['RANK']))", "g.manual_seed(cfg.seed)"),
        ("g = torch.Generator().manual_seed(seed + dist.get_rank())", "g = torch.Generator().manual_seed(seed)"),
        (
            "random.Random(self.seed + self.epoch * self.world + self.rank).shuffle(batches)",
            "random.Random(self.seed + self.epoch * self.world).shuffle(batches)",
        ),
        ("rng = random.Random(rank)", None),  # nothing is left
        ("torch.manual_seed(seed + rank)", None),  # of dropout, too
        ("seed = args.seed + rank", None),  # of nobody knows what
        ("rng = random.Random(seed + epoch)", None),
        ("rng = random.Random(f'{seed}-{rank}')", None),
        ("for x in shuffled(random.Random(seed + rank)):", None),
    ],
)
def test_the_line_of_a_seed_is_told_without_the_rank(text: str, line: str | None) -> None:
    assert without_rank(text) == line


KEPT = "  # once, the same on all ranks; kept where sizes are drawn"


@pytest.mark.parametrize(
    ("seeding", "drawing", "lines"),
    [
        ("init_seeds(hyp['seed'] + 1 + rank)", "sz = random.randrange(a, b) // gs * gs",
         [f"sizes = random.Random(hyp['seed'] + 1){KEPT}", "sz = sizes.randrange(a, b) // gs * gs"]),
        ("random.seed(self.seed + self.rank)", "size = random.choice(self.all)",
         [f"self.sizes = random.Random(self.seed){KEPT}", "size = self.sizes.choice(self.all)"]),
        ("random.seed(rank)", "size = random.choice(sizes)", None),
        ("np.random.seed(s + rank)", "size = np.random.randint(3)", None),
        ("gen.manual_seed(s + rank)", "size = torch.randint(3, (1,), generator=gen)", None),
    ],
)  # fmt: skip
def test_sizes_are_drawn_alike_in_the_program_s_own_lines(seeding: str, drawing: str, lines: list[str] | None) -> None:
    made = drawn_alike(seeding, drawing)
    assert (made and made.splitlines()) == lines


ORDER = {"file": "/job/train.py", "seed": 74, "order": 78, "runs": True}
SILENT = {**ORDER, "seed": 12, "order": 15, "runs": False}


@pytest.mark.parametrize(
    ("orders", "line"),
    [([SILENT, ORDER], 74), ([SILENT], 12), ([SILENT, {**SILENT, "seed": 30}], None), ([{**ORDER, "seed": None}], None), ([], None)],
)  # fmt: skip
def test_ranks_that_shuffle_by_their_number_are_told_to_shuffle_alike(
    orders: list[dict[str, Any]], line: int | None, tmp_path: Path
) -> None:
    """Of several shuffles it is the one that runs in steps; of two that do not, nobody knows which one is used."""
    path = job(tmp_path / "j.sqlite", TURNS, stream=COMPUTES)
    path.with_suffix(".run.json").write_text(json.dumps({"probe": [{"pid": 100, "orders_of_ranks": orders}]}))
    _, exposed, _ = read(path)
    assert [way.name for way in exposed.remedies] == ["like-order" if line else "like-batches"]
    assert exposed.where.get("line") == line


@pytest.mark.parametrize(
    ("text", "drawn", "paste", "more"),
    [
        ("random.Random(s + rank).shuffle(order)", False, ["random.Random(s).shuffle(order)"], False),
        ("self.rng = random.Random(s + rank)", False, ["self.rng = random.Random(s)"], True),
        ("", False, ["random.Random(seed + epoch).shuffle(batches)"], False),
        ("rng = random.Random(s + rank)", True, ["sizes = random.Random(seed + epoch)", "own = random.Random("], False),
    ],
    ids=["at once", "kept", "not noted", "sizes"],
)
def test_the_change_is_the_statement_of_the_seed(
    text: str, drawn: bool, paste: list[str], more: bool, tmp_path: Path
) -> None:
    """Samples that ranks draw for themselves are spoken of where they draw sizes alone: an order may be dealt out."""
    path = job(tmp_path / "j.sqlite", TURNS, stream=COMPUTES)
    orders = [{**ORDER, "text": text, "drawn": drawn}]
    path.with_suffix(".run.json").write_text(json.dumps({"probe": [{"pid": 100, "orders_of_ranks": orders}]}))
    exposed = read(path)[1]
    shown = exposed.paste.splitlines()
    assert len(shown) == len(paste) and all(line.startswith(begin) for line, begin in zip(shown, paste, strict=True))
    assert ("as noise" in exposed.condition) == more


@pytest.mark.parametrize(
    ("drawn", "words"), [(True, "the size of its batches"), (False, "in which it goes through its batches")]
)
def test_what_the_seed_decides_is_said(drawn: bool, words: str, tmp_path: Path) -> None:
    path = job(tmp_path / "j.sqlite", TURNS, stream=COMPUTES)
    orders = [{**ORDER, "drawn": drawn}]
    path.with_suffix(".run.json").write_text(json.dumps({"probe": [{"pid": 100, "orders_of_ranks": orders}]}))
    assert f"{words} (train.py:74)" in read(path)[1].detail


@pytest.mark.parametrize(
    ("own", "orders", "line"),
    [
        (TURNS, [ORDER], 74),
        (TURNS, [], None),
        ([[(31 if i % 3 == r else 30) * MS for i in range(12)] for r in range(3)], [ORDER], None),
    ],
    ids=["by a seed of its own", "no seed", "like amounts"],
)
def test_an_order_of_each_rank_s_own_is_named_where_hosts_take_part_in_the_waits(
    own: list[list[int]],
    orders: list[dict[str, Any]],
    line: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of a new length take a host long, too: then what is waited is not explained by the GPUs' work, and is a bound alone."""
    monkeypatch.setattr(work_in_turn, "waits_for_work", lambda *_: None)
    path = job(tmp_path / "j.sqlite", own, stream=COMPUTES)
    path.with_suffix(".run.json").write_text(json.dumps({"probe": [{"pid": 100, "orders_of_ranks": orders}]}))
    rows, exposed, _ = read(path)
    assert {row["turn_even_ns"] for row in rows} == {None}
    assert ([way.name for way in exposed.remedies] == ["like-order"]) == (line is not None)
    assert exposed.where.get("line") == line
    assert ("25 % of the longest of each step" in exposed.detail) == (line is not None)


@pytest.mark.parametrize(
    ("text", "own", "told"),
    [
        ("yield from batches[self.rank:usable:self.world]", TURNS, True),
        ("return order[rank::world]", TURNS, True),
        ("part = rows[rank * n : (rank + 1) * n]", TURNS, False),
        ("return order[rank::world]", [[30 * MS] * 12] * 3, False),
    ],
    ids=["to an end", "to the last", "a stretch", "like amounts"],
)
def test_batches_dealt_out_in_turn_that_are_unlike_in_each_step_are_told_with_their_line(
    text: str, own: list[list[int]], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_in_turn, "waits_for_work", lambda *_: None)
    monkeypatch.setattr(_shares_of_ranks, "texts_of_ranks", lambda profile: {FILE: {"60": text}})
    _, exposed, _ = read(job(tmp_path / "j.sqlite", own, stream=COMPUTES))
    assert (exposed.where.get("line") == 60) == told
    assert ([way.name for way in exposed.remedies] == ["like-batches"]) == told


#: How long two ranks work (ns): in a quarter of the steps both little, in a quarter both long, in half of them one of the two.
DRAWN = [[(20, 60, 20, 60)[i % 4] * MS for i in range(12)], [(20, 20, 60, 60)[i % 4] * MS for i in range(12)]]
STRAGGLER = [[20 * MS] * 12, [(20, 60)[i % 4 > 0] * MS for i in range(12)]]


@pytest.mark.parametrize(
    ("own", "orders", "saves"),
    [
        (DRAWN, [{**ORDER, "drawn": True}], True),
        (DRAWN, [ORDER], True),
        (DRAWN, [], False),
        ([DRAWN[0]] * 2, [ORDER], False),
        (TURNS, [ORDER], False),
        (STRAGGLER, [ORDER], False),
    ],
    ids=["sizes", "order", "no seed", "like amounts", "no step is shorter", "one is always last"],
)
def test_unlike_batches_are_told_where_no_rank_is_seen_to_wait_for_them(
    own: list[list[int]], orders: list[dict[str, Any]], saves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the profiler the step of one rank alone has no waiting in it: its replay takes that for what its peers' hosts are late."""
    taken_by = Case.taken_by
    monkeypatch.setattr(
        Case, "taken_by", lambda case, parts: 0 if (each := (*parts,)) == (StepPart.COMM,) else taken_by(case, each)
    )
    path = job(tmp_path / "j.sqlite", own, stream=COMPUTES)
    path.with_suffix(".run.json").write_text(json.dumps({"probe": [{"pid": 100, "orders_of_ranks": orders}]}))
    found = [f for f in findings_alone("NSX110", path) if f.remedies]
    assert [[way.name for way in f.remedies] for f in found] == ([["like-order"]] if saves else [])
    if saves:
        assert found[0].where["line"] == ORDER["seed"]
        assert found[0].saving.likely_ns == pytest.approx(10 * MS, rel=0.2) and not found[0].saving.bound


@pytest.mark.parametrize(("even_ns", "wait"), [(None, 20), (10, 40)])
def test_steps_without_the_profiler_are_shorter_in_waits_and_transfer_alike(even_ns: int | None, wait: int) -> None:
    """As recorded 80 wait and 40 transfer: of 60 without the profiler 20 wait, and 40 where ranks wait for work, which it does not slow."""
    row = {
        "rank": 0,
        "comm_ns": 100,
        "steps": 1,
        "exposed_wait_ns": 80,
        "exposed_transfer_ns": 40,
        "turn_even_ns": even_ns,
    }
    table: Any = SimpleNamespace(rows=[row])
    told: Any = SimpleNamespace(verdict="found", cost_ns_per_step=60, evidence=[])
    divided = _divided_comm.divided_comm(told, table, 0, None)
    assert divided is not None and (divided.wait, divided.transfer) == (wait, 60 - wait)


def test_what_ranks_wait_for_step_by_step_is_certain(tmp_path: Path) -> None:
    """Steps of unlike lengths, and launches that no line is known of, are no doubt about it."""
    _, exposed, summary = read(job(tmp_path / "j.sqlite", TURNS, stream=COMPUTES))
    doubt = Check("attribution", "warn", "", doubt="cause")
    cause = certainty.certainty_of_advice(replace(summary, quality=(*summary.quality, doubt)), exposed).parts[0]
    assert cause.level == "certain" and "is for a rank with more work in the same step" in cause.reason
    lost = replace(summary, quality=(*summary.quality, replace(doubt, check="diagnostics")))
    assert certainty.certainty_of_advice(lost, exposed).parts[0].level == "likely"
    _, hosts, other = read(job(tmp_path / "h.sqlite", TURNS, idle="some range", stream=COMPUTES))
    assert "in the same step" not in certainty.certainty_of_advice(other, hosts).parts[0].reason


@pytest.mark.parametrize(
    ("share", "gives", "line"),
    [
        ("own = batches[rank::world]", "yield self.batches[i]", 20),  # as is advised: the order is what is left
        ("own = batches[rank * n:(rank + 1) * n]", "yield self.batches[i]", 3),
        ("own = batches[rank::world]", "x = self.batches[i]", 3),
    ],
)
def test_where_batches_are_dealt_out_in_turn_the_line_that_gives_them_out_is_named(
    share: str, gives: str, line: int, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(20):
            program.host(5)
        with program.line(22), program.range("forward"), program.range("net:Net"):
            program.launch(500)
        program.sync()

    program = Lined({20: gives, 22: "y = net(x)"}, {"loaders": []})
    program.probe["of_ranks"] = {FILE: {"3": share}}
    program.run(body).summary(tmp_path)
    profile = gather(tmp_path / "r.sqlite", ReadingOptions())
    assert _shares_of_ranks._line_of_batches(profile) == {"file": FILE, "line": line}


@pytest.mark.parametrize(
    ("turns", "longest", "told"), [(TURNS, 40, False), (TURNS, 60, True), ([[30 * MS] * 12] * 3, 40, True)]
)
def test_rows_that_follow_their_samples_are_not_filled_up_to_a_fixed_length(
    turns: list[list[int]], longest: int, told: bool, tmp_path: Path
) -> None:
    """To a power of two they may be filled up. What all steps of all ranks show goes before one batch."""
    path = job(tmp_path / "j.sqlite", turns, stream=COMPUTES)
    padding = {"name": "mask", "rows": 8, "length": 100, "longest": longest, "real": 8 * longest - 40}
    path.with_suffix(".run.json").write_text(json.dumps({"probe": [{"pid": 100, "settings": {"padding": padding}}]}))
    summary = read(path)[2]
    told_of = {f.evidence[0]["setting"] for f in summary.findings or () if f.code == "NSX127" and f.evidence}
    assert ("padding" in told_of) is told
    case: Any = SimpleNamespace(ranks=SimpleNamespace(rows=list(summary.rows("ranks"))))
    assert _padding.unlike_in_turn(case) is (turns is TURNS)
    assert not _padding.unlike_in_turn(cast("Any", SimpleNamespace(ranks=None)))
