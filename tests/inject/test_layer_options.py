"""The probe's options of a program's own layers: which line runs by one, and the statements that make such layers."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from nsysx.inject.nsysx_probe.layer_options import layer_options
from nsysx.inject.nsysx_probe.sources import Sources

LAYER = """
class Row(nn.Module):
    def __init__(self, inner, outer, reduce=True, *, cut=False):
        super().__init__()
        self.reduce, self.width = reduce, outer
        self.cut: bool = cut


    def forward(self, x):
        x = self.part(x) if not self.cut else x
        if self.reduce:
            return add_up(x)
        return x
"""
REDUCES, CUTS = 12, 10


def made(line: int, *statements: str) -> list[tuple[str, bool, int, str]]:
    """Return option, its value, line and changed statement of what makes layers that run a line."""
    body = textwrap.indent("\n".join(("def build(c):", *(f"    {each}" for each in statements))), "")
    options = layer_options({"layers.py": LAYER, "model.py": body}, {"layers.py": {line}})
    assert all(each.file == "layers.py" and each.made_file == "model.py" for each in options)
    return [(each.option, each.when, each.made_line, each.changed) for each in options]


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("self.o = Row(c.a, c.b)", "self.o = Row(c.a, c.b, reduce=False)"),
        ("self.o = layers.Row(4 * c.a, c.b, reduce=True)", "self.o = layers.Row(4 * c.a, c.b, reduce=False)"),
        ("self.o = Row(c.a, c.b, True)  # adds up", "self.o = Row(c.a, c.b, False)"),
        ("self.o = [Row(c.ä, c.b) for _ in 'ab']", "self.o = [Row(c.ä, c.b, reduce=False) for _ in 'ab']"),
        ("self.o = Row(\n    c.a,\n    c.b,\n)", "self.o = Row(c.a, c.b, reduce=False)"),
        ("self.o = Row(c.a, c.b,)", "self.o = Row(c.a, c.b, reduce=False)"),
    ],
)
def test_the_option_is_changed_where_the_layer_is_made(statement: str, changed: str) -> None:
    assert made(REDUCES, statement) == [("reduce", True, 2, changed)]


def test_a_layer_may_do_it_where_the_option_is_off() -> None:
    assert made(CUTS, "self.o = Row(c.a, c.b)") == [("cut", False, 2, "self.o = Row(c.a, c.b, cut=True)")]


@pytest.mark.parametrize(
    "statement",
    [
        "self.o = Row(c.a, c.b, reduce=False)",  # does not add up
        "self.o = Row(c.a, c.b, reduce=c.reduce)",  # not known
        "self.o = Row(**c.options)",
        "self.o = Row(*sizes)",
        "self.o = Rows(c.a, c.b)",
    ],
)
def test_layers_that_do_not_run_the_line_stay(statement: str) -> None:
    assert made(REDUCES, statement) == []


def test_only_lines_that_ran_are_told(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{LAYER}\nlayer = Row(2, 3)\n")
    sources = Sources(None, {"NSYSX_SOURCE": str(file)})
    sources._began = float("inf")
    assert sources.options_of_layers() == []
    sources.seen(str(file), REDUCES, package=False)
    (told,) = sources.options_of_layers()
    assert (told["line"], told["made_line"], told["changed"]) == (REDUCES, 15, "layer = Row(2, 3, reduce=False)")
    sources = Sources(None, {"NSYSX_NO_SOURCE": "1"})
    sources.seen(str(file), REDUCES, package=False)
    assert sources.options_of_layers() == []


def test_what_is_no_python_has_no_options() -> None:
    assert layer_options({"a.py": "if self.reduce: ("}, {"a.py": {1}}) == []
