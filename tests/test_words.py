"""The words of the source: what no output may say is in no text of it, also where no sample shows that text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nsysx
from tests.render.test_words import RETIRED

#: Texts of the source that hold a retired term and are no sentence: the value of a column.
NO_SENTENCES = ("step, ledger, idle, module_compute, family_compute, phase, module, family, kernel, api or wait",)


def texts_of_the_source(source: str) -> Iterator[str]:
    """Yield the texts of a file that may be shown: of more than one word, and no docstring; {} stands for what is filled in."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield text


def test_no_text_of_the_source_has_a_retired_term() -> None:
    """Most of them are in no output of a sample: what is said where a rule finds nothing, of kinds of programs, of errors."""
    paths = sorted(Path(nsysx.__file__).parent.rglob("*.py"))
    texts = {(path.name, text) for path in paths for text in texts_of_the_source(path.read_text(encoding="utf-8"))}
    assert len(texts) > 5_000
    bad = {(*of, term) for of in texts for pattern, term in RETIRED.items() if re.search(pattern, of[1])}
    assert {b for b in bad if b[1] not in NO_SENTENCES} == set()
    found = list(
        texts_of_the_source(
            'def f(n):\n    """Pauses between kernels."""\n    return f"pauses between kernels take {n}"\n'
        )
    )
    assert found[0] == "pauses between kernels take {}" and not any("Pauses" in text for text in found)
