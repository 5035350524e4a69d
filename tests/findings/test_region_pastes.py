"""Regions without autocast in the program's own statements: what multiplies stands outside."""

from __future__ import annotations

import pytest

from nsysx.findings._region_pastes import narrowed

HEAD = 40
ATTENTION = """\
        with torch.autocast(x.device.type, enabled=False):  # digits
            a = F.scaled_dot_product_attention(q.float(), k.float(), v.to(torch.float32))
        return self.out(a)"""
CAST_BEFORE = """\
        with torch.autocast("cuda", enabled=False):
            q, k = q.float(), k.float()
            a = torch.einsum("bhid,bhjd->bhij", q, k)
            a = a.transpose(1, 2)
        return a"""
ROUTED = """\
        with torch.autocast("cuda", enabled=False):
            weights = self.router(x.float()).softmax(-1)
            y = self.experts(x.float())
            y = torch.sum(y * weights, 1)
        return y"""


def paste_of(code: str, *multiplying: int) -> tuple[str, bool] | None:
    """Return the paste for the region that begins these statements; ``multiplying``: lines of it, 1 for the first one."""
    source = dict(enumerate(code.splitlines(), HEAD))
    return narrowed(source, HEAD, {HEAD + each for each in multiplying})


def test_a_region_that_nothing_needs_is_left_out() -> None:
    assert paste_of(ATTENTION, 1) == ("a = F.scaled_dot_product_attention(q, k, v)", True)
    code = "a = torch.einsum('bhid,bhjd->bhij', q, k)\na = a.transpose(1, 2)"
    assert paste_of(CAST_BEFORE, 2) == (code, True)


def test_what_needs_all_digits_stays_in_it() -> None:
    head = 'with torch.autocast("cuda", enabled=False):'
    assert paste_of(ROUTED, 2) == (
        f"{head}\n    weights = self.router(x.float()).softmax(-1)\ny = self.experts(x)\n{head}\n    y = torch.sum(y * weights, 1)",
        False,
    )


@pytest.mark.parametrize(
    ("code", "multiplying"),
    [
        (ROUTED, (1, 2)),  # a router that multiplies
        (ATTENTION, ()),
        (ATTENTION.replace("with ", "with torch.no_grad(), "), (1,)),
        (ATTENTION.replace("            a", "        a"), (1,)),  # as recordings of old have no indents
        (ROUTED.replace("            y = self", "            if ok:\n                y = self"), (3,)),
        (
            ROUTED.replace(
                "            y = self.experts(x.float())", "            y = self.experts(\n                x.float())"
            ),
            (2,),
        ),
    ],
)
def test_other_regions_are_left_to_the_program(code: str, multiplying: tuple[int, ...]) -> None:
    assert paste_of(code, *multiplying) is None


def test_lines_that_were_not_recorded() -> None:
    source = dict(enumerate(ROUTED.splitlines(), HEAD))
    assert narrowed(source, HEAD, {HEAD + 2}) is not None
    del source[HEAD + 1]
    assert narrowed(source, HEAD, {HEAD + 2}) is None
