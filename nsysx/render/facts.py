"""Labelled facts about a capture and its steps: allow-listed, and only what is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsysx import units
from nsysx.analyses import lines
from nsysx.model import Steps, Summary
from nsysx.render.grids import CellTexts
from nsysx.render.labels import label
from nsysx.render.ledgers import process_words
from nsysx.render.render_bounds import MOST_ALIKE_FACTS
from nsysx.render.safe_text import clean


@dataclass(frozen=True, slots=True)
class Fact:
    """One labeled number or text."""

    label: str
    value: str
    note: str = ""


def report_name(summary: Summary) -> str:
    """Return the name of the (first) report, without its folders."""
    return summary.capture.files[0].rpartition("/")[2] if summary.capture.files else "REPORT"


def steady_count(steps: Steps) -> int:
    """Return how many steps are steady, wherever they lie."""
    first, last = steps.steady or (0, -1)
    return int(steps.all_steady["steps"]) if steps.all_steady else last - first + 1


def steps_line(summary: Summary) -> str:
    """Return one line about the steps: how many there are, and which rule found them."""
    steps = summary.steps
    if not steps.count:
        return clean(steps.rule or "No steps were found: the numbers cover the whole capture.", 300)
    text = f"{units.count(steps.count)} step{'s' if steps.count != 1 else ''}"
    if steps.steady and steps.count > 1:
        first, last = steps.steady
        text += f", {units.count(last - first + 1)} steady ({first} to {last})"
        if steps.all_steady:
            text += f" in a row, {steps.all_steady['steps']} in all"
    rule = clean(steps.rule or steps.source, 200).rstrip(".")
    if steps.source == "capture":
        return f"No steps: {rule}."
    return f"{text}. Found by: {rule}." if rule else f"{text}."


def step_times(summary: Summary) -> str:
    """Return the mean steady step as text, with the replay's where it is another; "" where it is not known."""
    steps, replay = summary.steps, summary.replay or {}
    if steps.source == "capture":
        return ""
    times = [
        f"{who} {units.duration(ns)}"
        for who, ns in (("GPU", steps.gpu_mean_ns), ("CPU", steps.cpu_mean_ns))
        if ns is not None
    ]
    text = f"Steady step, mean: {', '.join(times)}." if times else ""
    count = steps.scope.steps if steps.scope else 0
    if text and count > (replay.get("steps") or count):
        again = f"the last {replay['steps']} of the {count} steady steps, mean {units.duration(replay['recorded_ns'])}"
        text += f" Savings are from a replay of {again}, and given as the same share of the mean step."
    return text


_PROCESS_FIELDS = ("pid", "rank", "name")
_PROBE_FIELDS = ("python", "torch", "nvtx", "backend", "ranges_pushed", "reason")


def capture_facts(summary: Summary, texts: CellTexts) -> tuple[Fact, ...]:
    """Return the allow-listed facts about the capture; nothing else about it is ever shown."""
    capture = summary.capture
    facts = [_reports(capture.files, texts)]
    if capture.duration_ns is not None:
        facts.append(Fact("Length", units.duration(capture.duration_ns)))
    if capture.nsys_version:
        schema = f" (schema {texts(capture.schema_version, 30)})" if capture.schema_version else ""
        facts.append(Fact("Nsight Systems", f"{texts(capture.nsys_version, 60)}{schema}"))
    gpus = []
    for gpu in capture.gpus:
        limits = [
            text
            for value, text in (
                (gpu.memory_bytes, f"{units.size(gpu.memory_bytes)} memory"),
                (gpu.memory_bandwidth, f"{units.bandwidth(gpu.memory_bandwidth)} memory bandwidth"),
                (gpu.l2_bytes, f"{units.size(gpu.l2_bytes)} L2"),
                (gpu.sm_count, f"{gpu.sm_count} SMs"),
            )
            if value
        ]
        gpus.append(
            Fact(f"{process_words(summary, gpu.process)}GPU {gpu.device}", ", ".join([texts(gpu.name, 60), *limits]))
        )
    facts += gpus if len(gpus) <= MOST_ALIKE_FACTS else _by_kind(gpus)
    for row in capture.processes[:16]:
        fields = [f"{name} {texts(row[name], 60)}" for name in _PROCESS_FIELDS if row.get(name) not in (None, "")]
        if fields and len(capture.processes) > 1:
            facts.append(Fact("Process", ", ".join(fields)))
    of_process = ("pid", *_PROBE_FIELDS) if len(capture.probe) > 1 else _PROBE_FIELDS
    for row in capture.probe[:16]:
        fields = [f"{label(name)} {texts(row[name], 120)}" for name in of_process if row.get(name) not in (None, "")]
        facts.append(Fact("Probe", ", ".join(fields)))
        facts.extend(Fact("Probe error", texts(error, 300)) for error in (row.get("errors") or ())[:5])
    if capture.exit_code is not None:
        facts.append(Fact("Exit code of the program", str(capture.exit_code)))
    if not texts.redact:
        facts.extend(Fact(f"Option {texts(k, 40)}", texts(v, 300)) for k, v in capture.options.items())
    facts.append(Fact("nsysx", texts(summary.version, 30)))
    return tuple(facts)


def _reports(files: Sequence[str], texts: CellTexts) -> Fact:
    """Return the fact of which files were read: of a large job the first and the last."""
    names = [texts(base_name(f) if texts.redact else f, 300) for f in files[:MOST_ALIKE_FACTS]]
    if len(files) > MOST_ALIKE_FACTS:
        last = texts(base_name(files[-1]) if texts.redact else files[-1], 300)
        return Fact("Reports", f"{units.count(len(files))} files, {names[0]} to {last}")
    return Fact("Report" if len(files) == 1 else "Reports", ", ".join(names))


def _by_kind(gpus: Sequence[Fact]) -> list[Fact]:
    """Return a fact for each kind of GPU with how many there are."""
    many = Counter(gpu.value for gpu in gpus)
    return [Fact(f"{units.count(count)} GPUs" if count > 1 else "GPU", kind) for kind, count in many.items()]


def base_name(path: str) -> str:
    """Return the last component of a path."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def source_at(summary: Summary, where: Mapping[str, Any]) -> str:
    """Return the text of the line of a place, "" where its file or what stands there was not recorded."""
    file, line = where.get("file"), where.get("line")
    if not file or line is None:
        return ""
    texts = (r["text"] for r in summary.typed_rows(lines.ROWS) if (r["file"], r["line"]) == (file, line))
    return next((text for text in texts if text), "")
