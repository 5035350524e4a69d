"""Loops over parameters, by the texts of their lines."""

from __future__ import annotations

import pytest

from nsysx.findings._norm_loops import ParameterLoop, parameters_around
from nsysx.findings._values_of_ranks import _norms

LINES = {
    "4": "for n, w in net.named_parameters():",
    "5": "sq = torch.linalg.vector_norm(w.grad, dtype=torch.float32).square()",
    "6": "if w.is_split:",
    "7": "dist.all_reduce(sq, group=tp)",
    "9": "coef = cfg.clip / (norm + 1e-6)",
}


def test_norms_are_of_the_programs_loop_and_what_each_rank_has_whole_counts_once() -> None:
    loop = parameters_around(LINES, 7)
    assert loop == ParameterLoop("for n, w in net.named_parameters()", "w", "w.is_split", "cfg.clip")
    fix = _norms(146, "", "\n".join(LINES.values()), loop, gradients=True)
    lines = fix.paste.splitlines()
    assert lines[0].startswith("grads = [w.grad for n, w in net.named_parameters() if w.is_split]")
    assert lines[2] == "square = torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).square().sum()"
    assert lines[3] == "dist.all_reduce(square, group=tp)" and "whole" in lines[4]
    assert "clip_grad_norm_ does not" in fix.text
    assert (
        "of DTensors torch.nn.utils.clip_grad_norm_ does so" in _norms(9, ".to_local()", "", loop, gradients=True).text
    )


@pytest.mark.parametrize(
    "root", ["whole = total**0.5", "whole = math.sqrt(total)", "whole = total.sqrt()", "whole = total ** (1 / 2)"]
)
def test_the_norm_is_called_as_behind_the_loop(root: str) -> None:
    loop = parameters_around({**LINES, "8": root}, 7)
    paste = _norms(146, "", "\n".join(LINES.values()), loop, gradients=True).paste
    assert loop.whole == "whole" and "\nwhole = square.sqrt()" in paste and "(cfg.clip / (whole + 1e-6))" in paste


def test_a_loop_whose_lines_are_not_seen_is_a_common_one() -> None:
    assert parameters_around({"7": "dist.all_reduce(sq)"}, 7) == ParameterLoop()
    none = {**LINES, "6": "if w.grad is not None:"}  # no word of what is split
    loop = parameters_around(none, 7)
    assert loop.split == "" and "whole" not in _norms(9, "", "", loop, gradients=True).paste
