"""NSX106: batches that each rank of a group loads whole, because all compute one forward with them, and ranks with samples of their own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler

from nsysx.findings import _loaded_by_parts, _same_samples
from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.test_nsx127_costly_settings import CLEAN
from tests.findings.test_ranks_apart import LOADER, WEIGHTS, Job, noted

WAIT_US = 16_000


def step(program: Job, number: int, sent: str) -> None:
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(19), program.range("data DataLoader"):
        program.host(WAIT_US)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(500)
        if sent:
            program.sends(sent, 1 << 20)
        program.launch(500)
    with program.line(21), program.range("backward"):
        program.launch(1000)
    program.sends("ncclAllReduce", 4 * WEIGHTS)
    with program.line(22), program.range("optimizer SGD"):
        program.launch(100)
    program.sync()


def found(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: str = "ncclAllReduce",
    other: dict[str, Any] | None = None,
    **settings: Any,
) -> Finding:
    """Return what NSX106 says of two ranks that exchange this in forward; ``other``: what the other rank's record has instead."""
    for room in (_same_samples, _loaded_by_parts):
        monkeypatch.setattr(room, "peers", SimpleNamespace(ranks=lambda p: [p.process, p.process + 1]))
    record = {
        **CLEAN,
        "wrappers": [],
        "loaders": [LOADER | {"workers": 4, "iterators": 1}],
        "backwards": 1,
        "groups": [{"name": "0", "ranks": [0, 1], "collectives": 2}],
        "networks": [{"class": "Net", "dtypes": {"float32": WEIGHTS}}],
        "optimizers": [{"class": "SGD", "elements": WEIGHTS, "fused": True}],
        "cpu": {"allowed": 32},
        **settings,
    }
    program = Job({20: "y = net(x)", 21: "loss.backward()", 22: "opt.step()"}, record, {}, other or {})
    program.run(lambda program, number: step(program, number, sent))  # type: ignore[arg-type]
    (finding,) = program.found(folder, "NSX106")
    return finding


def names(finding: Finding) -> list[str]:
    return [way.name for way in finding.remedies]


def test_ranks_of_one_forward_load_parts_of_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = found(tmp_path, monkeypatch)
    assert names(finding) == ["loaded-by-parts"]
    assert "2 ranks that compute one forward together each load the same 64 samples for a batch" in finding.fix
    assert "DistributedSampler(" not in finding.paste and finding.where["line"] == 9
    # Two ranks give no batch before half of what one takes.
    assert 0 < (finding.saving_ns_per_step or 0) <= 0.5 * (WAIT_US + 2_400) * 1000


def test_a_batch_of_fewer_samples_than_ranks_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = LOADER | {"workers": 4, "iterators": 1, "batch_size": 1}
    assert names(found(tmp_path, monkeypatch, loaders=[loader])) == ["loaded-once"]


def test_ranks_that_share_heads_are_known_by_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [{"name": "1", "ranks": [0, 1], "collectives": 2, "dimension": "cp"}]
    assert names(found(tmp_path, monkeypatch, "ncclAlltoAll", groups=groups)) == ["loaded-by-parts"]


@pytest.mark.parametrize(
    ("sent", "changed"),
    [
        ("ncclAllReduce", {"other": {"loaders": [LOADER | {"drawn": [5, 6], "batches": [8, 9]}]}}),  # other samples
        ("ncclAllReduce", {"other": {"loaders": [LOADER | {"batches": [8, 9]}]}}),  # of a dataset of its own
        ("", {}),  # data parallel: the same samples are an oversight
        ("ncclAlltoAll", {}),  # experts
        ("ncclAlltoAll", {"groups": [{"name": "1", "ranks": [0, 1], "collectives": 2, "dimension": "ep"}]}),
        ("ncclAllGather", {"wrappers": [{"kind": "fully_shard", "count": 4}]}),
        ("ncclAllReduce", {"wrappers": [{"kind": "DDP"}]}),
        ("ncclAllReduce", {"places": {"schedule": "/job/train.py:30"}}),
    ],
    ids=["others", "own dataset", "apart", "experts", "group of experts", "sharded", "DDP", "stages"],
)
def test_other_ranks_are_not_told_to_load_parts(
    sent: str, changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(found(tmp_path, monkeypatch, sent, **changed))[0] not in ("loaded-by-parts", "loaded-once")


def test_the_paste_puts_batches_together_again() -> None:
    paste = Fix.by_name("loaded-by-parts").paste.split("loader = ")[0]
    parts = list[list[list[int]]]()
    for rank in range(4):
        dist = SimpleNamespace(get_rank=lambda _, rank=rank: rank, get_world_size=lambda _: 4)
        given: dict[str, Any] = {"dist": dist, "BatchSampler": BatchSampler, "group": None}
        exec(paste, given)
        sampler = torch.utils.data.SequentialSampler(range(16))  # type: ignore[arg-type]
        parts.append(list(given["OwnPart"](sampler, 8, drop_last=True)))
    batches = [[row for part in parts for row in part[n]] for n in range(2)]
    assert batches == [list(range(8)), list(range(8, 16))]
