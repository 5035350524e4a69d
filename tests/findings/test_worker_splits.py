"""Lines that deal a stream out to workers alone: which are told, and what they deal out with the ranks in them."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from nsysx_probe.sources import _gives_shares

from nsysx.findings import _same_samples
from nsysx.findings._worker_splits import worker_split
from tests.findings.test_same_samples import job, streams

FILE, WORLD, WORKERS = "/job/train.py", 2, 3


def split(*lines: str) -> Any:
    probe = {"of_ranks": {FILE: {str(n): text for n, text in enumerate(lines, 20)}}}
    profile: Any = SimpleNamespace(trace=SimpleNamespace(run={"probe": [probe]}))
    return worker_split(profile)


LINES = [
    (
        "if info is None or i % info.num_workers == info.id:",
        "if info is None or i % (world * info.num_workers) == (rank * info.num_workers + info.id):",
    ),
    (
        "yield from islice(src, info.id, None, info.num_workers)",
        "yield from islice(src, (rank * info.num_workers + info.id), None, (world * info.num_workers))",
    ),
    ("mine = urls[worker_id::num_workers]", "mine = urls[(rank * num_workers + worker_id)::(world * num_workers)]"),
    (
        "for url in self.urls[w_info.id :: w_info.num_workers]:",
        "for url in self.urls[(rank * w_info.num_workers + w_info.id) :: (world * w_info.num_workers)]:",
    ),
]


@pytest.mark.parametrize(("text", "among_ranks"), LINES)
def test_the_line_deals_out_to_the_workers_of_all_ranks(text: str, among_ranks: str) -> None:
    found = split(text)
    assert _gives_shares(text) and found.where == {"file": FILE, "line": 20}
    first, line = found.among_ranks().splitlines()
    assert line == among_ranks and first.startswith("rank, world = int(os.environ")


@pytest.mark.parametrize(
    "text", ["yield from islice(src, worker_id, None, num_workers)", "yield from src[worker_id::num_workers]"]
)
def test_each_worker_of_each_rank_has_a_part_of_its_own(text: str) -> None:
    line = split(text).among_ranks().splitlines()[1].removeprefix("yield from ")
    parts = list[int]()
    for rank in range(WORLD):
        for worker in range(WORKERS):
            given = {"rank": rank, "world": WORLD, "num_workers": WORKERS, "worker_id": worker, "src": range(20)}
            parts += eval(line, {"islice": islice, **given})
    assert sorted(parts) == list(range(20))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["for url in urls[rank * num_workers + worker_id :: world * num_workers]:"],
        ["loader = DataLoader(data, num_workers=4)"],
        ["mine = urls[worker_id::num_workers]", "mine = files[worker_id::num_workers]"],  # which of them is not known
        ["if info is None or i % info.num_workers == info.id:", "for url in urls[rank::world]:"][1:],
    ],
)
def test_other_lines(lines: list[str]) -> None:
    assert split(*lines) is None


def test_a_stream_that_is_alike_on_all_ranks_is_told_where_it_is_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = job(monkeypatch, streams(7, 8), streams(7, 8))
    monkeypatch.setattr(_same_samples, "worker_split", lambda _: split(LINES[0][0]))
    same = _same_samples.same_samples(*case)
    assert same is not None and same.line == {"file": FILE, "line": 20}
    assert same.fix().paste.splitlines()[1] == LINES[0][1]
