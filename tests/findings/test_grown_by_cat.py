"""NSX131: tensors that grow by concatenation, whatever their line calls them, and cats that copy nothing again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsysx.findings._fix import Fix
from nsysx.findings._grown_pastes import IN_FRONT, WINDOW, stacked
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

LINE = 25
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(Args)"
SOURCE = {LINE: "self.k = torch.cat([self.k, k], dim=1)  # all so far", 26: "h = torch.stack(history, dim=1)"}
ROUNDS, PROMPT = 12, 100


def step(program: Lined, number: int, kind: str) -> None:
    """A rollout of twelve tokens whose cats take 100 us each, then a training of 1 ms.

    ``unread``: nothing but the next cat reads it. ``fresh``: each cat gets another tensor. ``kept``: one cat of 1 ms a step instead.
    """
    at = 1000 * number + 10
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[64, 64], [64, 64]", 1000)
    last = at
    if kind == "kept":
        before = at - 1000 + 501
        with program.line(LINE):
            operator(program, "cat", at + 501, [before, at, -1], "[990, 64], [10, 64], []", 1000, CAT)
        operator(program, "index", at + 502, [at + 501, -1], "[1000, 64], [16]", 5)
        program.sync()
        return
    for n in range(ROUNDS):
        token = at + 10 * n + 10
        operator(program, "linear", token, [at, -1], "[4, 1, 64], [64, 64]", 10)
        with program.line(LINE):
            made = at if kind == "fresh" else last
            operator(program, "cat", token + 1, [made, token, -1], f"[4, {PROMPT + n}, 64], [4, 1, 64], []", 100, CAT)
        last = token + 1
        if kind != "unread":
            operator(program, "bmm", token + 2, [token, last], f"[4, 1, 64], [4, 64, {PROMPT + n + 1}]", 10)
    operator(program, "sum", at + 999, [last], f"[4, {PROMPT + ROUNDS}, 64]", 5)
    program.sync()


def grown(folder: Path, kind: str = "", source: dict[int, str] | None = None, package: str = "torch") -> list[Finding]:
    settings = {"networks": [{"class": "Net", "package": package}]}
    program = Lined(source or SOURCE, settings).run(lambda program, number: step(program, number, kind))
    return program.found(folder, "NSX131")


def test_a_cache_that_grows_is_told_with_its_line(tmp_path: Path) -> None:
    (found,) = grown(tmp_path)
    assert (found.where["file"], found.where["line"]) == (FILE, LINE)
    assert [way.name for way in found.remedies] == ["grown-in-place"]
    # The first cat has to be; of each other one a hundredth is new, but a kernel takes 3 us.
    assert found.saving_ns_per_step == pytest.approx(11 * (100_000 - 3_000), rel=0.02) and not found.saving.bound
    assert "12 cats of a step make a tensor longer" in found.detail and "something reads each result" in found.detail
    assert "k.new_empty(4, 112, 64)" in found.paste


def test_the_paste_makes_what_cat_makes(tmp_path: Path) -> None:
    (found,) = grown(tmp_path)
    once, *each = found.paste.splitlines()
    begin = found.condition.partition(". ")[0].removeprefix("Begin with ")
    grows, rows = SimpleNamespace(), [torch.randn(4, n, 64) for n in (PROMPT, *[1] * ROUNDS)]
    given = {"self": grows, "k": rows[0]}
    exec(f"{once}\n{begin}", given)
    for n, given["k"] in enumerate(rows):
        exec("\n".join(each), given)
        assert torch.equal(grows.k, torch.cat(rows[: n + 1], 1))
    assert grows.k.data_ptr() == grows.k_room.data_ptr()


def test_what_nothing_reads_on_the_way_is_joined_at_the_end(tmp_path: Path) -> None:
    (found,) = grown(tmp_path, "unread")
    assert [way.name for way in found.remedies] == ["joined-at-end"] and "nothing else reads" in found.detail
    each, behind = found.paste.splitlines()
    assert found.condition.startswith("Begin with parts = [self.k]. ")
    rows = [torch.randn(4, n, 64) for n in (PROMPT, *[1] * ROUNDS)]
    given = {"self": SimpleNamespace(), "parts": rows[:1], "torch": torch}
    for given["k"] in rows[1:]:
        exec(each, given)
    exec(behind, given)
    assert torch.equal(given["self"].k, torch.cat(rows, 1))  # type: ignore[attr-defined]


def test_a_buffer_that_goes_on_over_the_steps(tmp_path: Path) -> None:
    (found,) = grown(tmp_path, "kept", {LINE: "self.buffer = torch.cat([self.buffer, new])[-n:]"})
    assert [way.name for way in found.remedies] == ["ring-of-rows"]
    assert found.saving_ns_per_step == pytest.approx(990_000, rel=0.02)


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        ("out = model.generate(ids, max_new_tokens=64)", 'cache_implementation="static"'),
        ("out = model(token, past_key_values=past)", "transformers.StaticCache("),
    ],
)
def test_the_cache_of_a_library_is_made_static(text: str, paste: str, tmp_path: Path) -> None:
    (found,) = grown(tmp_path, "", {LINE: text}, "transformers")
    assert [way.name for way in found.remedies] == ["static-cache"] and paste in found.paste and found.saving.bound
    (found,) = grown(tmp_path, "", SOURCE, "transformers")
    assert [way.name for way in found.remedies] == ["grown-in-place"], "a line of the program's own"


def test_a_ring_keeps_the_last_rows() -> None:
    at, each = Fix.by_name("ring-of-rows").paste.splitlines()
    given = {"torch": torch, "kept": torch.zeros(10, 2), "n": 0}
    rows = torch.arange(50.0).view(25, 2)
    for given["new"] in rows.view(5, 5, 2):
        exec(f"{at}\n{each}", given)
    assert torch.equal(given["kept"].sort(0)[0], rows[-10:])  # type: ignore[attr-defined]


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_history_in_room_is_what_stack_makes(dim: int, bounded: bool) -> None:
    once, *each = stacked(dim, bounded=bounded).splitlines()
    given: dict[str, object] = {"longest": 9, "length": 4, "new": torch.zeros(3, 5)}
    exec(once, given)
    history = [torch.randn(3, 5) for _ in range(9)]
    for n, given["new"] in enumerate(history):
        exec("\n".join(each), given)
        of_it = history[max(n - 3, 0) if bounded else 0 : n + 1]
        assert torch.equal(given["whole"], torch.stack(of_it, dim))  # type: ignore[arg-type]


def test_a_window_moves_on_in_its_room() -> None:
    once, *each = WINDOW.splitlines()
    whole = torch.randn(2, 4, 3)
    given: dict[str, object] = {"longest": 12, "length": 4, "new": whole[:, :1], "n": 4}
    exec(once, given)
    given["room"][:, :4] = whole  # type: ignore[index]
    for _ in range(8):
        given["new"] = new = torch.randn(2, 1, 3)
        exec("\n".join(each), given)
        whole = torch.cat([whole[:, 1:], new], 1)
        assert torch.equal(given["whole"], whole)  # type: ignore[arg-type]


def test_the_newest_rows_come_first_in_their_room() -> None:
    once, *each = IN_FRONT.splitlines()
    whole, given = torch.empty(2, 0, 3), {"longest": 8, "n": 0, "new": torch.zeros(2, 1, 3)}
    exec(once, given)
    for _ in range(8):
        given["new"] = new = torch.randn(2, 1, 3)
        exec("\n".join(each), given)
        whole = torch.cat([new, whole], 1)
        assert torch.equal(given["whole"], whole)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [SOURCE[LINE], "y = torch.cat([memory, x], 1)"])
def test_cats_of_other_tensors_are_left_alone(text: str, tmp_path: Path) -> None:
    assert not grown(tmp_path, "fresh", {LINE: text})
