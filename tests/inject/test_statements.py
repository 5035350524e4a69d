"""Texts of lines with which something begins that goes on over further lines."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from nsysx_probe import statements
from nsysx_probe.statements import in_one_line, of_loop, without_comment

from nsysx.findings._line_remedies import Seen, fix_of

PROGRAM = """
import torch
import torch.distributed as dist
from torch.nn import functional as F

def step(x, y):
    with torch.autocast(
        "cuda",  # not for the router
        enabled=False,
    ):
        loss = F.cross_entropy(
            model(x).float().view(-1, 10),
            y.view(-1),
        )
    dist.all_reduce(
        loss,
        op=dist.ReduceOp.AVG,
    )
    logger.log(
        {
            "loss": loss.detach().item(),
            "n": self.count(x),
        }
    )
    for i, (a, b) in enumerate(
        tqdm(loader, disable=rank != 0)
    ):
        if (
            i % 10 == 0
            and rank == 0
        ):
            print(a)
    x = torch.stack([p.grad for p in net.parameters()]).norm(  # (
    )
    return x, y
"""
TOLD = {
    "with torch.autocast(": "with torch.autocast('cuda', enabled=False):",
    "loss = F.cross_entropy(": "loss = F.cross_entropy(..., y)",
    "dist.all_reduce(": "dist.all_reduce(loss, op=dist.ReduceOp.AVG)",
    "logger.log(": "logger.log({'loss': loss, 'n': ...})",
    "{": "{'loss': loss, 'n': ...}",
    "for i, (a, b) in enumerate(": "for i, (a, b) in enumerate(...):",
    "if (": "if i % 10 == 0 and rank == 0:",
    "x = torch.stack([p.grad for p in net.parameters()]).norm(  # (": (
        "x = torch.stack([p.grad for p in net.parameters()]).norm()"
    ),
}


def told(program: str) -> dict[str, str]:
    """Return the texts of all lines with one of their own: what stands there -> what is told."""
    lines = program.split("\n")
    return {lines[n - 1].strip(): text for n, text in in_one_line(lines, range(1, len(lines) + 3)).items()}


def test_what_goes_on_below_is_told_in_one_line_without_the_calls_of_other_lines() -> None:
    assert told(PROGRAM) == TOLD


def test_only_lines_that_are_asked_for() -> None:
    lines = PROGRAM.split("\n")
    number = lines.index("    dist.all_reduce(") + 1
    assert in_one_line(lines, {number, number + 1}) == {number: TOLD["dist.all_reduce("]}


@pytest.mark.parametrize("program", ["def step(:\n    x = f(\n", "x = (" + "(" * 3000, "x = f(\0\n)", "x = 1", ""])
def test_what_is_no_python_or_has_no_such_line_has_no_texts(program: str) -> None:
    assert told(program) == {}


def test_nothing_is_parsed_of_a_very_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MOST_PARSED_LETTERS", len(PROGRAM) - 100)
    assert told(PROGRAM) == {}


def test_definitions_and_blocks_are_told_without_what_is_in_them() -> None:
    program = "@wrapped(\n    1,\n)\ndef step(\n    x,\n):\n    try:\n        return f(\n            x\n        )\n"
    program += "    finally:\n        pass\n"
    assert told(program) == {"@wrapped(": "wrapped(1)", "return f(": "return f(x)"}


@pytest.mark.parametrize("module", [ast, sys.modules["argparse"], sys.modules["subprocess"]])
def test_lines_of_whole_modules_are_python_of_one_line(module: object) -> None:
    texts = told(Path(str(getattr(module, "__file__", ""))).read_text())
    assert len(texts) > 10 and not any("\n" in text for text in texts.values())


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        ("dist.all_reduce(\n    p.grad,\n    op=AVG,\n)", "gradients-in-buckets"),
        ("self.log(\n    'loss',\n    loss,\n    sync_dist=True,\n)", "logged-apart"),
        ("dist.broadcast(\n    images,\n    src=0,\n)", "own-part-of-data"),
        ("wandb.log(\n    {\n        'loss': loss.item(),\n    }\n)", "logged-rarely"),
    ],
)
def test_a_call_with_its_arguments_below_has_the_advice_of_one_in_a_line(program: str, remedy: str) -> None:
    fix = fix_of(Seen(in_one_line(program.split("\n"), {1})[1]))
    assert fix is not None and fix.ways[0].name == remedy


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("y = net(x)  # no .item() here", "y = net(x)"),
        ("y = net(  # all of it", "y = net("),
        ("print('# of steps', n)", "print('# of steps', n)"),
        ('sql = """# one', 'sql = """# one'),
        ("# nothing", ""),
        ("y = x", "y = x"),
    ],
)
def test_comments_are_no_code(line: str, code: str) -> None:
    assert without_comment(line) == code


LOOPED = """
for batch in batches:
    first = batch[0]
    for t in reversed(range(steps)):
        # from the end
        last = (
            gains[t] + last
        )
        if t:
            out[t] = last
    used(out)
"""


@pytest.mark.parametrize(
    ("number", "lines"), [(6, [4, 6, 9, 10]), (7, [4, 6, 9, 10]), (10, [4, 6, 9, 10]), (3, [2, 3, 4, 6, 9, 10, 11])]
)
def test_the_innermost_loop_around_a_line_is_its_head_and_its_statements(number: int, lines: list[int]) -> None:
    assert of_loop(LOOPED.split("\n"), number) == lines


@pytest.mark.parametrize(("program", "number"), [(LOOPED, 2), ("x = 1", 1), ("for x in (:\n    y", 2)])
def test_a_line_outside_of_all_loops_has_none(program: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_loop(program.split("\n"), number) == []
    monkeypatch.setattr(statements, "MOST_PARSED_LETTERS", 10)
    assert of_loop(LOOPED.split("\n"), 6) == []
