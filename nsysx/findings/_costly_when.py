"""When settings cost time, in what was seen, and what it is worth to change them: what the table in ``_costly`` asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, StepLimit, StepPart
from nsysx.events import micro_steps
from nsysx.events.attribute import IN_STEP
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _costly_jobs, _needs, _sharded_models
from nsysx.findings._case import Case, Saving, calls_of, ops_of
from nsysx.findings._finding_bounds import (
    AUTOCAST_REGIONS,
    CONVOLUTION_TRIAL_NS,
    CROWDED_CORES,
    FEWEST_MICRO_STEPS,
    LITTLE_POWER,
    LOADER_RESTART_STEPS,
    REPORTED_SHARE,
)
from nsysx.findings._once import Takes
from nsysx.judging.other_work import other_gpus
from nsysx.model import Row
from nsysx.records import count_or_zero
from nsysx.replay.edits import RemoveExposedComm, RemoveOps, RemoveWaits
from nsysx.replay.slowed_kernels import slowed_ns

#: What is said where no replay shows what a setting costs.
UNKNOWN = "not known: the cause is certain, the size is not; change it and time both (nsysx try, or nsysx run and nsysx compare)"
_OFF = ("", "0", "false", "no", "off")


class Variable(NamedTuple):
    """An environment variable that costs: with which values (none: with any but off), and what it does.

    ``holds_host``: in each collective, so that what it costs lies in the time in which the GPU has no work.
    """

    name: str
    values: tuple[str, ...]
    does: str
    leads: bool = False
    several: bool = False  # it costs in a job of several processes only
    holds_host: bool = False


VARIABLES = (
    Variable(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", (), "each tensor calls cudaMalloc and cudaFree, which waits for the GPU", True
    ),
    Variable("TRITON_INTERPRET", (), "Triton kernels run in Python on the CPU", True),
    Variable("TORCH_COMPILE_DISABLE", (), "torch.compile compiles nothing"),
    Variable("TORCHDYNAMO_DISABLE", (), "torch.compile compiles nothing"),
    Variable("TORCH_COMPILE_DEBUG", (), "each compilation writes its graphs and its code to files"),
    Variable("TORCHINDUCTOR_FORCE_DISABLE_CACHES", (), "nothing that was compiled before is used again"),
    Variable(
        "TORCH_DISTRIBUTED_DEBUG",
        ("detail",),
        "before each collective the hosts of all ranks meet and compare what they are about to send",
        leads=True,
        several=True,
        holds_host=True,
    ),
    Variable("TORCH_DISTRIBUTED_DEBUG", ("info",), "each DDP step is logged", several=True),
    Variable("NCCL_DEBUG", ("info", "trace"), "NCCL writes a line for each call or connection", several=True),
    Variable("NCCL_BLOCKING_WAIT", (), "the host waits for each collective", True, several=True, holds_host=True),
    Variable("TORCH_NCCL_BLOCKING_WAIT", (), "the host waits for each collective", True, several=True, holds_host=True),
    Variable("NCCL_P2P_DISABLE", (), "GPUs exchange data through host memory", several=True),
    Variable("NCCL_SHM_DISABLE", (), "processes of one host exchange data through the network", several=True),
    Variable("TORCH_SHOW_CPP_STACKTRACES", (), "each exception, caught ones too, collects the stack of C++"),
    Variable("TORCH_CPP_LOG_LEVEL", ("info",), "torch writes a log of what it does"),
    Variable("TORCH_SHOW_DISPATCH_TRACE", (), "torch writes a line for each operator", True),
    Variable("PYTHONDEVMODE", (), "Python checks each allocation"),
    Variable("PYTHONTRACEMALLOC", (), "Python keeps a traceback of each allocation"),
    Variable("PYTHONMALLOC", ("debug", "malloc_debug", "pymalloc_debug"), "Python checks each allocation"),
    Variable("CUDA_DISABLE_PTX_JIT", (), "kernels for other cards are not compiled"),
)


def on(value: str) -> bool:
    """Return whether a variable is set to anything but off."""
    return value.strip().lower() not in _OFF


def variable_costs(each: Variable) -> Callable[[Case, RecordedSettings], str]:
    """Return the test of a variable."""

    def when(case: Case, settings: RecordedSettings) -> str:
        value = settings.variable(each.name)
        costs = value.strip().lower() in each.values if each.values else on(value)
        if not costs or (each.several and not _communicates(case)):
            return ""
        return f"{each.name}={value}: {each.does}"

    return when


def _communicates(case: Case) -> bool:
    return bool((case.ops["cls"] == DeviceActivity.COMM.value).any())


def one_process(case: Case, settings: RecordedSettings) -> str:
    """Return that one process computes with copies of a network on several GPUs."""
    several = other_gpus(case.profile).devices
    if not several or not any(row.get("class") == "DataParallel" for row in settings.rows("networks") or ()):
        return ""
    return f"torch.nn.DataParallel computes on {len(several) + 1} GPUs from one process, with new copies of all weights in each step"


def computes_all_the_time(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that is gained where nothing holds the GPU up: the time in which it computes nothing."""
    waits = case.taken_by(part for part in StepPart if part.idle or part is StepPart.COMM)
    return case.bound(waits, "the GPU computes all the time")


