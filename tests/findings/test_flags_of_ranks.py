"""NSX127, NSX123: a flag of all ranks that decides in each step whether they go on; values of all ranks that are only written."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings._flags_of_ranks import flag_ahead
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, forward
from tests.findings.test_costly_collectives import found

FLAG, DECIDES = "dist.all_reduce(has, op=dist.ReduceOp.MIN)", "if has.item() == 0:"


def test_a_flag_that_decides_is_asked_for_a_step_ahead(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {30: FLAG, 31: DECIDES}).values()
    assert finding.evidence[0]["setting"] == "metrics in each step"
    assert [way.name for way in finding.remedies] == ["flag-ahead"]
    assert (finding.where["file"], finding.where["line"]) == (FILE, 30)
    assert "work = dist.all_reduce(has, op=dist.ReduceOp.MIN, group=flags, async_op=True)" in finding.paste
    assert finding.paste.endswith("# a step later, and then: if has.item() == 0:")
    assert 250_000 < (finding.saving_ns_per_step or 0) < 350_000


@pytest.mark.parametrize(
    ("reads", "told"),
    [
        ("while not stop.item():", True),
        ("elif bool(flag):", True),
        ("total += value.item()", False),
        ("if step % 100 == 0: print(value.item())", False),  # in steps of its own, and only to write
        ("log(value.item())", False),
        ("if found_inf.item() > 0:", False),  # of this step's gradients: its update waits for it
    ],
)
def test_what_is_only_written_is_reduced_rarely(reads: str, told: bool) -> None:
    assert (flag_ahead([FLAG], [reads]) is not None) is told


def test_a_collective_that_is_started_already_keeps_its_form() -> None:
    remedy = flag_ahead(["work = dist.all_reduce(has, async_op=True)"], [DECIDES])
    assert remedy is not None and "dist.all_reduce(flag" in remedy.paste


def of_host(folder: Path, *lines: str) -> list[Finding]:
    """Return what is said of lines that hold the host for 2 ms each between steps, as collectives of gloo do."""

    def body(program: Lined, number: int) -> None:
        for i in range(len(lines)):
            with program.line(10 + i):
                program.host(2_000)
        forward(program, 100, 20)
        with program.line(30):
            program.sync()

    made = Lined({10 + i: text for i, text in enumerate(lines)}).run(body)
    return [f for f in made.found(folder, "NSX123") if f.where.get("file") == FILE and f.where.get("line") == 10]


def test_a_barrier_of_the_host_in_each_step(tmp_path: Path) -> None:
    (finding,) = of_host(tmp_path, "dist.monitored_barrier(group=group_join)")
    assert [way.name for way in finding.remedies] == ["collective-rarely"]
