"""NSX137: what a package's function makes alike in each call, inside of a call that makes something of the step as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_same_in_each_step import run

CALL, PACKAGE = 7, "/env/lib/site-packages/somemodels/"
SIZE, TABLE = "[512, 512]", "[1, 512]"
WEIGHT = "[512, 512]"


@contextmanager
def inside(program: Lined, place: str) -> Iterator[None]:
    """A line of a package's function."""
    program.host(1)
    begin = program.t
    yield
    program.host(1)
    if program.noted is not None:
        program.noted.append((PACKAGE + place, begin, program.t))


def told(folder: Path, us: float, *, wait: bool, alone: bool = False) -> Finding:
    """A line that calls a network of a package, in which two functions make a table of what never changes; ``alone``: nothing else."""

    def body(program: Lined, number: int) -> None:
        at = 1000 * number + 100
        run(program, "aten::randint", at, [-1], "[]", 5)
        run(program, "aten::index", at + 1, [-1, at], "[5000, 512], [200]", 1000)
        with ExitStack() as stack:
            stack.enter_context(program.line(CALL))
            stack.enter_context(inside(program, "wrapping.py:90 decorated.<locals>.wrapper"))
            stack.enter_context(inside(program, "net.py:30 Net.forward"))
            with inside(program, "masks.py:50 look_through"):
                run(program, "aten::arange", at + 2, [-1], "[]", us)
                run(program, "aten::exp", at + 3, [at + 2], SIZE, us)
                if wait:
                    run(program, "aten::_unique2", at + 6, [at + 3, -1], f"{SIZE}, []", us)
            if not alone:
                with inside(program, "net.py:40 Net.layer"):
                    program.host(500)
                    run(program, "aten::linear", at + 4, [at + 1, -1], f"{SIZE}, {WEIGHT}", 1000, number)
                    run(program, "aten::mul", at + 5, [at + 4, at + 3], f"{SIZE}, {SIZE}", 1000)
        if alone:
            run(program, "aten::mul", at + 5, [at + 1, at + 3], f"{SIZE}, {SIZE}", 2000)
        program.sync()

    program = Lined({CALL: "logits = self.net(ids)"}).run(body)
    return program.finding(folder, "NSX137")


def test_a_function_of_a_package_is_named_and_not_the_one_around_it(tmp_path: Path) -> None:
    finding = told(tmp_path, 300, wait=False)
    assert finding.title.startswith(f"train.py:{CALL}: look_through (masks.py:50) makes the same in each step: ")
    assert (finding.where["file"], finding.where["line"]) == (FILE, CALL)
    assert "wrapper" not in finding.title + finding.remedies[0].text and not finding.paste
    assert finding.saving_ns_per_step == pytest.approx(600_000, rel=0.05)


def test_a_wait_in_it_is_no_time_of_what_it_makes(tmp_path: Path) -> None:
    assert told(tmp_path, 5, wait=True).verdict == "clear"


def test_a_call_that_makes_nothing_else_can_be_kept_as_it_is(tmp_path: Path) -> None:
    finding = told(tmp_path, 300, wait=True, alone=True)
    assert finding.title.startswith(f"train.py:{CALL} computes the same in each step: ")
    assert finding.saving_ns_per_step is not None and finding.saving_ns_per_step >= 900_000
