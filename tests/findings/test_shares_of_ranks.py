"""NSX111: ranks with unequal work in programs with a loader, and in those that share their data themselves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nsysx import pipeline
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._shares_of_ranks import cut_after_loading, without_sampler
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

SHARE, LOGS, BATCH, CALL = 12, 20, 21, 22
TAKES_SHARE = [
    "own = rows[rank * n:(rank + 1) * n]",
    "return image[self.rank * n : (self.rank + 1) * n]",
    "own = files[dist.get_rank()::world]",
    "x = tokens.chunk(world)[rank]",
    "for i in range(rank, len(data), world):",
    "own = x.narrow(0, rank * n, n)",
]
TAKES_NONE = [
    "if rank == 0: print(loss[:5])",
    "device = devices[rank]",
    "rows = frank[:10]",
    "x = data[:n]",
    "loss = ranking(scores[:, 1:])",
]


def advised(
    folder: Path, text: str, loaders: object, remedy: str = "equal-work", before: dict[int, str] | None = None
) -> Finding:
    """``before``: lines that may take a share, of any time: line -> text."""

    def body(program: Lined, number: int) -> None:
        with program.line(SHARE), program.range("forward"), program.range("net:Net"):
            program.launch(500)
        program.sync()

    program = Lined({SHARE: text}, {"loaders": loaders})
    program.probe["of_ranks"] = {FILE: {str(line): text for line, text in (before or {}).items()}}
    return advised_of(folder, program.run(body), remedy)


def advised_of(folder: Path, program: Lined, remedy: str = "equal-work") -> Finding:
    program.write(folder)
    profile = pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())
    late = Finding("NSX111", "straggler", verdict="found", title="", detail="", where={"near": "rank 1"}, fix="")
    return without_sampler(cast(Case, SimpleNamespace(profile=profile)), Fix.by_name(remedy).into(late))


@pytest.mark.parametrize("text", TAKES_SHARE)
def test_the_line_that_takes_a_rank_s_share(text: str, tmp_path: Path) -> None:
    told = advised(tmp_path, text, [])
    assert [way.name for way in told.remedies] == ["mixed-shares"] and "DistributedSampler" not in told.paste
    assert told.where == {"near": "rank 1", "file": FILE, "line": SHARE}


@pytest.mark.parametrize("text", TAKES_NONE)
def test_where_no_line_takes_a_share_that_is_said(text: str, tmp_path: Path) -> None:
    told = advised(tmp_path, text, [])
    assert [way.name for way in told.remedies] == ["mixed-shares"] and told.where == {"near": "rank 1"}
    assert "is not among those that were noted" in told.detail


STRETCH, EVERY_NTH = "shard = order[rank * each:(rank + 1) * each]", "own = order[rank::world]"


@pytest.mark.parametrize(
    ("text", "before", "line"),
    [
        (TAKES_NONE[0], {3: STRETCH}, 3),
        (TAKES_NONE[0], {3: EVERY_NTH, 5: STRETCH}, 5),  # as many items that are not as much work are a stretch
        (TAKES_NONE[0], {3: "log = logs[rank]", 4: EVERY_NTH}, 4),
        (TAKES_SHARE[2], {3: STRETCH}, SHARE),
        (TAKES_NONE[0], {3: "log = logs[rank]"}, None),
    ],
)
def test_a_share_that_is_taken_before_the_steps_has_its_line(
    text: str, before: dict[int, str], line: int | None, tmp_path: Path
) -> None:
    told = advised(tmp_path, text, [], before=before)
    assert told.where == {"near": "rank 1", **({"file": FILE, "line": line} if line else {})}


@pytest.mark.parametrize(
    ("noted", "before", "line"),
    [
        ({"shares": "/job/data.py:7"}, {3: STRETCH}, ("/job/data.py", 7)),
        ({"shares": None}, {3: STRETCH}, (FILE, 3)),
        ({}, {}, ("/job/train.py", 40)),
    ],
)
def test_a_program_with_a_loader_keeps_its_advice_and_gets_the_line_of_its_shares(
    noted: dict[str, object], before: dict[int, str], line: tuple[str, int], tmp_path: Path
) -> None:
    loader = {"workers": 4, "made": "/job/train.py:40", "iterators": 1, **noted}
    told = advised(tmp_path, TAKES_NONE[0], [loader], before=before)
    assert [way.name for way in told.remedies] == ["equal-work"]
    assert told.where == {"near": "rank 1", "file": line[0], "line": line[1]}


@pytest.mark.parametrize(("copies", "line"), [(True, BATCH), (False, CALL)])
def test_the_line_from_which_the_batch_comes(copies: bool, line: int, tmp_path: Path) -> None:
    """The work behind the optimizer, and that of the network, are of other lines; without a copy the network's call is named."""

    def body(program: Lined, number: int) -> None:
        if copies:
            with program.line(LOGS):
                program.launch(300)
            with program.line(BATCH):
                program.launch(10)
        with program.line(CALL), program.range("forward"), program.range("net:Net"):
            operator(program, "linear", 1000 * number + 10, [-1, -1], "[64, 64], [64, 64]", 500)
        with program.line(LOGS), program.range("optimizer SGD"):
            program.launch(100)

    told = advised_of(tmp_path, Lined({CALL: "y = net(x)"}, {"loaders": []}).run(body))
    assert told.where == {"near": "rank 1", "file": FILE, "line": line}
    assert f"its batch comes from train.py:{line}." in told.detail


