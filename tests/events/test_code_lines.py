"""Lines of an X-ray: what calls and GPU ops have, what the others inherit, and that divided times sum to the whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysx import pipeline
from nsysx.analyses import gpu_ledger, lines, stacks
from nsysx.events import line_runs, line_shares
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import Summary
from nsysx.ranks import late_work
from tests.builder import Report, Thread
from tests.examples import examples
from tests.findings.lined import Lined

PACKAGE = "/env/lib/python3.12/site-packages/pkg/net.py"
SOURCE = {"/job/train.py": {"12": "    batch = load(rows)\n", "13": "loss = net(batch)"}}


SENDS = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class Program:
    """Training steps on two threads; the X-rayed ones have lines, operators and modules.

    train.py:10 main        the whole step
    train.py:12 step          loads: no call for ``load`` ns, then a copy
    train.py:13 step          forward, in a package (net.py:7) which calls model.py:5 and model.py:6
    train.py:14 step          backward: autograd's thread launches what belongs to model.py:6, then model.py:5
    train.py:15 step          the optimizer's launch, and a wait

    ``within``: kernels that model.py:5 launches besides, behind its own.
    ``own``: the node of model.py:6 is a Function of the program, whose backward (model.py:40) makes its launch on autograd's thread.
    """

    def __init__(self, load: int = 4_000, *, own: bool = False) -> None:
        self.own = own
        self.report = Report()
        process = self.report.process(7)
        process.context()
        self.report.gpu(pids=[(7, 0)])
        self.main, self.autograd = process.thread(7, "python"), process.thread(8, "pt_autograd_0")
        self.n, self.load, self.on = 0, load, None
        self.xrayed: list[int] = []
        self.next = 1_000

    def step(
        self, xray: bool = False, *, load: int | None = None, odd: bool = False, within: Sequence[str] = ()
    ) -> None:
        begin = t = self.next
        if xray != self.on:
            self.main.mark(json.dumps({"marks": xray, "xray": xray}), begin - 1, domain="nsysx")
            self.report.rows["NVTX_EVENTS"][-1]["text"] = "info " + self.report.rows["NVTX_EVENTS"][-1]["text"]
        self.on = xray
        self.xrayed += [self.n] * xray
        noted: list[tuple[Thread, str, int, int]] = []
        load = self.load if load is None else load
        noted.append((self.main, "/job/train.py:12 Trainer.step", t, t + load + 200))
        t += load
        self.main.memcpy(at=t + 50, dur=20, gpu_start=t + 80, gpu_dur=40, bytes=4096, pageable=True)
        t += 200
        first = t
        for number, line in enumerate((5, 6)):
            noted.append((self.main, f"/job/model.py:{line} Net.forward", t + 20, t + 320))
            if xray:
                self.main.add_range(f"aten::linear, seq = {2 * self.n + number}, op_id = 1", t + 40, t + 300)
            self.launch(self.main, t + 100, f"fwd{line}")
            for place, kernel in enumerate(within if line == 5 else ()):
                self.launch(self.main, t + 120 + 20 * place, kernel)
            t += 320
            if odd:
                self.launch(self.main, t + 5, "odd")
                t += 200
        noted.append((self.main, f"{PACKAGE}:7 Wrapped.__call__", first + 10, t + 10))
        noted.append((self.main, "/job/train.py:13 Trainer.step", first, t + 20))
        self.main.add_range("forward Net", first, t + 20, domain="nsysx")
        t += 20
        first = t
        for number, line in enumerate((6, 5)):
            if xray:
                name = f"AddmmBackward0, seq = {2 * self.n + 1 - number}, op_id = 1"
                self.autograd.add_range(
                    "autograd::engine::evaluate_function: AddmmBackward0, op_id = 2", t + 10, t + 290
                )
                self.autograd.add_range(name, t + 20, t + 180)
            self.launch(self.autograd, t + 100, f"bwd{line}")
            if xray and self.own and line == 6:
                place = "/job/model.py:40 Own.backward"
                self.autograd.add_range(place, t + 90, t + 150, domain="nsysx-lines", registered=True, start_end=True)
            self.launch(self.autograd, t + 220, f"sum{line}")  # gradients are added when the node is done
            t += 300
        self.launch(self.autograd, t + 50, "accumulate")
        t += 200
        noted.append((self.main, "/job/train.py:14 Trainer.step", first, t))
        self.main.add_range("backward", first, t, domain="nsysx")
        noted.append((self.main, "/job/train.py:15 Trainer.step", t, t + 500))
        self.main.add_range("optimizer SGD", t, t + 200, domain="nsysx")
        self.launch(self.main, t + 60, "sgd")
        self.main.sync(at=t + 250, dur=200)
        t += 500
        noted.append((self.main, "/job/train.py:10 main", begin, t + 100))
        for thread, place, start, end in noted if xray else ():
            thread.line(place, start, end)
        self.main.add_range(f"step {self.n}", begin, t + 100, domain="nsysx")
        self.n, self.next = self.n + 1, t + 100

    def launch(self, thread: Thread, at: int, kernel: str) -> None:
        thread.launch(at=at, dur=10, kernel=kernel, gpu_start=at + 20, gpu_dur=60)

    def write(self, folder: Path, source: Mapping[str, Any] | None = SOURCE) -> Path:
        probe = {"pid": 7, "xray": {"steps": self.xrayed, "lines": True}, "source": source}
        (folder / "r.run.json").write_text(json.dumps({"probe": [probe]}))
        return self.report.write(folder / "r.sqlite")

    def profile(self, folder: Path) -> Profile:
        return pipeline.gather(self.write(folder), pipeline.ReadingOptions())

    def summary(self, folder: Path) -> Summary:
        return pipeline.summarize([self.write(folder)], every_table=False)


def program(plain: int = 8, xray: int = 3, *, own: bool = False, **options: Any) -> Program:
    made = Program(own=own)
    for _ in range(plain):
        made.step(**options)
    for _ in range(xray):
        made.step(True)
    return made


#: Kernel -> the line that it belongs to.
WANTED = {
    "fwd5": "/job/model.py:5", "fwd6": "/job/model.py:6", "bwd5": "/job/model.py:5", "bwd6": "/job/model.py:6",
    "sum5": "/job/model.py:5", "sum6": "/job/model.py:6",
    "accumulate": "/job/train.py:14", "sgd": "/job/train.py:15", "HtoD": "/job/train.py:12",
}  # fmt: skip


def of_ops(profile: Profile) -> list[tuple[str, str | None]]:
    code = profile.code()
    assert code is not None
    ops = profile.attributed.gpu_ops
    place = code.places_of(code.op[ops["op"].to_numpy()])
    named = [None if p < 0 else "{}:{}".format(*code.places.row(p)) for p in place.tolist()]
    return list(zip(ops["name"].cast(pl.String).to_list(), named, strict=True))


def test_every_launch_has_its_line(tmp_path: Path) -> None:
    found = of_ops(program().profile(tmp_path))
    assert len(found) == 11 * 9 and all(place == WANTED[name] for name, place in found)


def test_what_runs_outside_of_networks_counts_at_each_line_that_calls_it(tmp_path: Path) -> None:
    profile = program().profile(tmp_path)
    code = profile.code()
    assert code is not None and profile.device is not None
    op = profile.attributed.gpu_ops["name"].cast(pl.String).to_list().index("fwd5")
    chain = [code.places.row(row)[:2] for row in code.own_chain(int(code.op[op]))]  # no line of a package
    assert chain == [("/job/model.py", 5), ("/job/train.py", 13), ("/job/train.py", 10)]
    outside = late_work.compute_outside(profile, profile.device)
    family = next(iter(late_work.compute_by_place(profile, profile.device))).family
    assert {(work.family, work.line): ns for work, ns in outside.items()} == {(family, 15): 60, (family, 10): 60}
    assert [work.line for work in outside] == [15, 10]  # the inner one first


def test_code_of_the_program_that_a_node_runs_has_its_own_line(tmp_path: Path) -> None:
    """The backward of a Function, a hook, a forward that is run again: not the line of the node's forward operator."""
    profile = program(own=True).profile(tmp_path)
    found, wanted = of_ops(profile), WANTED | {"bwd6": "/job/model.py:40"}
    assert len(found) == 11 * 9 and all(place == wanted[name] for name, place in found)
    sums(profile)
    code, runs = profile.code(), line_runs.of_lines(profile)
    assert code is not None
    rows = code.places.with_columns(pl.Series("runs", runs.runs)).filter(pl.col("file") == "/job/model.py")
    assert rows.sort("line").select("line", "runs").rows() == [(5, 1), (6, 1), (40, 1)]


