"""Products of gathered rows with gathered columns, of which every rank makes all, and those of which it needs all or makes its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.events.gathered_products import GatheredProducts
from nsysx.findings._pairs_of_all_ranks import own_rows_of
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator

LINE = 20
OWN, ALL, WHOLE = "[64, 16]", "[256, 16]", "[256, 256]"
GATHERS = {
    "base": ("c10d::_allgather_base_", f"{ALL}, {OWN}, []"),
    "of weights": ("c10d::_allgather_base_", "[4096], [1024], []"),
    "flat": ("c10d::_allgather_base_", f"[4096], {OWN}, []"),
    "broadcast": ("c10d::broadcast_", f"{ALL}, {ALL}, []"),
}


def collective(program: Lined, name: str, number: int, made: int, sizes: str) -> None:
    """An operator of a collective, which writes to what operator ``number`` is named after from then on."""
    begin = program.t
    program.host(5)
    if program.noted is not None:
        ids = ", ".join(["(0,-1)", f"({made},0)"] if name.startswith("c10d") else [f"({made},0)"])
        program.main.add_range(f"{name}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{ids}]", begin, program.t)


def into_list(program: Lined, at: int, made: int, kind: str) -> None:
    """What operator ``made`` made is gathered into a list of tensors, which operator ``at`` puts together."""
    begin = program.t
    copies = [at - 6 + each for each in range(4)]
    for each in copies:
        operator(program, "copy_", each, [-1, each], f"{OWN}, {OWN}, []", 2, "copy")
    if program.noted is not None:
        label = (
            f"c10d::allgather_, op_id = {at - 7}, sizes = [[], {OWN}, [], [], []], input_op_ids = [(0,-1), ({made},0)]"
        )
        program.main.add_range(label, begin, program.t)
    if kind == "list, others":
        copies = [copies[0], made, made + 1, copies[3]]
    elif kind == "list, a part":
        copies = copies[:3]
    elif kind != "list":
        copies[1] = made
    name = "stack" if kind == "list, stacked" else "cat"
    operator(program, name, at, [*copies, -1], f"{', '.join([OWN] * len(copies))}, []", 2, "copy")


def gathered(program: Lined, at: int, made: int, kind: str) -> None:
    """What operator ``made`` made is gathered of four ranks: operator ``at`` hands it on."""
    if kind.startswith("list"):
        into_list(program, at, made, kind)
    elif kind == "functional":
        collective(program, "_c10d_functional::all_gather_into_tensor", at - 1, made, f"{OWN}, [], []")
        collective(program, "_c10d_functional::wait_tensor", at, at - 1, ALL)
    else:
        name, sizes = GATHERS.get(kind, GATHERS["base"])
        collective(program, name, at, made, sizes)


def step(program: Lined, number: int, *, kind: str) -> None:
    """A network, its result gathered, a matrix of all pairs (400 us), a copy of it (300 us) and its loss (300 us), and a backward."""
    at = 1000 * number + 10
    with program.line(12):
        operator(program, "randperm", at - 1, [-1], "[]", 5)
        operator(program, "index", at, [-1, at - 1], "[5000, 128], [64]", 100, "gather")
        with program.range("forward"), program.range("net:Net"):
            operator(program, "linear", at + 1, [at, -1], "[64, 128], [16, 128]", 300)
    gathered(program, at + 11, at + 1, kind)
    with program.line(LINE):
        if kind == "flat":
            operator(program, "view", at + 10, [at + 11, -1], "[4096], []")
        operator(program, "mul", at + 12, [at + 10 if kind == "flat" else at + 11, -1], f"{ALL}, []")
        operator(program, "t", at + 13, [at + 12 if kind == "flat" else at + 11], ALL)
        rows = OWN if kind == "own rows" else ALL
        left, of_left = (at + 1, OWN) if kind == "own rows" else (at + 12, rows)
        whole = "[64, 256]" if kind == "own rows" else WHOLE
        if kind in ("einsum", "several products"):
            begin, many = program.t, 1 if kind == "einsum" else 2
            program.host(2)
            of_many = f"[{many}, 256, 16], [{many}, 16, 256]"
            operator(program, "bmm", at + 8, [left, at + 13], of_many, 400)
            if program.noted is not None:
                label = f"aten::einsum, op_id = {at + 14}, sizes = [{of_left}, {of_left}], input_op_ids = [({left},0), ({at + 13},0)]"
                program.main.add_range(label, begin, program.t)
        else:
            operator(program, "mm", at + 14, [left, at + 13], f"{of_left}, [16, 256]", 400)
        operator(program, "_to_copy", at + 15, [at + 14, -1], f"{whole}, []", 300, "copy")
        if kind == "both ways":
            operator(program, "numpy_T", at + 16, [at + 15], whole)
            operator(program, "cross_entropy_loss", at + 17, [at + 16, -1], f"{whole}, [256]", 300)
        if kind in ("written out", "not exponential"):
            operator(program, "exp" if kind == "written out" else "relu", at + 16, [at + 15], whole, 100)
            operator(program, "sum", at + 17, [at + 16, -1], f"{whole}, []", 200)
            operator(program, "log", at + 18, [at + 17], "[256]")
        elif kind == "multiplied":
            operator(program, "softmax", at + 16, [at + 15, -1], f"{whole}, []", 300, "softmax")
            operator(program, "mm", at + 17, [at + 16, at + 11], f"{whole}, {ALL}", 5)
        else:
            last = at + 15
            for turn in range(0, 12 if kind == "in turn" else 0, 2):
                operator(program, "logsumexp", at + 20 + turn, [last, -1], f"{whole}, [256]", 5)
                operator(program, "sub", at + 21 + turn, [last, at + 20 + turn], f"{whole}, [256]", 5)
                last = at + 21 + turn
            name = "sum" if kind == "summed alone" else "cross_entropy_loss"
            operator(program, name, at + 40, [last, -1], f"{whole}, [256]", 300)
        operator(program, "copy_", at + 60, [-1, at + 1], "[64, 16], [64, 16]", 5)
    program.sync()


def finding(folder: Path, kind: str, before: str = "") -> Finding | None:
    """``before``: what stands in a line of the function of the product."""
    program = Lined({LINE: "loss = F.cross_entropy(everyone @ everyone.T, target)", **({12: before} if before else {})})
    found = program.run(lambda program, number: step(program, number, kind=kind)).found(folder, "NSX137")
    return next((f for f in found if [way.name for way in f.remedies] == ["own-rows"]), None)


@pytest.mark.parametrize(
    "kind", ["base", "functional", "flat", "list", "list, own", "list, stacked", "written out", "einsum"]
)
def test_every_rank_makes_the_whole_matrix(tmp_path: Path, kind: str) -> None:
    found = finding(tmp_path, kind)
    assert found is not None and found.where["line"] == LINE
    assert found.title.startswith(
        f"train.py:{LINE}: all 4 ranks compute the same 256 x 256 matrix of what was gathered"
    )
    assert found.saving_ns_per_step == pytest.approx(3 / 4 * 1_000_000, rel=0.05), "a fourth of it is the rank's own"
    assert not found.saving.bound


def test_a_loss_both_ways_needs_own_rows_and_own_columns(tmp_path: Path) -> None:
    found = finding(tmp_path, "both ways")
    assert found is not None and "both ways" in found.detail
    # Product and copy twice a fourth, of each of the two losses a fourth.
    assert found.saving_ns_per_step == pytest.approx(2 / 4 * 700_000 + 3 / 4 * 600_000, rel=0.05)


@pytest.mark.parametrize(
    "kind",
    [
        "own rows",  # each rank makes its own
        "of weights",
        "broadcast",  # nothing is gathered
        "list, others",  # more than its own is put beside what was gathered
        "list, a part",
        "not exponential",  # sums of rows that the sum of the factors gives
        "several products",
        "multiplied",  # as in attention
        "summed alone",
        "in turn",  # by row and by column, which needs all
    ],
)
def test_what_is_needed_or_a_rank_s_own(tmp_path: Path, kind: str) -> None:
    assert finding(tmp_path, kind) is None


@pytest.mark.parametrize(("ranks", "share"), [(2, 1.0), (4, 0.5)])
def test_two_products_of_own_rows_and_columns_are_no_more_than_the_whole(ranks: int, share: float) -> None:
    products = GatheredProducts((1, 2), (1,), (256, 256), ranks, frozenset({1}))
    assert (products.kept(1), products.kept(2)) == (share, 1 / ranks)


def test_the_option_of_a_loss_that_its_function_asks_for(tmp_path: Path) -> None:
    found = finding(tmp_path, "base", "if self.local_loss:")
    assert found is not None and found.fix.startswith("Set local_loss of ")
    assert found.paste.startswith("local_loss=True, gather_with_grad=True")


@pytest.mark.parametrize(
    ("lines", "both_ways", "paste"),
    [
        (
            ("    all_image, all_text = gather_features(image, text, rank)", "    per_image = scale * all_image @ all_text.T"),
            True,
            ["per_image = scale * image @ all_text.T", "# in place of per_image turned: scale * text @ all_image.T", "# targets"],
        ),
        (("everyone = torch.cat(all_gather(z), 0)", "logits = everyone @ everyone.T / t"), True, ["logits = z @ everyone.T / t", "# t"]),
        (("everyone = self.everyone", "logits = everyone @ everyone.T"), False, []),
        (("a, b = gather(self.a, self.b)", "logits = a @ b.T"), False, []),
    ],
)  # fmt: skip
def test_own_rows_in_the_names_of_the_line(lines: tuple[str, str], both_ways: bool, paste: list[str]) -> None:
    written = own_rows_of(lines[1], lines, both_ways=both_ways).splitlines()
    assert len(written) == len(paste) and all(map(str.startswith, written, paste))
