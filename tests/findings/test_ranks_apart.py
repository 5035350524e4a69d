"""NSX127: ranks without a wrapper that compute the same samples each by itself, and ranks that must read the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.findings import _ranks_apart, _same_samples
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx127_costly_settings import CLEAN
from tests.findings.test_shared_tensors import HELD, augmented
from tests.ranks.test_rank_table import KERNELS, noted

LOADER = {"made": f"{FILE}:9", "batch_size": 64, "sampler": "SequentialSampler", "iterators": 1, "drawn": [7, 8]}
LOADER["batches"] = [3, 4]
WEIGHTS = 1_000_000
_IN_FORWARD = {
    "gathered in forward": "ncclAllGather",
    "added in forward": "ncclAllReduce",
    "buffers in forward": "ncclBroadcast",
}


#: What goes between the ranks between a forward and its backward.
_OF_LOSS = {
    "features gathered": ("ncclAllGather", 1 << 20),
    "few features gathered": ("ncclAllGather", 1 << 10),
    "features added": ("ncclAllReduce", 1 << 20),
    "loss logged": ("ncclAllReduce", 8),
}


class Job(Lined):
    """A rank whose NCCL notes what it sends; ``of_ranks``: lines that use its number; ``other``: settings of the other rank alone."""

    def __init__(
        self, source: dict[int, str], settings: dict[str, Any], of_ranks: dict[str, str], other: dict[str, Any]
    ) -> None:
        super().__init__(source, settings)
        self.of_ranks, self.other = of_ranks, other

    def sends(self, name: str, size: int) -> None:
        self.host(2)
        begin = self.t
        self.launch(40, KERNELS[name], stream=20)
        noted(self.main, name, begin, self.t, comm=5, size=size)

    def written(self, folder: Path, settings: dict[str, Any]) -> None:
        first = {"pid": 100, "xray": {"steps": self.xrayed, "lines": True}, "source": {FILE: self.source}}
        first |= {"settings": settings, "of_ranks": {FILE: self.of_ranks}}
        other = {"pid": 101, "settings": {**settings, **self.other}}
        (folder / "r.run.json").write_text(json.dumps({"probe": [first, other]}))

    def write(self, folder: Path) -> Path:
        self.written(folder, dict(self.settings or {}))
        return super(Lined, self).write(folder)


def step(program: Job, number: int, *, trains: bool, kind: str) -> None:
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    for part in range(2):
        with program.line(20), program.range("forward" if trains else "evaluation"), program.range("net:Net"):
            program.launch(500)
            if kind == "in forward":
                program.sends("ncclAllReduce", 64)
            elif kind in _IN_FORWARD:
                program.sends(_IN_FORWARD[kind], 1 << 20)
        if kind == "between forwards" and not part:
            program.sends("ncclAllReduce", 64)
    if kind in _OF_LOSS:
        program.sends(*_OF_LOSS[kind])
    if trains:
        with program.line(21), program.range("backward"):
            program.launch(1000)
            if kind == "in backward":
                program.sends("ncclAllReduce", 4 * WEIGHTS)
    if kind == "gathered":
        program.sends("ncclAllGather", 1 << 20)
    elif kind in ("sent", "shuffled"):
        program.sends({"sent": "ncclSend", "shuffled": "ncclAlltoAll"}[kind], 4 * WEIGHTS)
    elif kind == "outputs added":
        program.sends("ncclAllReduce", 1 << 20)
    elif kind not in ("nothing", "in backward", "in forward", *_IN_FORWARD):
        program.sends("ncclAllReduce", 4 * WEIGHTS if trains and kind != "counts" else 64)
    if trains:
        with program.line(22), program.range("optimizer SGD"):
            program.launch(100)
    program.sync()


def told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    trains: bool,
    kind: str,
    line: str = "",
    other: dict[str, Any] | None = None,
    **settings: Any,
) -> list[Finding]:
    monkeypatch.setattr(_same_samples, "peers", SimpleNamespace(ranks=lambda p: [p.process, p.process + 1]))
    networks = [{"class": "Net", "dtypes": {"float32": WEIGHTS}}]
    record = {
        **CLEAN,
        "wrappers": [],
        "loaders": [LOADER],
        "backwards": 1 if trains else 0,
        "networks": networks,
        "groups": [{"name": "0", "ranks": [0, 1], "collectives": 2}],
        "optimizers": [{"class": "SGD", "elements": WEIGHTS, "fused": True}] if trains else [],
        **settings,
    }
    source = {20: "y = net(x)", 21: "loss.backward()", 22: "opt.step()"}
    program = Job(source, record, {"5": line} if line else {}, other or {})
    program.run(lambda program, number: step(program, number, trains=trains, kind=kind))  # type: ignore[arg-type]
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "samples of ranks"]


@pytest.mark.parametrize(
    ("trains", "kind"), [(True, "gradients"), (False, "counts"), (False, "gathered"), (False, "nothing")]
)
def test_ranks_that_compute_apart_need_not_compute_the_same(
    trains: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = told(tmp_path, monkeypatch, trains=trains, kind=kind)
    assert "both ranks draw the same 64 samples" in finding.fix
    assert (finding.where["file"], finding.where["line"]) == (FILE, 9)
    whole = "an epoch" if trains else "a pass over the data"
    assert finding.saving.confidence == f"{whole} takes half of the steps, each as long as now: up to 2x faster"
    assert finding.saving.likely_ns is None


@pytest.mark.parametrize(
    ("trains", "kind"),
    [
        (True, "in forward"),  # tensors in parallel
        (True, "in backward"),
        (True, "between forwards"),
        (True, "sent"),  # stages of a pipeline
        (True, "shuffled"),
        (True, "counts"),  # members of an ensemble, or a search over options: no gradients in common
        (True, "nothing"),
        (False, "in forward"),
        (False, "sent"),
        (False, "outputs added"),  # members of an ensemble
    ],
)
def test_ranks_that_must_read_the_same_are_left_alone(
    trains: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not told(tmp_path, monkeypatch, trains=trains, kind=kind)


@pytest.mark.parametrize(
    "settings",
    [
        {"groups": []},  # processes that know nothing of each other
        {"groups": [{"name": "0", "ranks": [0], "collectives": 2}]},
        {"wrappers": None},
        {"wrappers": [{"kind": "fully_shard"}]},
        {"backwards": None},
        {"networks": [{"class": "Net"}, {"class": "Net"}]},  # layers that a function calls, with what goes between them
        {"line": "net.load_state_dict(torch.load(f'member{rank}.pt'))"},
        {"line": "net = members[rank].to(device)"},
    ],
)
def test_ranks_of_which_less_is_known_are_left_alone(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not told(tmp_path, monkeypatch, trains=False, kind="counts", **settings)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("net.load_state_dict(torch.load('net.pt', map_location=f'cuda:{rank}'))", False),
        ("net = Net().to(rank)", False),
        ("print(rank, accuracy)  # of all checkpoints[rank]", False),
        ("net = load(paths, rank)", True),
        ("checkpoint = f'fold{local_rank}.pt'", True),
        ("config = variants[dist.get_rank() % 4]", True),
    ],
)
def test_lines_that_choose_a_network_by_the_rank(text: str, own: bool) -> None:
    run = {"of_ranks": {FILE: {"5": text}}}
    profile: Any = SimpleNamespace(trace=SimpleNamespace(run=run))
    assert _ranks_apart.chooses_network(profile) is own


@pytest.mark.parametrize(
    ("kind", "wrapper", "found"),
    [
        ("gradients", "DDP", True),
        ("gradients", "fully_shard", True),
        ("in forward", "DDP", True),  # statistics of a normalization
        ("buffers in forward", "DDP", True),
        ("gathered in forward", "fully_shard", True),  # its parameters
        ("gathered in forward", "DDP", False),  # parts of a sequence are exchanged within the network
        ("added in forward", "DDP", False),
        ("added in forward", "fully_shard", False),
    ],
)
def test_wrapped_ranks_that_exchange_nothing_in_a_forward_need_not_be_given_the_same(
    kind: str, wrapper: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [{"class": "Net", "place": f"{FILE}:20", "rows": 64, "sums": [1, 2]}]
    wrappers = [{"kind": wrapper, "count": 1}]
    findings = told(tmp_path, monkeypatch, trains=True, kind=kind, loaders=[], inputs=inputs, wrappers=wrappers)
    assert bool(findings) is found
    if found:
        assert (findings[0].where["file"], findings[0].where["line"]) == (FILE, 20)
        assert "both ranks call Net at" in findings[0].fix


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("gradients", True),
        ("loss logged", True),
        (
            "features gathered",
            False,
        ),  # a loss over the pairs of all ranks: each may have another view of the same samples
        ("few features gathered", False),
        ("features added", False),
        ("gathered in forward", False),
    ],
)
def test_ranks_that_augment_the_same_samples_are_told_where_nothing_but_gradients_goes_between_them(
    kind: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = {**LOADER, "parts": [augmented(0, number) for number in range(2)], "data": HELD, "sampler_rank": None}
    other = {**loader, "batches": [5, 6], "parts": [augmented(1, number) for number in range(2)]}
    given = {"class": "Net", "place": f"{FILE}:20", "rows": 64, "sums": [1, 2], "shapes": [[64, 4]]}
    wrappers = [{"kind": "DDP", "count": 1}]
    with_own = {"loaders": [other], "inputs": [{**given, "sums": [3, 4]}]}
    findings = told(
        tmp_path,
        monkeypatch,
        trains=True,
        kind=kind,
        other=with_own,
        loaders=[loader],
        inputs=[given],
        wrappers=wrappers,
    )
    assert bool(findings) is found
    if found:
        assert (
            "both ranks draw the same 64 samples" in findings[0].fix
            and "half of the samples of a step" in findings[0].fix
        )
        assert (findings[0].where["file"], findings[0].where["line"]) == (FILE, 9)
        assert findings[0].saving.likely_ns is None
