"""The answer: consistent in itself, advised only where the capture allows it, and decided nowhere else."""

from __future__ import annotations

import ast
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.answer import change_savings, decide
from nsysx.findings import rule_of
from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.render import brief, html_page
from tests.builder import Report
from tests.findings import Program, stepless
from tests.samples import DISTINCT, Samples

RENDER = Path(__file__).resolve().parents[2] / "nsysx" / "render"


def inconsistent(summary: Summary) -> list[str]:
    """Return what of an answer contradicts another part of it."""
    said, bad = summary.answer, list[str]()
    if said.now_ns is not None:
        bad += [f"{a.text} saves more than the step" for a in said.do if (a.saving_ns or 0) > said.now_ns]
        saved = [a.saving_ns for a in said.do if a.saving_ns is not None]
        if said.then_ns is not None and len(said.do) == 1 and said.then_ns != said.now_ns - saved[0]:
            bad.append("the step after the change is not the step less the saving")
    bounds = [0, said.then_low_ns, said.then_ns, said.then_high_ns, said.now_ns]
    known = [ns for ns in bounds if ns is not None]
    if said.then_low_ns is not None and known != sorted(known):
        bad.append("the step after the change is not between its bounds")
    for bar in said.picture.bars:
        if abs(sum(p.ns for p in bar.parts) - bar.total_ns) > 1:
            bad.append(f"the parts of {bar.label} are not its whole")
    bad += (
        [] if said.certainty.reason and all(s.reason for s in said.certainty.parts) else ["no reason for the certainty"]
    )
    bad += [f"{a.code} is violated" for a in said.do[-1:] if any(c.state == "violated" for c in a.conditions)]
    bad += [] if said.do and all(a.text for a in said.do) else ["nothing to do"]
    return bad


@pytest.mark.parametrize("name", DISTINCT)
def test_the_answer_of_a_sample_is_consistent(name: str, recorded: Samples) -> None:
    assert inconsistent(recorded.summary(name)) == []


#: What a decision takes as its input: findings and what they save, waits and what they would save.
JUDGED = re.compile(
    r"\bfindings\b|\bsaving_ns|saving_ns_per_step|cost_ns_per_step|\bunblocked_ns\b|\blikely_ns\b|\bwaits\.ROWS\b"
)
CHOOSES = {"max", "min", "sorted", "next", "sort", "nlargest", "nsmallest"}
MEDIANS = {"median", "median_low", "median_high", "fmean", "quantiles", "quantile", "percentile", "nanmedian"}


def decisions(text: str) -> list[str]:
    """Return where code names a rule, chooses among findings or by what they save, or computes a median."""
    bad = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"NSX\d{3}", node.value):
            bad.append(f"{node.lineno}: {node.value}")
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in MEDIANS or (name in CHOOSES and JUDGED.search(ast.unparse(node))):
            bad.append(f"{node.lineno}: {ast.unparse(node)}")
    return bad


@pytest.mark.parametrize("path", sorted(RENDER.rglob("*.py")), ids=lambda p: str(p.relative_to(RENDER)))
def test_an_output_decides_nothing(path: Path) -> None:
    """No rule's code stands in it, it takes no finding for being the largest or the first of its kind, and it has no medians."""
    assert decisions(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "if finding.code == 'NSX101': pass",
        "code in ('NSX107', 'NSX115')",
        "max(summary.findings, key=cost)",
        "sorted(f for f in shown if f.saving_ns_per_step)",
        "next(f for f in summary.findings or ())",
        "rows.sort(key=lambda r: r['saving_ns'])",
        "statistics.median(lengths)",
    ],
)
def test_a_decision_in_an_output_is_seen(text: str) -> None:
    assert decisions(text)


# ---------------------------------------------------------------- conditions


