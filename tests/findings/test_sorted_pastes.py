"""NSX131: a sort of which few are read, as topk in the names of its line; what it takes is what the sort's part was."""

from __future__ import annotations

import pytest
import torch

from nsysx.findings._sorted_pastes import largest_for_sort

SORTED_IN_LINE = (
    ("y = x.sort(dim=-1)[0][:, :, :k]", "y = x.topk(k, dim=-1, largest=False)[0]"),
    ("y = torch.sort(x, dim=1, descending=True).values[:, :k]", "y = x.topk(k, dim=1).values"),
    ("y = x.argsort(descending=True)[..., :k]", "y = x.topk(k)[1]"),
    ("y = torch.argsort(x, 2)[..., -k:]", "y = x.topk(k, dim=2)[1].flip(2)"),
    ("y = x.sort(-1, True)[1][..., -k:]", "y = x.topk(k, dim=-1, largest=False)[1].flip(-1)"),
    ("y = (x - 1).sort(0).indices[0:2 * k]", "y = (x - 1).topk(2 * k, dim=0, largest=False).indices"),
    ("y = x.sort(stable=True)[0][..., :k].sum(-1)", "y = x.topk(k, largest=False)[0].sum(-1)"),
)


@pytest.mark.parametrize(("text", "paste"), SORTED_IN_LINE)
def test_few_are_taken_in_the_names_of_the_line(text: str, paste: str) -> None:
    assert largest_for_sort({7: f"    {text}"}, 7, 3) == paste
    before, after = ({"x": torch.randn(9, 9, 9), "torch": torch, "k": 3} for _ in range(2))
    after["x"] = before["x"]
    exec(text, before)
    exec(paste, after)
    assert torch.equal(before["y"], after["y"])


@pytest.mark.parametrize(
    ("lines", "paste"),
    [
        (["v, order = x.sort(descending=True)", "y = v[..., :k] * w[order[..., :k]]"], "v, order = x.topk(k)"),
        (["v, _ = torch.sort(x, dim=1)", "return v[:, -k:]"], "v, _ = [each.flip(1) for each in x.topk(k, dim=1)]"),
        (["order = scores.argsort(-1)", "", "for row in order[:, :, :n]:"], "order = scores.topk(n, dim=-1, largest=False)[1]"),
        # Twins: all, another dimension, parts of two sizes, a number that is known later, what is not a tensor.
        (["v, order = x.sort(descending=True)", "y = v[..., :k] + v.sum()"], ""),
        (["y = x.sort(dim=-1)[0][:, :k]"], ""),
        (["y = x.sort(dim=-1)[0][..., 1:k]"], ""),
        (["y = x.sort(dim=-1)[0][..., :-k]"], ""),
        (["y = x.sort(dim=-1)[0]"], ""),
        (["v = x.sort(dim=-1)[0]", "a, b = v[..., :k], v[..., :n]"], ""),
        (["v = x.sort(dim=-1)[0]", "k = count(v2)", "y = v[..., :k]"], ""),
        (["order = np.argsort(x)[..., :k]"], ""),
        (["rows.sort(key=len)"], ""),
        (["y = x.sort(dim=d)[0][..., :k]"], ""),
    ],
)  # fmt: skip
def test_few_of_what_the_function_reads(lines: list[str], paste: str) -> None:
    written = {7 + n: f"    {text}" for n, text in enumerate(lines)}
    assert largest_for_sort(written, 7, 3) == paste


def test_without_the_sizes_only_alike_dimensions_are_compared() -> None:
    assert not largest_for_sort({7: "y = x.sort(dim=-1)[0][:, :, :k]"}, 7, None)
    assert largest_for_sort({7: "y = x.sort(dim=1)[0][:, :k]"}, 7, None) == "y = x.topk(k, dim=1, largest=False)[0]"
