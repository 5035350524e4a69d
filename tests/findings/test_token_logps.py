"""NSX131: the paste for log-probabilities of one token each, of lines as programs write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings._token_logps import picked_of_logits

LINES = {
    "over a temperature": [
        "logp = torch.log_softmax(logits.float() / temp, dim=-1)",
        "picked = logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1)",
        "loss = -(picked * mask).sum() / mask.sum()",
    ],
    "a method": [
        "logp = logits.log_softmax(-1)",
        "picked = torch.gather(logp, 2, actions.long().unsqueeze(2)).squeeze(2)",
    ],
    "on one line": ["picked = F.log_softmax(logits, -1).gather(dim=-1, index=batch.actions.unsqueeze(-1)).squeeze(-1)"],
}


@pytest.mark.parametrize("kind", LINES)
def test_the_paste_gives_the_same_with_the_same_gradients(kind: str) -> None:
    torch.manual_seed(0)
    leaf = torch.randn(2, 5, 11, requires_grad=True)
    actions = torch.randint(0, 11, (2, 5))
    names: dict[str, Any] = {
        "torch": SimpleNamespace(**{n: getattr(torch, n) for n in ("log_softmax", "gather", "logsumexp")}, compile=lambda f: f), "F": F,
        "logits": leaf, "temp": 0.7, "actions": actions, "batch": SimpleNamespace(actions=actions), "mask": torch.ones(2, 5),
    }  # fmt: skip
    exec("\n".join(LINES[kind]), names)
    wanted = names.pop("picked")
    exec(picked_of_logits(LINES[kind]), names)
    torch.testing.assert_close(names["picked"], wanted)
    (one,), (other,) = (torch.autograd.grad(made.square().sum(), leaf) for made in (names["picked"], wanted))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "lines",
    [
        ["loss = -(target * F.log_softmax(logits, -1)).sum(-1).mean()"],
        ["logp = logits.log_softmax(-1)", "kl = (logp.exp() * (logp - other)).sum(-1)"],
        ["rows = x.gather(1, index)"],
        ["logp = torch.log_softmax(", "picked = logp.gather(-1, a.unsqueeze(-1))"],
        ["logp = logits.log_softmax(-1)", "best = logp.gather(-1, logp.topk(4)[1])"],
    ],
    ids=["of classes", "of all", "no softmax", "a part of a line", "several of each"],
)
def test_lines_that_read_all_of_it(lines: list[str]) -> None:
    assert not picked_of_logits(lines)
