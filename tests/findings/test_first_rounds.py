"""Recurrences whose first round takes its values from elsewhere, as advantages do behind the last time step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nsysx.findings._first_rounds import with_else
from nsysx.findings._scanned_loops import scan_of_lines

LOOP = {
    "30": "    for k in reversed(range(rounds)):",
    "31": "        if k == rounds - 1:",
    "32": '            alive = 1.0 - more["over"]',
    "33": "            follows = last_value",
    "35": "            alive = 1.0 - over[k + 1]",
    "36": "            follows = base[k + 1]",
    "37": "        delta = gains[k] + 0.9 * follows * alive - base[k]",
    "38": "        out[k] = kept = delta + 0.8 * alive * kept",
}
FORWARD = {
    **LOOP,
    "30": "    for k in range(rounds):",
    "31": "        if k == 0:",
    "35": "            alive = 1.0 - over[k - 1]",
    "36": "            follows = base[k - 1]",
}


def result(code: str) -> torch.Tensor:
    torch.manual_seed(1)
    names: dict[str, Any] = {"torch": torch, "gains": torch.randn(37, 5), "base": torch.randn(37, 5), "rounds": 37}
    names |= {"over": (torch.rand(37, 5) < 0.1).float(), "more": {"over": (torch.rand(5) < 0.5).float()}}
    names |= {"last_value": torch.randn(5), "out": torch.zeros(37, 5), "kept": torch.zeros(5)}
    exec(code, names)
    out: torch.Tensor = names["out"]
    return out


def paste_of(lines: dict[str, str]) -> str | None:
    """Return the code to paste, None where the loop is no recurrence."""
    fix = scan_of_lines(lines, 38, (36, 37, 38))
    return None if fix is None else fix.ways[0].paste


@pytest.mark.parametrize("lines", [LOOP, FORWARD])
def test_the_scan_makes_what_the_loop_makes(lines: dict[str, str]) -> None:
    paste = paste_of(lines)
    assert paste is not None and "base" in paste and "if " not in paste
    whole = with_else(lines)
    loop = "\n".join(str(whole[n])[4:] for n in sorted(whole, key=int))
    assert "else:" in loop
    assert torch.allclose(result(loop), result(paste), atol=1e-4)


@pytest.mark.parametrize(
    "changed",
    [
        {"31": "        if k == 0:"},  # the last round
        {"31": "        if k > rounds - 1:"},
        {"30": "    for k in reversed(range(2, rounds)):"},
        {"35": "            alive = kept"},  # it needs the round before
        {"36": "            follows = last_value"},  # of no round
        {"32": "            alive = 1.0 - over[k]"},
        {"33": "            other = last_value"},  # the line between may be anything
        {"34": "            kept = torch.zeros_like(kept)"},
    ],
)
def test_other_conditions_have_no_paste_of_the_program(changed: dict[str, str]) -> None:
    assert "gains" not in (paste_of({**LOOP, **changed}) or "")


def test_a_line_is_no_else_where_the_blocks_give_other_names() -> None:
    assert with_else(LOOP)["34"] == "        else:"
    for changed in (
        {"33": "            other = last_value"},
        {"36": "            follows += base[k + 1]"},
        {"34": "            k = 1"},
    ):
        lines = {**LOOP, **changed}
        assert dict(with_else(lines)) == lines
