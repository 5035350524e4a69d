"""Which module and phase a call and its GPU work belong to, and by what evidence."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings

from nsysx.events import attribute, correlate, nvtx_ranges
from nsysx.events.attribute import Attributed
from nsysx.reading.load import load
from tests import builder, strategies
from tests.builder import Report
from tests.examples import examples
from tests.reports import names

OWN = "nsysx"


def read(report: Report, folder: Path) -> Attributed:
    trace = load(report.write(folder / "r.sqlite"))
    return attribute.attribute(trace, correlate.correlate(trace), nvtx_ranges.read(trace))


def found(report: Report, folder: Path) -> dict[object, tuple[object, ...]]:
    """Return kernel -> (phase, module, grade)."""
    return {
        name: rest
        for name, *rest in map(tuple, names(read(report, folder).gpu_ops, "name", "phase", "module", "grade"))
    }


class Two:
    """A report with a main and an autograd thread."""

    def __init__(self) -> None:
        self.report = Report()
        self.process = self.report.process(1)
        self.main, self.autograd = self.process.thread(1, "python"), self.process.thread(2, "pt_autograd_0")


# --- grade thread --------------------------------------------------------------------------------------------------------


def test_the_innermost_module_open_at_the_start_of_the_call(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("forward", 0, 1000, domain=OWN)
    two.main.add_range(":Net", 10, 500, domain=OWN)
    two.main.add_range("fc:Linear", 100, 200, domain=OWN)
    for at, kernel in (
        (50, "root"),
        (100, "at begin"),
        (195, "across the end"),
        (200, "at end"),
        (600, "phase"),
        (2000, "out"),
    ):
        two.main.launch(at, 20, kernel=kernel, gpu_start=at + 30, gpu_dur=5)
    assert {k: list(v) for k, v in found(two.report, tmp_path).items()} == {
        "root": ["forward", "(Net)", "thread"],
        "at begin": ["forward", "fc", "thread"],
        "across the end": ["forward", "fc", "thread"],
        "at end": ["forward", "(Net)", "thread"],
        "phase": ["forward", "(forward)", "thread"],
        "out": [None, None, "none"],
    }


def test_outside_modules_but_in_a_step(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("step 0", 0, 100, domain=OWN)
    two.main.add_range("fc:Linear", 50, 60, domain=OWN)
    two.main.launch(10, 5, kernel="k", gpu_start=20, gpu_dur=5)
    assert list(found(two.report, tmp_path)["k"]) == [None, "(step, outside modules)", "thread"]


def test_backward_ranges_of_the_probe_on_the_autograd_thread(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, 50, domain=OWN)
    two.main.launch(10, 5, kernel="fwd", gpu_start=20, gpu_dur=5)
    two.main.add_range("backward", 100, 300, domain=OWN)
    two.autograd.add_range("bwd fc:Linear", 120, 200, domain=OWN)
    two.autograd.launch(130, 5, kernel="bwd", gpu_start=140, gpu_dur=5)
    two.autograd.launch(250, 5, kernel="rest", gpu_start=260, gpu_dur=5)
    rows = found(two.report, tmp_path)
    assert list(rows["fwd"]) == [None, "fc", "thread"]
    assert list(rows["bwd"]) == ["backward", "fc", "thread"]
    assert list(rows["rest"]) == ["backward", "(backward)", "time"]


def test_backward_marks_last_until_the_next_or_the_end_of_backward(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("a:A", 0, 10, domain=OWN)
    two.main.add_range("backward", 100, 300, domain=OWN)
    two.autograd.mark("bwd b:B", 120, domain=OWN)
    two.autograd.mark("bwd a:A", 200, domain=OWN)
    two.autograd.mark("bwd c:C", 400, domain=OWN)  # outside every backward: holds nothing
    for at, kernel in ((110, "early"), (130, "b"), (210, "a"), (310, "late"), (410, "outside")):
        two.autograd.launch(at, 5, kernel=kernel, gpu_start=at + 10, gpu_dur=5)
    rows = found(two.report, tmp_path)
    assert list(rows["early"]) == ["backward", "(backward)", "time"]
    assert list(rows["b"]) == ["backward", "b", "thread"]
    assert list(rows["a"]) == ["backward", "a", "thread"]
    assert list(rows["late"]) == [None, None, "none"]
    assert list(rows["outside"]) == [None, None, "none"]


def test_marks_of_two_autograd_threads_do_not_mix(tmp_path: Path) -> None:
    two = Two()
    second = two.process.thread(3, "pt_autograd_1")
    two.main.add_range("backward", 100, 300, domain=OWN)
    two.main.add_range("a:A", 0, 10, domain=OWN)
    two.autograd.mark("bwd a:A", 120, domain=OWN)
    second.mark("bwd b:B", 130, domain=OWN)
    two.autograd.launch(150, 5, kernel="a", gpu_start=160, gpu_dur=5)
    second.launch(151, 5, kernel="b", gpu_start=170, gpu_dur=5)
    rows = found(two.report, tmp_path)
    assert (rows["a"][1], rows["b"][1]) == ("a", "b")


def test_recompute_inside_backward(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, 20, domain=OWN)
    two.main.add_range("backward", 100, 300, domain=OWN)
    two.autograd.add_range("fc:Linear recompute", 110, 150, domain=OWN)
    two.autograd.launch(120, 5, kernel="again", gpu_start=130, gpu_dur=5)
    result = read(two.report, tmp_path)
    assert names(result.gpu_ops, "module", "phase", "recompute") == [("fc", "backward", True)]
    assert names(result.modules, "module", "calls") == [("fc", 1)]


# --- grade seq -----------------------------------------------------------------------------------------------------------


def test_sequence_numbers_tie_backward_to_the_forward_module(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, 100, domain=OWN)
    two.main.add_range("aten::addmm, seq = 7, op_id = 1", 10, 50)
    two.main.launch(20, 5, kernel="fwd", gpu_start=30, gpu_dur=5)
    two.autograd.add_range("AddmmBackward0, seq = 7, op_id = 9", 200, 260)
    two.autograd.add_range("aten::mm, op_id = 10", 210, 240)
    two.autograd.launch(220, 5, kernel="bwd", gpu_start=230, gpu_dur=5)
    two.autograd.add_range("OtherBackward0, seq = 8, op_id = 11", 270, 290)
    two.autograd.launch(275, 5, kernel="unknown", gpu_start=280, gpu_dur=5)
    rows = found(two.report, tmp_path)
    assert list(rows["fwd"]) == [None, "fc", "thread"]
    assert list(rows["bwd"]) == ["backward", "fc", "seq"]
    assert list(rows["unknown"]) == [None, None, "none"]


def test_of_equal_numbers_the_last_op_counts(tmp_path: Path) -> None:
    """Sequence numbers stand still where nothing needs a gradient; the op that made the node is the last with its number."""
    two = Two()
    for path, at in (("a", 0), ("b", 100)):
        two.main.add_range(f"{path}:Linear", at, at + 50, domain=OWN)
        two.main.add_range("aten::x, seq = 3, op_id = 1", at + 10, at + 20)
    two.autograd.add_range("XBackward0, seq = 3, op_id = 9", 200, 260)
    two.autograd.launch(220, 5, kernel="bwd", gpu_start=230, gpu_dur=5)
    assert list(found(two.report, tmp_path)["bwd"]) == ["backward", "b", "seq"]


def test_numbers_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    report = Report()
    for pid, path in ((1, "a"), (2, "b")):
        process = report.process(pid)
        main, autograd = process.thread(pid), process.thread(50 + pid)
        main.add_range(f"{path}:Linear", 0, 100, domain=OWN)
        main.add_range("aten::x, seq = 7, op_id = 1", 10, 50)
        autograd.add_range("XBackward0, seq = 7, op_id = 9", 200, 260)
        autograd.launch(220, 5, kernel=f"bwd {path}", gpu_start=230, gpu_dur=5)
    rows = found(report, tmp_path)
    assert (rows["bwd a"][1], rows["bwd b"][1]) == ("a", "b")


def test_without_modules_the_ops_themselves_are_the_rows(tmp_path: Path) -> None:
    """emit_nvtx alone: forward ops by name, and backward on the row of its forward op."""
    two = Two()
    two.main.add_range("aten::addmm, seq = 7, op_id = 1", 10, 50)
    two.main.launch(20, 5, kernel="fwd", gpu_start=30, gpu_dur=5)
    two.autograd.add_range("AddmmBackward0, seq = 7, op_id = 9", 200, 260)
    two.autograd.launch(220, 5, kernel="bwd", gpu_start=230, gpu_dur=5)
    rows = found(two.report, tmp_path)
    assert rows["fwd"][1] == "aten::addmm"
    assert list(rows["bwd"]) == ["backward", "aten::addmm", "seq"]


# --- grade time and none -------------------------------------------------------------------------------------------------


def test_an_autograd_thread_without_any_range(tmp_path: Path) -> None:
    rows = found(builder.case_autograd_without_ranges(), tmp_path)
    assert list(rows["fwd"]) == ["forward", "forward", "thread"]
    assert list(rows["bwd"]) == ["backward", "(backward)", "time"]


def test_backward_of_another_process_says_nothing(tmp_path: Path) -> None:
    report = Report()
    report.process(1).thread(1).add_range("backward", 0, 100)
    report.process(2).thread(2).launch(50, 5, kernel="k", gpu_start=60, gpu_dur=5)
    assert list(found(report, tmp_path)["k"]) == [None, None, "none"]


def test_work_launched_outside_the_trace_is_a_row(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, 100, domain=OWN)
    two.process.kernel("k", 50, 10, correlation=0)
    assert list(found(two.report, tmp_path)["k"]) == [None, None, "none"]


# --- graphs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cloned", [False, True])
@pytest.mark.parametrize("schema", ["3.20.3", "3.25.0"])
def test_a_graph_node_belongs_where_it_was_captured(tmp_path: Path, cloned: bool, schema: str) -> None:
    report = Report(schema)
    main = report.process(1).thread(1)
    main.add_range("fc:Linear", 0, 100, domain=OWN)
    main.call("cudaLaunchKernel_v7000", 10, 20)
    node = 10_000
    if cloned:  # the graph holds node 5, its executable a clone of a clone of it
        main.graph_node(15, 5)
        main.graph_node(300, 77, original=5)
        main.graph_node(310, node, original=77)
    else:
        main.graph_node(15, node)
    main.add_range("replay", 1000, 1100)
    main.graph_launch(1010, 20, nodes=[("captured", 1050, 10), ("unknown node", 1070, 10)])
    rows = found(report, tmp_path)
    assert list(rows["captured"]) == [None, "fc", "thread"]
    assert list(rows["unknown node"]) == [None, None, "none"]


def test_a_node_captured_outside_every_range_keeps_what_its_launch_says(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.graph_node(5, 10_000)
    main.add_range("fc:Linear", 1000, 1100, domain=OWN)
    main.graph_launch(1010, 20, nodes=[("k", 1050, 10)])
    assert list(found(report, tmp_path)["k"]) == [None, "fc", "thread"]


def test_clones_in_a_circle_end(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.graph_node(5, 10_000, original=10_001)
    main.graph_node(6, 10_001, original=10_000)
    main.graph_launch(1010, 20, nodes=[("a", 1050, 10), ("b", 1070, 10)])
    assert set(found(report, tmp_path)) == {"a", "b"}


# --- odd ranges ----------------------------------------------------------------------------------------------------------


def test_a_range_that_ends_on_another_thread_holds_nothing(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, 100, domain=OWN)
    two.main.add_range("inner:Linear", 10, 90, domain=OWN, ends_on=two.autograd)
    two.main.launch(50, 5, kernel="k", gpu_start=60, gpu_dur=5)
    assert list(found(two.report, tmp_path)["k"]) == [None, "fc", "thread"]


def test_two_nested_ranges_of_one_name(tmp_path: Path) -> None:
    """Ranges of a user are named by the path of ranges that they lie in."""
    result = read(builder.case_nested_same_name(), tmp_path)
    assert names(result.gpu_ops, "name", "module") == [("inner", "block / block"), ("outer", "block")]
    assert names(result.modules, "module", "parent", "calls") == [("block", None, 1), ("block / block", "block", 1)]


def test_a_module_that_calls_itself_is_one_row(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Tree", 0, 100, domain=OWN)
    two.main.add_range("fc:Tree", 10, 50, domain=OWN)
    two.main.launch(20, 5, kernel="k", gpu_start=30, gpu_dur=5)
    result = read(two.report, tmp_path)
    assert names(result.modules, "module", "parent", "calls") == [("fc", None, 2)]


def test_an_unclosed_range_lasts_to_the_end(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, None, domain=OWN)
    two.main.launch(50, 5, kernel="first", gpu_start=60, gpu_dur=5)
    two.main.launch(5000, 5, kernel="last", gpu_start=6000, gpu_dur=5)
    rows = found(two.report, tmp_path)
    assert rows["first"][1] == rows["last"][1] == "fc"


def test_the_parent_is_where_a_module_is_mostly_called_from(tmp_path: Path) -> None:
    two = Two()
    for i, outer in enumerate(("a", "b", "b")):
        two.main.add_range(f"{outer}:Block", 100 * i, 100 * i + 90, domain=OWN)
        two.main.add_range("shared:Linear", 100 * i + 10, 100 * i + 50, domain=OWN)
    rows = {m: (p, c) for m, p, c in names(read(two.report, tmp_path).modules, "module", "parent", "calls")}
    assert rows == {"a": (None, 1), "b": (None, 2), "shared": ("b", 3)}


def test_ranges_of_the_user_are_ignored_where_the_probe_names_modules(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("fc:Linear", 0, 100, domain=OWN)
    two.main.add_range("my block", 10, 90)
    two.main.launch(50, 5, kernel="k", gpu_start=60, gpu_dur=5)
    assert list(found(two.report, tmp_path)["k"]) == [None, "fc", "thread"]


def test_phases_are_disjoint_and_the_inner_one_has_the_time(tmp_path: Path) -> None:
    two = Two()
    two.main.add_range("evaluation", 0, 100)
    two.main.add_range("forward", 20, 60)
    spans = read(two.report, tmp_path).phase_spans.sort("start_ns")
    assert spans.select("start_ns", "end_ns", "phase").rows() == [
        (0, 20, "evaluation"),
        (20, 60, "forward"),
        (60, 100, "evaluation"),
    ]


# --- properties ----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.reports())
def test_rows_in_are_rows_out_in_their_order(tmp_path_factory: pytest.TempPathFactory, report: Report) -> None:
    trace = load(report.write(tmp_path_factory.mktemp("a") / "r.sqlite"))
    before = correlate.correlate(trace)
    after = attribute.attribute(trace, before, nvtx_ranges.read(trace))
    for old, new in ((before.api_calls, after.api_calls), (before.gpu_ops, after.gpu_ops)):
        assert new.select(old.columns).equals(old)
        assert new["grade"].null_count() == 0
        assert set(new["grade"].cast(pl.String).unique()) <= set(attribute.GRADES)
        unknown = new.filter(pl.col("grade").cast(pl.String) == "none")
        assert unknown["module"].null_count() == unknown.height
