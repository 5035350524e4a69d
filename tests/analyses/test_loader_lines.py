"""The data loader's own lines: what its workers do, apart from waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.analyses import loader_lines
from nsysx.events.profile import NotRecorded
from tests.findings import SAMPLED, US, Program

DATA = "/opt/venv/lib/python3.12/site-packages/torch/utils/data/_utils"
LOOP = f"{DATA}/worker.py:349 _worker_loop"
DECODE = (
    "/opt/venv/lib/python3.12/site-packages/PIL/ImageFile.py:300 load",
    "/home/me/data.py:9 __getitem__",
    f"{DATA}/fetch.py:54 fetch",
    LOOP,
)
COLLATE = (f"{DATA}/collate.py:270 collate_tensor_fn", f"{DATA}/fetch.py:55 fetch", LOOP)
WAIT = ("/usr/lib/python3.12/multiprocessing/queues.py:113 get", LOOP)


def loading(program: Program, number: int) -> None:
    """A step of 4 ms, in which a worker process decodes for 2.1 ms, collates for 0.9 ms and waits for 1 ms."""
    begin = program.t
    worker = program.report.processes[1].thread(200)
    for first, last, stack in ((0, 2_100, DECODE), (2_100, 3_000, COLLATE), (3_000, 4_000, WAIT)):
        for at in range(first, last, SAMPLED):
            worker.sample(begin + at * US, stack)
    program.main.sample(begin, ["/home/me/train.py:3 main"])
    program.host(100)
    program.launch(3_800)
    program.t = max(program.t, begin + 4_000 * US)


def test_what_the_workers_do(tmp_path: Path) -> None:
    program = Program()
    program.report.process(200)
    profile = pipeline.gather(program.steps(loading, 12).report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    rows = {r["part"]: r for r in loader_lines.table(profile).to_dicts()}
    assert rows["load"]["share"] == pytest.approx(0.7, abs=0.02)
    assert rows["collate"]["share"] == pytest.approx(0.3, abs=0.02)
    assert rows["wait"]["share"] is None
    assert (rows["load"]["file"], rows["load"]["line"]) == ("/home/me/data.py", 9)
    assert rows["load"]["framework"] == "PIL/ImageFile.py:load"
    assert profile.scope.per_step(rows["load"]["time_ns"]) == pytest.approx(2_100 * US, rel=0.05)


def test_a_program_without_a_loader(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.python(100, "/home/me/train.py:3 main")
        program.launch(20)

    with pytest.raises(NotRecorded, match="no sample of Python's stack is in a DataLoader"):
        loader_lines.table(
            pipeline.gather(Program().steps(body).report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
        )
