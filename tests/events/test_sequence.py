"""Steps without marks: their launches get the modules of a marked step, or none; nothing is lost and nothing is invented."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from nsysx import pipeline
from nsysx.events import attribute, correlate, nvtx_ranges, sequence
from nsysx.reading.load import load
from tests.builder import Report

STEP = 10_000
#: (module, kernel) of forward, of backward; None stands outside of modules.
FORWARD = (("a", "gemm"), ("a", "relu"), ("b", "gemm"), (None, "loss"))
BACKWARD = (("b", "gemm_b"), ("b", "gemm_w"), ("a", "gemm_b"), ("a", "gemm_w"))


class Program:
    """Training steps on two threads, as the probe and nsys record them."""

    def __init__(self) -> None:
        self.report = Report()
        self.process = self.report.process(7)
        self.main, self.autograd = self.process.thread(7), self.process.thread(8)
        self.n = 0
        self.truth: list[tuple[str, str | None]] = []  # (kernel, module) in order of launch
        self.note(0, True)

    def note(self, at: int, on: bool) -> None:
        self.main.mark(f'info {{"marks":{str(on).lower()}}}', at, domain="nsysx")

    def step(
        self,
        marked: bool,
        *,
        stretch: int = 1,
        extra: dict[int, str] | None = None,
        grid: int = 1,
        backward: Any = None,
    ) -> None:
        """One step. ``stretch``: all takes so much longer; ``extra``: kernels put in before launches of these numbers."""
        begin = 1_000 + 3 * STEP * self.n
        backward = backward or self.autograd
        if self.n == 0 or marked != self.marked:
            self.note(begin - 1, marked)
        self.marked = marked
        t = begin + 100
        number = 0
        for name, rows, thread in (("forward Net", FORWARD, self.main), ("backward", BACKWARD, backward)):
            first, was = t, None
            for module, kernel in rows:
                if name == "backward" and marked and module != was:
                    thread.mark(f"bwd {module}:Linear", t + 5, domain="nsysx")
                elif marked and module is not None and module != was:
                    long = 200 * stretch * sum(m == module for m, _ in rows)
                    thread.add_range(f"{module}:Linear", t + 5, t + long - 5, domain="nsysx")
                was = module
                put_in = (extra or {}).get(number)
                number += 1
                if put_in:
                    self.launch(thread, t + 10, put_in, 9)
                    self.truth.append((put_in, None))
                self.launch(thread, t + 100, kernel, grid)
                self.truth.append((kernel, module))
                t += 200 * stretch
            self.main.add_range(name, first, t, domain="nsysx")
            t += 20
        self.main.add_range("optimizer SGD", t, t + 100, domain="nsysx")
        self.launch(self.main, t + 10, "sgd", 1)
        self.truth.append(("sgd", "(optimizer)"))
        self.main.add_range(f"step {self.n}", begin, t + 200, domain="nsysx")
        self.n += 1

    def evaluate(self, marked: bool, rows: Any = FORWARD) -> None:
        """A call of the network outside of steps."""
        begin = 1_000 + 3 * STEP * self.n
        if marked != self.marked:
            self.note(begin - 1, marked)
        self.marked = marked
        for number, (module, kernel) in enumerate(rows):
            t = begin + 100 + 200 * number
            if marked and module is not None:
                self.main.add_range(f"{module}:Linear", t + 5, t + 195, domain="nsysx")
            self.launch(self.main, t + 100, kernel, 1)
            self.truth.append((kernel, module))
        self.main.add_range("evaluation Net", begin, begin + 200 * (len(rows) + 1), domain="nsysx")
        self.n += 1

    def launch(self, thread: Any, at: int, kernel: str, grid: int) -> None:
        thread.launch(at=at, dur=10, kernel=kernel, gpu_start=at + 20, gpu_dur=50)
        self.report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["gridX"] = grid

    def read(self, folder: Path) -> tuple[nvtx_ranges.Ranges, attribute.Attributed]:
        trace = load(self.report.write(folder / "r.sqlite"))
        correlated = correlate.correlate(trace)
        ranges = sequence.repeat(nvtx_ranges.read(trace), correlated)
        return ranges, attribute.attribute(trace, correlated, ranges)


def launched(attributed: attribute.Attributed) -> list[tuple[str, str | None, str]]:
    ops = attributed.gpu_ops.sort("call_start_ns").select(pl.col("name", "module", "grade").cast(pl.String))
    return list(ops.iter_rows())


def modules(program: Program) -> list[tuple[str, str | None]]:
    names = {None: "(forward)"}
    return [(kernel, names.get(module, module)) for kernel, module in program.truth]


def test_steps_without_marks_have_the_modules_of_the_marked_one(tmp_path: Path) -> None:
    program = Program()
    for i in range(8):
        program.step(i < 2, stretch=1 + i % 3)
    ranges, attributed = program.read(tmp_path)
    assert [(k, m) for k, m, _ in launched(attributed)] == modules(program)
    assert ranges.repeats is not None
    assert (ranges.repeats.marked, ranges.repeats.steps, ranges.repeats.exact) == (2, 6, 6)
    assert (ranges.repeats.launches, ranges.repeats.unmatched) == (6 * 9, 0)
    grades = Counter(g for _, _, g in launched(attributed))
    assert grades == {"thread": 2 * 9 + 6, "sequence": 6 * 8}, "what the optimizer does is known without marks"
    copied = ranges.ranges.filter("repeated")
    assert copied.height == 6 * 2 and ranges.marks.filter("repeated").height == 6 * 2
    assert copied["range"].is_unique().all() and not ranges.ranges.filter(~pl.col("repeated"))["repeated"].any()
    own = ranges.ranges.filter(pl.col("kind") == "module")
    assert own.group_by(pl.col("name").cast(pl.String)).len().sort("name").rows() == [("a", 8), ("b", 8)]


def test_a_launch_that_no_marked_step_had_has_no_module(tmp_path: Path) -> None:
    program = Program()
    program.step(True)
    program.step(True)
    for i in range(6):
        program.step(False, extra={2: "odd"} if i == 3 else None)
    ranges, attributed = program.read(tmp_path)
    found = launched(attributed)
    assert [row for row in found if row[0] == "odd"] == [("odd", None, "none")]
    assert [(k, m) for k, m, _ in found if k != "odd"] == [row for row in modules(program) if row[0] != "odd"]
    assert ranges.repeats is not None and ranges.repeats.unmatched == 1 and ranges.repeats.exact == 5


def test_other_sizes_are_told_by_api_and_kernel(tmp_path: Path) -> None:
    program = Program()
    for i in range(6):
        program.step(i < 2, grid=1 if i < 2 else i)
    ranges, attributed = program.read(tmp_path)
    assert [(k, m) for k, m, _ in launched(attributed)] == modules(program)
    assert ranges.repeats is not None and ranges.repeats.unmatched == 0


@pytest.mark.parametrize("rounds", [1, 40])
def test_another_kernel_of_its_kind_is_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """A library takes other kernels for other sizes; of rounds that are all alike only the whole tells which is which."""
    program = Program()
    for i in range(6):
        gemm = "nvjet_tst_64x8" if i % 2 else "nvjet_tst_128x64_splitK"
        turned = [("a", gemm), ("a", "sum")] * rounds + [("b", "sum"), ("b", gemm)]
        monkeypatch.setattr("tests.events.test_sequence.FORWARD", turned)
        program.step(i == 0)
    ranges, attributed = program.read(tmp_path)
    assert [(k, m) for k, m, _ in launched(attributed)] == modules(program)
    assert ranges.repeats is not None and ranges.repeats.unmatched == 0


def test_a_thread_that_is_new_in_each_step_is_found_again(tmp_path: Path) -> None:
    program = Program()
    for i in range(6):
        program.step(i < 2, backward=program.process.thread(100 + i))
    _, attributed = program.read(tmp_path)
    assert [(k, m) for k, m, _ in launched(attributed)] == modules(program)


def test_marks_that_come_back_stand_for_themselves(tmp_path: Path) -> None:
    program = Program()
    for marked in (True, True, False, False, True, False, True, True):
        program.step(marked)
    ranges, attributed = program.read(tmp_path)
    assert [(k, m) for k, m, _ in launched(attributed)] == modules(program)
    assert ranges.repeats is not None and (ranges.repeats.marked, ranges.repeats.steps) == (5, 3)


@pytest.mark.parametrize("marked", [True, False])
def test_without_both_kinds_of_steps_nothing_changes(tmp_path: Path, marked: bool) -> None:
    program = Program()
    for _ in range(4):
        program.step(marked)
    trace = load(program.report.write(tmp_path / "r.sqlite"))
    ranges = nvtx_ranges.read(trace)
    assert sequence.repeat(ranges, correlate.correlate(trace)) is ranges


@pytest.mark.parametrize(
    "note", ["info x", 'info {"marks":1}', "info [1]", 'info {"marks":{"a":false}}', "info " + "[" * 999]
)
def test_strange_notes_change_nothing(tmp_path: Path, note: str) -> None:
    program = Program()
    for _ in range(3):
        program.step(True)
    program.main.mark(note, 50_000, domain="nsysx")
    ranges, attributed = program.read(tmp_path)
    assert ranges.repeats is None
    assert [(k, m) for k, m, _ in launched(attributed)] == modules(program)


def test_modules_are_counted_over_all_steps_and_sum_to_the_whole(tmp_path: Path) -> None:
    tables = []
    for few in (False, True):
        program = Program()
        for i in range(12):
            program.step(not few or i < 3, extra={1: "odd"} if i == 9 else None)
        summary = pipeline.summarize([program.report.write(tmp_path / f"{few}.sqlite")], every_table=False)
        rows = summary.rows("modules")
        tables.append(
            {r["path"]: (r["calls"], r["forward_gpu_ns"], r["backward_gpu_ns"], r["self_gpu_ns"]) for r in rows}
        )
    every, few_marked = tables
    assert sum(r[3] for r in few_marked.values()) == sum(r[3] for r in every.values())
    odd = few_marked.pop(None)
    assert odd[3] == 50
    for path, row in few_marked.items():
        assert row[1:] == every[path][1:] if path != "a" else row[2] == every["a"][2]
    assert few_marked["b"][0] == every["b"][0], "calls are those of all steps"


def test_calls_outside_of_steps_have_the_modules_of_a_marked_one(tmp_path: Path) -> None:
    """Evaluations between steps; one that is like no marked call stays without modules, and the steps are what they were."""
    program = Program()
    other = (("c", "conv"), ("c", "conv"))
    for i in range(6):
        program.step(i < 2)
        program.evaluate(i < 2)
    program.evaluate(False, other)
    program.step(False)
    ranges, attributed = program.read(tmp_path)
    names = {None: {"(forward)", "(evaluation)"}, "c": {None}}
    for (kernel, module, grade), (expected, of) in zip(launched(attributed), program.truth, strict=True):
        assert kernel == expected and module in names.get(of, {of}), (kernel, module, of)
        assert grade in ("thread", "sequence") or of in (None, "c")
    assert ranges.repeats is not None
    assert (ranges.repeats.marked, ranges.repeats.steps, ranges.repeats.exact) == (2, 5, 5)
    assert (ranges.repeats.launches, ranges.repeats.unmatched) == (5 * 9 + 4 * 4 + 2, 2)


def test_what_is_like_a_marked_step_without_operators_is_led_on_to_one_with_them(tmp_path: Path) -> None:
    """The first step is marked, not X-rayed, and makes a launch that others seldom make; those that do have its operators' step, too."""
    program = Program()
    for i in range(6):
        begin = 1_000 + 3 * STEP * program.n
        program.step(i < 2, extra={0: "odd"} if i in (0, 4) else None)
        if i == 1:
            program.main.add_range("aten::mm, op_id = 1, sizes = []", begin + 110, begin + 890)
    ranges, attributed = program.read(tmp_path)
    calls = attributed.api_calls.sort("start_ns")
    first, xrayed = ((calls["start_ns"] - 1_000) // (3 * STEP) == n for n in (0, 1))
    assert ranges.repeats is not None
    of = pl.Series(ranges.repeats.of)[calls["call"]]
    assert of.filter(xrayed).unique().to_list() == [-1], "what was X-rayed stands for itself"
    expected = calls["call"].filter(xrayed).to_list()
    assert of.filter(first & (of >= 0)).to_list() == expected
    for n in (4, 5):
        there = (calls["start_ns"] - 1_000) // (3 * STEP) == n
        assert [c for c in of.filter(there) if c in expected] == expected, n
    assert ranges.repeats.unmatched == 0, "the odd launch has the module of the first step's"
    assert [(k, m) for k, m, _ in launched(attributed) if k != "odd"] == [m for m in modules(program) if m[0] != "odd"]
