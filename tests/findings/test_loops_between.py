"""NSX130: loops of launches between steps, and networks that are called there and evaluate nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsysx import units
from nsysx.answer import as_if_chosen
from nsysx.findings import nsx130_between_steps as rule
from nsysx.findings._scanned_loops import scan_of_lines
from nsysx.model import Finding
from nsysx.render import facts_line
from nsysx.replay.engine import Withheld, unprofiled_of
from tests.builder import Report
from tests.findings import only_finding
from tests.render import factory

US, MS = 1_000, 1_000_000
FILE = "/home/me/learn.py"
#: Lines of a program: returns with a discount, element by element, and what else may run between steps.
RETURNS = {
    "20": "        alive = 1.0 - over[k]",
    "21": "        kept = gains[k] + 0.9 * alive * kept - base[k + 1]",
    "22": "        out[k] = kept",
}
HEAD = {"19": "    for k in reversed(range(len(gains))):"}
CLUSTERS = {
    "20": "        near = torch.cdist(rows, centers).argmin(1)",
    "21": "        centers = torch.zeros_like(centers).index_add_(0, near, rows)",
}
CALLS = {"40": "    values = returns_of(rollout)"}


def program(
    *,
    launches: int,
    networks: int,
    read: bool = False,
    kernel_ns: int = 2 * US,
    reads_each: int = 0,
    looked_at: bool = False,
) -> Report:
    """Return a program of 20 steps of 2 ms, behind every fourth of which networks are called, and a loop launches two kernels in turn.

    ``looked_at``: an X-ray notes the lines of two steps, the first one's until a network is called.
    """
    report = Report()
    report.gpu(0, pids=[(100, 0)])
    thread = (process := report.process(100)).thread(100, "python3")
    process.context()
    t = MS
    for step in range(20):
        thread.add_range(f"step {step}", t, t + 2 * MS, domain="nsysx")
        thread.launch(t + 10 * US, kernel="gemm", gpu_start=t + 20 * US, gpu_dur=2 * MS - 40 * US)
        if looked_at and step in (7, 8):
            until = t + 2 * MS + (30 * US if step == 7 else 0)
            thread.line(f"{FILE}:90 <module>", t - 5 * US, until)
            thread.line(f"{FILE}:42 train", t - 4 * US, t + 1 * MS)
            thread.line(f"{FILE}:43 train", t + 1 * MS, t + 2 * MS - US)
            if step == 7:
                thread.line(f"{FILE}:38 train", t + 2 * MS, until - US)
        t += 2 * MS
        if step % 4 != 3:
            continue
        for _ in range(networks):
            thread.add_range("evaluation Net", t, t + 50 * US, domain="nsysx")
            thread.launch(t + 10 * US, kernel="gemm", gpu_start=t + 20 * US, gpu_dur=200 * US)
            t += 220 * US if read else 50 * US
        begin = max(t, t + 200 * US)
        for number in range(launches):
            t += 10 * US
            start = max(t + 8 * US, begin)
            begin = start + kernel_ns
            thread.launch(t, kernel=("mul", "add")[number % 2], gpu_start=start, gpu_dur=kernel_ns)
            if reads_each and number % reads_each == 0:
                t += 10 * US
                thread.memcpy(t, 20 * US, kind="DtoH", bytes=4, gpu_start=begin + US, gpu_dur=US, pageable=True)
                begin, t = begin + 2 * US, t + 20 * US
        t = max(t, begin) + 20 * US
        if read:
            thread.memcpy(t, 10 * US, kind="DtoH", bytes=4, gpu_start=t + US, gpu_dur=US, pageable=True)
            t += 20 * US
    return report


def finding_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    report: Report,
    lines: dict[str, str],
    *,
    function: str = "returns_of",
    between_ns: int = 3 * MS,
    behind: int = 0,
) -> Finding:
    """Return what is said where the program was seen at some lines of a function in long steps, with so much between steps, per step.

    ``behind``: how often it was seen at a line behind its loop.
    """
    seen = [[FILE, int(number), function, 30, False] for number in lines if lines[number].startswith("        ")]
    entries = [[FILE, 40, "train", 30]] if seen else []
    seen += [[FILE, 93, "<module>", behind, False]] if behind else []
    noted = {"steps": 5, "samples": sum(row[3] for row in seen), "places": seen, "entries": entries}
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "long_steps": noted}
    text = {"probe": [{**record, "source": {FILE: {**lines, **CALLS}}, "settings": {"evaluations": []}}]}
    (folder / "r.run.json").write_text(json.dumps(text))

    def measured(case: Any) -> Any:
        real = unprofiled_of(case.profile)
        assert not isinstance(real, Withheld)
        return replace(real, loop_ns=real.step_ns + between_ns)

    monkeypatch.setattr(rule, "measured_loop", measured)
    return only_finding("NSX130", report.write(folder / "r.sqlite"))


@pytest.mark.parametrize(
    "head", [HEAD, {}]
)  # as a probe notes it, and as one does that knows only the lines at which it looked
def test_a_recurrence_between_steps_is_named_by_its_line_and_scanned(
    head: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = finding_of(tmp_path, monkeypatch, program(launches=1_000, networks=1), {**head, **RETURNS})
    assert told.title.startswith("Between steps returns_of takes 2.9") and "1,000 launches each time" in told.title
    assert [way.name for way in told.remedies] == ["scan-at-once"]
    assert (told.where["file"], told.where["line"], told.where["near"]) == (FILE, 20, "a loop between steps")
    row = told.evidence[0]
    goes, most = row["loop_ns"] - row["loop_then_ns"], row["between_ns"]
    assert 2.4 * MS < goes < most <= 3 * MS - 200 * US // 4, "the GPU's work for the network stays"
    assert " and what stays)" in told.saving.confidence and "up to" not in told.saving.confidence


def test_rounds_that_are_no_recurrence_make_fewer_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = finding_of(tmp_path, monkeypatch, program(launches=1_000, networks=0), CLUSTERS, function="clusters")
    assert told.title.startswith("Between steps clusters takes")
    assert [way.name for way in told.remedies] == ["batched-operation"] and "launches in clusters" in told.fix
    goes = told.evidence[0]["loop_ns"] - told.evidence[0]["loop_then_ns"]
    assert 2.2 * MS < goes < 2.7 * MS


@pytest.mark.parametrize("each", [1, 200])
def test_rounds_that_read_values_back_keep_them(each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``each``: one of so many rounds reads."""
    lines = {"20": "        moved = (centers - before).norm().item()", "21": "        before = centers"}
    told = finding_of(tmp_path, monkeypatch, program(launches=400, networks=0, reads_each=each), lines, function="fit")
    assert "fit takes" in told.title and ("launches each time" in told.title) is (each > 1)
    assert [way.name for way in told.remedies] == (
        ["keep-on-gpu", "beside-the-loop"] if each == 1 else ["batched-operation"]
    )


