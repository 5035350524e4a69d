"""What the answer's cards say: what to do first, what it is worth, how sure both are, and what else was found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from nsysx import units
from nsysx.events.layers import bare
from nsysx.findings import READINGS
from nsysx.findings.nsx115_wrong_timing import BOTH_SIDES, KERNEL_ITSELF
from nsysx.model import Finding, Row, Summary
from nsysx.render import step_time
from nsysx.render.bars import folded_path
from nsysx.render.safe_text import clean, file_name

#: Below this part of the step a saving is not a line of its own.
NOTABLE = 0.01
#: A finding whose saving is not known is a line of its own where it costs at least this part of the step.
_MUCH = 0.2
#: Most lines under "also found", and most of them from one rule.
_MOST_ALSO, _MOST_OF_A_RULE = 5, 2
#: A step without the profiler that is known this closely raises no doubt, wherever it comes from (share of the step).
_CLOSE = 0.03

#: Capture checks whose failure makes every number doubtful: the reader is warned before anything else.
ALARMS = frozenset({"gpu work", "launches without kernel", "lost ranges", "bad times", "exit code", "shared gpu"})
#: Capture checks whose failure makes the cause itself doubtful.
_DOUBTS = ALARMS | {
    "diagnostics",
    "dropped GPU events",
    "gpu ops without call",
    "attribution",
    "replay",
    "probe ranges",
}
#: Shorter words for a check than its own.
_DOUBT = {"attribution": "part of the GPU time is tied to code only by when it ran."}
#: Rules about the cause that a verdict names. Without steps there is no saving to rank findings by, so one of these gives the advice.
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "launch_bound": ("NSX102", "NSX113", "NSX114", "NSX123"),
    "input_bound": ("NSX106",),
    "sync_bound": ("NSX101", "NSX125"),
    "alloc_bound": ("NSX104",),
    "warmup": ("NSX103",),
    "comm_bound": ("NSX110",),
    "copy_bound": ("NSX105", "NSX121"),
    "gpu_bound": ("NSX112", "NSX116", "NSX117", "NSX118", "NSX119", "NSX120", "NSX122", "NSX124"),
}
#: Rules whose advice already names its place: the whole program, or the loader.
_WHOLE = ("NSX102", "NSX106", "NSX112")
#: What a late rank makes its peers wait shows as their communication: the same time, reported once.
_SAME_TIME = {"NSX111": ("NSX110",)}

Level = Literal["certain", "likely", "unknown"]
Texts = Callable[[object, int], str]


@dataclass(frozen=True, slots=True)
class Sure:
    """How sure one half of the answer is (``about``), why, and the command that would settle it."""

    about: str
    level: Level
    reason: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Also:
    """Another finding in one line; ``saving_ns`` is None where no saving is known. Savings overlap: do not add them."""

    code: str
    text: str
    saving_ns: int | None
    bound: bool


def by_saving(summary: Summary) -> list[Finding]:
    """Return what was found, largest saving first."""
    return [f for f in summary.findings or () if f.verdict == "found"]


def first(summary: Summary) -> Finding | None:
    """Return the finding for the first card: the one that saves most, or one about the verdict's cause that saves as much.

    Without steps there are no savings: a finding about how the program times itself comes first, then one about the cause.
    """
    ranked, step = by_saving(summary), step_time.step_ns(summary)
    if step is None:
        if summary.steps.source != "capture" or step_time.ledger_row(summary) is None:
            return None
        about = _ABOUT.get(summary.verdict.code, ())
        read = (f for f in ranked if f.code in (*READINGS, "NSX108"))
        return next(read, next((f for f in ranked if f.code in about), None))
    worth = [f for f in ranked if (step_time.saving_ns(summary, f) or 0) >= NOTABLE * step]
    if step_time.rank_waited_for(summary) is not None:
        return next((f for f in ranked if f.code == "NSX111"), None)
    if not worth:
        return None
    # Among savings that cannot be told apart, prefer the cause that the sentence names.
    about, most = _ABOUT.get(summary.verdict.code, ()), worth[0].saving_ns_per_step or 0
    alike = (f for f in worth if most - (f.saving_ns_per_step or 0) <= (worth[0].error_ns or 0))
    return worth[0] if worth[0].code in about else next((f for f in alike if f.code in about), worth[0])


def place(where: Row, texts: Texts) -> str:
    """Return a place in the program as text: module, phase and line, each named once."""
    module = bare(str(where.get("module") or ""))
    parts = dict.fromkeys(texts(name, 120) for name in (module, where.get("phase") or "") if name)
    if where.get("file"):
        line = f":{where['line']}" if where.get("line") else ""
        parts[f"{texts(file_name(str(where['file'])[:2000], True), 160)}{line}"] = None
    return ", ".join(parts)


def to_do(chosen: Finding | None, summary: Summary, texts: Texts) -> tuple[str, str, str, str]:
    """Return what to do, code to paste, the condition for it, and the place."""
    if chosen is not None:
        # A whole program is compiled at once; the finding's place is only where most of its cost is.
        where = "" if chosen.code in _WHOLE else place(chosen.where, texts)
        condition = " ".join(filter(None, (chosen.condition, _spread_evenly(chosen, summary))))
        return texts(chosen.fix or chosen.title, 400), chosen.paste, texts(condition, 300), where
    if step_time.ledger_row(summary) is None:
        how = next((f"Record the GPU's work: {c.fix}" for c in summary.quality if c.check == "gpu work" and c.fix), "")
        return texts(how or "Record a part of the program in which the GPU works.", 300), "", "", ""
    if step_time.step_ns(summary) is None:
        how = "nsysx run -- CMD" + ("" if summary.verdict.host == "Python" else ", or NVTX ranges and --step-range")
        return f"Mark the steps, so that start-up and steady work are told apart: {how}", "", "", ""
    if summary.replay is None or not summary.replay.get("trusted", True):
        return "What a change would save cannot be said: no replay of the steady steps can be trusted.", "", "", ""
    return "Nothing that was looked for saves 1 % of the step. What is left is the GPU work itself.", "", "", ""


def _spread_evenly(chosen: Finding, summary: Summary) -> str:
    """Return how long the step is when all ranks compute the same amount, "" where a rank is late for another reason."""
    rows = [r for r in summary.rows("ranks") if r.get("exposed_wait_ns") is not None]
    late = step_time.rank_waited_for(summary)
    if chosen.code != "NSX111" or late is None or late.get("late_cause") != "compute" or not rows:
        return ""
    computing_ns = [summary.scope_of(r).per_step(r["window_ns"] - r["exposed_wait_ns"]) for r in rows]
    return f"The same work spread evenly takes about {units.duration(sum(computing_ns) / len(computing_ns))} a step; the rest must go."


def is_bound(chosen: Finding | None, summary: Summary) -> bool:
    """Return whether the saving is an upper bound: a rank's extra work may go away, or only move to the others."""
    return chosen is not None and (chosen.bound or bool(_spread_evenly(chosen, summary)))


