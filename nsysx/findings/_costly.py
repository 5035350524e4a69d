"""The declared table of settings that only cost: when each one costs, in which words it is told, and what it is worth to change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nsysx.advice import Alternative
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import (
    _anomaly,
    _costly_kernels,
    _float64,
    _grown_inputs,
    _padding,
    _recomputed,
    _transform_lengths,
    _unread,
)
from nsysx.findings import _costly_collectives as collectives
from nsysx.findings import _costly_jobs as jobs
from nsysx.findings import _costly_when as when
from nsysx.findings._case import Case, Need, Saving, way
from nsysx.findings._once import Takes
from nsysx.model import Row


class Costly(NamedTuple):
    """A setting. ``when`` returns what was seen if it costs, else ""; ``worth`` asks the replay, None: it has to be tried.

    ``seen`` is ``when`` for a capture whose settings were not read, None where it does not show there. ``takes``: the time that it is
    about, where that is known. ``leads``: what it costs cannot be small and nothing else is worth doing before it, known or not.
    ``phase``: where it acts; ``place``: where it is set, if not in the program's code; ``set_by``: names under which the probe notes the
    line that sets it. ``anywhere``: the advice to a program that is
    not written in Python, which a setting that kernels show may be of. ``need``: what the change needs, told where it is violated.
    ``at``: the line that does it, where no setting is set.
    """

    name: str
    when: Callable[[Case, RecordedSettings], str]
    title: str
    remedy: Alternative
    worth: Callable[[Case, RecordedSettings | None], Saving | None] | None = None
    seen: Callable[[Case], str] | None = None
    takes: Callable[[Case], Takes] | None = None
    leads: bool = False
    phase: str | None = None
    place: str | None = None
    anywhere: str | None = None
    need: Need | None = None
    set_by: tuple[str, ...] = ()
    at: Callable[[Case], Row] | None = None


SETTINGS = (
    Costly(
        "CUDA_LAUNCH_BLOCKING",
        when.blocking,
        "Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING)",
        way("unset-launch-blocking"),
        worth=when.unblocked,
        leads=True,
        place="the environment",
    ),
    Costly(
        "anomaly detection",
        when.anomaly,
        "Anomaly detection is on",
        way("no-anomaly"),
        worth=_anomaly.worth,
        leads=True,
        phase="backward",
        set_by=("anomaly",),
    ),
    Costly("profiler", when.profiler, "A profiler of torch is on in the steps", way("no-profiler"), leads=True),
    Costly(
        "deterministic algorithms",
        when.deterministic,
        "Deterministic algorithms are asked for",
        way("not-deterministic"),
        worth=_costly_kernels.not_deterministic,
        takes=_costly_kernels.of_determinism,
        leads=True,
        set_by=("deterministic", "cudnn_deterministic"),
    ),
    Costly(
        "cudnn.benchmark off",
        when.no_benchmark,
        "cuDNN does not look for its fastest convolutions",
        way("cudnn-benchmark"),
        takes=when.of_convolutions,
    ),
    Costly(
        "cudnn.benchmark on",
        when.benchmark_in_vain,
        "cuDNN tries its convolutions again for each new shape",
        way("no-cudnn-benchmark"),
        worth=when.trials,
        takes=when.of_convolutions,
        set_by=("cudnn_benchmark",),
    ),
    Costly(
        "cudnn off",
        when.no_cudnn,
        "cuDNN is turned off",
        way("cudnn-on"),
        takes=when.of_convolutions,
        leads=True,
        set_by=("cudnn_enabled",),
    ),
    Costly("attention kernels", when.slow_attention, "Fast attention kernels are turned off", way("sdpa-allowed")),
    Costly(
        "float64",
        _float64.in_settings,
        "Float64 on the GPU",
        way("float32"),
        worth=_float64.halved,
        seen=_float64.seen,
        takes=_float64.taken,
        anywhere="Compute with float32 where its 7 digits are enough",
        need=_float64.NOT_MEANT,
    ),
    Costly(
        "FFT length",
        _transform_lengths.odd,
        "Fourier transforms of an awkward length",
        way("fft-length"),
        worth=_transform_lengths.shorter,
        seen=_transform_lengths.seen,
        takes=_transform_lengths.taken,
        leads=True,
        anywhere="Pad transforms to a length whose factors are 2, 3, 5 and 7",
    ),
    Costly(
        "no cache of keys",
        _grown_inputs.grows,
        "All tokens before are computed again for each new one",
        way("kept-keys"),
        worth=_grown_inputs.cached,
        takes=_grown_inputs.taken,
        leads=True,
        phase="evaluation",
    ),
    Costly(
        "GradScaler with bfloat16",
        when.scaler,
        "A gradient scaler beside bfloat16",
        way("no-scaler"),
        worth=when.without_scaler,
        phase="optimizer",
    ),
    Costly(
        "persistent_workers off",
        when.anew,
        "The loader starts its workers anew again and again",
        way("persistent-workers"),
        phase="data",
        set_by=("loader",),
    ),
    Costly(
        "find_unused_parameters",
        when.finds_unused,
        "DDP looks for unused parameters, and there are none",
        way("no-unused-search"),
        worth=collectives.unused_search,
        set_by=("DDP",),
        phase="backward",
    ),
    Costly(
        "static_graph",
        collectives.searches_again,
        "DDP looks for unused parameters in each step, always the same ones",
        way(
            "ddp-static-graph",
            "Let DDP look for unused parameters once: static_graph=True, without find_unused_parameters",
        ),
        worth=collectives.unused_search,
        set_by=("DDP",),
        phase="backward",
    ),
    Costly(
        "no_sync unused",
        when.reduces_each,
        "Gradients are reduced in each micro-step",
        way("no-sync"),
        worth=when.reduced_once,
        seen=when.seen_to_reduce_each,
        leads=True,
        phase="backward",
    ),
    Costly(
        "gradient_as_bucket_view",
        jobs.copies_gradients,
        "Gradients are copied out of their buckets",
        way("ddp-bucket-view"),
        worth=jobs.bucket_view,
        set_by=("DDP",),
        phase="backward",
    ),
    Costly(
        "broadcast_buffers",
        jobs.sends_buffers,
        "Buffers are sent to all ranks in each step",
        way("own-buffers"),
        worth=jobs.own_buffers,
        set_by=("DDP",),
        phase="forward",
    ),
    Costly(
        "small buckets",
        jobs.small_buckets,
        "Gradients are reduced in many small buckets",
        way("usual-buckets"),
        worth=jobs.fewer_buckets,
        set_by=("DDP",),
        phase="backward",
    ),
    Costly(
        "one bucket",
        jobs.one_bucket,
        "Gradients are reduced in one bucket, after backward",
        way("usual-buckets"),
        worth=jobs.overlapped_buckets,
        set_by=("DDP",),
        phase="backward",
    ),
    Costly(
        "reshard_after_forward",
        jobs.gathers_again,
        "Parameters are gathered again in backward although they would fit",
        way("no-reshard"),
        worth=jobs.kept_gathered,
        phase="backward",
    ),
    Costly(
        "backward_prefetch",
        collectives.gathers_late_in_backward,
        "Parameters are gathered when backward reaches them, not before",
        way("backward-prefetch"),
        worth=collectives.prefetched_backward,
        phase="backward",
    ),
    Costly(
        "forward_prefetch",
        collectives.gathers_late_in_forward,
        "Parameters are gathered when the host comes to them, not before",
        way("forward-prefetch"),
        worth=collectives.prefetched_forward,
        phase="forward",
    ),
    Costly(
        "limit_all_gathers",
        collectives.gathers_at_once,
        "More parameters are gathered at once than memory holds",
        way("limited-gathers"),
    ),
    Costly(
        "metrics in each step",
        collectives.metrics_each_step,
        "A value of all ranks is reduced and read in each step",
        way("collective-rarely"),
        worth=collectives.without_metrics,
        seen=collectives.metrics_each_step,
        takes=collectives.of_metrics,
        at=collectives.place_of_metrics,
    ),
    Costly(
        "stream of collectives",
        collectives.on_compute_stream,
        "Collectives run on the stream of the computation",
        way("async-collectives"),
        worth=collectives.beside_compute,
        seen=collectives.on_compute_stream,
        takes=collectives.of_held_up,
        at=collectives.place_of_held_up,
    ),
    Costly(
        "collectives through the CPU",
        collectives.through_host,
        "Collectives go through the CPU",
        way("group-on-gpu"),
        worth=collectives.without_host_exchange,
        seen=collectives.through_host,
        leads=True,
        at=collectives.place_of_host_exchange,
    ),
    Costly(
        "cores of ranks",
        collectives.shared_cores,
        "Few cores for many",
        way("own-cores"),
        leads=True,
        place="the launcher",
    ),
    Costly(
        "CPU offload",
        jobs.offloads,
        "A sharded model keeps its parameters on the CPU",
        way("no-offload"),
        leads=True,
    ),
    Costly(
        "padding",
        _padding.padded,
        "Batches are mostly padding",
        way("pad-to-longest"),
        worth=_padding.shorter,
        takes=_padding.taken,
        set_by=("loader",),
        leads=True,
        place="the loader",
    ),
    Costly(
        "gradients that nothing reads",
        _unread.unread,
        "A backward runs for nothing",
        way("detached"),
        worth=_unread.without,
        seen=_unread.needless_backwards,
        takes=_unread.taken,
        leads=True,
        phase="backward",
        at=_unread.place_of_network,
    ),
    Costly(
        "parameters that no optimizer holds",
        _unread.unheld,
        "Gradients of weights are computed that nothing reads",
        way("frozen"),
        worth=_unread.frozen,
        seen=_unread.needless_weights,
        takes=_unread.of_unheld,
        leads=True,
        phase="backward",
    ),
    Costly(
        "power limit",
        when.low_power,
        "The GPU may draw less power than it could",
        way("full-power"),
        place="the driver",
    ),
    Costly("clocks", when.held_clocks, "The GPU's clocks are held down", way("full-clocks"), place="the driver"),
    Costly(
        "other processes", when.shared_card, "Other processes use the GPU, too", way("own-gpu"), place="the machine"
    ),
    Costly("cores", when.one_core, "One core for the whole program", way("more-cores")),
    Costly("threads", when.too_many_threads, "More threads than cores", way("threads-cores")),
    Costly(
        "debug backend",
        when.debug_backend,
        "torch.compile uses a backend for debugging",
        way("default-backend"),
        leads=True,
    ),
    Costly(
        "optimizer on the CPU",
        when.on_host,
        "The optimizer works on the CPU",
        way("optimizer-on-gpu"),
        phase="optimizer",
    ),
    Costly(
        "autocast regions",
        when.many_regions,
        "Autocast is entered again and again",
        way("autocast-once"),
        phase="forward",
    ),
    Costly(
        "checkpoints",
        _recomputed.needless,
        "Activations are recomputed although memory is free",
        way("fewer-checkpoints"),
        worth=_recomputed.without,
        takes=_recomputed.taken,
        leads=True,
        phase="backward",
    ),
    Costly(
        "recompile limit",
        _costly_kernels.given_up,
        "torch.compile has given a function up",
        way("compiled-for-all-calls"),
        worth=_costly_kernels.fused_again,
        takes=_costly_kernels.taken,
        leads=True,
    ),
    *(
        Costly(
            each.name,
            when.variable_costs(each),
            f"{each.name} is set",
            way("unset-variable", f"Unset {each.name}: {each.does}", f"env -u {each.name} python train.py"),
            leads=each.leads,
            place="the environment",
        )
        for each in when.VARIABLES
    ),
)
