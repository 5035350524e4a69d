"""NSX111: what else changes with a zigzag share, by the lines before attention."""

from __future__ import annotations

import pytest

from nsysx.findings._zigzag_parts import _lines_of

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