@pytest.mark.parametrize(
    ("loaders", "remedy"),
    [([{"workers": 4, "sampler": "DistributedSampler"}], "equal-work"), (None, "equal-work"), ([], "equal-attention")],
)
def test_advice_stays_where_a_loader_is_or_may_be(loaders: object, remedy: str, tmp_path: Path) -> None:
    told = advised(tmp_path, TAKES_SHARE[0], loaders, remedy)
    assert [way.name for way in told.remedies] == [remedy] and told.where == {"near": "rank 1"}


LOOP, CUT = 30, 31


@pytest.mark.parametrize(
    ("loop", "cut", "found"),
    [
        (
            "for wave, speaker in self.loader:",
            "yield wave[self.rank::self.world], speaker[self.rank::self.world]",
            True,
        ),
        ("batch = next(batches)", "own = batch['x'][rank * n:(rank + 1) * n]", True),
        ("for x, y in loader:", "x = x.chunk(world)[rank]", True),
        ("for x, y in loader:", "x = x[:, rank * n:(rank + 1) * n]", False),  # a part of each sequence
        ("for x, y in loader:", "x = x.chunk(world, dim=1)[rank]", False),
        ("for x, y in loader:", "own = gradients[rank * n:(rank + 1) * n]", False),
        ("for x, y in loader:", "x = x[:n]", False),
        ("run(loader)", "x = x[rank::world]", False),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_each_rank_takes_its_part_of_what_its_loader_has_made(
    loop: str, cut: str, found: bool, inside: bool, tmp_path: Path
) -> None:
    """Only what the function that gets a batch does with it counts."""

    def body(program: Lined, number: int) -> None:
        with program.line(LOOP):
            program.host(5)
        with program.line(CUT, "step" if inside else "update"):
            program.launch(10)
        program.sync()

    loader = {"workers": 4, "place": f"{FILE}:{LOOP}"}
    program = Lined({LOOP: loop, CUT: cut}, {"loaders": [loader]}).run(body)
    program.write(tmp_path)
    profile = pipeline.gather(tmp_path / "r.sqlite", pipeline.ReadingOptions())
    settings = settings_of(profile)
    assert settings is not None
    told = cut_after_loading(profile, settings)
    assert (told is not None) is (found and inside)
    assert told is None or told.where == {"file": FILE, "line": CUT}