def worth(chosen: Finding | None, summary: Summary) -> tuple[int | None, str]:
    """Return the step after the change (ns; None where it is not known), and a remark on it."""
    now = step_time.step_ns(summary)
    if chosen is None:
        return None, _without_a_change(summary)
    if now is None:
        return None, _of_reading(chosen)
    saving = step_time.saving_ns(summary, chosen)
    if saving is None:
        return None, _sentence(chosen.confidence)
    if is_bound(chosen, summary):
        return now - saving, "at best"
    return now - saving, f"saves {units.duration(saving)}"


def _without_a_change(summary: Summary) -> str:
    """Return the remark on the worth where no change is advised."""
    if step_time.ledger_row(summary) is None:
        return "Nothing can be said before the GPU's work is in the report."
    return "The parts below say where the time is."


def _of_reading(chosen: Finding) -> str:
    """Return the kernel's own time and what a clock adds to it; for any other finding, its detail."""
    ways = {str(r.get("way")): r.get("reads_ns") for r in chosen.evidence}
    kernel, both = ways.get(KERNEL_ITSELF), ways.get(BOTH_SIDES)
    if kernel and both:
        reads = f"With a synchronize on both sides a clock reads {units.duration(both)}: that adds the launch and the return."
        return f"The kernel takes {units.duration(kernel)}. {reads}"
    return _whole_sentences(chosen.detail.removesuffix(chosen.because).rstrip())


#: Letters of a detail on a card: what goes beyond is told with the finding.
_CARD = 220


def _whole_sentences(text: str) -> str:
    """Return the first sentences of a text that fit on a card; a longer first one as it is."""
    kept = ""
    for sentence in re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text):
        if kept and len(kept) + len(sentence) >= _CARD:
            break
        kept += f" {sentence}" if kept else sentence
    return kept


def _sentence(text: str) -> str:
    """Return a remark as a sentence."""
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