def test_the_rounds_of_a_line_are_its_runs_in_one_run_of_the_line_that_calls_its_function(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        for _ in range(2):
            with program.line(12):
                program.host(10)
                for _ in range(5):
                    with program.line(30, "loop"):
                        program.launch(2)
        program.sync()

    made = Lined().run(body)
    made.summary(tmp_path)
    profile = pipeline.gather(tmp_path / "r.sqlite", pipeline.ReadingOptions())
    code, runs = profile.code(), line_runs.of_lines(profile)
    assert code is not None
    numbers = code.places["line"].to_list()
    loop, caller = numbers.index(30), numbers.index(12)
    assert (runs.runs[loop], runs.rounds[loop]) == (10, 5)
    assert (runs.runs[caller], runs.rounds[caller]) == (2, 2)
    begins = line_runs.begins(profile, loop, profile.steady_calls["thread"][0])
    assert begins.tolist() == sorted({*begins.tolist()}) and len(begins) == 10 * len(made.xrayed)


def test_xray_steps_are_not_steady(tmp_path: Path) -> None:
    given = program().profile(tmp_path)
    assert given.steps.steady is not None and given.steps.steady[1] == 7
    alone = Program()
    for _ in range(6):
        alone.step(True)
    (tmp_path / "all").mkdir()
    assert alone.profile(tmp_path / "all").steps.steady is not None, "all were X-rayed: better than none"


def test_what_corresponds_to_nothing_has_no_line(tmp_path: Path) -> None:
    made = program(7)
    made.step(odd=True)
    found = of_ops(made.profile(tmp_path))
    assert [place for name, place in found if name == "odd"] == [None, None]
    assert all(place == WANTED[name] for name, place in found if name != "odd")


def test_what_lies_between_calls_of_one_line_has_that_line(tmp_path: Path) -> None:
    """How often a line launches may depend on its data."""
    made, wanted = Program(), WANTED | dict.fromkeys(("first", "new", "last"), "/job/model.py:5")
    for number in range(8):
        made.step(within=("first", *["new"] * (number % 4), "last"))
    for _ in range(3):
        made.step(True, within=("first", "last"))
    profile = made.profile(tmp_path)
    found = of_ops(profile)
    assert [place for name, place in found if name == "new"] == ["/job/model.py:5"] * 12
    assert all(place == wanted[name] for name, place in found)
    sums(profile)


@pytest.mark.parametrize(("noted", "line"), [((), None), ((SENDS,), "/job/model.py:5")])
def test_a_message_between_calls_of_a_line_that_sends_none_has_no_line(
    noted: tuple[str, ...], line: str | None, tmp_path: Path
) -> None:
    """It comes in every other step: no X-rayed step holds it, or one does."""
    made = Program()
    for number in range(8):
        made.step(within=("first", *[SENDS] * (number % 2), "last"))
    for number in range(3):
        made.step(True, within=("first", *noted * (number == 1), "last"))
    found = of_ops(made.profile(tmp_path))
    assert [place for name, place in found if name == SENDS][:4] == [line] * 4
    assert {place for name, place in found if name in ("first", "last")} == {"/job/model.py:5"}


def test_a_step_is_divided_among_lines(tmp_path: Path) -> None:
    summary = program(load=9_000).summary(tmp_path)
    rows = {(r["file"], r["line"]): r for r in summary.typed_rows(lines.ROWS)}
    steps = summary.tables["lines"].scope.steps
    load = rows["/job/train.py", 12]
    # The X-ray loads for 4,000 ns, the plain steps for 9,000: the figures are those of the plain steps.
    assert 9_000 * 0.9 < load["host_self_ns"] / steps < 9_000 * 1.15
    assert load["copies"] == steps and load["copy_bytes"] == 4096 * steps and load["text"] == "batch = load(rows)"
    assert rows["/job/train.py", 13]["gpu_self_ns"] == 0, "what the package calls is the model's own line"
    assert rows["/job/train.py", 13]["gpu_total_ns"] == 6 * 60 * steps, "with its backward"
    assert rows["/job/model.py", 5]["gpu_self_ns"] == 3 * 60 * steps
    assert rows["/job/train.py", 15]["waits"] == steps and rows["/job/train.py", 15]["wait_ns"] == 200 * steps
    assert rows["/job/train.py", 10]["host_total_ns"] <= sum(r["host_self_ns"] for r in rows.values())
    assert max(summary.typed_rows(lines.ROWS), key=lambda r: r["idle_caused_ns"])["line"] == 12
    assert load["idle_caused_ns"] / steps > 9_000 * 0.8


def sums(given: Profile) -> None:
    """Check that the tables sum to the step."""
    start, end = given.steps.cpu_windows.select("start_ns", "end_ns").row(0)
    ns = (given.steady_ops["end_ns"] - given.steady_ops["start_ns"]).sum()
    idle = given.shown_idle()["ns"].sum()
    rows = lines.table(given)
    assert rows["host_self_ns"].sum() == end - start
    assert rows["gpu_self_ns"].sum() == ns
    assert rows["idle_caused_ns"].sum() == idle
    assert (rows["host_total_ns"] >= rows["host_self_ns"]).all() and (rows["gpu_total_ns"] >= rows["gpu_self_ns"]).all()
    stacked, rest = stacks.table(given), line_shares.shares(given).own_idle_ns
    assert stacked["host_ns"].sum() == end - start and stacked["gpu_ns"].sum() == ns
    assert stacked["idle_caused_ns"].sum() + rest == idle


def test_lines_sum_to_the_step(tmp_path: Path) -> None:
    sums(program().profile(tmp_path))


@settings(max_examples=examples(20))
@given(
    st.lists(st.tuples(st.integers(0, 12_000), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 3),
    st.booleans(),
)
def test_lines_sum_to_any_step(tmp_path_factory: pytest.TempPathFactory, plain: Any, xray: int, first: bool) -> None:
    made = Program()
    if first:
        made.step(True)
    for load, odd in plain:
        made.step(load=load, odd=odd)
    for _ in range(xray):
        made.step(True)
    sums(made.profile(tmp_path_factory.mktemp("report")))


def test_without_an_xray_no_line_is_said(tmp_path: Path) -> None:
    made = Program()
    for _ in range(5):
        made.step()
    given_ = made.profile(tmp_path)
    assert given_.code() is None
    with pytest.raises(NotRecorded, match="no line"):
        lines.table(given_)


def test_a_file_that_is_no_text_has_no_words(tmp_path: Path) -> None:
    made = program()
    made.write(tmp_path)
    path = made.write(tmp_path, source={"/job/train.py": 5, "/job/model.py": {"5": 7}})
    summary = pipeline.summarize([path], every_table=False)
    assert {r["text"] for r in summary.typed_rows(lines.ROWS)} == {None}


def test_waits_copies_and_findings_have_lines(tmp_path: Path) -> None:
    summary = program(load=9_000).summary(tmp_path)
    assert {(r["file"], r["line"]) for r in summary.tables["waits"].rows or ()} == {
        ("/job/train.py", 15),
        ("/job/train.py", 12),
    }
    assert {(r["file"], r["line"]) for r in summary.tables["copy_sites"].rows or ()} == {("/job/train.py", 12)}
    assert summary.tables[gpu_ledger.KEY].rows
    found = [f for f in summary.findings if f.verdict == "found"]
    assert found and all(f.where.get("file") for f in found if f.code != "NSX190"), "which is about the capture"
    guilty = next(f for f in found if f.code == "NSX123")
    assert guilty.where["line"] == 12 and "batch = load(rows)" in guilty.title


def test_what_launches_less_does_not_gain_the_time_of_a_line_that_does_not_launch(tmp_path: Path) -> None:
    summary = program(load=9_000).summary(tmp_path)
    bound = next(f for f in summary.findings if f.code == "NSX102")
    guilty = next(f for f in summary.findings if f.code == "NSX123")
    assert bound.verdict == "found" and guilty.cost_ns_per_step is not None and bound.cost_ns_per_step is not None
    likely = bound.saving.likely_ns
    assert likely is not None and likely <= bound.cost_ns_per_step - guilty.cost_ns_per_step


@pytest.mark.parametrize(("noted", "shares"), [((1, 3), (3.0, 9.0)), ((0, 0), None)])
def test_a_function_that_has_no_lines_any_more_has_the_shares_of_those_that_it_had(
    tmp_path: Path, noted: tuple[int, int], shares: tuple[float, float] | None
) -> None:
    """12 ms of a loop at lines 11 and 12; the X-ray notes some of it, and what is launched behind that has the line that calls the loop."""

    def step(each: Lined, number: int) -> None:
        with each.line(30):
            for line, part_ms in zip((11, 12), noted, strict=True):
                if part_ms:
                    with each.line(line, "loop"):
                        each.host(1000 * part_ms)
            with each.line(-10, "loop"):
                each.host(1000 * (12 - sum(noted)))
                each.launch(20)
        with each.line(31):
            each.launch(5)

    program = Lined()
    program.run(step)
    table = program.summary(tmp_path).tables["lines"]
    rows = {row["line"]: row for row in table.rows or ()}
    ms = {line: row["host_self_ns"] / table.scope.steps / 1e6 for line, row in rows.items()}
    assert 10 not in rows, "the line of its definition does nothing"
    assert rows[30]["launches"] == rows[31]["launches"] == table.scope.steps
    if shares is None:
        assert ms[30] == pytest.approx(12, rel=0.02)
    else:
        assert (ms[11], ms[12]) == pytest.approx(shares, rel=0.02) and ms[30] < 0.1
