"""Settings that cost where several ranks work together: of DDP, of FSDP, of their collectives and of their cores."""

from __future__ import annotations

from functools import partial

from nsysx.findings import _costly_collectives as collectives
from nsysx.findings import _costly_exchanges as exchanges
from nsysx.findings import _costly_jobs as jobs
from nsysx.findings import _costly_when as when
from nsysx.findings import _gathered_lists as gathered_lists
from nsysx.findings import _gathered_logits as gathered_logits
from nsysx.findings import _looped_exchanges as looped
from nsysx.findings import _reduced_twice as again
from nsysx.findings import _rows_of_all as rows_of_all
from nsysx.findings import _same_samples as same
from nsysx.findings import _synchronized_norms as norms
from nsysx.findings import _widened_messages as widened
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly

#: Rows of settings that DDP acts on in backward, and of settings of FSDP.
_in_ddp_backward = partial(Costly, set_by=("DDP",), phase="backward")
_in_fsdp = partial(Costly, set_by=("FSDP",))

OF_RANKS = (
    _in_ddp_backward(
        "find_unused_parameters",
        when.finds_unused,
        "DDP looks for unused parameters, and there are none",
        way("no-unused-search"),
        worth=collectives.unused_search,
    ),
    _in_ddp_backward(
        "static_graph",
        collectives.searches_again,
        "DDP looks for unused parameters in each step, always the same ones",
        way(
            "ddp-static-graph",
            "Let DDP look for unused parameters once: static_graph=True, without find_unused_parameters",
        ),
        worth=collectives.unused_search,
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
    _in_ddp_backward(
        "gradient_as_bucket_view",
        jobs.copies_gradients,
        "Gradients are copied out of their buckets",
        way("ddp-bucket-view"),
        worth=jobs.bucket_view,
    ),
    Costly(
        "broadcast_buffers",
        jobs.sends_buffers,
        "Buffers are sent to all ranks in each step",
        way("own-buffers"),
        worth=jobs.own_buffers,
        oversight=True,
        set_by=("DDP",),
        phase="forward",
    ),
    _in_ddp_backward(
        "small buckets",
        jobs.small_buckets,
        "Gradients are reduced in many small buckets",
        way("usual-buckets"),
        worth=jobs.fewer_buckets,
    ),
    _in_ddp_backward(
        "one bucket",
        jobs.one_bucket,
        "Gradients are reduced in one bucket, after backward",
        way("usual-buckets"),
        worth=jobs.overlapped_buckets,
    ),
    Costly(
        "float32 reductions",
        jobs.reduces_float32,
        "Gradients are reduced as float32, with twice the bytes of bfloat16",
        way("bf16-reductions"),
        worth=jobs.half_of_the_bytes,
        set_by=("DDP", "FSDP"),
        phase="backward",
    ),
    _in_fsdp(
        "small units",
        jobs.small_units,
        "Many small modules are sharded each by itself",
        way("blocks-as-units"),
        worth=jobs.fewer_units,
    ),
    _in_fsdp(
        "reshard_after_forward",
        jobs.gathers_again,
        "Parameters are gathered again in backward although they would fit",
        way("no-reshard"),
        worth=jobs.kept_gathered,
        phase="backward",
    ),
    _in_fsdp(
        "backward_prefetch",
        collectives.gathers_late_in_backward,
        "Parameters are gathered when backward reaches them, not before",
        way("backward-prefetch"),
        worth=collectives.prefetched_backward,
        phase="backward",
    ),
    _in_fsdp(
        "forward_prefetch",
        collectives.gathers_late_in_forward,
        "Parameters are gathered when the host comes to them, not before",
        way("forward-prefetch"),
        worth=collectives.prefetched_forward,
        phase="forward",
    ),
    _in_fsdp(
        "limit_all_gathers",
        collectives.gathers_at_once,
        "More parameters are gathered at once than memory holds",
        way("limited-gathers"),
    ),
    Costly(
        "gradients reduced again",
        again.reduced_again,
        "Gradients or weights are exchanged that are equal on all ranks",
        way("not-reduced-again"),
        worth=again.without,
        seen=again.reduced_again,
        takes=again.taken,
        leads=True,
        at=again.place_of_line,
    ),
    Costly(
        "SyncBatchNorm",
        norms.synchronizes,
        "Normalization synchronizes all ranks in each layer",
        way("own-statistics"),
        worth=norms.without,
        seen=norms.synchronizes,
        takes=norms.taken,
        phase="forward",
        place="SyncBatchNorm",
        set_by=("SyncBatchNorm",),
    ),
    Costly(
        "exchanges in a loop",
        looped.one_by_one,
        "Tensors are exchanged one by one",
        way("packed-exchange"),
        worth=looped.in_one,
        seen=looped.one_by_one,
        takes=looped.taken,
        at=looped.place_of_loop,
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
        "float32 messages",
        widened.sent_as_float32,
        "Numbers of 16 bits are sent as float32",
        way("sent-in-16-bits"),
        worth=widened.half_of_the_bytes,
        seen=widened.sent_as_float32,
        takes=widened.taken,
        oversight=True,
        at=widened.place_of_message,
    ),
    Costly(
        "rows of all ranks",
        rows_of_all.sent_to_all,
        "Every rank is sent rows that it does not read",
        way("reduced-and-scattered"),
        worth=rows_of_all.own_alone,
        seen=rows_of_all.sent_to_all,
        takes=rows_of_all.taken,
        at=rows_of_all.place_of_message,
        worded=rows_of_all.in_its_words,
    ),
    Costly(
        "gathers into lists",
        gathered_lists.gathered_twice,
        "Gathered tensors are copied twice more",
        way("gathered-into-one"),
        worth=gathered_lists.without_copies,
        seen=gathered_lists.gathered_twice,
        takes=gathered_lists.taken,
        at=gathered_lists.place_of_gather,
    ),
    Costly(
        "gathered logits",
        gathered_logits.gathered_whole,
        "Every rank gathers the logits of all classes",
        way("own-classes"),
        worth=gathered_logits.own_classes,
        seen=gathered_logits.gathered_whole,
        takes=gathered_logits.taken,
        at=gathered_logits.place_of_gather,
    ),
    Costly(
        "collectives through the CPU",
        exchanges.through_host,
        "Collectives go through the CPU",
        way("group-on-gpu"),
        worth=exchanges.without_host_exchange,
        seen=exchanges.through_host,
        leads=True,
        at=exchanges.place_of_host_exchange,
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
        "samples of ranks",
        same.drawn_alike,
        "Every rank computes the same samples",
        way("own-samples"),
        worth=same.fewer_steps,
        leads=True,
        fewer_steps=True,
        set_by=("loader",),
        phase="data",
        worded=same.in_its_words,
    ),
    Costly(
        "samples of all ranks",
        same.loaded_alike,
        "Every rank loads the same samples",
        way("own-samples"),
        set_by=("loader",),
        phase="data",
    ),
    Costly(
        "DataParallel",
        when.one_process,
        "One process computes on several GPUs (DataParallel)",
        way("process-for-each-gpu"),
        worth=when.computes_all_the_time,
        leads=True,
        set_by=("DataParallel",),
    ),
    _in_fsdp(
        "CPU offload",
        jobs.offloads,
        "A sharded model keeps its parameters on the CPU",
        way("no-offload"),
        leads=True,
    ),
)