@pytest.mark.parametrize(
    ("made", "function", "title"),
    [
        ({"launches": 1_000, "networks": 12, "read": True}, "returns_of", "evaluation takes"),  # batches
        ({"launches": 1_000, "networks": 1}, "evaluate_returns", "evaluation takes"),  # it is called one
        ({"launches": 60, "networks": 1, "kernel_ns": 200 * US}, "returns_of", "returns_of takes"),  # the GPU works
    ],
)
def test_evaluations_and_few_launches_are_no_loop(
    made: dict[str, Any], function: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = finding_of(tmp_path, monkeypatch, program(**made), {**HEAD, **RETURNS}, function=function)
    assert title in told.title and "launches each time" not in told.title
    assert not {"scan-at-once", "batched-operation"}.intersection(way.name for way in told.remedies)


def test_a_network_that_is_called_once_and_read_by_nobody_evaluates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = finding_of(tmp_path, monkeypatch, program(launches=4, networks=1), {})
    assert "a pass through a network takes" in told.title and told.where["near"] == f"{rule.PASS} between steps"
    read = finding_of(tmp_path, monkeypatch, program(launches=4, networks=1, read=True), {})
    assert "evaluation takes" in read.title


def test_the_facts_name_what_runs_between_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = finding_of(tmp_path, monkeypatch, program(launches=1_000, networks=1), {**HEAD, **RETURNS})
    summary = replace(factory.summary(), findings=(told,))
    covered = {"steady_ns": 40, "rest": [{"what": "evaluation between steps", "ns": 60}]}
    summary = replace(summary, steps=replace(summary.steps, coverage=covered))
    assert "a loop between steps 60 %" in " ".join(facts_line._covered(summary))
    summary = replace(summary, answer=as_if_chosen(summary, told))
    assert "what else runs there was recorded" in summary.answer.certainty.parts[1].reason


def discounted(before: Sequence[str], paste: str | None) -> torch.Tensor:
    torch.manual_seed(1)
    names: dict[str, Any] = {"torch": torch, "gains": torch.randn(37, 5), "base": torch.randn(38, 5)}
    names |= {"over": (torch.rand(37, 5) < 0.1).float(), "out": torch.zeros(37, 5), "kept": torch.zeros(5)}
    exec("\n".join(before) if paste is None else paste, names)
    out: torch.Tensor = names["out"]
    return out


def test_the_scan_of_lines_whose_head_was_not_noted_makes_the_same() -> None:
    fix = scan_of_lines(RETURNS, 21, (20, 21, 22))
    assert fix is not None and "as many dimensions" in fix.ways[0].condition
    assert "its head was not recorded" in fix.ways[0].condition
    noted = scan_of_lines({**HEAD, **RETURNS}, 21, (20, 21, 22))
    assert noted is not None and "head" not in noted.ways[0].condition
    loop = ["for k in reversed(range(len(gains))):", *RETURNS.values()]
    assert torch.allclose(discounted(loop, None), discounted((), fix.ways[0].paste), atol=1e-5)


def test_lines_of_the_next_function_are_none_of_the_loop() -> None:
    next_function = {
        "34": "        noise = torch.randn(4)",
        "35": "        for each in rows:",
        "36": "            each.add_(1)",
    }
    fix = scan_of_lines({**HEAD, **RETURNS, **next_function}, 21, (20, 21))  # the last line was seen by the X-ray alone
    alone = scan_of_lines({**HEAD, **RETURNS}, 21, (20, 21, 22))
    assert fix is not None and alone is not None and "out[k] = kept" in fix.ways[0].paste
    assert fix.ways == alone.ways


def test_a_loop_with_a_line_that_nobody_saw_has_no_paste() -> None:
    lines = {"18": HEAD["19"], **RETURNS}  # line 19 may be a comment, or change what the others read
    fix, whole = scan_of_lines(lines, 21, (20, 21, 22)), scan_of_lines({**HEAD, **RETURNS}, 21, (20, 21, 22))
    assert fix is not None and whole is not None and "gains" in whole.ways[0].paste and "gains" not in fix.ways[0].paste


@pytest.mark.parametrize(
    "lines",
    [
        {number: text for number, text in RETURNS.items() if number != "22"},  # where it is stored is not known
        {**RETURNS, "21": "        kept = gains[k] + 0.9 * alive * kept"},  # nor from where to where it goes
        {**RETURNS, "25": "        base[k] = kept"},  # a line between them was not seen
    ],
)
def test_lines_that_do_not_tell_the_loop_have_no_scan(lines: dict[str, str]) -> None:
    assert scan_of_lines(lines, 21, tuple(map(int, lines))) is None


@pytest.mark.parametrize("behind", [0, 35])
def test_a_loop_of_which_no_line_was_seen_is_told_between_those_that_were(
    behind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long step that was looked at is the end of the program: at another line of what all steps run below."""
    told = finding_of(tmp_path, monkeypatch, program(launches=1_000, networks=1, looked_at=True), {}, behind=behind)
    assert "a loop in train, behind line 38, takes" in told.title and "<module>" not in told.title
    assert (told.where["file"], told.where["line"]) == (FILE, 38)
    assert "what runs between lines 38 and 42 in train" in told.fix
    assert "An iteration of 4 steps and what runs between them takes" in told.detail
    row = told.evidence[0]
    assert row["steps_each"] == 4
    summary = replace(factory.summary(), findings=(told,))
    covered = {"steady_ns": 40, "rest": [{"what": "evaluation between steps", "ns": 60}]}
    summary = replace(summary, steps=replace(summary.steps, coverage=covered))
    monkeypatch.setattr(type(summary), "step", property(lambda _: SimpleNamespace(estimate=None)))
    assert f"a step, {units.duration(4 * row['loop_ns'])} for 4, with what" in " ".join(facts_line._covered(summary))


def test_a_loop_of_a_program_of_which_no_line_was_seen_has_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = finding_of(tmp_path, monkeypatch, program(launches=1_000, networks=1), {})
    assert "a loop takes" in told.title and told.where.get("line") is None


def test_a_line_of_the_program_itself_beside_its_steps_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no X-ray tells that all steps run below another line of it, the loop may be the program's own."""
    told = finding_of(tmp_path, monkeypatch, program(launches=1_000, networks=1), {}, behind=35)
    assert told.where["line"] == 93 and "line 93 takes" in told.title and "launches in line 93" in told.fix


@pytest.mark.parametrize(
    "made", [{"launches": 60, "networks": 12}, {"launches": 60, "networks": 1, "kernel_ns": 200 * US}]
)
def test_evaluations_of_which_no_line_was_seen_are_no_loop(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = finding_of(tmp_path, monkeypatch, program(**made, looked_at=True), {}, behind=35)
    assert "a loop" not in told.title and "launches each time" not in told.title and "<module>" not in told.title
