"""Linear recurrences over time that a loop computes element by element (advantages, returns): a scan of the program's own lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsysx.findings._scanned_loops import scanned
from tests.findings.recorded_programs import launched_slowly, recorded

STEPS, ROWS = 37, 5
TURNED = "for t in reversed(range(steps)):"
#: The head of a loop, its body, what is before it, and its result.
SCANNED = [
    (
        TURNED,
        ["delta = r[t] + gamma * v[t + 1] * (1 - d[t]) - v[t]", "last = delta + gamma * lam * (1 - d[t]) * last", "out[t] = last"],
        "out, last = torch.zeros_like(r), torch.zeros(5)",
    ),
    (
        "for t in range(steps - 1, -1, -1):",
        ["mask = 1.0 - d[t]", "delta = r[t] + gamma * v[t + 1] * mask - v[t]", "last = delta + lam * mask * last", "out.insert(0, last)"],
        "out, last = [], torch.ones(5)",
    ),
    (TURNED, ["delta = r[t] - v[t]", "out[t] = last = delta + lam * d[t] * last"], "out, last = torch.zeros_like(r), 0"),
    (
        "for x, end, value in zip(r.flip(0), d.flip(0), v[:-1].flip(0)):",
        ["a = x + gamma * (1 - end) * a", "out.append(a - value)"],
        "out, a = [], torch.zeros(5)",
    ),
    ("for t in range(steps):", ["h = torch.sigmoid(d[t]) * h - (r[t] - v[t])", "out.append(h)"], "out, h = [], torch.ones(5)"),
]  # fmt: skip


def run(code: str, before: str) -> Any:
    torch.manual_seed(3)
    names = {
        "torch": torch,
        "steps": STEPS,
        "gamma": 0.99,
        "lam": 0.95,
        "r": torch.randn(STEPS, ROWS),
        "v": torch.randn(STEPS + 1, ROWS),
    }
    names["d"] = (torch.rand(STEPS, ROWS) < 0.1).float()
    exec(f"{before}\n{code}", names)
    out = names["out"]
    return torch.stack(out) if isinstance(out, list) else out


@pytest.mark.parametrize(("head", "body", "before"), SCANNED)
def test_the_pasted_scan_makes_the_same(head: str, body: list[str], before: str) -> None:
    paste = scanned(head, body)
    assert paste
    assert torch.allclose(run("\n    ".join([head, *body]), before), run(paste, before), atol=1e-5)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        # What it is multiplied with depends on it: conjugate gradients, a policy.
        (
            "for k in range(200):",
            [
                "q = A @ p",
                "alpha = rs / (p * q).sum()",
                "r = r - alpha * q",
                "new = (r * r).sum()",
                "p = r + new / rs * p",
                "rs = new",
            ],
        ),
        ("for t in range(steps):", ["a = policy(obs)", "obs = obs * a + noise[t]"]),
        ("for t in range(steps):", ["h = x[t] + w[t] * h * (1 - h)"]),
        ("for t in range(steps):", ["h = torch.tanh(x[t] + h * w)"]),
        ("for t in range(steps):", ["total = total + part[t]"]),  # a sum
        ("for p, e in zip(parameters, averages):", ["e = e * 0.9 + p"]),  # another tensor in each round
        ("for _ in range(10):", ["x = x * 0.5 + c"]),  # the same in each round
        ("for layer in layers:", ["y = layer(x)", "x = x * 0.5 + y"]),
        ("while going:", ["h = h * a[t] + b[t]"]),
        ("for t in range(steps):", ["h = h * a[t] + ("]),
    ],
)
def test_rounds_that_need_more_of_each_other_are_no_scan(head: str, body: list[str]) -> None:
    assert scanned(head, body) is None


@pytest.mark.parametrize(
    "body",
    [
        ["delta = r[t] + gamma * after * d[t]", "h = delta + lam * d[t] * h", "after = v[t]", "out[t] = h"],
        ["h = x[:, t] + lam * d[t] * h"],
        ["delta = head(x[t])", "h = delta + lam * d[t] * h"],
        ["h = r[t] / (t + 1) + lam * d[t] * h"],
        ["if t == 3:", "    n = r[t]", "delta = r[t]", "h = delta + lam * d[t] * h"],
        ["delta = r[t]", "h = delta + lam * d[t] * h", "writer.add(h)"],
    ],
)
def test_lines_that_do_not_run_for_all_as_they_stand_get_no_code_of_their_own(body: list[str]) -> None:
    assert scanned(TURNED, body) == ""


NET = nn.Linear(8, 1)
REWARD, VALUE, DONE, STATE = torch.randn(32, 8), torch.randn(33, 8), torch.zeros(32, 8), torch.randn(256, 8)


def advantages(gamma: float = 0.99) -> Tensor:
    out, last = torch.zeros_like(REWARD), torch.zeros(8)
    for t in reversed(range(32)):
        delta = REWARD[t] + gamma * VALUE[t + 1] * (1 - DONE[t]) - VALUE[t]
        last = delta + gamma * (1 - DONE[t]) * last
        out[t] = last
    return out


def relaxed() -> Tensor:
    """Each round needs the result of the one before it by a function: no scan."""
    h = torch.zeros(8)
    for t in range(32):
        h = torch.tanh(REWARD[t] + h * VALUE[t])
        h = h * (1 - DONE[t])
    return h


@pytest.mark.parametrize(("made", "scan"), [(advantages, True), (relaxed, False)])
def test_a_loop_over_time_is_told_once_with_all_its_lines(
    made: Callable[[], Tensor], scan: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched_slowly(monkeypatch, most_us=2)

    def step() -> None:
        with torch.no_grad():
            weight = made()
        (NET(STATE) * weight.flatten()[:, None].sum()).mean().backward()

    summary = recorded(step, NET, __file__, tmp_path).summary(tmp_path)
    assert summary.answer is not None
    do = summary.answer.do[0]
    found = [f for f in summary.findings or () if [way.name for way in f.remedies] == ["scan-at-once"]]
    assert bool(found) == scan
    if scan:
        assert (
            (do.code, do.paste) == ("NSX123", found[0].paste)
            and len(found) == 1
            and "2 lines beside it" in found[0].title
        )
        assert do.paste.startswith("t = torch.arange(32, device=VALUE.device).flip(0)\ndelta = REWARD[t]")
        assert (found[0].saving_ns_per_step or 0) > 0.5 * (summary.step.shown_ns or 0)
        names: dict[str, Any] = {**globals(), "gamma": 0.99, "last": torch.zeros(8), "out": torch.zeros(32, 8)}
        exec(do.paste, names)
        assert torch.allclose(names["out"], advantages(), atol=1e-5)
