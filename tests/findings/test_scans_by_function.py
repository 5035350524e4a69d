"""Linear recurrences that a helper runs with a function that it is given: the code that takes the place of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsysx.findings._scans_by_function import HelperRounds, carries_on, given_function, is_recurrence, scanned_call
from tests.findings.recorded_programs import launched_slowly, recorded

STEPS = 37
BODY = ["    last = fn(last, *(x[i] for x in inputs))", "    outputs.append(last)"]
EITHER = "for i in reversed(steps) if reverse else steps:"
TURNED, FORWARD = "for i in reversed(range(inputs[0].shape[0])):", "for i in range(len(inputs[0])):"
STACKED = "return torch.stack(outputs)"
TURNS = ["if reverse:", "    outputs.reverse()", STACKED]


def helper(header: str, behind: Sequence[str]) -> Callable[..., Tensor]:
    code = ["def scan(fn, inputs, last, reverse=False):", "    outputs, steps = [], range(inputs[0].shape[0])"]
    code += [f"    {each}" for each in (header, *BODY, *behind)]
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join(code), names)
    return names["scan"]  # type: ignore[no-any-return]


def made_by(code: str, scan: Callable[..., Tensor] | None) -> Tensor:
    torch.manual_seed(3)
    names = {
        "torch": torch,
        "scan": scan,
        "lam": 0.95,
        "r": torch.randn(STEPS, 5),
        "d": torch.rand(STEPS, 5),
        "h": torch.randn(5),
    }
    exec(code, names)
    return names["out"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "header", "behind"),
    [
        ("out = scan(lambda agg, x, c: x + c * lam * agg, (r, d), h, reverse=True)", EITHER, TURNS),
        ("out = scan(lambda agg, x, c: x + c * lam * agg, (r, d), h, reverse=False)", EITHER, [STACKED]),
        ("out = scan(lambda s, x: lam * s + (1 - lam) * x.abs(), [r * d], h)", FORWARD, [STACKED]),
        ("out = scan(lambda s, x, c: x + s * c, (r, d), h)", TURNED, ["return torch.stack(outputs[::-1], dim=0)"]),
    ],
)  # fmt: skip
def test_the_code_makes_the_same(text: str, header: str, behind: list[str]) -> None:
    given = given_function(text)
    assert given is not None
    code = scanned_call(given, HelperRounds(header, BODY, behind))
    assert torch.allclose(made_by(text, helper(header, behind)), made_by(code, None), atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "out = scan(lambda h, x: torch.tanh(x + h * w), (r,), h)",
        "out = scan(lambda h, x: h + x, (r,), h)",  # a sum
        "out = scan(lambda h, x: h * 0.5 + c, (r,), h)",  # the same in each round
        "out = scan(lambda h, x: cell(x) * h * h + x, (r,), h)",
    ],
)
def test_other_functions_are_no_recurrence(text: str) -> None:
    given = given_function(text)
    assert given is not None and not is_recurrence(given)


def test_what_needs_all_elements_has_no_code() -> None:
    given = given_function("out = scan(lambda s, x: x.exp() - d.mean() + s * lam, (r,), h)")
    assert (
        given is not None and is_recurrence(given) and scanned_call(given, HelperRounds(FORWARD, BODY, [STACKED])) == ""
    )


@pytest.mark.parametrize(
    ("header", "body", "behind"),
    [
        (EITHER, BODY, [STACKED]),  # results in the order of the rounds
        ("for i in order:", BODY, TURNS),
        (FORWARD, [*BODY, "    seen += 1"], [STACKED]),
        (FORWARD, ["    outputs.append(last)", BODY[0]], [STACKED]),  # what is before each
        (FORWARD, BODY, ["return last"]),
    ],
)
def test_other_helpers_have_no_code(header: str, body: list[str], behind: list[str]) -> None:
    given = given_function("out = scan(lambda s, x: lam * s + x, (r,), h, reverse=True)")
    assert given is not None and scanned_call(given, HelperRounds(header, body, behind)) == ""


def test_lines_that_carry_a_value_on() -> None:
    assert carries_on("    carry = step(carry, xs[t])") == "carry"
    assert all(carries_on(text) is None for text in ("x = layer(y)", "x = self.cell(x)", "x, y = f(x, y)", "f(x)"))


NET = nn.Linear(8, 1)
REWARD, NEXT, START, STATE = torch.randn(32, 8), torch.rand(32, 8), torch.zeros(8), torch.randn(256, 8)


def rounds(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...], last: Tensor, reverse: bool) -> Tensor:
    outputs, indices = list[Tensor](), range(inputs[0].shape[0])
    for i in reversed(indices) if reverse else indices:
        last = fn(last, *(x[i] for x in inputs))
        outputs.append(last)
    if reverse:
        outputs.reverse()
    return torch.stack(outputs)


def returns(lam: float = 0.95) -> Tensor:
    return rounds(lambda agg, cur, cont: cur + cont * lam * agg, (REWARD, NEXT), START, reverse=True)


def squashed() -> Tensor:
    """Each round needs a function of the one before: no scan."""
    return rounds(lambda h, cur, cont: torch.tanh(cur + h) * cont, (REWARD, NEXT), START, reverse=True)


@pytest.mark.parametrize(("made", "scan"), [(returns, True), (squashed, False)])
def test_the_call_and_the_lines_of_the_helper_are_told_once(
    made: Callable[[], Tensor], scan: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched_slowly(monkeypatch, most_us=2)

    def step() -> None:
        with torch.no_grad():
            weight = made()
        (NET(STATE) * weight.flatten()[:, None].sum()).mean().backward()

    found = recorded(step, NET, __file__, tmp_path).found(tmp_path, "NSX123")
    told = [f for f in found if [way.name for way in f.remedies] == ["scan-at-once"]]
    assert len(told) == scan
    if scan:
        assert "rounds(lambda agg" in told[0].title and "1 line beside it" in told[0].title
        names: dict[str, Any] = {**globals(), "lam": 0.95}
        exec(told[0].paste.replace("return ", "result = "), names)
        assert torch.allclose(names["result"], returns(), atol=1e-5)
        assert not [f for f in found if f is not told[0] and "rounds" in f.title]
