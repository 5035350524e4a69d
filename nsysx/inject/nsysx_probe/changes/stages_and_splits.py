"""Networks that are divided among the GPUs: by stages of a pipeline, by parts of each layer, by shards of the weights.

A change would have to be made on all ranks at once, before they start.
"""

from __future__ import annotations

from . import Change, Remedy

_ALL_RANKS = "how a network is divided among the ranks, the program says"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "cut-between-levels",
        "Cut a network of levels (U-Net) between an outer and an inner level, not between encoder and decoder: then one tensor of an inner "
        "level is sent there and back, and no skip connection",
        "# rank 0: the outermost levels of encoder and decoder; rank 1: all inner ones\n"
        "x, skips = outer_encoder(mb)\n"
        "dist.send(x.contiguous(), 1); dist.recv(y := torch.empty_like(x), 1)\n"
        "out = outer_decoder(y, skips)  # gradients the same way back",
        "Choose the level so that both ranks have about as much to compute; several micro-batches must be on their way at once.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "local-outputs",
        "Let split layers hand on plain tensors (use_local_output=True, the default of ColwiseParallel and RowwiseParallel): every "
        "operator between them on a DTensor goes through Python",
        'plan = {"norm1": SequenceParallel(use_local_output=True), "attn.qkv": ColwiseParallel(),\n'
        '        "attn.proj": RowwiseParallel(output_layouts=Shard(1)), "mlp.fc1": ColwiseParallel(),\n'
        '        "mlp.fc2": RowwiseParallel(output_layouts=Shard(1))}',
        "What is between the layers then sees the part of this rank: views with a number of heads need that of a rank (or -1), and what "
        "needs the whole row needs an exchange of its own.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "layers-split-too",
        "Split these layers over the ranks as the others are: the outputs of the first ones (query, key, value), the inputs of the last "
        "one, and one sum of its output",
        'plan = {"attn.q": ColwiseParallel(), "attn.k": ColwiseParallel(), "attn.v": ColwiseParallel(), "attn.out": RowwiseParallel()}\n'
        "# own layers: parts of the weights, an all_reduce of the output, and one of the gradient of the input",
        "Views into heads must take those that are there (-1); the heads must divide by the ranks, and the rows of a layer that makes "
        "query, key and value at once must lie head by head.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "tokens-shared-out",
        "Share the tokens out over the ranks between split layers, too (sequence parallelism): reduce and scatter a layer's output in "
        "place of the all-reduce, work on this rank's tokens, and gather them in front of the next layer. The messages have as many bytes",
        "class Gathered(torch.autograd.Function):  # in front of a layer whose outputs are split\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        y = x.new_empty(dist.get_world_size(tp) * len(x), *x.shape[1:])\n"
        "        dist.all_gather_into_tensor(y, x.contiguous(), group=tp)\n"
        "        return y\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        y = g.new_empty(len(g) // dist.get_world_size(tp), *g.shape[1:])\n"
        "        dist.reduce_scatter_tensor(y, g.contiguous(), group=tp)\n"
        "        return y\n"
        "class Scattered(torch.autograd.Function):  # behind a layer whose inputs are split, for its all_reduce\n"
        "    forward, backward = staticmethod(Gathered.backward), staticmethod(Gathered.forward)\n"
        "x = x.flatten(0, 1).chunk(dist.get_world_size(tp))[dist.get_rank(tp)]  # once, before the first layer; Gathered before the head\n"
        "for p in weights_of_norms: dist.all_reduce(p.grad, group=tp)  # behind backward: each rank has the gradient of its tokens",
        "The tokens must divide by the ranks; what mixes tokens outside of the split layers needs them gathered.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "more-micro-batches",
        "Use more micro-batches, or an interleaved schedule: the stages of the pipeline wait for each other",
        "schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)  # 4 times the stages",
        "Kernels of smaller micro-batches use a GPU less well. Where each token needs the one before, keep several batches in flight.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "fewer-micro-batches",
        "Use fewer, larger micro-batches: each has launches and messages of its own, and the stages wait for each other's launches",
        "schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)  # 4 times the stages",
        "Activations of larger micro-batches must fit.", untried=_ALL_RANKS,
    ),
    Remedy(
        "one-shot-sums",
        "Sum these short messages by one kernel each, through symmetric memory (in vLLM: the custom all-reduce, where it is switched off), "
        "and replay the call of a token with its sums as a CUDA graph on all ranks: they cost NCCL's latency, and the hosts' launches",
        "import torch.distributed._symmetric_memory as symm_mem\n"
        "buf = symm_mem.empty(*o.shape, dtype=o.dtype, device=o.device)  # once for each size, before the loop\n"
        "symm_mem.rendezvous(buf, group)  # once\n"
        "buf.copy_(o)  # or let the product write it: torch.mm(h, weight.t(), out=buf)\n"
        "o = torch.ops.symm_mem.one_shot_all_reduce(buf, 'sum', group.group_name)",
        "All ranks of the group must be GPUs of one host that reach each other's memory (NVLink).", untried=_ALL_RANKS,
    ),
    Remedy(
        "even-micro-batches",
        "Form micro-batches of as much work, over all samples of a step: by what documents cost, attention by the square of their lengths, "
        "and not by tokens alone; or sort samples by length, so that neighbours are alike",
        "cost = lambda n: n + n * n / 24_000  # tokens, and their squares: fit the number to two lengths that were timed\n"
        "parts = [[] for _ in range(micro_batches)]\n"
        "for document in sorted(documents, key=len, reverse=True):  # those of a step\n"
        "    min(parts, key=lambda part: sum(cost(len(d)) for d in part)).append(document)",
        "Divide the sum of losses by the tokens of the step: a mean of means weighs micro-batches alike. A document that is longer than a "
        "part by itself stays so: split it over ranks (context parallelism).", untried=_ALL_RANKS,
    ),
    Remedy(
        "backward-behind-forward",
        "Run a backward behind each forward (1F1B) in place of all forwards first (GPipe): a stage then keeps what backward needs of as "
        "many micro-batches as stages follow it, not of all. Then do without the checkpoints, as far as memory allows",
        "schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss_fn)  # not ScheduleGPipe; its bubble is as long\n"
        "checkpointed = stage.stage_index == 0  # first on none; where memory does not do, on the first stages: they keep most",
        "With GPipe the checkpoints are needed: change the schedule first. Fewer micro-batches would only lengthen the bubble.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "batches-in-flight",
        "Keep several micro-batches in flight: forward of the next one while this one is at the other stage (1F1B), sent with isend and "
        "received with irecv that is posted ahead; now the stages take turns, whatever the number of micro-batches",
        "stage = PipelineStage(module, rank, world, device)\n"
        "schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)\n"
        "schedule.step(x) if rank == 0 else schedule.step(target=y)  # by hand: isend, irecv ahead, one more forward first",
        "Each stage keeps the activations of as many micro-batches as there are stages behind it.", untried=_ALL_RANKS,
    ),
    Remedy(
        "sum-reduced-once",
        "Add first, then reduce the sum: all_reduce(a) + all_reduce(b) is all_reduce(a + b), with fewer bytes and meetings",
        "x = x + all_reduce(attention(h) + mlp(h))  # not all_reduce(attention(h)) + all_reduce(mlp(h))",
        "Nothing else may read what was reduced alone; numbers of 16 bits are rounded before the reduction, not behind it.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "gradient-reduced-once",
        "Reduce the gradient of what several split layers are given once: let one copy of the input, which all of them are given, reduce "
        "its gradient in backward, or make one layer of them (qkv)",
        "class Copied(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x.view_as(x)\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        g = g.contiguous()\n"
        "        dist.all_reduce(g)\n"
        "        return g\n"
        "h = Copied.apply(h)  # once, before all layers that are given h",
        "The layers' own reductions of it must go. Gradients of 16 bits are rounded before the reduction then, not behind it.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "input-gathered-once",
        "Gather it once for all layers that read it",
        "x = gather(x)  # once, before all layers that are given x",
        "Nothing may write into what came while others read it; it is held until the last of them has.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "data-parallel",
        "Give each GPU the whole network and its part of the batch: layers that are this small send each other more than they compute, and "
        "gradients are reduced beside backward",
        "model = DistributedDataParallel(Network().cuda())  # whole layers, no all_reduce in them\n"
        "loader = DataLoader(data, batch_size // world, sampler=DistributedSampler(data))",
        "Weights, gradients and the state of the optimizer must fit on each GPU.", untried=_ALL_RANKS,
    ),
    Remedy(
        "gathered-in-16-bits",
        "Gather parameters in the 16 bits that autocast computes in, and reduce gradients as float32 as now: MixedPrecisionPolicy of each "
        "fully_shard()",
        "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)\n"
        "for block in model.blocks: fully_shard(block, mp_policy=policy)  # then fully_shard(model, mp_policy=policy)",
        "Layers that autocast leaves in float32, such as norms and losses, compute in 16 bits then: compare the loss.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "replicated",
        "Give each GPU the whole model (DistributedDataParallel): it fits many times over; sharded, the ranks wait for each other's "
        "launches in every gather",
        "model = DistributedDataParallel(model.cuda(), gradient_as_bucket_view=True)  # without fully_shard()",
        "Weights, gradients and the state of the optimizer must fit on each GPU; fully_shard's mixed precision becomes autocast.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "shards-saved",
        "Save each rank's shards, and go on while they are written: dcp.async_save of a sharded state dict; a full one gathers every "
        "parameter to the CPU of each rank, one by one, and one rank writes it",
        "state = get_model_state_dict(model)  # without full_state_dict\n"
        "if saving is not None: saving.result()\n"
        "saving = dcp.async_save({\"model\": state}, checkpoint_id=path)",
        "The copy of the shards needs as much memory of the CPU.", untried=_ALL_RANKS,
    ),
    Remedy(
        "exchanges-kept",
        "Checkpoint what lies between the exchanges, and not the exchanges: what they brought is kept, and backward sends nothing again",
        "h = checkpoint(before, x, use_reentrant=False)  # attention and router, up to what is sent\n"
        "h = checkpoint(experts, exchange(h), use_reentrant=False)\n"
        "x = x + exchange_back(h)  # neither exchange is in a checkpoint",
        "What the exchanges bring stays in memory until backward. Functional collectives can also be saved by a policy "
        "(create_selective_checkpoint_contexts).", untried=_ALL_RANKS,
    ),
    Remedy(
        "own-state-saved",
        "Save on each rank the part of the optimizer's state that it has, from another thread: consolidate_state_dict() pickles all parts "
        "and sends them through one rank, while the others wait",
        "own = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(\"cpu\", copy=True), optimizer.optim.state_dict())\n"
        "if saving is not None: saving.result()\n"
        "saving = pool.submit(torch.save, own, f\"{path}.{rank}\")  # pool = ThreadPoolExecutor(1), made once",
        "It is loaded with as many ranks: optimizer.optim.load_state_dict(torch.load(f\"{path}.{rank}\")).", untried=_ALL_RANKS,
    ),
    Remedy(
        "groups-once",
        "Create process groups once, before the loop: each new one connects its ranks anew, and its first collective waits for that. Ranks "
        "that have nothing to add can send zeros in a group that is there",
        "dist.all_reduce(torch.where(takes_part, values, 0))  # the default group; takes_part: a flag on the GPU, no new_group()",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "sizes-agreed-once",
        "Agree on sizes and types once, before the loop, and receive into buffers that are kept: here the host waits for each before it "
        "can post the message itself",
        "buffer = torch.empty(micro, tokens, width, dtype=torch.bfloat16, device=device)  # once, by the first exchange of shapes\n"
        "dist.irecv(buffer, src=0)  # in the loop; no shape before it",
        "Sizes must stay the same; else send those of the next message along with this one.", untried=_ALL_RANKS,
    ),
)  # fmt: skip
