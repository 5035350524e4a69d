"""Calls of attention with a mask as a tensor, by their text."""

from __future__ import annotations

import pytest

from nsysx.findings._causal_calls import without_mask


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (
            "o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
            "o = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ),
        (
            "x = x + self.out(sdpa(q) + scaled_dot_product_attention(q, k, v, self.mask[:t, :t], dropout_p=p).mT)",
            "x = x + self.out(sdpa(q) + scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p).mT)",
        ),
        (
            "return F.scaled_dot_product_attention(q, k, v, scale=s, attn_mask=masks.get(t))  # one head",
            "return F.scaled_dot_product_attention(q, k, v, scale=s, is_causal=True)  # one head",
        ),
    ],
)
def test_the_mask_alone_is_replaced(text: str, changed: str) -> None:
    assert without_mask(text) == changed


@pytest.mark.parametrize(
    "text",
    [
        None,
        "o = F.scaled_dot_product_attention(",
        "o = F.scaled_dot_product_attention(q, k, v)",
        "o = F.scaled_dot_product_attention(q, k, v, mask, 0.1)",
        "o = F.scaled_dot_product_attention(q, k, v, **masks)",
        "o = F.scaled_dot_product_attention(*qkv, mask)",
        "o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False)",
        "o = self.attention(q, k, v, attn_mask=mask)",
        "o = torch.cat([F.scaled_dot_product_attention(a, k, v, m), F.scaled_dot_product_attention(b, k, v, m)])",
    ],
)
def test_other_calls_stay_as_they_are(text: str | None) -> None:
    assert without_mask(text) is None
