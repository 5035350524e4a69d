"""NSX127: frozen networks that every rank of a group runs on the same whole batch, and those of which each rank needs its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _whole_batches
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_gathered_losses import sent
from tests.findings.test_layer_messages import SETTINGS
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import noted

ENCODING, DECODING = 20, 22
SOURCE = {ENCODING: "vis = tower(images)", DECODING: "y = decoder(vis)", 40: "loss.backward()"}
ROWS, SQUARE = "[32, 128]", "[128, 128]"


def settings(kind: str, *, other: bool = False) -> dict[str, object]:
    """What the probe of a rank reads, or that of the ``other`` one."""
    sums = [[1, 2, 3], [4, 5, 6]] if kind == "other images" and other else [[1, 2, 3], [7, 8, 9]]
    calls = [("Tower", ENCODING), ("Decoder", DECODING)]
    rows = 31 if kind == "odd rows" else 32
    inputs = [
        {"class": cls, "place": f"{FILE}:{line}", "rows": rows, "sums": of_call}
        for (cls, line), of_call in zip(calls, reversed(sums), strict=True)
    ]
    again = [
        {"class": cls, "place": f"{FILE}:{line}", "trained": cls == "Decoder" or kind == "trained"}
        for cls, line in calls
    ]
    wrappers = [{"kind": "DDP"}] if kind == "wrapped" else []
    return {
        **SETTINGS,
        "inputs": inputs,
        "given_again": again,
        "backwards": 1,
        "wrappers": wrappers,
        "networks": [{"class": cls} for cls, _ in calls],
        "groups": [{"ranks": [0, 1]}],
        "optimizers": [{"elements": 128 * 128, "dtypes": {"bfloat16": 1}}],
    }


def step(program: Lined, number: int, kind: str) -> None:
    """A tower (1 ms), and a network of which layers are split over the ranks (300 us, and 200 us of a reduction)."""
    at = 1000 * number + 10
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(ENCODING), program.range("forward"), program.range("tower:Tower"):
        operator(program, "linear", at, [-1, -1], f"{ROWS}, {SQUARE}", 1_000)
        if kind == "split":
            begin = program.t
            sent(program, "ncclAllReduce", 8 << 20)
            if program.noted is not None:
                label = f"c10d::allreduce_, op_id = {at + 1}, sizes = [{ROWS}], input_op_ids = [({at},0)]"
                program.main.add_range(label, begin, program.t)
        operator(program, "gelu", at + 2, [at, -1], f"{ROWS}, []", 0)
    with program.line(DECODING), program.range("forward"), program.range("decoder:Decoder"):
        program.host(3_000 if kind == "host-bound" else 0)  # of layers that Python divides
        operator(program, "linear", at + 4, [at + 2, -1], f"{ROWS}, {SQUARE}", 300)
        sent(program, "ncclAllReduce", 8 << 20)
        operator(program, "gelu", at + 6, [at + 4, -1], f"{ROWS}, []", 0)
    with program.line(40), program.range("backward"):
        program.launch(300)
    program.sync()


def told(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    theirs = RecordedSettings(settings(kind, other=True))
    monkeypatch.setattr(_whole_batches, "_other_ranks", lambda case: [theirs])
    program = Lined(SOURCE, settings(kind)).run(lambda program, number: step(program, number, kind))
    found = program.found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "batch of all ranks"), None)


def test_a_frozen_network_that_both_ranks_run_on_the_same_rows_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, "same images", monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, ENCODING)
    assert [way.name for way in found.remedies] == ["own-part-of-batch"]
    assert found.saving_ns_per_step == pytest.approx(500_000, rel=0.1)
    assert "32 rows" in found.detail


@pytest.mark.parametrize(
    "kind",
    [
        "other images",  # of as many rows
        "trained",
        "split",  # over the ranks: each has a part of it
        "odd rows",
        "wrapped",  # ranks that share gradients alone
        "host-bound",  # fewer rows take the host as long
    ],
)
def test_what_is_not_worth_it_or_is_no_repeated_work_is_silent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(tmp_path, kind, monkeypatch) is None
