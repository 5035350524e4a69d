"""Examples shown below the help of each command. ``# `` precedes what an example does."""

from __future__ import annotations

#: Columns of an 80-column terminal that are left beside the indentation.
_WIDTH = 76

EXAMPLES = {
    "run": (
        ("python train.py", "writes train.sqlite and its page train.html"),
        ("--steps auto -- python train.py", "24 steps, once they repeat"),
        ("--python --lines -- python train.py", "which lines the GPU waits for"),
        ("-o job --per-rank -- torchrun --nproc-per-node 8 train.py", "one report per rank"),
    ),
    "report": (
        ("train.sqlite", "the answer"),
        ("train.sqlite --html page.html", "and the page"),
        ("train.sqlite --full --top 20", "every table, 20 rows each"),
        ("job.rank0.sqlite job.rank1.sqlite", "the ranks of one job; or their folder"),
    ),
    "compare": (
        ("before.sqlite after.sqlite", "one capture a side"),
        ("--before a1.sqlite a2.sqlite --after b1.sqlite b2.sqlite", "several, in turn: tells more"),
    ),
    "check": (
        ("run.sqlite --init > budget.toml", "a budget that this report keeps"),
        ("run.sqlite --budget budget.toml --junit nsysx.xml", "exit code 1 if broken"),
    ),
    "whatif": (
        ("train.sqlite", "everything that could be changed"),
        ("train.sqlite --remove-wait losses.py:47", "without this wait"),
        ("train.sqlite --graph all", "a step in one CUDA graph"),
    ),
    "try": (
        ("-- python train.py", "every change that applies"),
        ("train.sqlite -- python train.py", "what this report advises"),
        ("--change tf32 --change compile -- python train.py", "these two"),
    ),
    "export": (
        ("run.sqlite --to frames", "Parquet and a data dictionary"),
        ("run.sqlite --perfetto run.pftrace --steps 10:12", "for ui.perfetto.dev"),
    ),
    "calibrate": (("", "once on each machine, about a minute"),),
    "doctor": (("", "what works here"), ("--install-nsys", "on Debian, without root")),
    "explain": (
        ("NSX101", "a finding"),
        ("cudaHostAlloc", "a CUDA call"),
        ("columns", "every column of every table"),
        ("many-ranks", "torchrun, Slurm, Kubernetes"),
    ),
}


def below(command: str) -> str:
    """Return the examples of a command for its help, each with a comment beside it or on the next line."""
    shown = [(f"  nsysx {command} {words}".rstrip(), f"  # {comment}") for words, comment in EXAMPLES[command]]
    longest = max((len(line) for line, comment in shown if len(line) + len(comment) <= _WIDTH), default=0)
    lines = ["\b", "Examples:"]  # \b keeps the lines apart
    for line, comment in shown:
        fits = len(line) + len(comment) <= _WIDTH
        lines += [f"{line:<{min(longest, _WIDTH - len(comment))}}{comment}"] if fits else [line, f"    {comment}"]
    return "\n".join(lines)
