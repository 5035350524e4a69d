"""A hand-written loop over micro-batches as two: all forwards, then all backwards."""

from __future__ import annotations

import pytest

from nsysx.findings._loops_of_stages import two_loops

FIRST = """for part in batch.split(4):
y = net(part)
dist.send(y.detach(), 1)
g = torch.empty_like(y)
dist.recv(g, src=1)
y.backward(g)
opt.step()"""
MIDDLE = """for _ in range(n):
h = buffer()
dist.recv(h, 0)
h.requires_grad_()
y = net(h)
dist.send(y.detach(), 2)
g = torch.empty_like(y)
dist.recv(g, 2)
y.backward(g)
dist.send(h.grad, 0)
return"""
LAST = """for t in targets.split(4):
h = buffer()
dist.recv(h, 0)
h.requires_grad_()
loss = loss_fn(net(h), t)
loss.backward()
dist.send(h.grad, 0)
seen += 1"""


def lines(text: str, first: int = 7) -> dict[str, str]:
    return {str(first + i): line for i, line in enumerate(text.splitlines())}


@pytest.mark.parametrize(
    ("text", "kept", "backward"),
    [
        (FIRST, "y", ["g = torch.empty_like(y)", "dist.recv(g, src=1)", "y.backward(g)"]),
        (MIDDLE, "h, y", ["g = torch.empty_like(y)", "dist.recv(g, 2)", "y.backward(g)", "dist.send(h.grad, 0)"]),
        (LAST, "h, loss", ["loss.backward()", "dist.send(h.grad, 0)"]),
    ],
)
def test_what_a_backward_needs_is_kept_for_each_micro_batch(text: str, kept: str, backward: list[str]) -> None:
    loop, *forward = text[: text.index(backward[0])].strip().splitlines()
    kept_text = kept if ", " not in kept else f"({kept})"
    assert two_loops(lines(text)).splitlines() == [
        "in_flight = []",
        loop,
        *(f"    {line}" for line in forward),
        f"    in_flight.append({kept_text})",
        f"for {kept} in in_flight:",
        *(f"    {line}" for line in backward),
    ]


@pytest.mark.parametrize(
    "text",
    [
        FIRST.replace("dist.send(y.detach(), 1)", "log(y)").replace("dist.recv(g, src=1)", "g.fill_(1)"),  # no stages
        FIRST.replace("y = net(part)", "with autocast():"),  # the lines do not tell what is in the block
        FIRST.replace("y = net(part)", "y = net("),
        "for y in kept:\ng = torch.empty_like(y)\ndist.recv(g, 1)\ny.backward(g)",  # a loop of backwards
    ],
)
def test_other_loops_are_left_alone(text: str) -> None:
    assert not two_loops(lines(text))
