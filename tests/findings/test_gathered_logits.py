"""NSX127: logits of a head whose classes are split over the ranks, gathered whole for a loss, and gathers that are not such."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _gathered_logits
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import KERNELS, noted

HEAD, LOSS = 34, 40
SOURCE = {HEAD: "dist.all_gather_into_tensor(parts, own)", LOSS: "loss = F.cross_entropy(logits, target)"}
ROWS, CLASSES = 512, 8192


#: Gathers, and losses, of one step.
GATHERS = {"own classes": 0, "of layers": 3, "of layers, two losses": 3, "of micro-steps": 3, "and a metric": 2}
LOSSES = {"of micro-steps": 3, "in parts": 4, "of layers, two losses": 2}
#: Classes of this rank, rows and classes of the loss where they are not half of them and all.
PARTS = {"of rows": CLASSES, "of weights": CLASSES, "padded": CLASSES // 2 + 64}
SEEN = {"of some rows": ROWS // 2, "shifted": ROWS - 16, "short sequences": ROWS - ROWS // 8, "in parts": ROWS // 4}

#: How many of the largest are picked.
TOP = {"top": 20, "top of most": 4000}


def step(program: Lined, number: int, *, kind: str, ranks: int = 2) -> None:
    """A head of half of the classes (300 us), a gather (200 us), a softmax over all (150 us) and its backward.

    Copies into all of the logits and a conversion of them, if there are any, take 60 and 80 us.
    """
    at = 1000 * number + 10
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=ranks, Rank=0)
    part = PARTS.get(kind, CLASSES // ranks)
    rows = ROWS // ranks if kind == "of rows" else ROWS
    # The last rank may have a class less: what it sends is as much as that of the others.
    size, own = 2 * rows * part // (2 if kind == "of features" else 1), part - (kind == "uneven")
    with program.line(20), program.range("forward"), program.range("net:Net"):
        begin = program.t
        operator(program, "mm", at, [-1, -1], f"[{rows}, 256], [256, {own}]", 300)
        if kind == "a DTensor" and program.noted is not None:
            for around in ("PythonSubclass", "aten::mm"):
                label = f"{around}, op_id = {at + 7}, sizes = [[{rows}, 256], [256, {CLASSES}]]"
                program.main.add_range(label, begin := begin - 1, program.t)
        if kind == "a whole head":
            operator(program, "mm", at + 1, [at, -1], f"[{ROWS}, 256], [256, {CLASSES}]", 300)
        if kind != "in the loss":
            gathers(program, kind, size)
    if kind == "in the loss":
        gathers(program, kind, size)
    with program.line(LOSS):
        if kind == "moved":
            operator(program, "cat", at + 4, [at, -1], f"[{ROWS}, {part}], [{ROWS}, {part}]", 60)
            operator(program, "copy_", at + 5, [at + 4, -1], f"[{ROWS}, {CLASSES}], [{ROWS}, {CLASSES}]", 80)
        seen = SEEN.get(kind, ROWS)
        name = {"argmax": "argmax", "attention": "_softmax", "top, unread": "topk", **dict.fromkeys(TOP, "topk")}.get(
            kind, "_log_softmax"
        )
        wide = part if kind == "own classes" else CLASSES - (kind == "uneven")
        shapes = {"a number": "[], []", "nothing": f"[0, {CLASSES}], []"}.get(kind, f"[{seen}, {wide}], []")
        for each in range(LOSSES.get(kind, 1)):
            operator(program, name, at + 20 + each, [at, -1], shapes, 150, "softmax")
        if kind in TOP:
            operator(program, "_softmax", at + 31, [at + 20, -1], f"[{ROWS}, {TOP[kind]}], []", 5, "elementwise")
        if kind == "and a metric":
            operator(program, "argmax", at + 30, [at, -1], shapes, 150, "softmax")
    with program.line(41), program.range("backward"):
        program.launch(500)
    program.sync()


def gathers(program: Lined, kind: str, size: int) -> None:
    """Gather so many bytes of each rank, as often as this kind of step does."""
    for _ in range(GATHERS.get(kind, 1)):
        with program.line(HEAD, "Gather.forward"):
            program.host(2)
            begin = program.t
            name = "ncclAllReduce" if kind == "added up" else "ncclAllGather"
            program.launch(200, KERNELS[name])
            noted(program.main, name, begin, program.t, comm=5, size=size)


def finding(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> Finding | None:
    all_is_transfer(monkeypatch, share=share)
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind))
    of_settings = program.found(folder, "NSX127")
    return next((f for f in of_settings if f.evidence[0]["setting"] == "gathered logits"), None)


@pytest.mark.parametrize(
    ("kind", "saved_ns"),
    [
        ("loss", 275_000),
        ("argmax", 275_000),
        ("in the loss", 275_000),
        ("shifted", 275_000),
        ("short sequences", 275_000),
        ("moved", 375_000),
        ("a DTensor", 275_000),
        ("of micro-steps", 825_000),
        ("and a metric", 550_000),
        ("in parts", 500_000),
        ("padded", 275_000),
        ("uneven", 275_000),
    ],
)
def test_logits_of_split_classes_are_gathered_whole(
    kind: str, saved_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    whole = {"uneven": "4,096 of 8,191", "padded": "4,160 of 8,192"}.get(kind, "4,096 of 8,192")
    assert found is not None and f"{whole} classes" in found.detail
    assert (found.where["file"], found.where["line"]) == (FILE, HEAD)
    assert [r.name for r in found.remedies] == ["own-classes"]
    # All of the transfer and of the copies, and half of the work over all classes.
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(saved_ns, rel=0.05)


@pytest.mark.parametrize(
    "kind",
    [
        "own classes",
        "of rows",  # of all ranks' samples: what is gathered is made of other rows
        "of weights",  # a head that every rank has whole
        "of features",  # fewer numbers than all logits
        "of some rows",
        "added up",
        "attention",
        "of layers",
        "of layers, two losses",
        "a number",
        "nothing",
        "top, unread",  # nothing says how many are picked
        "a whole head",  # a layer's features happen to be as many as half of the classes
    ],
)
def test_other_gathers_are_left_alone(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(tmp_path, kind, monkeypatch) is None


def test_the_largest_of_all_are_among_the_largest_of_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(tmp_path, "top", monkeypatch)
    assert found is not None and "picks the 20 largest" in found.detail
    assert [r.name for r in found.remedies] == ["top-of-each-rank"]
    # Of 4096 numbers of 2 bytes of each rank 20 of 16 bytes are left, and half of the work.
    kept = 20 * 16 / (4096 * 2)
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(200_000 * (1 - kept) + 75_000, rel=0.02)


def test_nearly_all_of_the_largest_have_to_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(tmp_path, "top of most", monkeypatch)
    assert found is None or found.saving_ns_per_step == pytest.approx(75_000, rel=0.05)


def test_what_costs_little_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gathered_logits.Case, "notable", lambda *_: False)
    assert finding(tmp_path, "loss", monkeypatch) is None
