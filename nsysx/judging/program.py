"""What kind of program was recorded, as far as the report shows: advice and wording have to fit it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from nsysx.catalogue import Call
from nsysx.events.layers import PATHLESS
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.frames import lookup
from nsysx.judging.judging_bounds import TORCH_2_NS
from nsysx.model import Capture

#: Executables and threads that run Python.
_PYTHON = re.compile(r"python|pypy|ipython|jupyter|pt_main_thread|torchrun|^ray|uvicorn|gunicorn", re.IGNORECASE)
#: Threads that only PyTorch starts.
_TORCH_THREAD = re.compile(r"^pt_")
TORCH_KERNEL = re.compile(r"at::native|at_cuda_detail|c10::")
#: Kernels that a compiler wrote: TorchInductor names its Triton kernels by kind; JAX and XLA name theirs by fusion.
_COMPILED = r"^triton_(poi|red|per|tem|for|unk|mm|bmm|spl)|^(loop|input|wrapped)_\w*fusion|^cutedsl_fused|^inductor"
_COMPILED_RANGE = r"CompiledFunction|Torch-Compiled|OptimizedModule|inductor|CompiledFxGraph"
_BACKWARD = r"backward|_bwd|bprop|dgrad|wgrad|_grad_|GradWeight"
#: Optimizers that update all parameters in a few kernels: PyTorch's fused=True, Apex, Transformer Engine.
_FUSED = r"FusedOptimizer|Fused(Adam|Sgd|SGD|Adagrad)|AdamFunctor|LAMBFunctor|SGDFunctor"
_FOREACH = r"multi_tensor_apply_kernel"
#: Ranges and threads of PyTorch's DataLoader.
_LOADER = r"DataLoader|pt_data"


@dataclass(frozen=True)
class Program:
    """What the shown process was seen to do. False means not seen, which does not prove that it never does it.

    ``optimizer`` is "fused", "foreach" or "loop" (a kernel per parameter), None where none was seen;
    ``optimizer_class`` is its class, None where the probe saw none or several. ``networks`` are the classes of the outermost
    modules, the one that takes longest first. ``compilable``: torch.compile exists for it, as far as is known.
    """

    python: bool
    torch: bool
    compiled: bool
    graphs: bool
    trains: bool
    optimizer: str | None
    optimizer_class: str | None
    loader: bool
    networks: tuple[str, ...]
    compilable: bool

    @property
    def host(self) -> str:
        """What launches the kernels, in words."""
        return "Python" if self.python else "the host code"


def program_of(profile: Profile) -> Program:
    """Return what kind of program the shown process runs; found out on first use."""
    return profile.once(_read)


def _read(profile: Profile) -> Program:
    process, trace, settings = profile.steps.process, profile.trace, settings_of(profile)
    executable = next((str(p.get("name") or "") for p in trace.capture.processes if p.get("process") == process), "")
    executable = re.split(r"[/\\]", executable)[-1]
    threads = (
        trace.thread_name.filter(trace.thread_name["process"] == process)["name"].cast(pl.String).unique().drop_nulls()
    )
    probe = bool(trace.capture.probe) or bool(profile.ranges.ranges["own"].any())
    ops = profile.attributed.gpu_ops["process", "op_kind", "name", "phase"]
    ops = ops.filter((ops["process"] == process) & (ops["op_kind"] == "kernel"))
    names = ops["name"].unique()
    ranges = profile.ranges.ranges.filter(profile.ranges.ranges["process"] == process)
    # Operators have a label each.
    labels = pl.concat([ranges[c].unique().drop_nulls().cast(pl.String) for c in ("label", "cls")])

    def launched(pattern: str) -> bool:
        return bool(lookup.matching(names, pattern).any())

    torch = (
        probe
        or launched(TORCH_KERNEL.pattern)
        or any(_TORCH_THREAD.search(t) for t in threads)
        or bool(labels.str.starts_with("aten::").any())
    )
    by_name = bool(_PYTHON.search(executable)) or any(_PYTHON.search(t) for t in threads)
    python = probe or trace.python_lines is not None or by_name or (torch and not executable)
    phases = set(ops["phase"].unique().cast(pl.String).drop_nulls().to_list())
    calls = profile.attributed.api_calls
    return Program(
        # If the program's name is unknown, PyTorch implies Python; a program with another name may use PyTorch from C++.
        python=python,
        torch=torch,
        compiled=launched(_COMPILED) or bool(labels.str.contains(_COMPILED_RANGE).any()),
        graphs=bool(((calls["kind"] == Call.GRAPH_LAUNCH) & (calls["process"] == process)).any()),
        trains=bool({"backward", "optimizer"} & phases) or launched(_BACKWARD),
        optimizer=_fused_by_setting(settings) or _optimizer(ops, launched(_FUSED), launched(_FOREACH)),
        optimizer_class=_class_by_setting(settings) or _optimizer_class(ranges),
        loader=bool(settings and settings.rows("loaders"))
        or bool(labels.str.contains(_LOADER).any() or threads.str.contains(_LOADER).any())
        or (probe and _own_data(profile)),
        networks=_networks(profile, ranges),
        compilable=python and torch and _second_torch(trace.capture),
    )


def _second_torch(capture: Capture) -> bool:
    """Return whether PyTorch may be 2.0 or later: by its version where the probe noted one, else by the time of the recording."""
    versions = [str(p["torch"]) for p in capture.probe if p.get("torch")]
    if versions:
        return not any(version.startswith(("0.", "1.")) for version in versions)
    return capture.utc_epoch_ns is None or capture.utc_epoch_ns >= TORCH_2_NS


def _fused_by_setting(settings: RecordedSettings | None) -> str | None:
    """Return "fused" where every optimizer of the program is told to be; what one that is not told does, its kernels show."""
    optimizers = settings.rows("optimizers") if settings else None
    return "fused" if optimizers and all(o.get("fused") is True for o in optimizers) else None


def _class_by_setting(settings: RecordedSettings | None) -> str | None:
    """Return the class of the program's one kind of optimizer, with its package where that is not torch: it may share a name."""
    optimizers = (settings.rows("optimizers") if settings else None) or ()
    classes = {(str(o.get("module")), str(o.get("class"))) for o in optimizers}
    if len(classes) != 1:
        return None
    package, name = classes.pop()
    return name if package == "torch" else f"{package}.{name}"