def launch_bound(waits_in: str) -> Program:
    """Return a program whose GPU waits for Python, and which waits for it twice inside the model, or once a step outside the model."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for layer in range(20):
                with program.range(f"net.{layer}:Layer"):
                    program.launch(4, cost=400)  # a compiled graph costs the host 0.3 ms
                    if waits_in == "model" and layer % 10 == 5:
                        program.sync()
        if waits_in == "loop":
            program.sync()
        program.host(10)

    return Program().steps(body, 10)


def test_a_wait_inside_the_model_makes_a_sequence_of_the_graph(tmp_path: Path) -> None:
    """What blocks a CUDA graph goes first, and the worth is that of both."""
    summary = launch_bound("model").summary(tmp_path)
    finding = next(f for f in summary.findings or () if f.code == "NSX102")
    states = {c.name: c.state for c in finding.conditions}
    assert states["nothing waits or reads a value back inside the model"] == "violated"
    assert "2 waits" in next(c.detail for c in finding.conditions if c.state == "violated")
    said = summary.answer
    assert [a.code for a in said.do] == ["NSX102", "NSX102"] and "Remove host syncs" in said.do[0].text
    assert not said.bound and said.now_ns is not None and said.then_ns is not None
    assert said.best_ns == said.now_ns - (change_savings.saving_ns(summary, finding) or 0) <= said.then_ns
    assert ((finding.saving.mended and finding.saving.mended.likely_ns) or 0) >= (finding.saving_ns_per_step or 0)
    assert inconsistent(summary) == []


def test_a_wait_outside_the_model_blocks_no_graph_of_it(tmp_path: Path) -> None:
    summary = launch_bound("loop").summary(tmp_path)
    finding = next(f for f in summary.findings or () if f.code == "NSX102")
    assert not [c for c in finding.conditions if c.state == "violated"]
    assert len(summary.answer.do) == 1


def test_memory_calls_inside_the_model_have_no_short_way_around(tmp_path: Path) -> None:
    """And so the graph is not advised."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.host(40)
                program.launch(10)
            program.call("cudaFree_v3020", 30)
            program.call("cudaMalloc_v3020", 30)
        program.host(10)

    summary = Program().steps(body, 10).summary(tmp_path)
    finding = next(f for f in summary.findings or () if f.code == "NSX102")
    assert [c.name for c in finding.conditions if c.state == "violated"] == [
        "nothing allocates or frees device memory inside the model"
    ]
    assert summary.answer.do[0].code != "NSX102"


def test_every_condition_of_a_finding_has_a_state_and_what_was_seen(recorded: Samples) -> None:
    seen = 0
    for name in DISTINCT:
        for finding in recorded.summary(name).findings or ():
            assert all(c.detail for c in finding.conditions)
            seen += len(finding.conditions)
    assert seen


# ---------------------------------------------------------------- what is not recorded claims nothing


def lossy(folder: Path, *, lost: int, capturing: bool = False) -> Summary:
    """Return the summary of 40 launches of which ``lost`` have no kernel, inside a graph capture or not."""
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    t = 0
    for i in range(40):
        if capturing and i == 0:
            main.call("cudaStreamBeginCapture_v10000", t, 5_000)
            t += 6_000
        if i < lost:
            main.call("cudaLaunchKernel_v7000", t, 5_000)
        else:
            main.launch(t, 5_000, kernel="solve", gpu_start=t + 10_000, gpu_dur=50_000)
        t += 100_000
        if capturing and i == lost - 1:
            main.call("cudaStreamEndCapture_v10000", t, 5_000)
            t += 6_000
    return summarize([report.write(folder / "r.sqlite")], every_table=False)


def lost_check(summary: Summary) -> list[str]:
    return [c.doubt for c in summary.quality if c.check == "launches without kernel"]


def test_nothing_is_claimed_where_half_of_the_kernels_are_lost(tmp_path: Path) -> None:
    summary = lossy(tmp_path, lost=20)
    assert lost_check(summary) == ["everything"]
    assert summary.answer.do[0].code == "" and summary.answer.do[0].text.startswith("Record again")
    assert summary.answer.then_ns is None and summary.answer.certainty.level == "unknown"


def test_fewer_lost_kernels_only_make_the_numbers_doubtful(tmp_path: Path) -> None:
    assert lost_check(lossy(tmp_path, lost=19)) == ["numbers"]


def test_launches_of_a_graph_capture_have_lost_no_kernel(tmp_path: Path) -> None:
    assert lost_check(lossy(tmp_path, lost=20, capturing=True)) == []


def test_rules_about_timing_are_named_by_themselves() -> None:
    assert rule_of("NSX107").reading and rule_of("NSX108").about == "timing" and not rule_of("NSX108").reading


