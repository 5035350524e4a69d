"""Names explain themselves: each class and each file has a name of its own, and no helper is called after a bare participle."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "nsysx"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Verbs that say of no helper what it returns or does.
BARE = frozenset({"of", "told", "said", "given", "known"})

#: Names that Python or a protocol gives.
SHARED = frozenset({"__init__.py", "__main__.py"})


def definitions(path: Path, kind: type | tuple[type, ...]) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kind)]


def homes(names: list[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the names that stand in more than one place, with these."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in names:
        found[name].append(path.relative_to(PACKAGE).as_posix())
    return {name: places for name, places in found.items() if len(places) > 1}


def test_each_class_has_a_name_of_its_own() -> None:
    classes = [(name, path) for path in FILES for name in definitions(path, ast.ClassDef)]
    assert len(classes) > 300
    assert homes(classes) == {}


def test_each_file_has_a_name_of_its_own() -> None:
    assert homes([(path.name, path) for path in FILES if path.name not in SHARED]) == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_helper_is_called_after_a_bare_verb(path: Path) -> None:
    functions = definitions(path, (ast.FunctionDef, ast.AsyncFunctionDef))
    assert [name for name in functions if name.strip("_") in BARE] == []


def test_what_stands_twice_is_found(tmp_path: Path) -> None:
    assert homes([("Part", PACKAGE / "a.py"), ("Part", PACKAGE / "b.py"), ("Whole", PACKAGE / "a.py")]) == {
        "Part": ["a.py", "b.py"]
    }
    source = tmp_path / "a.py"
    source.write_text("class A:\n    class B: ...\n    def of(self): ...\n", encoding="utf-8")
    assert definitions(source, ast.ClassDef) == ["A", "B"]
    assert definitions(source, ast.FunctionDef) == ["of"]


def test_the_guide_names_classes_that_are_there() -> None:
    """A guide that names a class by an old name leads a newcomer nowhere."""
    guide = (PACKAGE.parent / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {name.partition(".")[0] for name in re.findall(r"`([A-Z][a-z]+[A-Za-z]*(?:\.[a-z_]+)?)`", guide)}
    defined = {name for path in FILES for name in definitions(path, ast.ClassDef)}
    assert len(named) > 5 and named - defined == set()


def names_in(source: str) -> set[str]:
    """Return what code gives a name to or asks by a name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "attr", "name", "arg"):
            names |= {value} if isinstance(value := getattr(node, field, None), str) else set()
    return names


def test_what_stands_in_backticks_is_there() -> None:
    """`So` docstrings and comments point to what the package has: a file, class, function or number by its name of today."""
    sources = {path: path.read_text(encoding="utf-8") for path in FILES}
    there = {path.stem for path in FILES}.union(*map(names_in, sources.values()))
    pointed = {
        path.relative_to(PACKAGE).as_posix(): set(re.findall(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)`(?!`)", source))
        for path, source in sources.items()
    }
    assert sum(map(len, pointed.values())) > 100
    lost = {path: sorted(n for n in named if n.rpartition(".")[2] not in there) for path, named in pointed.items()}
    assert {path: named for path, named in lost.items() if named} == {}