def _optimizer(kernels: pl.DataFrame, fused: bool, foreach: bool) -> str | None:
    """Return how parameters are updated: by kernel names, else by the kernels inside an optimizer's range."""
    if fused:
        return "fused"
    of_optimizer = kernels.filter(kernels["phase"] == "optimizer")
    if not of_optimizer.height:
        return "foreach" if foreach else None
    # Gradient clipping uses foreach kernels too, so only the optimizer's own kernels decide.
    names = of_optimizer["name"]
    return "foreach" if 2 * int(lookup.matching(names, _FOREACH).sum()) >= of_optimizer.height else "loop"


def _optimizer_class(ranges: pl.DataFrame) -> str | None:
    """Return the class of the one optimizer that the probe saw step."""
    steps = ranges.filter(pl.col("own") & (pl.col("name").cast(pl.String) == "optimizer"))
    classes = [c for c in steps["cls"].cast(pl.String).drop_nulls().unique().to_list() if c]
    return classes[0] if len(classes) == 1 else None


def _networks(profile: Profile, ranges: pl.DataFrame) -> tuple[str, ...]:
    """Return the classes of the modules that the program itself calls, by the probe's ranges, else those shown without a path."""
    name = pl.col("name").cast(pl.String)
    called = ranges.filter(pl.col("own") & name.is_in(["forward", "evaluation"]) & (pl.col("cls") != ""))
    called = called.select(pl.col("cls").cast(pl.String), ns=pl.col("end_ns") - pl.col("start_ns"))
    longest = (
        called.group_by("cls").agg(pl.col("ns").sum()).sort("ns", "cls", descending=[True, False], nulls_last=True)
    )
    if longest.height:
        return tuple(longest["cls"].to_list())
    modules = profile.attributed.modules.select(pl.col("module", "cls").cast(pl.String)).drop_nulls()
    outermost = modules.filter(pl.col("module") == pl.format(PATHLESS, "cls"))
    return tuple(outermost["cls"].unique(maintain_order=True).to_list())


def _own_data(profile: Profile) -> bool:
    """Return whether the probe, which patches PyTorch's DataLoader, saw a loader fetch a batch."""
    ranges = profile.ranges.ranges
    return bool(((ranges["name"] == "data") & ranges["own"]).any())
