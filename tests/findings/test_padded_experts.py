"""NSX131: experts whose rows are mostly padding, and products of several at once that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

BUFFER, PRODUCT = 30, 31
SOURCE = {BUFFER: "rows = x.new_zeros(experts * capacity, d)", PRODUCT: "h = torch.bmm(rows, w_in)"}
TOKENS, EXPERTS = 1024, 8


def step(program: Lined, number: int, *, kind: str, times: float) -> None:
    """A router picks 2 of 8 experts for each of 1,024 tokens, and the experts compute 2,048 rows so many times (1 ms and 1 ms)."""
    at, rows = 1000 * number + 10, round(times * 2 * TOKENS / EXPERTS)
    with program.range("forward"), program.range("net:Net"), program.line(20):
        operator(program, "linear", at, [-1, -1], f"[{TOKENS}, 64], [{EXPERTS}, 64]", 10)
        if kind != "no router":
            operator(program, "topk", at + 1, [at, -1], f"[{TOKENS}, {EXPERTS}], []", 10)
            operator(program, "flatten", at + 2, [at + 1], f"[{TOKENS}, 2]")
        if kind == "masked":  # a third one, of the scores that the first two have left
            operator(program, "masked_fill", at + 20, [at, at + 1, -1], f"[{TOKENS}, {EXPERTS}], [{TOKENS}, 2], []", 5)
            operator(program, "argmax", at + 21, [at + 20, -1], f"[{TOKENS}, {EXPERTS}], []", 10)
            operator(program, "one_hot", at + 22, [at + 21, -1], f"[{TOKENS}], []", 5)
        if kind == "counted":  # of the scores themselves
            operator(program, "argmax", at + 21, [at, -1], f"[{TOKENS}, {EXPERTS}], []", 10)
            operator(program, "one_hot", at + 22, [at + 21, -1], f"[{TOKENS}], []", 5)
        with program.line(BUFFER):
            operator(program, "new_zeros", at + 3, [at, -1], f"[{TOKENS}, {EXPERTS}], []", 5)
            if kind != "given alike":
                operator(
                    program, "index_copy_", at + 4, [at + 3, -1, at], f"[{EXPERTS * rows}, 64], [2048], [2048, 64]", 5
                )
        with program.line(PRODUCT):
            buffer = at + 4 if kind != "given alike" else at + 3
            operator(program, "view", at + 5, [buffer, -1], f"[{EXPERTS * rows}, 64], []")
            weight = at + 2 if kind == "attention" else -1
            operator(program, "bmm", at + 6, [at + 5, weight], f"[{EXPERTS}, {rows}, 64], [{EXPERTS}, 64, 256]", 1000)
            operator(program, "gelu", at + 7, [at + 6], f"[{EXPERTS}, {rows}, 256]", 100)
            operator(program, "bmm", at + 8, [at + 7, -1], f"[{EXPERTS}, {rows}, 256], [{EXPERTS}, 256, 64]", 1000)
            operator(program, "sum", at + 9, [at + 8], f"[{EXPERTS}, {rows}, 64]", 5)
    program.sync()


def padded(folder: Path, kind: str = "sent", times: float = 4) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind, times=times))
    return [f for f in program.found(folder, "NSX131") if "smaller-capacity" in [way.name for way in f.remedies]]


def test_experts_with_far_more_room_than_tokens_are_told(tmp_path: Path) -> None:
    (found,) = padded(tmp_path)
    assert (found.where["file"], found.where["line"]) == (FILE, BUFFER)
    assert "8,192 rows" in found.title and "2,048 are sent" in found.title
    # Of four times the tokens 1.25 are left, also of what works on these rows between the products.
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(2_110_000 * (1 - 1.25 / 4), rel=0.05)


@pytest.mark.parametrize(("kind", "sent"), [("masked", "3,072 are sent"), ("counted", "2,048 are sent")])
def test_tokens_are_sent_once_more_for_each_pick_of_what_the_ones_before_left(
    kind: str, sent: str, tmp_path: Path
) -> None:
    (found,) = padded(tmp_path, kind)
    assert sent in found.title


@pytest.mark.parametrize(
    ("kind", "times"), [("masked", 2.5), ("sent", 1.25), ("no router", 4), ("given alike", 4), ("attention", 4)]
)
def test_other_products_of_several_are_left_alone(kind: str, times: float, tmp_path: Path) -> None:
    assert not padded(tmp_path, kind, times)


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        (
            "capacity = int(self.capacity_factor * len(x) / self.experts)",
            "capacity = int(0.31 * self.capacity_factor * len(x) / self.experts)  # or set capacity_factor to 0.31 times what it is",
        ),
        (
            "return math.ceil(tokens * args.eval_capacity_fraction)",
            "return math.ceil(tokens * 0.31 * args.eval_capacity_fraction)  # or set eval_capacity_fraction to 0.31 times what it is",
        ),
        ("groups = math.ceil(tokens / capacity)", ""),
        ("return int(tokens // self.capacity)", ""),
        ("capacity = max(4, tokens)", ""),
    ],
)
def test_the_line_that_makes_the_room(text: str, paste: str, tmp_path: Path) -> None:
    program = Lined({**SOURCE, 7: text}).run(lambda program, number: step(program, number, kind="sent", times=4))
    (found,) = (f for f in program.found(tmp_path, "NSX131") if "smaller-capacity" in [way.name for way in f.remedies])
    assert found.where["line"] == (7 if paste else BUFFER)
    assert (found.paste == paste) == bool(paste)
