"""NSX111: what else changes with a zigzag share, by the lines before attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nsysx.findings import _zigzag_parts
from nsysx.findings._zigzag_parts import _lines_of, zigzag

HEAD = {60: "def forward(self, x, table):", 61: "n = x.shape[0]", 62: "q, keys, values = self.qkv(x).unbind(1)"}
GATHERED = {63: "keys, values = AllGather.apply(torch.stack((keys, values))).unbind(0)"}
END = {64: "seen = (rank + 1) * n"}
CALL = {
    66: "y = F.scaled_dot_product_attention(..., ..., ..., attn_mask=...)",
    67: "q, keys[:seen], values[:seen], attn_mask=lower_right(n, seen))",
}


def test_the_lines_that_gather_and_end_what_attention_sees() -> None:
    lines = _lines_of(HEAD | GATHERED | END | CALL, 66)
    assert lines is not None and lines.names == ("keys", "values")
    assert (lines.end, lines.gathered, lines.ended) == ("seen", 63, 64)
    without_end = _lines_of(HEAD | GATHERED | CALL, 66)
    assert without_end is not None and without_end.ended is None


def test_keys_that_are_cut_in_a_line_before_the_call() -> None:
    cut = {65: "q, keys, values = (z[None] for z in (q, keys[:seen], values[:seen]))"}
    call = {66: "y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)"}
    lines = _lines_of(HEAD | GATHERED | END | cut | call, 66)
    assert lines is not None and lines.names == ("keys", "values")
    assert (lines.end, lines.gathered, lines.ended) == ("seen", 63, 64)
    others = {65: "first = keys[:seen].mean()"}
    assert _lines_of(HEAD | GATHERED | END | others | call, 66) is None


def test_keys_that_the_caller_gathers_go_back_in_order_where_they_are_cut() -> None:
    cut = {82: "q, keys, values = (z[None] for z in (q, keys[:seen], values[:seen]))", 81: "seen = (self.rank + 1) * n"}
    call = {
        83: "y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)",
        80: "def attend(self, q, keys, values):",
    }
    given = {64: "x = x + self.out(part.attend(q, keys, values).flatten(1))"}
    lines = _lines_of(HEAD | GATHERED | given | cut | call, 83)
    assert lines is not None and (lines.gathered, lines.restored) == (63, "before line 82")
    assert lines.uses("self.rank") and not lines.uses("self.world") and not lines.uses("rank")
    assert _lines_of(HEAD | GATHERED | {64: "x = x + self.out(keys)"} | cut | call, 83) is None


def test_a_slice_of_the_ranks_size_is_such_a_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "8": "self.length = total // self.ranks",
        "9": "return x[self.rank * self.length : (self.rank + 1) * self.length]",
        "10": "log(x[self.rank : self.rank + 1])",
    }
    monkeypatch.setattr(_zigzag_parts, "texts_of_ranks", lambda _: {"/a/f.py": lines})
    monkeypatch.setattr(_zigzag_parts, "texts", lambda _: {})
    monkeypatch.setattr(_zigzag_parts, "code_of_ranks", lambda _, file, line: {"/a/f.py": lines}[file][str(line)])
    share = _zigzag_parts.share_of_parts(SimpleNamespace())  # type: ignore[arg-type]
    assert share is not None and (share.world, share.where, share.rank) == ("self.ranks", "f.py:9", "self.rank")
    parts = "torch.cat([x.chunk(2 * self.ranks)[p] for p in (self.rank, 2 * self.ranks - 1 - self.rank)])"
    assert share.paste.startswith(f"return {parts}  #")
    del lines["8"]  # how many there are, nothing says
    assert _zigzag_parts.share_of_parts(SimpleNamespace()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("out = x.chunk(world)[rank]", {}),
        ("out = torch.chunk(x, self.world, dim=0)[self.rank]", {}),
        ("out = x.chunk(dist.get_world_size())[dist.get_rank()]", {}),
        ("out = rows.chunk(world, 1)[rank].contiguous()", {"dim": 1}),
    ],
)
def test_a_stretch_in_its_own_names_becomes_two_parts_that_cost_as_much(line: str, names: dict[str, int]) -> None:
    torch = pytest.importorskip("torch")
    world, dim, seen = 2, names.get("dim", 0), []
    share = zigzag(line, "f.py:1")
    assert share is not None
    for rank in range(world):
        x = torch.arange(8)
        dist = SimpleNamespace(get_rank=lambda r=rank: r, get_world_size=lambda: world)
        scope = {
            "torch": torch, "x": x, "rows": x[None].repeat(3, 1), "world": world, "rank": rank, "dist": dist,
            "self": SimpleNamespace(world=world, rank=rank),
        }  # fmt: skip
        exec(share.paste, scope)
        out = scope["out"]
        seen.append((out if dim == 0 else out[0]).tolist())
    assert seen == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    "line", ["out = x.chunk(2)[rank]", "own = x[rank * n : (rank + 1) * n]", "a, b = x.chunk(2, dim=-1)"]
)
def test_other_cuts_have_no_zigzag(line: str) -> None:
    assert zigzag(line, "f.py:1") is None


@pytest.mark.parametrize(
    "source",
    [
        HEAD | END | CALL,  # nothing is gathered
        HEAD | GATHERED | {66: "y = F.scaled_dot_product_attention(q, keys, values, is_causal=True)"},
        GATHERED | {65: "def attend(self, q, keys, values):"} | CALL,  # gathered in another function
        HEAD | GATHERED | {66: "y = attend(q, keys[:seen], values[:n])"},
    ],
)
def test_general_words_stay_where_the_lines_do_not_tell(source: dict[int, str]) -> None:
    assert _lines_of(source, 66) is None