# ---- conditions ------------------------------------------------------------------------------------------------------


def anomaly(case: Case, settings: RecordedSettings) -> str:
    if settings.switch("anomaly") is not True:
        return ""
    if settings.switch("anomaly_check_nan") is False:
        return "anomaly detection is on: each operator keeps a Python traceback"
    return "anomaly detection is on: each operator keeps a Python traceback, and each gradient is read by the host"


def profiler(case: Case, settings: RecordedSettings) -> str:
    which = "torch.profiler" if settings.switch("torch_profiler") is True else "the profiler of autograd"
    running = settings.switch("autograd_profiler") is True or settings.switch("torch_profiler") is True
    return f"{which} is on in the steps: each operator is recorded" if running else ""


def deterministic(case: Case, settings: RecordedSettings) -> str:
    if settings.switch("deterministic") is True:
        return "deterministic algorithms are asked for: slower kernels, and new memory is filled"
    if settings.switch("cudnn_deterministic") is True and _convolutions(settings):
        return "torch.backends.cudnn.deterministic is on: cuDNN may not take its fastest convolutions"
    return ""


def _convolutions(settings: RecordedSettings) -> int:
    return sum(count_or_zero(r.get("convolutions")) for r in settings.rows("networks") or ())


def _convolution_kernels(case: Case) -> pl.DataFrame:
    return case.kernels.filter((case.kernels["family"] == "convolution").fill_null(value=False))


def no_benchmark(case: Case, settings: RecordedSettings) -> str:
    if settings.switch("cudnn_benchmark") is not False or not _convolutions(settings):
        return ""
    ns = case.per_step(int(_convolution_kernels(case)["ns"].sum()))
    if not case.notable(ns, REPORTED_SHARE) or _needs.SAME_SHAPES.test(case)[0] != "holds":
        return ""
    return f"torch.backends.cudnn.benchmark is off, shapes do not change, and convolutions take {units.duration(ns)} {case.per}"


def benchmark_in_vain(case: Case, settings: RecordedSettings) -> str:
    if settings.switch("cudnn_benchmark") is not True or not _convolutions(settings):
        return ""
    state, seen = _needs.SAME_SHAPES.test(case)
    return (
        f"torch.backends.cudnn.benchmark is on, and each new shape is tried with each algorithm: {seen}"
        if state == "violated"
        else ""
    )


def of_convolutions(case: Case) -> Takes:
    """Return the kernels of convolutions."""
    return Takes(ops_of(_convolution_kernels(case)))


def no_cudnn(case: Case, settings: RecordedSettings) -> str:
    return "torch.backends.cudnn is off" if settings.switch("cudnn") is False and bool(_convolutions(settings)) else ""


def slow_attention(case: Case, settings: RecordedSettings) -> str:
    allowed = settings.switch("sdpa")
    fast = [allowed.get(name) for name in ("flash", "efficient", "cudnn")] if isinstance(allowed, Mapping) else []
    off = bool(fast) and all(value is False for value in fast[:2]) and fast[2] is not True
    return "no fast kernel of scaled_dot_product_attention is allowed, only the plain one" if off else ""


