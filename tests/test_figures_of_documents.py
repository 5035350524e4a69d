"""The figures of README and documents: those that the samples give are made again here, for the others their source is named.

What the pairs of programs before and after a change give is held by ``test_readme``, what agents read by ``scripts/test_evals``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsysx.pipeline import summarize
from nsysx.render import answer_words
from nsysx.replay import tracing_costs
from nsysx.roofline import device_rates
from tests.comparing.test_commands import call
from tests.samples import NAMES, RECORDED_COSTS, SAMPLES, Samples

ROOT = SAMPLES.parent
PROGRAMS = json.loads((SAMPLES / "make_samples.json").read_text(encoding="utf-8"))["programs"]
PATHS = [ROOT / "README.md", *sorted((ROOT / "nsysx" / "docs").glob("*.md"))]
TEXTS = {path.stem: " ".join(path.read_text(encoding="utf-8").split()) for path in PATHS}
MS = 1e6

#: A figure with a unit of time, of size or of rate, a share or a factor.
FIGURE = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)? ?(?:ns|us|ms|s|kB|MB|GB|%|TFLOP/s|TB/s|x)(?![\w/])")

#: Documents whose other figures no sample holds, and where they are from. (What a document states of nsysx itself - a limit, a
#: threshold, a default - stands in the code that it describes.)
ELSEWHERE = {
    "README": "measured on H200s: pauses of a recording (cost), the pairs (what-if)",
    "accuracy": "measured on H100s and H200s; `scripts/make_samples --pairs` measures the pairs again",
    "agents": "limits of `nsysx.render.small_json`; `scripts/evals` counts what agents read",
    "changes": "as measured for the version that it tells of",
    "compare": "captures of one program, and with more work, as in accuracy; limits of `nsysx.comparing`",
    "cost": "measured on H100s and H200s; `scripts/probe_cost` measures the probe again",
    "definitions": "limits of the rules; what stands behind *Because* is from captures that led to the rule",
    "frameworks": "measured on H200s with the recipes of `sample_reports/recipes`",
    "many-ranks": "jobs on H100s and H200s; the capture of equal ranks (`ddp.py --balanced`) is not kept",
    "recording": "measured on H100s and H200s; defaults of the options",
    "roofline": "`nsysx.roofline`",
    "settings": "sizes of packages, as pip and `doctor` install them",
    "speed": "`scripts/bench`, see `scripts/bench.md`",
    "what-if": "`sample_reports/pairs.json`; defaults of `nsysx try`",
}


def bare_ms(program: str) -> float:
    """The step of a sample's program without any profiler: the fastest of its bare runs."""
    return float(min(run["step_ms"] for run in PROGRAMS[program]["bare"]))


def test_the_readme_tells_of_the_masked_loss_what_the_report_prints(recorded: Samples) -> None:
    summary = recorded.summary("masked_nonzero")
    told = answer_words.build(summary)
    share = re.search(r"(\d+) % MaskedLoss \(mostly sorting and indexing\)", told.sentence)
    assert share and abs(int(share[1]) / 100 - 1 / 3) < 0.02, "a third of its work"
    busy = re.search(r"GPU busy (\d+) % of ([\d.]+ ms)", told.head)
    assert busy and told.then_ns and told.paste.startswith("loss = F.cross_entropy(logits, target, ignore_index=")
    assert summary.steps.gpu_mean_ns
    for sentence in (
        f"A training step takes {summary.steps.gpu_mean_ns / MS:.0f} ms, and",
        f"the GPU is busy for {busy[1]} % of {busy[2]}, so",
        f"with `ignore_index` instead of a mask a step takes about {told.then_ns / MS:.1f} ms.",
        f"Made, and timed without a profiler: {bare_ms('masked_ignore_index'):.1f} ms.",
    ):
        assert sentence in TEXTS["README"], sentence


def test_the_comparison_of_the_document_is_what_compare_prints(
    recorded: Samples, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_costs, "ASSUMED", RECORDED_COSTS)
    sides = [str(recorded.report(name)) for name in ("masked_nonzero", "masked_ignore_index")]
    out = call(capsys, monkeypatch, "compare", *sides)[1]
    assert f"``` {' '.join(out.split(chr(10) * 2)[0].split())} ```" in TEXTS["compare"]
    before, after = (bare_ms(name) for name in ("masked_nonzero", "masked_ignore_index"))
    assert f"without profiler they run in {before:.1f} and {after:.1f} ms." in TEXTS["compare"]