#: How the step without the profiler is known: how sure that makes it, in words, and the command that would make it surer.
_SOURCES: Mapping[str, tuple[Level, str, str]] = {
    "in_process": ("likely", "The step without profiler was measured in the same process", ""),
    "second_run": ("likely", "The step without profiler was measured in a second run", ""),
    "modelled": ("likely", "What tracing costs on this machine is taken out of the step", "nsysx run --calibrate"),
    "assumed": ("unknown", "What tracing costs is from a table, not from this machine", "nsysx run --calibrate"),
}
#: By cause: the name of the share of a step in which it shows, and the columns of a step that add up to it.
_SHARES = {
    "gpu_bound": ("GPU busy", ("gpu_compute_ns", "gpu_comm_ns", "gpu_copy_ns", "gpu_memset_ns")),
    "comm_bound": ("Communication alone takes", ("gpu_comm_ns",)),
    "copy_bound": ("Copies alone take", ("gpu_copy_ns",)),
}
_IDLE = ("GPU idle", ("gpu_idle_ns",))
#: A GPU that idles under the profiler may be busy in the real step. Above the first share its idle time is only a likely limit,
#: above the second an unknown one.
_MOSTLY_BUSY, _ALL_BUSY = 0.75, 0.95


def sure(summary: Summary, chosen: Finding | None, texts: Texts) -> tuple[Sure, ...]:
    """Return how sure the cause is, and how sure the size."""
    cause = _cause(summary, chosen, texts)
    return (cause,) if chosen is None or chosen.saving_ns_per_step is None else (cause, _size(summary, chosen, texts))


def _cause(summary: Summary, chosen: Finding | None, texts: Texts) -> Sure:
    """Return how sure the cause is, from the share that it takes in each steady step."""
    about = "What limits it"
    if summary.steps.source == "capture" and chosen is not None and chosen.code in READINGS:
        return Sure("What the clocks read", "certain", "The kernels are recorded with times of their own.")
    if step_time.ledger_row(summary) is None:
        return Sure(about, "unknown", "No GPU work is in the capture.")
    if summary.steps.source == "capture":
        return Sure(about, "unknown", "No steps were found, so start-up and steady work are not told apart.")
    if summary.verdict.code == "unknown":
        return Sure(about, "unknown", "The capture lacks what it takes; see How far to trust this.")
    late = step_time.rank_waited_for(summary)
    warned = [c for c in summary.quality if c.status == "warn" and c.check in _DOUBTS]
    more = f" But: {_DOUBT.get(warned[0].check) or texts(warned[0].detail, 150)}" if warned else ""
    if late is not None and late.get("last_share") is not None:
        share = units.share(late["last_share"], 1)
        level: Level = "likely" if warned else "certain"
        return Sure(about, level, f"Rank {late['rank']} comes last in {share} of the collectives.{more}")
    name, columns = _SHARES.get(summary.verdict.code, _IDLE)
    steady = [r for r in summary.steps.rows if r.get("steady") and r.get("gpu_ns")]
    shares = [sum(r.get(c) or 0 for c in columns) / r["gpu_ns"] for r in steady]
    if not shares:
        return Sure(about, "unknown", "No GPU work lies in steady steps.")
    low, high = units.share(min(shares), 1), units.share(max(shares), 1)
    spread = low if low == high else f"{low} to {high}"
    if len(shares) < 3:
        return Sure(
            about, "likely", f"{name} {spread}, in only {len(shares)} steady step{'s' * (len(shares) > 1)}.{more}"
        )
    if summary.verdict.code == "comm_bound" and len(summary.rows("ranks")) < 2:
        alone = f"{name} {spread} in all {len(shares)} steps. Whether links are slow or a rank is late, this report alone cannot tell."
        return Sure(about, "likely", alone, "nsysx report RANK0.sqlite RANK1.sqlite ...")
    level, said = "likely" if warned else "certain", f"{name} {spread} in all {len(shares)} steps"
    if step_time.in_recorded_time(summary) and (real := summary.unprofiled) is not None:
        most = min(real.gpu_busy_ns / max(real.low_ns, 1), 1.0)
        works = f"{units.share(real.gpu_busy_ns / max(real.high_ns, 1), 1)} to {units.share(most, 1)}"
        said += f", as recorded. Without the profiler the GPU works {works} of the step"
        level = "unknown" if most >= _ALL_BUSY else "likely" if most >= _MOSTLY_BUSY else level
    return Sure(about, level, f"{said}.{more}")