def test_graphs_whose_kernels_were_not_recorded_are_recorded_first(tmp_path: Path) -> None:
    """What a graph launches can hide any cause: the advice is how to see it, and no change is named."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"):
            program.main.graph_launch(program.t, 20_000, opaque=(program.queue(2_000, 7), 2_000_000))
            program.host(30)
        program.sync()

    program = Program()
    program.report.capture("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph")
    summary = program.steps(body).summary(tmp_path)
    (action,) = summary.answer.do
    assert action.code == "" and "nsysx run --graphs node" in action.text
    assert "no change that was looked for" not in action.text and summary.answer.then_ns is None
    assert [c.check for c in summary.quality if c.doubt == "findings" and c.status == "warn"] == ["opaque graphs"]


def one_pass(folder: Path, host_us: float) -> Summary:
    """Return the summary of 600 kernels in no order that repeats, all of which slow down together, each ``host_us`` after the last."""

    def body(program: Program, number: int) -> None:
        for i in range(600):
            slow = 1.5 if (i // 100) % 2 else 1.0
            chance = random.Random(i)
            noise = 1 + 0.01 * chance.uniform(-1, 1)
            program.launch(12 * slow * noise, chance.choice("kabcde"), cost=3)
            program.host(host_us)

    return stepless(body).summary(folder)


def test_a_gpu_that_waits_for_its_host_is_not_told_to_lock_its_clocks(tmp_path: Path) -> None:
    """The clocks do change, and that is said; but they lead only where the GPU mostly works."""
    (tmp_path / "waits").mkdir()
    summary = one_pass(tmp_path / "waits", 35)
    work, total = summary.verdict.parts["work"], sum(summary.verdict.parts.values())
    assert summary.verdict.code == "launch_bound" and 0.55 < 1 - work / total < 0.7
    assert [f.verdict for f in summary.findings or () if f.code == "NSX108"] == ["found"]
    assert about_timing(summary) == []
    assert about_timing(one_pass(tmp_path, 0)) == ["timing"]


def about_timing(summary: Summary) -> list[str]:
    """Return what the advised rules are about, if that is timing."""
    return [about for a in summary.answer.do if a.code and (about := rule_of(a.code).about) == "timing"]


# ---------------------------------------------------------------- a Summary of another version


@pytest.mark.parametrize(("least", "most", "level"), [(1.0, 1.0, "certain"), (0.2, 3.0, "likely")])
def test_steps_of_very_different_length_make_no_cause_certain(
    least: float, most: float, level: str, tmp_path: Path
) -> None:
    report, us, chance = Report(), 1_000, random.Random(1)
    thread = report.process(100).thread(100, "python")
    now = free = 1_000 * us
    for _ in range(100):  # somebody's repetitions inside one range that says nothing
        length = chance.uniform(least, most)
        for k in range(10):
            start, took = max(now + 6 * us, free + us), int((20 + 7 * k) * length) * us
            thread.launch(now, 4 * us, kernel=f"k{k}", gpu_start=start, gpu_dur=took, stream=7)
            now, free = now + 5 * us, start + took
        thread.sync("cudaDeviceSynchronize_v3020", at=now, dur=free + 3 * us - now)
        now = free + 3 * us
    thread.add_range("benchmark", 990 * us, now + us)
    summary = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert summary.steps.source == "kernels" and summary.steps.count == 100
    assert summary.answer.certainty.parts[0].level == level


def test_a_saved_finding_whose_code_no_rule_has_is_shown(tmp_path: Path) -> None:
    """A rule that a later version added, or that this one no longer has, is read from a JSON as any other."""
    saved = launch_bound("loop").summary(tmp_path).to_json()
    text = json.dumps(saved).replace("NSX102", "NSX999")
    summary = Summary.from_json(json.loads(text))
    assert summary.answer.do[0].code == "NSX999"
    assert rule_of("NSX999").slug == "" and decide(summary).do
    assert "NSX999" in html_page.render(summary) and "NSX999" in brief.answer_json(summary)
    without_steps = replace(summary, steps=replace(summary.steps, source="capture"))
    assert "NSX999" in html_page.render(without_steps) and decide(without_steps).limit
