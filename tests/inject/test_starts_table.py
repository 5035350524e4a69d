"""Part of the table of programs and ways to start them; all of it: scripts/starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.light_torch import WITHOUT_META
from tests.starts import running
from tests.starts.cases import LAB, Case, table

#: Each of these once deviated, so they always run.
ALWAYS = (
    "one batch of a loader", "evaluation with gradients", "wgan", "cycle of two", "sam without state", "by hand", "no modules",
    "two networks", "zeroth order", "one network", "a thread", "draft", "find_spec first", "iterable loader",
    "profiler of torch", "module without init", "module that watches", "solver", "transform and metric",
)  # fmt: skip
QUICK = [c for c in table() if not c.slow and not c.command]
#: Exit codes and exceptions: test_probe_e2e.
FRESH = [
    "launcher with its own sitecustomize",
    "find_spec first",
    "environment",
    "ends by abort",
    "terminal",
    "files",
]
CASES = [
    c for i, c in enumerate(QUICK) if (i % 8 == 0 or any(word in c.name for word in ALWAYS)) and "many" not in c.name
]
# What they share imports torch alone.
LIGHT = {"lab.py": WITHOUT_META + LAB}
CASES += [replace(c, files={**LIGHT, **c.files}) for c in table() if c.name.removeprefix("ways: ") in FRESH]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[running.Bench]:
    bench = running.Bench(tmp_path_factory.mktemp("starts"))
    yield bench
    bench.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_is_the_same_under_the_probe(bench: running.Bench, case: Case) -> None:
    found = running.compare(bench, case)
    assert [d for d in found if d.kind != "seen"] == []  # a program that looks for the probe sees it, as documented


def test_the_table_is_large_and_every_difference_has_a_reason() -> None:
    assert len(table()) >= 150
    assert len(CASES) >= len(table()) // 8
    assert all(len(case.told[1]) > 10 for case in table() if case.told)


def _program(name: str, text: str) -> Case:
    return Case(name, "from lab import *\n" + text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import sys; print('nsysx_probe' in sys.modules)", "changed"),
        ("import sys; open('f', 'w').write(str('nsysx_probe' in sys.modules))", "changed"),
        ("import sys; sys.exit('nsysx_probe' in sys.modules)", "changed"),
        ("import sys\nx = []\nfor i in rounds(3000): x += [bytes(5000)] * ('nsysx_probe' in sys.modules) and [bytearray(5000)]", "changed"),
        ("import sys\nx = []\nfor i in rounds(60000): x += [bytes(60)] * ('nsysx_probe' in sys.modules)", "changed"),  # 100 bytes each
        ("own(5)", "lost"),
        ("own(5); net()(x())", "miscounted"),
    ],
)  # fmt: skip
def test_what_differs_is_found(bench: running.Bench, text: str, kind: str) -> None:
    found = running.compare(bench, _program("a program", text))
    assert kind in [d.kind for d in found] or (kind == "lost" and [d.kind for d in found] == ["miscounted"])


def test_a_program_that_differs_from_itself_is_found(bench: running.Bench) -> None:
    """What a bare program does now and then must not be held against the probe."""
    assert running.steady(bench, _program("a program", "print(1)"), 3) == []
    unsteady = "import os; print(os.getpid())"
    assert {d.kind for d in running.steady(bench, _program("a program", unsteady), 2)} == {"unsteady"}