def _size(summary: Summary, chosen: Finding, texts: Texts) -> Sure:
    """Return how sure the size of the saving is, from how it is known and from what tracing did to the step."""
    about, real = "How much", summary.unprofiled
    how = _sentence(texts(chosen.confidence, 160))
    if is_bound(chosen, summary):
        how = (
            f"An upper bound, {how[:1].lower()}{how[1:]}"
            if how.startswith("Give")
            else f"An upper bound. {how}".strip()
        )
    if real is None:
        return Sure(
            about, "unknown", f"{how} The step is as long as the profiler made it.".strip(), "nsysx run --calibrate"
        )
    if not step_time.in_recorded_time(summary):
        slower = real.measured_steps and real.high_ns > (1 + _CLOSE) * real.step_ns
        longer = f"Without the profiler steps took up to {units.duration(real.high_ns)}: the host was slower then."
        return Sure(about, "likely", f"{how} {longer if slower else 'Tracing hardly changes this step.'}".strip())
    level, reason, command = _SOURCES[real.source]
    if real.high_ns - real.low_ns <= 2 * _CLOSE * real.step_ns:
        return Sure(about, "likely", f"{how} {reason}.".strip())
    if summary.verdict.estimated:  # the first line has its bounds
        return Sure(about, level, f"{how} {reason}.".strip(), command)
    low, high = step_time.bounds_ns(summary) or (real.low_ns, real.high_ns)
    span = f"{units.duration(low)} to {units.duration(high)} a step."
    return Sure(about, level, f"{how} {reason}: {span}".strip(), command)


def also(summary: Summary, chosen: Finding | None, texts: Texts) -> tuple[Also, ...]:
    """Return the other findings worth a line; one rule in repeated blocks is one line."""
    step, lines = step_time.step_ns(summary), dict[str, Also]()
    same = _SAME_TIME.get(chosen.code, ()) if chosen else ()
    for f in by_saving(summary):
        if f is chosen or f.code in same or f.code == "NSX190":
            continue
        saving = step_time.saving_ns(summary, f)
        if step is not None and saving is None and (f.cost_ns_per_step or 0) < _MUCH * step:
            continue
        if step is not None and saving is not None and (saving < NOTABLE * step or saving < (f.error_ns or 0)):
            continue
        title = folded_path(texts(f.title, 110))
        text = step_time.title(summary, f, f"Repeated blocks{title[1:]}" if title.startswith("*:") else title)
        key = f"{f.code} {_without_numbers(text)}"
        if key not in lines or (lines[key].saving_ns or 0) < (saving or 0):
            lines[key] = Also(f.code, text, saving if step is not None else None, f.bound)
    chosen_lines: list[Also] = []
    for line in sorted(lines.values(), key=lambda a: -(a.saving_ns or 0)):
        if sum(other.code == line.code for other in chosen_lines) < _MOST_OF_A_RULE:
            chosen_lines.append(line)
    return tuple(chosen_lines[:_MOST_ALSO])


def _without_numbers(text: str) -> str:
    """Return a text without its digits: lines that differ only in numbers are about one thing."""
    return "".join(c for c in text if not c.isdigit() and c != ".")


def report_name(summary: Summary) -> str:
    """Return the name of the (first) report, without its folders."""
    return summary.capture.files[0].rpartition("/")[2] if summary.capture.files else "REPORT"


#: Where the GPU waits for host code for this share of the step, a run that finds the lines is worthwhile.
_MUCH_HOST_CODE = 0.1


def _host_code_unseen(summary: Summary) -> bool:
    """Return whether the GPU waits for the host code of a probed program whose stacks were not sampled."""
    lines, step = summary.tables.get("host_lines"), summary.verdict.step_ns or 0
    much = summary.verdict.parts.get("host", 0) >= _MUCH_HOST_CODE * step > 0
    return much and bool(summary.capture.probe) and lines is not None and lines.rows is None


def commands(summary: Summary, chosen: Finding | None, typed: str = "") -> tuple[str, ...]:
    """Return the commands to run next; ``typed`` is how the reports were named on the command line, where that is known."""
    name = typed or clean(report_name(summary), 80)
    said = [f"nsysx explain {chosen.code}"] if chosen else []
    if summary.replay is not None:
        said.append(f"nsysx whatif {name}")
    if _host_code_unseen(summary):
        said.append("nsysx run --python -- CMD")
    return (*said, f"nsysx report {name} --full", f"nsysx report {name} --html page.html")
