"""What to do where no change can be named: mostly how to record what would tell."""

from __future__ import annotations

from nsysx import units
from nsysx.analyses import kernels
from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.answer import moved_most, near_limits, subject, time_places
from nsysx.answer.answer_bounds import LITTLE_WORK_OPS, LITTLE_WORK_SHARE, MOSTLY_IDLE_SHARE, PACED_BY_HOST_SHARE
from nsysx.catalogue import StepLimit, StepPart
from nsysx.judging import gpu_work_checks, nothing_recorded, window_checks
from nsysx.judging.limit_words import pair
from nsysx.judging.program import TORCH_KERNEL
from nsysx.model import Finding, Summary

#: What to do about memory that a program without steps takes and gives back between its kernels: no step shows which calls repeat.
_KEEP_MEMORY = (
    "Allocate before the work on the GPU begins, and keep the memory: what cudaMalloc, cudaHostAlloc and cudaFree "
    "take between the kernels is not needed"
)
#: What to do where the GPU works all the time on kernels of which nothing more is known.
_LOOK_AT_KERNELS = (
    "Look at the GPU work itself: nsysx ncu REPORT shows how near its kernels are to the limits of the GPU"
)
#: The steps of PyTorch's own programs are marked by this alone.
_MARKED_BY_PROBE = "nsysx run -- CMD"
#: What to do where a check says that so much was not recorded, by what it makes doubtful.
_RECORD_AGAIN = {
    "everything": "Record again, so that the kernels are in the report",
    "findings": "Record what the CUDA graphs launch, which this report does not hold",
}
#: What is said where no replay prices a change, and time that one could save may be anywhere.
_UNPRICED = "Saving unknown: no replay comes near the recorded steps, so no change can be priced."

#: Behind the name of what to look at.
FIRST = " first: "


def _beside_computing(summary: Summary) -> str:
    """Return that no change of the host saves more than a GPU leaves that computes nearly always; "" where it leaves more."""
    beside_ns = subject.beside_computing_ns(summary)
    if beside_ns is None:
        return ""
    part, whole = pair(beside_ns, sum(summary.verdict.parts.values()))
    return f"Nothing on the host: the GPU computes for all but {part} of {whole}, and no change there saves more."


def _marks(summary: Summary) -> str:
    """Return how the steps of a program are marked: `nsysx run` knows only those of PyTorch in Python."""
    if summary.verdict.host != "Python":
        return "NVTX ranges around each, and --step-range"
    if summary.capture.probe or any(TORCH_KERNEL.search(str(r["name"])) for r in summary.typed_rows(kernels.ROWS)):
        return _MARKED_BY_PROBE
    return "nsysx run -- CMD if PyTorch makes them, else NVTX ranges around each, and --step-range"


def _little_work(summary: Summary) -> str:
    """Return how little the GPU does in a capture, and what would show more; "" where it does more than that."""
    row, length, totals = subject.ledger_row(summary), summary.capture.duration_ns, summary.totals
    made = {name: totals[f"{name}s"] or 0 for name in ("kernel", "memcpy", "memset")}
    if (
        row is None
        or not length
        or row["busy_ns"] >= LITTLE_WORK_SHARE * length
        or sum(made.values()) >= LITTLE_WORK_OPS
    ):
        return ""
    nouns = {"kernel": ("kernel",), "memcpy": ("copy", "copies"), "memset": ("memset",)}
    what = ", ".join(units.several(count, *nouns[name]) for name, count in made.items() if count)
    worked = f"in the {units.duration(length)} of this capture the GPU works {units.duration(row['busy_ns'])} ({what})"
    return (
        f"Record more of the work: {worked}. Let the program repeat it, or give it more data: what is slow then shows"
    )


def _without_steps(summary: Summary) -> str:
    """Return what to do in a program whose steps are unknown: about what the verdict names, where that needs no steps."""
    if summary.verdict.code == StepLimit.ALLOC:
        return _KEEP_MEMORY
    if little := _little_work(summary):
        return little
    if summary.verdict.code == StepLimit.GPU and (unseen := near_limits.unseen_kernel(summary)):
        return f"Look at the GPU work itself. {unseen}"
    if summary.verdict.code == StepLimit.GPU and _marks(summary) != _MARKED_BY_PROBE:
        return _LOOK_AT_KERNELS
    return f"Mark the steps, to separate start-up from steady work: {_marks(summary)}"


def by_a_clock(summary: Summary, waiting: Finding) -> str:
    """Return that nothing makes a step shorter that waits for what comes by a clock, and how little of it the GPU works."""
    beat = next(row["beat_ns"] for row in waiting.evidence if row.get("beat_ns"))
    row, busy = subject.ledger_row(summary), ""
    if row is not None and row["window_ns"]:
        busy = f" The GPU works {units.share(row['busy_ns'], row['window_ns'])} of the time: it could serve more in each step."
    return f"Nothing: the program waits here for what comes by a clock, every {units.duration(beat)}.{busy}"