def trials(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what the search for the fastest convolution costs: the time the GPU idles in convolutions, and their trials."""
    module = case.calls["module"].cast(pl.String).fill_null("")
    theirs = _convolution_kernels(case)["module"].cast(pl.String).drop_nulls().unique()
    calls = case.calls.filter(module.is_in(theirs.implode()) & (module != IN_STEP))
    began = (
        case.idle["op"]
        .is_in(case.ops.filter(case.ops["call"].is_in(calls["call"].implode()))["op"].implode())
        .fill_null(value=False)
    )
    idle = case.per_step(int(case.idle.filter(began & (case.idle["ns"] >= CONVOLUTION_TRIAL_NS))["real_ns"].sum()))
    if not idle:
        return None
    why = "the time the GPU idles between convolutions whose algorithms are tried"
    return Saving(
        min(idle, case.step_ns), why, most_ns=case.taken_by(part for part in StepPart if part.idle), source="time"
    )


def scaler(case: Case, settings: RecordedSettings) -> str:
    scalers, kinds = settings.rows("scalers") or (), settings.autocast("dtypes")
    names = " ".join(kinds) if isinstance(kinds, Mapping) else ""
    scales = any(r.get("enabled") is True for r in scalers)
    if not scales or "bfloat16" not in names or "float16" in names.replace("bfloat16", ""):
        return ""
    return "a GradScaler scales gradients of bfloat16, whose range is that of float32: it reads each step whether one is infinite"


def without_scaler(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what the waits of the scaler are worth: those in the optimizer's phase."""
    waits = case.profile.once(_needs.waits)
    return case.worth(RemoveWaits(calls_of(waits.filter(waits["phase"].cast(pl.String) == "optimizer"))))


def restarted_loader(settings: RecordedSettings, fewest: int = 3) -> Row | None:
    """Return workers, every (steps) and the line that makes it (``made``) of a loader whose workers start anew, None where there is none.

    ``anew``: the program makes the loader itself anew for each epoch, so that no option of it keeps its workers. ``fewest``: so many of
    its iterators were made. Two are enough where the time that passes between steps is known.
    """
    for row in settings.rows("loaders") or ():
        made, span = (
            count_or_zero(row.get("iterators")),
            count_or_zero(row.get("last_step")) - count_or_zero(row.get("first_step")),
        )
        is_anew = (
            2 * count_or_zero(row.get("made_again")) >= made
        )  # of those of a loader that is kept no line makes another
        if not count_or_zero(row.get("workers")) or made < fewest:
            continue
        if not is_anew and row.get("persistent_workers") is not False:
            continue
        if span / (made - 1) <= LOADER_RESTART_STEPS:
            told = {"workers": row["workers"], "every": span / (made - 1), "made": row.get("made")}
            return {**told, "anew": True} if is_anew else told
    return None


def anew(case: Case, settings: RecordedSettings) -> str:
    row = restarted_loader(settings)
    if row is None:
        return ""
    why = "the program makes a new loader for each epoch" if row.get("anew") else "persistent_workers is off"
    return f"the loader starts its {row['workers']} workers anew every {row['every']:.0f} steps: {why}"


def finds_unused(case: Case, settings: RecordedSettings) -> str:
    ddp = _costly_jobs.ddp(settings)
    if ddp is None or ddp.get("find_unused_parameters") is not True or ddp.get("unused_parameter_bytes"):
        return ""
    gradients = [r.get("gradients") for r in settings.rows("optimizers") or ()]
    without = [g.get("without") for g in gradients if isinstance(g, Mapping)]
    if not without or any(without):
        return ""
    return (
        "DDP looks for unused parameters in each step (find_unused_parameters=True), and every parameter has a gradient"
    )


def _micro_steps(settings: RecordedSettings) -> int:
    """Return how many backwards of a step each network has, where DDP wraps several: those of a generator and its critic are no
    micro-steps.
    """
    several = sum(int(row.get("count") or 1) for row in settings.wrappers("DDP") or ())
    return (settings.number("backwards") or 0) // max(several, 1)


def reduces_each(case: Case, settings: RecordedSettings) -> str:
    count, reducing = settings.number("backwards") or 0, settings.number("reducing")
    if _micro_steps(settings) < FEWEST_MICRO_STEPS or reducing is None or not _communicates(case):
        return ""
    if _costly_jobs.sharded(settings) and not _sharded_models.has_room_for_gradients(settings):
        return ""  # they are reduced in each backward so that no rank has to keep all of them
    every = f"{'DDP' if _costly_jobs.ddp(settings) else 'FSDP'} reduces gradients in each of the {count} backwards of a step: "
    unused = "set_requires_gradient_sync()" if settings.wrappers("fully_shard") else "no_sync()"
    return f"{every}{unused} is not used" if reducing >= count else _costly_jobs.reduces_in_no_sync(case, settings)


def seen_to_reduce_each(case: Case) -> str:
    """Return what the capture alone tells of gradients that are reduced in each backward of a step, "" where they are not."""
    micro = micro_steps.micro_steps(case.profile)
    if micro is None:
        return ""
    return (
        f"forward and backward run {micro.count} times for each step of the optimizer, and each backward reduces gradients "
        f"({units.several(micro.each, 'collective')} in each): no_sync() is not used"
    )


def reduced_once(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if only the last backward of a step communicates: by the replay of all ranks, where there is one.

    Else, and at most, it is a bound: recorded hosts are late by early reductions. Where tracing made them later, it is between the two.
    """
    replayed, bound = _costly_jobs.on_all_ranks(case, "no-sync"), _without_early_reductions(case, settings)
    if replayed is None or (alone := replayed.likely_ns) is None:
        return bound
    if 2 * alone < (most := max(alone, bound.likely_ns or 0)) > case.lost_to(StepLimit.LAUNCH):
        return Saving.between(alone, most, f"{bound.confidence}; the profiler made hosts late, which hides some of it")
    return replace(replayed, most_ns=most)


def _without_early_reductions(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that reducing gradients once in a step can save: what the early reductions take of it, slow, and call for."""
    micro = micro_steps.micro_steps(case.profile)
    count = micro.count if micro is not None else _micro_steps(settings) if settings is not None else 0
    if count < FEWEST_MICRO_STEPS:
        return Saving(None, UNKNOWN)
    # In the step of each of them the ranks meet, the transfer slows the kernels beside it, and host code copies and launches.
    share = (count - 1) / count
    exposed = share * case.taken_by((StepPart.COMM,))
    met = exposed + share * case.per_step(slowed_ns(case.profile))
    copied = 0
    why = "the early reductions are gone, and what they slow"  # too few steps tell the reductions of one backward from the next
    if micro is not None:
        called = case.worth(RemoveOps(micro.early | micro.copies), bound=True).likely_ns or 0
        copied = case.per_step(int(case.timed_ops(case.ops["op"].is_in(list(micro.copies)))["ns"].sum()))
        # Where the host sets the pace the calls count, else what moves gradients into and out of buckets: at most the longer of both.
        met += max(called, copied)
        why = "the early reductions, what they slow, their copies and the calls for them are gone"
    # None at all saves as much as any part of it. A replay that does not know what waits for it on other streams says less than was seen.
    none_at_all = case.worth(RemoveExposedComm(), bound=True).most_ns
    return case.bound(met if none_at_all is None else min(met, max(none_at_all, exposed) + copied), why)


def low_power(case: Case, settings: RecordedSettings) -> str:
    limit, most = settings.card("power_limit_w"), settings.card("default_power_limit_w")
    if not isinstance(limit, int | float) or not isinstance(most, int | float) or limit >= LITTLE_POWER * most:
        return ""
    return (
        f"the GPU may draw {limit:.0f} W, and {most:.0f} W is its own limit: its clocks fall where it would draw more"
    )


def one_core(case: Case, settings: RecordedSettings) -> str:
    allowed, cores, quota = (settings.cpu(n) for n in ("allowed", "cores", "quota"))
    if isinstance(allowed, int) and isinstance(cores, int) and allowed == 1 < cores:
        return f"the program may use 1 of {cores} cores: backward, loaders and Python take turns on it"
    if isinstance(quota, int | float) and quota <= 1 and isinstance(cores, int) and cores > 1:
        return f"the container grants {quota:g} cores of {cores}: backward, loaders and Python take turns"
    return ""


def busy_cores(case: Case, settings: RecordedSettings) -> str:
    ran, waited = settings.cpu("ran_ns"), settings.cpu("waited_for_core_ns")
    if not isinstance(ran, int) or not isinstance(waited, int) or waited <= CROWDED_CORES * (ran + waited):
        return ""
    idle = case.taken_by(part for part in StepPart if part.idle)
    if idle < REPORTED_SHARE * case.step_ns:  # the GPU waits for no thread
        return ""
    return (
        f"the main thread has had no core for {units.duration(waited)} of the {units.duration(ran + waited)} since the start in which it "
        "could have run: other threads and processes take turns with it"
    )


def too_many_threads(case: Case, settings: RecordedSettings) -> str:
    allowed, threads = settings.cpu("allowed"), settings.cpu("torch_threads")
    if isinstance(allowed, int) and isinstance(threads, int) and threads > 2 * allowed > 2:
        return f"torch uses {threads} threads on {allowed} cores"
    return ""


_DEBUG = ("eager", "aot_eager", "aot_eager_decomp_partition", "pre_dispatch_eager", "eager_noexcept", "eager_debug")


def debug_backend(case: Case, settings: RecordedSettings) -> str:
    backends = settings.compiled("backends")
    names = [b.get("name") for b in backends if isinstance(b, Mapping)] if isinstance(backends, list) else []
    if not names or not all(name in _DEBUG for name in names):
        return ""
    return f'torch.compile uses backend="{names[0]}", which is for debugging: it fuses nothing'


def on_host(case: Case, settings: RecordedSettings) -> str:
    for row in settings.rows("optimizers") or ():
        for what, key in (("parameters", "devices"), ("state", "state_devices")):
            kinds = row.get(key)
            if isinstance(kinds, Mapping) and kinds.get("cpu") and case.device is not None:
                return f"{what} of {row.get('class')} are on the CPU: {kinds['cpu']} tensors"
    return ""


def many_regions(case: Case, settings: RecordedSettings) -> str:
    regions = settings.autocast("regions")
    if not isinstance(regions, int) or regions <= AUTOCAST_REGIONS * max(1, _micro_steps(settings)):
        return ""
    return f"autocast is entered {regions} times in a step: its cache of cast weights is emptied at each exit"
