"""Loops over parameters, by the texts of their lines."""

from __future__ import annotations

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


def test_a_loop_whose_lines_are_not_seen_is_a_common_one() -> None:
    assert parameters_around({"7": "dist.all_reduce(sq)"}, 7) == ParameterLoop()
    none = {**LINES, "6": "if w.grad is not None:"}  # no word of what is split
    loop = parameters_around(none, 7)
    assert loop.split == "" and "whole" not in _norms(9, "", "", loop, gradients=True).paste
