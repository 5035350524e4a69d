"""Builds the commands to run. Nothing is run here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nsysx.recording import default_counters, window_plan
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.run_options import RunOptions, failed
from nsysx.redaction import redacted

STAND_IN = Path(__file__).parent / "stand_in.py"

#: What nsys records unless an option of ``nsysx run`` says otherwise, and what each adds to the program.
#: (option, value, whether every nsys knows it)
NSYS_DEFAULTS: tuple[tuple[str, str, bool], ...] = (
    ("--sample", "none", True),  # by default nsys samples the CPU, which made a host-bound forward take 72 % longer
    ("--cpuctxsw", "none", True),  # context switches: part of the same 72 %, and no analysis reads them
    ("--wait", "primary", False),  # end with the command, as a shell does, not with processes that it left running
    ("--cuda-graph-trace", "node", False),  # record each node of a CUDA graph; "graph" is cheaper but records no nodes
)


def check_nsys(nsys: Nsys, options: RunOptions) -> None:
    """Raise NsysxError where this nsys cannot record what the options ask for."""
    if options.gil and not nsys.profile_has("python-gil"):
        what = f"--gil: nsys {nsys.version} cannot trace Python's lock"
        raise failed(what, "nsys-gil", "Name a newer nsys with --nsys PATH, or leave --gil out")


def gpu_metrics_words(nsys: Nsys, hz: int) -> list[str]:
    """Return the nsys options that sample the GPU's counters so often, or [] if this nsys has none (before 2021.2)."""
    # Renamed in 2024.5, which still accepts the old name.
    name = next((n for n in ("--gpu-metrics-devices", "--gpu-metrics-device") if nsys.profile_has(n)), None)
    if name is None:
        return []
    devices = "cuda-visible" if "cuda-visible" in nsys.profile_help else "all"
    words = [f"{name}={devices}"]
    if nsys.profile_has("--gpu-metrics-frequency"):
        words.append(f"--gpu-metrics-frequency={hz}")
    return words


def cuda_trace(nsys: Nsys, options: RunOptions) -> str:
    """Return how CUDA is traced: in software if a step window is asked for and this nsys might choose hardware tracing.

    From 2025.6 on, ``cuda`` means hardware tracing where the GPU can do it (Blackwell). Hardware tracing delivers the times only
    when the program ends: if the window ends earlier, nsys drops its kernels as "incomplete CUPTI events".
    """
    return "cuda-sw" if options.steps is not None and nsys.profile_has("cuda-sw") else "cuda"


def profile_command(nsys: Nsys, options: RunOptions, report: Path, command: Sequence[str]) -> list[str]:
    """Return the ``nsys profile`` command that runs ``command`` and writes ``report`` (a path without its suffix)."""
    defaults = {name: value for name, value, everywhere in NSYS_DEFAULTS if everywhere or nsys.profile_has(name)}
    if "--cuda-graph-trace" in defaults:
        defaults["--cuda-graph-trace"] = options.graphs
    traced = [cuda_trace(nsys, options), "nvtx", *["osrt"] * options.osrt, *["python-gil"] * options.gil]
    if options.mpi:
        traced += ["mpi", *["ucx"] * nsys.profile_has("ucx")]
    ours = {"--trace": ",".join(traced), **defaults}
    short = {"-t": "--trace", "-s": "--sample", "-w": "--wait"}
    given = {word.split("=", 1)[0] for word in options.nsys_args}  # nsys refuses an option that it gets twice
    given |= {short[word[:2]] for word in options.nsys_args if word[:2] in short}
    words = [str(nsys.path), "profile", *(f"{name}={value}" for name, value in ours.items() if name not in given)]
    if options.memory:
        words.append("--cuda-memory-usage=true")
    if hz := default_counters.frequency(options):
        words += gpu_metrics_words(nsys, hz)
    if options.steps == window_plan.WINDOWS:
        words += window_plan.profile_words()
    elif options.steps is not None:
        words += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    # nsys expands %p, %h and others in this name; a literal percent sign is %%.
    words += ["--force-overwrite=true", "--output=" + str(report).replace("%", "%%")]
    # No "--" before the command: nsys 2023.4 takes it for an ambiguous option. The stand-in comes first, so nothing is misread.
    return [*words, *options.nsys_args, *command]


def must_descend(options: RunOptions) -> bool:
    """Return whether the command must be a descendant of nsys, which is so for sampling: it follows the process tree.

    All other tracing reaches a process through its environment (measured with nsys 2023.4 and 2025.3).
    """
    words = [part for word in options.nsys_args for part in word.split("=", 1)]
    sampling = {
        "-s",
        "--sample",
        "--cpuctxsw",
        "--backtrace",
        "--python-sampling",
        "--event-sample",
        "--cpu-core-events",
    }
    return bool(sampling & set(words)) or any(word.startswith("-s") and word != "-s" for word in words)


def stand_in_words(address: str, command: Sequence[str]) -> list[str]:
    """Return what nsys starts in place of the command; its words follow only so that the report shows them, without secrets."""
    coding = sys.getfilesystemencoding()  # in the C locale it may be ASCII, and words can hold nothing else
    texts = (os.fsencode(word).decode("utf-8", "replace") for word in redacted(command))
    shown = [text.encode(coding, "replace").decode(coding) for text in texts]
    return [sys.executable, "-I", "-S", str(STAND_IN), address, *shown]


def export_command(nsys: Nsys, report: Path, sqlite: Path) -> list[str]:
    """Return the ``nsys export`` command that makes ``sqlite`` from ``report``."""
    words = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true", f"--output={sqlite}"]
    if nsys.export_has("--include-json"):
        words.append("--include-json=true")
    if nsys.export_has("--quiet"):
        words.append("--quiet=true")
    return [*words, str(report)]