def waiting(job: Any) -> tuple[dict[str, Any], dict[str, Any], float, float, float]:
    """The first rank and the late one of a job; ms that the first waits for others, has exposed communication, and of its step."""
    rows = job.tables["ranks"].rows
    first, late = rows[0], next(row for row in rows if row["straggler"])
    exposed = (first["exposed_wait_ns"] + first["exposed_transfer_ns"] + first["exposed_unmatched_ns"]) / first["steps"]
    return first, late, first["exposed_wait_ns"] / first["steps"] / MS, exposed / MS, job.steps.gpu_mean_ns / MS


def test_jobs_are_told_as_their_samples_give_them(recorded: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    first, late, waits, exposed, step = waiting(recorded.summary("ddp"))
    computes = (late["compute_ns"] / late["steps"] - first["compute_ns"] / first["steps"]) / MS
    unequal, equal = bare_ms("ddp"), bare_ms("ddp_balanced")
    for sentence in (
        f"exposed on rank 0 for {exposed:.2f} ms of a {step:.1f} ms step: {waits:.2f} ms waiting and"
        f" {first['exposed_transfer_ns'] / first['steps'] / MS:.2f} ms transfer. Rank 1 is named, for {computes:.1f} ms more compute.",
        f"equal batches run in {equal:.1f} ms and unequal ones in {unequal:.1f} ms.",
        f"prices the straggler at {late['price_ns'] / MS:.1f} ms, and its true price is {unequal - equal:.1f}:",
    ):
        assert sentence in TEXTS["many-ranks"], sentence
    names = [f"ddp_four.rank{rank}" for rank in range(4)]
    monkeypatch.setattr(tracing_costs, "ASSUMED", RECORDED_COSTS)
    monkeypatch.chdir(recorded.report(names[0]).parent)
    job = summarize([Path(recorded.report(name).name) for name in names])
    first, late, waits, exposed, step = waiting(job)
    computes = (late["compute_ns"] / late["steps"] - first["compute_ns"] / first["steps"]) / MS
    assert late["rank"] == 3
    told = f"waits for {waits:.2f} of {exposed:.2f} ms of exposed communication in a {step:.1f} ms step, and rank 3 is named, for"
    assert f"{told} {computes:.1f} ms more compute." in TEXTS["many-ranks"]


def test_the_replay_of_the_samples_is_as_near_as_the_document_says(recorded: Samples) -> None:
    said = re.search(r"on the sample reports it does to within ([\d.]+) %", TEXTS["what-if"])
    replays = [summary.replay for summary in map(recorded.summary, NAMES) if summary.replay]
    assert said and len(replays) > 10
    worst = max(replay["error"] for replay in replays) * 100
    assert worst <= float(said[1]) <= worst + 0.15


def test_rates_of_devices_are_those_that_limits_are_made_of() -> None:
    (h100, h100_memory), (h200, h200_memory) = (
        device_rates._MEASURED[name] for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    )
    rate: Callable[[str], str] = lambda number_format: f"{h100[number_format] / 1e12:,.0f}"  # noqa: E731
    told = (
        f"(H100: bfloat16 {rate('bf16')} TFLOP/s, TF32 {rate('tf32')}, FP32 {rate('fp32')}, FP8 {rate('fp8')}, memory"
        f" {h100_memory / 1e12:.1f} TB/s, read and written; H200: bfloat16 {h200['bf16'] / 1e12:.0f}, memory {h200_memory / 1e12:.1f})"
    )
    assert told in TEXTS["roofline"]


def test_the_table_of_speed_is_what_the_benchmark_wrote_down() -> None:
    recorded = (ROOT / "scripts" / "bench.md").read_text(encoding="utf-8")
    sections = re.split(r"^### ([\d,]+) kernels, synthetic$", recorded, flags=re.MULTILINE)[1:]
    rows = [
        line
        for line in (ROOT / "nsysx" / "docs" / "speed.md").read_text(encoding="utf-8").splitlines()
        if line[:3] == "| 1"
    ]
    assert len(rows) == len(sections) // 2 + 1

    def figures(section: str, what: str) -> list[str]:
        line = next(line for line in section.splitlines() if line.strip("| *").startswith(f"{what} "))
        return [cell.strip() for cell in line.strip("|").split("|")][1:]

    def seconds(text: str) -> float:
        return float(text.removesuffix(" s"))

    for row, kernels, section in zip(
        rows, [*sections[::2], sections[-2]], [*sections[1::2], sections[-1]], strict=True
    ):
        every = "--every-step" in row
        said = [cell.strip() for cell in row.strip("|").split("|")]
        report = figures(section, f"nsysx report --json{' --every-step' if every else ''}")
        scripts, scan = (
            seconds(figures(section, w)[0])
            for w in ("the nine NVIDIA scripts, one after another**", "one SQLite scan of the columns")
        )
        memory = float(report[4].removesuffix(" MB").replace(",", ""))
        assert said[0].startswith(kernels) and f"{said[1]} rows" in section
        assert said[2] == f"{seconds(report[0]):.1f} s"
        assert said[3] == (f"{memory / 1000:.1f} GB" if memory >= 1000 else f"{memory:.0f} MB")
        times = scripts / seconds(report[0])
        more = f" ({times:.{0 if times >= 10 else 1}f} x)" if times > 1 else ""
        assert said[4] == f"{scripts:.{0 if scripts >= 10 else 1}f} s{more}"
        assert said[5] == f"{scan:.{1 if scan >= 1 else 2}f} s"


#: Tables with figures that no test makes again: by the first cells of their heads, with their source.
MEASURED_ONCE = {
    ("README", "you see | nsysx says"): "examples of what programs print and the page says",
    ("README", "document | for"): "captures that the document tells of",
    ("settings", "package | why"): "start of a command with each version of the package",
    ("accuracy", "event | adds"): "a loop of each call alone on an H200, with nsys 2025.3",
    ("accuracy", "program | unchanged, ms"): "`nsysx try` on an H100, pairs of runs",
    ("accuracy", "program and change | unchanged, ms"): "`nsysx try` on an H100, within one run",
    ("agents", "agent | solved"): "`scripts/evals`, which runs an agent",
    ("cost", "SGD, tiny linear modules | bare step"): "`scripts/probe_cost` on an H100",
    ("cost", "before the first window"): "one program on an H100, with and without `--keep`",
    ("cost", "median | lowest"): "pauses of `nsysx run` on H100s",
    ("cost", "program | own clock, ms"): "27 programs on H100s and H200s, timed by themselves",
    ("frameworks", "program | steps"): "the recipes of `sample_reports/recipes` on an H200",
    ("many-ranks", "job | own clock, ms"): "six jobs on two H100s, timed by themselves",
}
#: Tables that a test makes again, with that test's file.
MADE_AGAIN = {
    ("accuracy", "the step without the profiler"): "tests/test_readme.py",
    ("accuracy", "kernels | by counters over Nsight Compute"): "tests/roofline/test_against_nsight_compute.py",
    ("accuracy", "kernels | must move"): "tests/roofline/test_against_nsight_compute.py",
    ("speed", "kernels | rows"): "tests/test_figures_of_documents.py",
    ("what-if", "change | bare, ms"): "tests/test_readme.py",
}


def test_each_table_with_figures_is_made_again_or_names_its_source() -> None:
    heads = set()
    for path in PATHS:
        for table in re.findall(r"(?:^\|.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE):
            head, _, *rows = table.splitlines()
            if any(FIGURE.search(row) or re.search(r".\| \d[\d,.]*(?:, \d| of \d| \|)", row) for row in rows):
                heads.add((path.stem, head.strip("| ")))
    listed = {**MEASURED_ONCE, **MADE_AGAIN}
    unlisted = [h for h in heads if not any(h[0] == name and h[1].startswith(begin) for name, begin in listed)]
    assert not unlisted, "a table without a test and without a source"
    assert [k for k in listed if not any(h[0] == k[0] and h[1].startswith(k[1]) for h in heads)] == []
    assert all((ROOT / file).is_file() for file in MADE_AGAIN.values())


def test_of_every_other_figure_the_source_is_named() -> None:
    with_figures = {name for name, text in TEXTS.items() if FIGURE.search(text)}
    assert with_figures == set(ELSEWHERE)
    for source in ELSEWHERE.values():
        for named in re.findall(r"`((?:scripts|sample_reports)/[\w./]+)", source):
            assert (ROOT / named).exists(), named
