"""Statements that fill all parts of all rows by a mask: they run, and fill what the loop fills."""

from __future__ import annotations

import pytest
import torch

from nsysx.findings._fill_pastes import masked

LOOP = """\
        for i in range(b):
            for j in range(parts):
                width = int(fw[i, j])
                start = int(fs[i, j] * (m - width))
                feats[i, :, start:start + width] = 0
            for j in range(parts):
                width = int(tw[i, j])
                start = int(ts[i, j] * (lengths[i] - width))
                feats[i, start:start + width] = 0.5
        return feats"""


def source(code: str) -> dict[str, object]:
    return {str(number): text for number, text in enumerate(code.splitlines(), 50)}


@pytest.mark.parametrize("line", [52, 57])
def test_the_same_parts(line: int) -> None:
    torch.manual_seed(1)
    names = {
        "torch": torch, "b": 4, "m": 9, "parts": 2, "lengths": torch.tensor([20, 15, 12, 18]), "fw": torch.randint(0, 4, (4, 2)),
        "fs": torch.rand(4, 2), "tw": torch.randint(0, 6, (4, 2)), "ts": torch.rand(4, 2),
    }  # fmt: skip
    one_by_one, at_once = torch.rand(4, 20, 9), torch.empty(0)
    at_once = one_by_one.clone()
    exec(
        LOOP.replace("        for i", "for i", 1).partition("        return")[0].replace("\n        ", "\n"),
        {**names, "feats": one_by_one},
    )
    exec(masked(source(LOOP), line), {**names, "feats": at_once})
    assert torch.equal(one_by_one, at_once)


@pytest.mark.parametrize(
    "code",
    [
        LOOP.replace("for i in range(b)", "for i, x in enumerate(rows)"),
        LOOP.replace("] = 0.5", "] += 0.5"),
        LOOP.replace("int(tw[i, j])", "random.randint(0, 5)"),
        LOOP.replace("lengths[i]", "lengths[i + 1]"),
        LOOP.replace("for j in range(parts)", "while True"),
        LOOP.replace("                ", "            "),
        "\n".join(line.strip() for line in LOOP.splitlines()),  # as recordings of old have no indents
    ],
)
def test_other_loops_are_left_to_the_program(code: str) -> None:
    assert masked(source(code), 57) == ""
