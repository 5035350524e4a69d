"""NSX131: what a program calls the expert, the place and the weight of its tokens, for the lines that move them by number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nsysx.events.product_forms import ProductForm
from nsysx.findings._routed_pastes import moved_rows
from nsysx.findings._routing_names import routing_names
from tests.findings.lined import Lined
from tests.findings.test_routing_masks import MASK, MULTIPLIES
from tests.findings.test_smaller_operators import operator

NAMED = {
    90: "to_expert = (expert[..., None] == torch.arange(self.n, device=x.device)) * weight[..., None]  # [t, k, e]",
    91: "to_place = (place[..., None] == torch.arange(room, device=x.device)).to(x.dtype)",
    92: 'combine = torch.einsum("tke,tkc->tec", to_expert.to(x.dtype), to_place)',
    93: "dispatch = (combine > 0).to(x.dtype)",
    94: 'buf = torch.einsum("tec,td->ecd", dispatch, x)',
    96: 'out = torch.einsum("tec,ecd->td", combine, buf)',
}


def test_the_lines_are_in_the_names_of_what_masks_are_made_of() -> None:
    torch.manual_seed(4)
    names = routing_names(NAMED, {90: 4, 91: 12}, "64 x 4 x 12")
    assert names == ("expert", "place", "weight", "self.n", "room")
    there = ProductForm("routed", frozenset(), 0, 0, 0, "64 x 4 x 12", "2", sums_tokens=True)
    back = ProductForm("routed", frozenset(), 0, 0, 0, "64 x 4 x 12", "2")
    code = moved_rows([(NAMED[94], there), (NAMED[96], back)], names, ["buf = buf.tanh()"])
    weight, expert = torch.randn(64, 4).softmax(-1).topk(2)
    rows = F.one_hot(expert.T.flatten(), 4)
    place = ((rows.cumsum(0) * rows).sum(-1) - 1).view(2, 64).T.int()
    assert (place >= 12).any()
    given = {
        "torch": torch,
        "F": F,
        "x": torch.randn(64, 8),
        "self": SimpleNamespace(n=4),
        "room": 12,
        "expert": expert,
    }
    results = []
    for lines in ("\n".join([*[*NAMED.values()][:-1], "buf = buf.tanh()", NAMED[96]]), code):
        scope: dict[str, Any] = {**given, "place": place, "weight": weight}
        exec(lines, scope)
        results.append(scope["out"])
    torch.testing.assert_close(*results)


def choices(program: Lined, step: int, *, function: str) -> None:
    """As ``layer``, with a mask of both choices that lines of a ``function`` make by a product; the experts' line stands between."""
    at, both = 1000 * step + 10, "[4096, 2, 16], [4096, 2, 1]"
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[4096, 512], [512, 512]", 2000)
        with program.line(90, function):
            operator(program, "arange", at + 1, [-1], "[]", 1, MULTIPLIES)
            operator(program, "eq", at + 2, [-1, at + 1], "[4096, 2, 1], [16]", 2, MULTIPLIES)
            operator(program, "mul", at + 3, [at + 2, -1], both, 2, MULTIPLIES)
        with program.line(91, function):
            operator(program, "arange", at + 4, [-1], "[]", 1, MULTIPLIES)
            operator(program, "eq", at + 5, [-1, at + 4], "[4096, 2, 1], [320]", 10, MULTIPLIES)
            operator(program, "to", at + 6, [at + 5, -1], "[4096, 2, 320], []", 10, MULTIPLIES)
        with program.line(92, function):
            operator(program, "transpose", at + 7, [at + 3, -1, -1], "[4096, 2, 16], [], []")
            operator(program, "bmm", at + 8, [at + 7, at + 6], "[4096, 16, 2], [4096, 2, 320]", 200)
        with program.line(93, function):
            operator(program, "gt", at + 9, [at + 8, -1], f"{MASK}, []", 100, MULTIPLIES)
        operator(program, "flatten", at + 10, [at + 9, -1, -1], f"{MASK}, [], []")
        operator(program, "t", at + 11, [at + 10], "[4096, 5120]")
        with program.line(94, "forward"):
            operator(program, "mm", at + 12, [at + 11, at], "[5120, 4096], [4096, 512]", 600)
        with program.line(95, "forward"):
            operator(program, "linear", at + 13, [at + 12, -1], "[5120, 512], [512, 512]", 500)
        operator(program, "flatten", at + 14, [at + 8, -1, -1], f"{MASK}, [], []")
        with program.line(96, "forward"):
            operator(program, "mm", at + 15, [at + 14, at + 13], "[4096, 5120], [5120, 512]", 600)
    operator(program, "mul", at + 16, [at + 15, -1], "[4096, 512], []", 20)
    program.sync()


@pytest.mark.parametrize("function", ["forward", "gate"])
def test_names_are_those_of_the_function_that_multiplies(function: str, tmp_path: Path) -> None:
    program = Lined(NAMED | {95: "buf = self.experts(buf)"}).run(
        lambda program, n: choices(program, n, function=function)
    )
    (finding,) = (f for f in program.found(tmp_path, "NSX131") if "rows-to-slots" in [way.name for way in f.remedies])
    lines = finding.paste.splitlines()
    if function == "forward":
        assert lines[0] == "keep = (place >= 0) & (place < room)" and "expert * room + place" in lines[1]
        assert (
            lines[4] == "buf = self.experts(buf)"
            and lines[-1] == "out = (out * weight.to(out.dtype)[..., None]).sum(-2)"
        )
    else:
        assert "choice * places + place" in lines[1] and "choice, place and gate" in finding.condition


@pytest.mark.parametrize(
    ("lines", "classes", "mask"),
    [
        ({91: "to_place = F.one_hot(place, room)"}, {90: 4, 91: 12}, "64 x 4 x 12"),  # which are kept is not known
        ({93: "dispatch = (combine * keep[:, None, None] > 0).to(x.dtype)"}, {90: 4, 91: 12}, "64 x 4 x 12"),
        ({95: "place = place.clamp(max=room - 1)"}, {90: 4, 91: 12}, "64 x 4 x 12"),  # no longer what it was
        ({}, {90: 4, 91: 4}, "64 x 4 x 4"),
        ({}, {90: 4}, "64 x 4 x 12"),
        ({}, {90: 4, 91: 12}, "2 x 32 x 4 x 12"),
        ({91: "to_place = (place[..., None] == torch.arange(1, room + 1)).to(x.dtype)"}, {90: 4, 91: 12}, "64 x 4 x 12"),
    ],
)  # fmt: skip
def test_names_that_lines_do_not_tell_are_not_taken(lines: dict[int, str], classes: dict[int, int], mask: str) -> None:
    assert routing_names(NAMED | lines, classes, mask) is None