def to_record(summary: Summary, *, unsure: bool = False, option: str = "", little: bool = False) -> str:
    """Return what to do where no change can be named: mostly how to record what would tell.

    ``unsure``: a change may save something; ``option``: what may save much, or nothing; ``little``: one saves less than 5 %.
    """
    if subject.ledger_row(summary) is None:
        how = next((c.fix for c in summary.quality if c.check == gpu_work_checks.GPU_WORK and c.fix), "")
        if how == nothing_recorded.REACH_WORK:
            return f"{how[:1].upper()}{how[1:]}"
        return f"Record the GPU's work: {how}" if how else "Record a part of the program in which the GPU works."
    if (elsewhere := window_checks.cold_report(summary.quality)) is not None:
        return f"{elsewhere.fix[:1].upper()}{elsewhere.fix[1:]}: the steps stand there. Where it is lost, record again: nsysx run -- CMD"
    for doubt, advice in _RECORD_AGAIN.items():
        lost = next((c for c in summary.quality if c.status == "warn" and c.doubt == doubt), None)
        if lost is not None:
            return f"{advice}: {lost.fix}" if lost.fix else advice
    if subject.measures(summary):
        return "Nothing: the program measures, and its CUDA events read what the kernels take, within a tenth."
    if summary.step.shown_ns is None and not summary.totals["kernels"]:
        return (
            "Let the program reach its kernels inside the capture: it launched none, and only copied or cleared memory."
        )
    if summary.step.shown_ns is None:
        return _without_steps(summary)
    if summary.verdict.code == StepLimit.UNKNOWN:
        return "Record again: what limits the step is not known without what the sentence above misses."
    figures = near_limits.sentence(summary)
    little_beside = _beside_computing(summary)
    if not subject.replayed(summary) and not (little_beside and near_limits.near(summary)):
        # How far the work is from its limits needs no replay.
        unpriced = little_beside or _UNPRICED
        return f"{unpriced} {figures}".rstrip() if summary.verdict.code == StepLimit.GPU else unpriced
    # How many digits are needed only the author knows: what the limits are told of is the work in this number format.
    nothing = "Nothing" if near_limits.in_float64(summary) is None else "Nothing, if float64 is needed"
    if near_limits.near(summary):
        return f"{nothing}: the GPU works near its limits. {figures}"
    saves = f"change that was looked for saves {5 if little else 1} % of the step"
    if figures and figures == near_limits.unseen_kernel(summary) and _works_on_one_kernel(summary, figures):
        # That nothing was found says little until the kernel that is most of the work has been looked at.
        return f"Look at the GPU work itself. {figures} No other {saves}."
    sure = " for sure" if unsure else ""
    may_help = f" What may help: {units.uncapitalized(option)}; nsysx try measures it." if option else ""
    return _left_over(summary, f"{saves}{sure}.{may_help}", figures, nothing)


def _left_over(summary: Summary, saves: str, figures: str, nothing: str) -> str:
    """Return what is left where no change ``saves`` more; first what multiplies nothing, where that is most of the work."""
    parts = summary.verdict.parts
    idle_ns = sum(ns for part, ns in parts.items() if StepPart.named(part).idle)
    left = f"What is left is GPU work. {figures}"
    if paced := _paced_by_host(summary):
        left = paced
    elif idle_ns > MOSTLY_IDLE_SHARE * sum(parts.values()):
        left = f"For most of the step the GPU idles, and no change of that is known. {figures}"
    elif summary.verdict.code == StepLimit.COPY:
        left = "What is left are copies between host and GPU: only fewer bytes would help."
    elif summary.verdict.code == StepLimit.COMM:
        left = f"What is left is communication: only fewer bytes, or work beside it, would help. {figures}"
    elif nothing == "Nothing" and (most := moved_most.moved_most(summary)) is not None:
        # That nothing was found says little of it.
        return f"Look at {most.name}{FIRST}{most.words}. No {saves} {figures}".rstrip()
    other = "" if nothing == "Nothing" else "other "
    return f"{nothing}: no {other}{saves} {left}".rstrip()


def _paced_by_host(summary: Summary) -> str:
    """Return that the host sets the pace, where a step is hardly shorter if the GPU has nothing to do; "" elsewhere."""
    alone_ns, step_ns = (summary.replay or {}).get("without_gpu_ns"), summary.step.shown_ns
    if alone_ns is None or step_ns is None or alone_ns < PACED_BY_HOST_SHARE * step_ns:
        return ""
    part, whole = pair(min(alone_ns, step_ns), step_ns)
    return (
        f"The host sets the pace: with nothing to do on the GPU the step would still take {part} of {whole}. Less GPU work alone saves no "
        "more than the rest; less host code does, in Python or by CUDA graphs."
    )


def _works_on_one_kernel(summary: Summary, sentence: str) -> bool:
    """Return whether half of the GPU's kernel time is in the kernel that a sentence is about."""
    longest = time_places.longest_kernel(summary)
    if longest is None or 2 * longest.share < 1:
        return False
    return kernel_called(longest.name).casefold() in sentence.casefold()
