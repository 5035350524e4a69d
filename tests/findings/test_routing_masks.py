"""NSX131: products with masks that send rows of tokens to slots of experts and back, nearly all of them with zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nsysx.events.product_forms import ProductForm
from nsysx.events.routing_masks import routed_products
from nsysx.findings._routed_pastes import moved_rows
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_product_forms import Called, flow_of_called
from tests.findings.test_smaller_operators import operator

THERE, BACK = 91, 104
SOURCE = {
    THERE: 'buf = torch.einsum("tec,td->ecd", dispatch, h)',
    BACK: 'out = torch.einsum("tec,ecd->td", combine, buf)  # as they were',
}
MASK = "[4096, 16, 320]"
X: Called = ("linear", 1, (-1, -1), "[4096, 512], [512, 512]")
#: One-hot rows of the expert and of the place there, and their mask.
EXPERT: Called = ("one_hot", 2, (-1, -1), "[4096], []")
PLACE: Called = ("one_hot", 3, (-1, -1), "[4096], []")
ROWS: list[Called] = [
    X, EXPERT, ("to", 4, (2, -1), "[4096, 16], []"), ("unsqueeze", 5, (4, -1), "[4096, 16], []"),
    PLACE, ("to", 6, (3, -1), "[4096, 320], []"), ("unsqueeze", 7, (6, -1), "[4096, 320], []"),
]  # fmt: skip
OUTER: Called = ("mul", 8, (5, 7), "[4096, 16, 1], [4096, 1, 320]")
FLAT: list[Called] = [("flatten", 9, (8, -1, -1), f"{MASK}, [], []"), ("t", 10, (9,), "[4096, 5120]")]
SENT: Called = ("mm", 11, (10, 1), "[5120, 4096], [4096, 512]")
WEIGHED: list[Called] = [
    ("mul", 12, (8, -1), f"{MASK}, [4096, 1, 1]"),
    ("flatten", 13, (12, -1, -1), f"{MASK}, [], []"),
]
RETURNED: Called = ("mm", 14, (13, 11), "[4096, 5120], [5120, 512]")


def routed(*called: Called) -> list[ProductForm]:
    return routed_products(flow_of_called(*called))


def test_a_mask_sends_rows_to_slots_and_back() -> None:
    there, back = routed(*ROWS, OUTER, *FLAT, SENT, *WEIGHED, RETURNED)
    assert (there.sums_tokens, back.sums_tokens) == (True, False)
    assert (there.mask_at, back.mask_at) == (0, 0) and there.before == "4096 x 16 x 320" and there.after == "1"
    # The rows of 4,096 tokens, and those of 5,120 slots, are read or written.
    assert there.numbers == back.numbers == 2 * 4096 * 512 + 2 * 512 * (4096 + 5120)
    # All that makes the masks goes with the products: only the layer stays.
    assert there.rows ^ back.rows == {there.at, back.at} and 0 not in there.rows
    assert len(there.rows | back.rows) == len([*ROWS, OUTER, *FLAT, SENT, *WEIGHED, RETURNED]) - 1


def test_what_others_read_of_a_mask_stays() -> None:
    there, _ = routed(*ROWS, OUTER, *FLAT, SENT, *WEIGHED, RETURNED, ("mean", 15, (4, -1), "[4096, 16], []"))
    assert 1 not in there.rows and 2 not in there.rows and 4 in there.rows  # the experts' rows are counted, too


@pytest.mark.parametrize(
    ("behind", "several"),
    [
        ([("einsum", 8, (-1, 4, 6), "[], [4096, 16], [4096, 320]"), *FLAT, SENT], "1"),
        ([OUTER, ("gt", 20, (8, -1), f"{MASK}, []"), ("to", 21, (20, -1), f"{MASK}, []"),
          ("flatten", 9, (21, -1, -1), f"{MASK}, [], []"), FLAT[1], SENT], "1"),
        ([OUTER, ("mul", 20, (5, 7), "[4096, 16, 1], [4096, 1, 320]"), ("add", 21, (8, 20, -1), f"{MASK}, {MASK}, []"),
          ("flatten", 9, (21, -1, -1), f"{MASK}, [], []"), FLAT[1], SENT], "2"),
        ([OUTER, ("add", 22, (8, -1, -1), f"{MASK}, [], []"), ("mul", 20, (5, 7), "[4096, 16, 1], [4096, 1, 320]"),
          ("add", 21, (22, 20, -1), f"{MASK}, {MASK}, []"), ("flatten", 9, (21, -1, -1), f"{MASK}, [], []"), FLAT[1], SENT], "2"),
        ([("select", 20, (7, -1, -1), "[4096, 2, 320], [], []"), ("unsqueeze", 21, (20, -1), "[4096, 320], []"),
          ("mul", 8, (5, 21), "[4096, 16, 1], [4096, 1, 320]"), *FLAT, SENT], "1"),
        ([("zeros", 20, (-1,), "[]"), ("index_put_", 8, (20, -1, 2, 3, -1, -1), f"{MASK}, [4096, 1], [4096, 2], [4096, 2], [4096, 2], []"),
          *FLAT, SENT], "2"),
    ],
    ids=["by an einsum", "where it is set", "the two best", "from 0 on", "of one choice", "into zeros by number"],
)  # fmt: skip
def test_masks_in_other_words(behind: list[Called], several: str) -> None:
    (form,) = routed(*ROWS, *behind)
    assert form.after == several and form.sums_tokens


def test_two_choices_of_each_token_and_numbers_beside_all_places() -> None:
    called: list[Called] = [
        X, ("one_hot", 2, (-1, -1), "[4096, 2], []"), ("unsqueeze", 4, (2, -1), "[4096, 2, 16], []"), ("arange", 3, (-1,), "[]"),
        ("eq", 5, (-1, 3), "[4096, 2, 1], [320]"), ("unsqueeze", 6, (5, -1), "[4096, 2, 320], []"),
        ("mul", 7, (4, 6), "[4096, 2, 16, 1], [4096, 2, 1, 320]"), ("sum", 8, (7, -1), "[4096, 2, 16, 320], []"), *FLAT, SENT,
    ]  # fmt: skip
    (form,) = routed(*called)
    assert form.after == "2"


#: Both choices of each token beside all experts, weighed, and their places beside all places.
CHOICES: list[Called] = [
    X, ("arange", 2, (-1,), "[]"), ("eq", 3, (-1, 2), "[4096, 2, 1], [16]"), ("mul", 4, (3, -1), "[4096, 2, 16], [4096, 2, 1]"),
    ("transpose", 5, (4, -1, -1), "[4096, 2, 16], [], []"),
    ("arange", 6, (-1,), "[]"), ("eq", 7, (-1, 6), "[4096, 2, 1], [320]"), ("to", 8, (7, -1), "[4096, 2, 320], []"),
]  # fmt: skip
BOTH: Called = ("bmm", 9, (5, 8), "[4096, 16, 2], [4096, 2, 320]")
IS_SET: list[Called] = [("gt", 10, (9, -1), f"{MASK}, []"), ("to", 11, (10, -1), f"{MASK}, []")]
TO_SLOTS: list[Called] = [
    ("flatten", 12, (11, -1, -1), f"{MASK}, [], []"), ("t", 13, (12,), "[4096, 5120]"), ("mm", 14, (13, 1), "[5120, 4096], [4096, 512]"),
    ("flatten", 15, (9, -1, -1), f"{MASK}, [], []"), ("mm", 16, (15, 14), "[4096, 5120], [5120, 512]"),
]  # fmt: skip


def test_a_product_of_two_masks_over_the_choices_is_a_mask() -> None:
    there, back = routed(*CHOICES, BOTH, *IS_SET, *TO_SLOTS)
    assert (there.before, there.after, there.sums_tokens, back.sums_tokens) == ("4096 x 16 x 320", "2", True, False)
    # It goes with what it is made of, but for the numbers, and is no product that moves rows.
    assert len(there.rows | back.rows) == len([*CHOICES, BOTH, *IS_SET, *TO_SLOTS]) - 3 and 8 in there.rows


@pytest.mark.parametrize("dense", ["weights of places", "many choices"])
def test_a_product_of_a_mask_and_what_has_no_zeros_is_none(dense: str) -> None:
    """Slots that all choices share in part, and so many choices that each place is taken."""
    called = [*CHOICES, BOTH, *IS_SET, *TO_SLOTS]
    if dense == "weights of places":
        called[6] = ("softmax", 7, (-1, -1, -1), "[4096, 2, 320], [], []")
    else:
        called = [
            (n, at, made, sizes.replace(", 2,", ", 900,").replace(", 2]", ", 900]")) for n, at, made, sizes in called
        ]
    assert not [form for form in routed(*called) if form.before == "4096 x 16 x 320"]


@pytest.mark.parametrize(
    "called",
    [
        # One-hot labels in a loss.
        [X, EXPERT, ("mul", 4, (2, 1), "[4096, 512], [4096, 512]"), ("sum", 5, (4, -1), "[4096, 512], []"),
         ("mm", 6, (1, -1), "[4096, 512], [512, 512]")],
        # A mask of two tensors that is added to scores, or multiplied with them.
        [X, ("eq", 2, (-1, -1), "[4096, 1], [1, 4096]"), ("add", 4, (-1, 2), "[4096, 4096], [4096, 4096]"),
         ("mm", 6, (4, 1), "[4096, 4096], [4096, 512]")],
        [X, ("tril", 2, (-1,), "[4096, 4096]"), ("mul", 4, (-1, 2), "[4096, 4096], [4096, 4096]"),
         ("mm", 6, (4, 1), "[4096, 4096], [4096, 512]")],
        # Dropout by hand.
        [X, ("bernoulli", 2, (-1,), "[4096, 512]"), ("mul", 4, (1, 2), "[4096, 512], [4096, 512]"),
         ("mm", 6, (4, -1), "[4096, 512], [512, 512]")],
        # Soft slots: each token goes to all of them, in part.
        [X, ("softmax", 8, (-1, -1, -1), f"{MASK}, [], []"), *FLAT, SENT],
        # Few experts that compute all tokens, and the weights of the best two.
        [X, ("zeros", 2, (-1,), "[]"), ("scatter", 3, (2, -1, -1, -1), "[4096, 8], [], [4096, 2], [4096, 2]"),
         ("mul", 4, (3, -1), "[4096, 8], [4096, 1]"), ("mm", 6, (4, -1), "[4096, 8], [8, 512]")],
        # A number is added to a mask, which then multiplies: nothing in it is zero. Rows that numbers pick are written into others.
        [*ROWS, OUTER, ("add", 12, (8, -1, -1), f"{MASK}, [], []"), ("flatten", 9, (12, -1, -1), f"{MASK}, [], []"), FLAT[1], SENT],
        [X, ("index_put_", 8, (1, 1, -1, -1), f"{MASK}, [4096, 1], [4096], []"), *FLAT, SENT],
        # One-hot rows that a product picks or adds up by: told as such.
        [X, ("one_hot", 2, (-1, -1), "[4096], []"), ("mm", 6, (2, -1), "[4096, 1000], [1000, 512]")],
    ],
    ids=["labels", "segments", "causal", "dropout", "soft", "all tokens", "lifted", "written", "picked"],
)  # fmt: skip
def test_products_without_such_masks(called: list[Called]) -> None:
    assert not routed(*called)


def layer(program: Lined, step: int, *, soft: bool) -> None:
    """Layers (2 ms), a mask (400 us), products with it (600 us each), experts between (500 us); ``soft``: a softmax makes the mask."""
    at = 1000 * step + 10
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at + 1, [-1, -1], "[4096, 512], [512, 512]", 2000)
        with program.line(90):
            operator(program, "one_hot", at + 2, [-1, -1], "[4096], []", 10, MULTIPLIES)
            operator(program, "one_hot", at + 3, [-1, -1], "[4096], []", 10, MULTIPLIES)
            operator(program, "unsqueeze", at + 5, [at + 2, -1], "[4096, 16], []")
            operator(program, "unsqueeze", at + 7, [at + 3, -1], "[4096, 320], []")
            if soft:
                operator(program, "softmax", at + 8, [-1, -1, -1], f"{MASK}, [], []", 400, MULTIPLIES)
            else:
                operator(program, "mul", at + 8, [at + 5, at + 7], "[4096, 16, 1], [4096, 1, 320]", 400, MULTIPLIES)
        operator(program, "flatten", at + 9, [at + 8, -1, -1], f"{MASK}, [], []")
        operator(program, "t", at + 10, [at + 9], "[4096, 5120]")
        with program.line(THERE):
            operator(program, "mm", at + 11, [at + 10, at + 1], "[5120, 4096], [4096, 512]", 600)
        operator(program, "linear", at + 12, [at + 11, -1], "[5120, 512], [512, 512]", 500)
        with program.line(BACK):
            operator(program, "mm", at + 14, [at + 9, at + 12], "[4096, 5120], [5120, 512]", 600)
    operator(program, "mul", at + 15, [at + 14, -1], "[4096, 512], []", 20)
    program.sync()


MULTIPLIES = "void at::native::elementwise_kernel<128, 4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16>>(int)"


def found(folder: Path, *, soft: bool = False) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, step: layer(program, step, soft=soft))
    return [f for f in program.found(folder, "NSX131") if "rows-to-slots" in [way.name for way in f.remedies]]


def test_rows_are_moved_by_number_with_the_lines_that_do(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.where["line"] in (THERE, BACK) and "4096 x 16 x 320" in finding.title
    assert "buf = h.new_zeros(" in finding.paste and "out = F.embedding(slot, F.pad(buf" in finding.paste
    assert '# not torch.einsum("tec,ecd->td", combine, buf)' in finding.paste
    # The mask's own line takes a part of the cost, and goes with the products.
    assert finding.condition.endswith("leave out what makes them (train.py:90).")
    assert all(f"train.py:{line}" in finding.detail for line in (THERE, 90, BACK))
    # Masks and products take 1,620 us: 40 % of that is saved at least.
    assert finding.cost_ns_per_step == pytest.approx(1_620_000, rel=0.02)
    assert 0.5 * 1_620_000 < finding.saving_ns_per_step < 0.97 * 1_620_000 and not finding.saving.bound


def test_soft_slots_stay(tmp_path: Path) -> None:
    assert not found(tmp_path, soft=True)


@pytest.mark.parametrize("several", [1, 2])
@pytest.mark.parametrize("named", [True, False])
def test_the_lines_give_the_same_with_the_same_gradients(several: int, named: bool) -> None:
    torch.manual_seed(2)
    tokens, experts, places, width = 64, 4, 12, 8
    x, scores = torch.randn(tokens, width), torch.randn(tokens, experts)
    _, best = scores.topk(several)
    choice = best.squeeze(-1) if several == 1 else best
    rows = F.one_hot(best.T.flatten(), experts)  # the first choices come first
    place = ((rows.cumsum(0) * rows).sum(-1) - 1).view(several, tokens).T
    place = place.squeeze(-1) if several == 1 else place
    keep = place < places
    assert not keep.all(), "some have no place"

    def gates(scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1).gather(1, best).view(choice.shape)

    def masked(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mask = F.one_hot(choice, experts)[..., :, None] * F.one_hot(place.clamp(max=places - 1), places)[..., None, :]
        mask = (mask * keep[..., None, None]).to(x.dtype)
        weighed = mask * gates(scores)[..., None, None]
        dispatch, combine = (each.sum(1) if several > 1 else each for each in (mask, weighed))
        buf = torch.einsum("tec,td->ecd", dispatch, x)
        return torch.einsum("tec,ecd->td", combine, torch.tanh(buf))

    def moved(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        there = ProductForm("routed", frozenset(), 0, 0, 0, "64 x 4 x 12", str(several), sums_tokens=True)
        back = ProductForm("routed", frozenset(), 0, 0, 0, "64 x 4 x 12", str(several))
        texts = list(SOURCE.values()) if named else [None, None]
        lines = moved_rows(list(zip(texts, (there, back), strict=True))).splitlines()
        names: dict[str, Any] = {
            "torch": torch, "F": F, "x": x, "h": x, "choice": choice, "place": place, "keep": keep, "gate": gates(scores),
            "experts": experts, "places": places,
        }  # fmt: skip
        exec("\n".join(lines[:3]), names)
        buffer = "buf" if named else "rows"
        names[buffer] = torch.tanh(names[buffer])
        exec("\n".join(lines[3:]), names)
        return names["out" if named else "y"]  # type: ignore[no-any-return]

    results = []
    for function in (masked, moved):
        leaves = [x.clone().requires_grad_(), scores.clone().requires_grad_()]
        y = function(*leaves)
        y.square().sum().backward()
        results.append((y, *(leaf.grad for leaf in leaves)))
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(before, after)


@pytest.mark.parametrize(("call", "between"), [("self.experts(buf)", True), ("made.type_as(h)", False)])
def test_experts_that_are_called_in_the_product_stay(call: str, between: bool) -> None:
    there = ProductForm("routed", frozenset(), 0, 0, 0, "64 x 4 x 12", "1", sums_tokens=True)
    back = ProductForm("routed", frozenset(), 0, 0, 0, "64 x 4 x 12", "1")
    texts = ['buf = torch.einsum("tec,td->ecd", mask, h)', f'y = torch.einsum("tec,ecd->td", weighed, {call})']
    lines = moved_rows(list(zip(texts, (there, back), strict=True))).splitlines()
    assert lines[0].startswith("experts, places = 4, 12  #") and (lines[4] == f"buf = {call}") is between
    assert any(f"F.pad({'buf' if between else call}.flatten(0, 1)" in line for line in lines)
    assert lines[-1].startswith("y = y * gate")


@pytest.mark.parametrize("several", [1, 2])
def test_masks_without_places_give_the_same_by_number(several: int) -> None:
    torch.manual_seed(3)
    x, table, number = torch.randn(50, 8), torch.randn(90, 8), torch.randint(90, (50, several))
    number[:, -1] = (number[:, 0] + 1) % 90
    weight = torch.rand(50, several)
    mask = torch.zeros(50, 90).scatter(1, number, weight) if several > 1 else F.one_hot(number[:, 0], 90) * weight
    there = ProductForm("routed", frozenset(), 0, 0, 0, "50 x 90", str(several), sums_tokens=True, mask_at=0)
    back = ProductForm("routed", frozenset(), 0, 0, 0, "50 x 90", str(several))
    texts = ["sums = torch.matmul(mask.t(), x)", "y = mask @ table"]
    names: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "x": x,
        "table": table,
        "n": 90,
        "number": number,
        "weight": weight,
    }
    names |= {} if several > 1 else {"number": number[:, 0], "weight": weight[:, 0]}
    exec(moved_rows(list(zip(texts, (there, back), strict=True))), names)
    torch.testing.assert_close(names["sums"], mask.t() @ x)
    torch.testing.assert_close(names["y"], mask @ table)


def test_weighed_one_hot_rows_are_masks_without_places() -> None:
    called: list[Called] = [X, ("one_hot", 2, (-1, -1), "[4096], []"), ("mul", 4, (2, -1), "[4096, 1000], [4096, 1]")]
    (form,) = routed(*called, ("mm", 6, (4, -1), "[4096, 1000], [1000, 512]"))
    assert (form.before, form.sums_tokens) == ("4096 x 1000", False)
