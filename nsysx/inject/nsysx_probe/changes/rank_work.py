"""How the work of a job is divided among its GPUs. A change would have to be made on all ranks at once, before they start."""

from __future__ import annotations

from . import Change, Remedy

_ALL_RANKS = "how work and parameters are divided among the ranks, the program says"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "not-reduced-again",
        "Delete this exchange: the wrapper (DistributedDataParallel) keeps gradients, weights and averages of weights equal on all "
        "ranks, and averaging or sending what is equal changes nothing",
        condition="It must be gradients, weights or averages of weights, and the wrapper's forward must be what was called.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "zero-stage-1",
        "Use stage 1 of ZeRO where gradients add up over micro-steps: whole gradients stay on each rank, and are reduced once, in the last "
        "micro-step; stage 2 keeps a part of them alone, and so reduces all in each",
        '"zero_optimization": {"stage": 1, "overlap_comm": true},  # in the configuration of DeepSpeed',
        "Whole gradients must fit on each GPU. Larger micro-batches, and fewer of them, do as much.", untried=_ALL_RANKS,
    ),
    Remedy(
        "zero-overlap",
        "Let DeepSpeed reduce gradients beside backward, in large buckets: overlap_comm is off unless the configuration says so",
        '"zero_optimization": {"overlap_comm": true, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8},  # and its stage',
        "Buckets of that size take memory: 2 bytes for each number, twice where reductions overlap.", untried=_ALL_RANKS,
    ),
    Remedy(
        "losses-in-one-backward",
        "Call the wrapper once with the batches of all tasks, and go back once through the sum of their losses: gradients are then reduced "
        "once, and no_sync() around all but the last pass would leave those of the parts that the last one does not use unreduced",
        "losses = model(batches)  # its forward: {task: self.loss(task, batch) for task, batch in batches.items()}\n"
        "sum(weight[task] * loss for task, loss in losses.items()).backward()",
        "The activations of all passes are in memory at once. Each step must use all parts; then find_unused_parameters can go, too.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "reduced-behind-last",
        "Reduce these gradients once, behind the last micro-batch: let them add up until then, and reduce nothing in the loop or in a hook",
        "dist.all_reduce(p.grad, group=group)  # once, behind the last micro-batch: not in the loop, nor in a hook\n"
        "optimizer.step()",
        "What a loop or a hook adds up elsewhere (main_grad) adds up without the exchange, and that sum is reduced.", untried=_ALL_RANKS,
    ),
    Remedy(
        "frozen-before-wrapping",
        "Leave find_unused_parameters out, and freeze what nothing trains before it is wrapped (requires_grad_(False)), or keep it out of "
        "the wrapped module: DDP then neither keeps buckets for it nor reduces them",
        "teacher.requires_grad_(False)  # before it is wrapped\n"
        "model = DistributedDataParallel(module, gradient_as_bucket_view=True)",
        "Every parameter that is left must get a gradient in every step.", untried=_ALL_RANKS,
    ),
    Remedy(
        "earlier-communication",
        "Start communication earlier (smaller buckets, prefetch), so that it runs beside backward, in fewer, larger messages",
        "model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)",
        "The links must have room left beside the computation.", untried=_ALL_RANKS,
    ),
    Remedy(
        "bf16-reductions",
        "Reduce gradients as bfloat16: half of the bytes move",
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook\n"
        "model.register_comm_hook(None, bf16_compress_hook)",
        "Each gradient is rounded to 8 significant bits before the ranks' are added, and the sum again: compare the loss.",
        untried=_ALL_RANKS, rounds_sent=True,
    ),
    Remedy(
        "usual-connections",
        "Unset CUDA_DEVICE_MAX_CONNECTIONS: with 1 collectives that should run beside computation wait in its queue; it is for layers that "
        "are split over ranks (tensor parallelism of Megatron)",
        'os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # before CUDA starts; or unset it in the shell',
        untried=_ALL_RANKS,
    ),
    Remedy(
        "paired-splits",
        "Keep what lies between two split layers split: ColwiseParallel for the first and RowwiseParallel for the second (own layers: no "
        "gather and no cut between them) need one all-reduce for both; gathered outputs are sent after every layer, and what follows is "
        "computed on every rank",
        'plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}  # and q, k, v with o',
        "Between the two only what works on each part alone may stand, such as attention by heads or an activation.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-heads",
        "Let each rank attend over its own heads: no output_layouts for the ColwiseParallel layer before attention, no input_layouts for "
        "the RowwiseParallel layer behind it (own layers: no gather and no cut between them), and a view that takes the heads that are "
        "there; only the all-reduce behind the second layer stays",
        'plan = {"attn.qkv": ColwiseParallel(), "attn.out": RowwiseParallel()}  # default layouts\n'
        "x.view(b, t, -1, head_dim)  # -1: the heads of this rank, not the number of all",
        "The number of heads must divide by the ranks, and the rows of a layer that makes query, key and value at once must lie head by "
        "head.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "async-collectives",
        "Start these collectives with async_op=True and wait for each where its result is needed: work between the two runs beside it",
        "work = dist.all_reduce(x, async_op=True)  # ... work.wait() before x is used",
        "There must be work that does not need the result.", untried=_ALL_RANKS,
    ),
    Remedy(
        "group-on-gpu",
        "Use an NCCL group for this, the default one or new_group(backend=\"nccl\"): gloo and MPI copy each tensor to the CPU, and the "
        "host waits there; or collect the values and exchange them once a step",
        "dist.all_reduce(counts)  # the default group, NCCL; once a step for all layers", "The tensors must be on the GPU.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-cores",
        "Give each rank its own cores, near its GPU and enough for its loader's workers: no os.sched_setaffinity, taskset or "
        "OMP_PROC_BIND to a few of them, or more cores for the job",
        "srun --cpus-per-task=8 --cpu-bind=cores python train.py  # torchrun: start it without taskset",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "gradients-in-buckets",
        "Reduce gradients in buckets while backward runs: DistributedDataParallel does it; or all of them in one flat tensor",
        "model = DistributedDataParallel(model, gradient_as_bucket_view=True)", "Every rank must use the same parameters.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "rows-of-tables",
        "Keep the table out of DistributedDataParallel and send only the rows that a step looked up, with their gradients (sparse=True and "
        "SparseAdam); or divide its rows over the ranks, with all_to_all_single of what each looks up",
        "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ['table.weight'])  # before it is wrapped\n"
        "grad = table.weight.grad.coalesce()  # table: sparse=True\n"
        "rows, values = all_gathered(grad.indices()[0]), all_gathered(grad.values())  # of all ranks, padded to one length\n"
        "table.weight.grad = torch.sparse_coo_tensor(rows[None], values / world, grad.shape)",
        "Moments of rows that a step does not look up stay as they are.", untried=_ALL_RANKS,
    ),
    Remedy(
        "reduced-whole",
        "Leave the hook out: DDP reduces the buckets whole, beside backward; bf16_compress_hook halves their bytes where links are slow",
        "model = DistributedDataParallel(model, gradient_as_bucket_view=True)  # no register_comm_hook()",
        "Gradients then are exact: compare the loss.", untried=_ALL_RANKS,
    ),
    Remedy(
        "local-steps",
        "Tell the hook to reduce no gradients between averages (post_local_gradient_allreduce=False): by default it reduces them over all "
        "ranks of a host, in each step; or leave out the hook and the averages, as gradients that are all reduced need none",
        "state = PostLocalSGDState(None, None, start_localSGD_iter=warmup, post_local_gradient_allreduce=False)\n"
        "ddp.register_comm_hook(state, post_localSGD_hook)",
        "Ranks differ between two averages, as local SGD means it: compare the loss.", untried=_ALL_RANKS,
    ),
    Remedy(
        "asynchronous-hook",
        "Let the communication hook of DDP only start its reduction and return the future of it, or leave it out",
        "def hook(state, bucket):\n"
        "    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)\n"
        "    return work.get_future().then(lambda future: future.value()[0])",
        "What the hook tests has to be tested once a step, on the GPU: the norm of all gradients is finite only if each of them is.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-part-of-data", "Let each rank read the data that it needs: what one rank reads and sends, all wait for",
        "sampler = DistributedSampler(data)  # each rank its part\n"
        "loader = DataLoader(data, sampler=sampler, num_workers=8)",
        "Ranks that share a network (tensor, context or pipeline parallelism) all need the same batch: shuffle=True with "
        "generator=torch.Generator().manual_seed(0) on each, in place of the sampler.", untried=_ALL_RANKS,
    ),
    Remedy(
        "own-samples", "Let each rank load only its own samples",
        "sampler = DistributedSampler(data, shuffle=True)  # sampler.set_epoch(epoch) in each epoch\n"
        "loader = DataLoader(data, batch_size // world_size, sampler=sampler, num_workers=8)",
        "If a rank trains on all of what it loads, batch_size stays, and an epoch takes fewer steps.", untried=_ALL_RANKS,
    ),
    Remedy(
        "own-rows",
        "Compute on each rank the rows of its own samples against what was gathered of all: the mean over ranks is that of all rows",
        "logits = scale * own @ everyone.T  # not everyone @ everyone.T; for both directions of the loss\n"
        "target = rank * len(own) + torch.arange(len(own), device=own.device)",
        "The gather has to add gradients over the ranks in its backward, as torch.distributed.nn.functional.all_gather does.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-rows-of-loss",
        "Compute this on each rank's own part: head and loss of its own rows, without the gather. Gradients are averaged over the ranks, "
        "so that the mean of the parts is that of all rows",
        "own = slice(rank * len(h), (rank + 1) * len(h))  # h: this rank's rows, not gathered\n"
        "loss = F.cross_entropy(head(h).float(), target[own])\n"
        "dist.all_reduce(logged := loss.detach() / world)  # only in steps that log it",
        "target has to be the same on all ranks. A loss that is a sum is multiplied by world; where rows are left out of the mean "
        "(ignore_index), divide each rank's sum by the mean of the ranks' counts.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-rows-in-order",
        "Compute this on each rank's own part: head and loss of its own rows, without the gather, with their targets. Gradients are "
        "averaged over the ranks, so that the mean of the parts is that of all rows",
        "rows = torch.arange(world * len(h), device=h.device)  # once: as they come\n"
        "own = reordered(rows).argsort()[rank * len(h):(rank + 1) * len(h)]\n"
        "loss = F.cross_entropy(head(h).flatten(0, -2), target[own].flatten())  # h: not gathered",
        "target has to be the same on all ranks. A sum is multiplied by world; where rows are left out of the mean, divide by the mean of "
        "the ranks' counts.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-part-of-batch",
        "Compute this on each rank's own part: its rows of the batch, and gather what comes of them",
        "part = network(batch.chunk(world)[rank])  # under torch.no_grad(): nothing trains it\n"
        "out = part.new_empty(world * len(part), *part.shape[1:])\ndist.all_gather_into_tensor(out, part.contiguous())",
        "world and rank are of the group whose ranks read the same batch. Each row must be computed by itself: no BatchNorm that is "
        "training.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-rows-before-gather",
        "Compute this on each rank's own rows, and gather what comes of them, not what goes in",
        "part = network(x)  # x: this rank's rows, not gathered; under torch.no_grad(), as before\n"
        "out = part.new_empty(world * len(part), *part.shape[1:])\ndist.all_gather_into_tensor(out, part.contiguous())",
        "The network must be the same on all ranks. What it draws (dropout) then comes of each rank's own generator.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "own-classes",
        "Compute the loss, or the argmax, of each rank's own classes, and send three numbers for each row: the largest logit, the sum of "
        "exponentials, and the target's logit",
        "from torch.distributed.tensor.parallel import loss_parallel  # head: ColwiseParallel(use_local_output=False)\n"
        "with loss_parallel():\n"
        "    loss = F.cross_entropy(logits, target)  # logits stay sharded over the classes\n"
        "    loss.backward()",
        "Written by hand, the sum of exponentials and the target's logit are all-reduced, the largest logit with MAX, and backward needs "
        "no gather.", untried=_ALL_RANKS,
    ),
    Remedy(
        "top-of-each-rank",
        "Pick the k largest on each rank, and gather these with their numbers: the k largest of all are among them",
        "values, numbers = own.topk(k, -1)  # own: this rank's part of the classes, or of the index\n"
        "found = torch.stack([values.double(), (numbers + first).double()])  # first: the number of this rank's first one\n"
        "every = found.new_empty(world, *found.shape)\n"
        "dist.all_gather_into_tensor(every.view(-1), found.view(-1))\n"
        "values, numbers = every.movedim(0, -2).flatten(-2)\n"
        "values, picked = values.topk(k, -1)\n"
        "numbers = numbers.gather(-1, picked).long()",
        "Sampling from these k needs no more; a sample of all classes, or of those that make up a probability (top-p), needs the sum of "
        "exponentials of all, too. Among equal values others may be picked.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "roles-at-once",
        "Let both ranks work at once: each on what the other one made a round before (the next episodes with the weights of one round ago, "
        "the teacher's next batch), sent and received asynchronously; or let every rank do both on its part",
        "works = [dist.isend(made, other), dist.irecv(theirs, other)]  # of this round\n"
        "train(before)  # what came a round ago, meanwhile\nfor work in works: work.wait()",
        "What each rank works on is one round older.", untried=_ALL_RANKS,
    ),
    Remedy(
        "own-device",
        "Let each rank compute on its own GPU: set_device first, no fixed \"cuda:0\" behind it, and map_location where weights are loaded",
        'torch.cuda.set_device(local_rank)\nmodel = model.to(f"cuda:{local_rank}")  # not "cuda:0" on every rank\n'
        'state = torch.load(path, map_location=f"cuda:{local_rank}")',
        untried=_ALL_RANKS,
    ),
    Remedy(
        "exchanged-ahead",
        "Start the exchange of the next block before this one is worked on, and wait for it behind that: attention to the keys and values "
        "that are there needs nothing of those that come",
        "works = dist.batch_isend_irecv(ops)  # sends k and v, receives the next ones\n"
        "out, lse = attend(q, k, v)  # beside it\nfor work in works: work.wait()  # not before attend()",
        "What is received needs buffers of its own while the block before is in use.", untried=_ALL_RANKS,
    ),
    Remedy(
        "reduced-and-scattered",
        "Bring each rank the sum of its own rows alone: reduce_scatter in place of all_reduce, with half of the bytes; or send rows only "
        "to the rank that has what they need (all_to_all_single), and the results back",
        "own = x.new_empty(len(x) // world, *x.shape[1:])\n"
        "dist.reduce_scatter_tensor(own, x)  # not all_reduce(x), then x[rank * n : (rank + 1) * n]",
        "Each rank's rows must lie together in x, and its backward is all_gather_into_tensor.", untried=_ALL_RANKS,
    ),
    Remedy(
        "reduced-for-gathered",
        "Let the ranks add up what is gathered: all_reduce of each rank's part in place of a gather and a sum over the ranks",
        "total = part.detach().clone()  # part.sum(0), part.mean(0) where the rows of each rank are added up, too\n"
        "dist.all_reduce(total)  # not all_gather, then .sum(0)\ntotal /= world  # where .mean(0) was",
        "The sum is rounded to the format that is sent: part.float() where 16 bits are gathered and summed as float32. Where gradients go "
        "back through the gather: total = torch.distributed.nn.functional.all_reduce(part).",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "rows-exchanged",
        "Send each rank only the rows that it reads: all_to_all_single of the rows by the rank that needs them, not a gather of all rows; "
        "rows of its own a rank need not gather at all",
        "counts = [len(rows) for rows in wanted_by]  # rows of this rank that each rank reads\n"
        "dist.all_to_all_single(got, own[torch.cat(wanted_by)], counts_back, counts)",
        "What each rank reads must be known before: where it stays the same, the ranks exchange it once, before the loop.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "packed-exchange",
        "Exchange all of these tensors in one message: pack them into one, the dimension of the ranks in front, and take it apart behind",
        "packed = torch.stack(tensors).view(n, world, -1).transpose(0, 1).contiguous()\n"
        "dist.all_to_all_single(got, packed)  # once for all n of them",
        "None of them may need what another one brings.", untried=_ALL_RANKS,
    ),
    Remedy(
        "gathered-into-one", "Gather into one tensor: it holds what torch.cat of the list makes, without its copies",
        "gathered = x.new_empty(world * len(x), *x.shape[1:])\ndist.all_gather_into_tensor(gathered, x)  # not all_gather and torch.cat",
        "The tensors of all ranks must have one shape, as all_gather asks, too.", untried=_ALL_RANKS,
    ),
    Remedy(
        "sent-in-16-bits",
        "Send these numbers in the 16 bits that they are computed in, and convert to float32 behind it: half of the bytes",
        "own = own.bfloat16()  # or without the .float() before\neveryone = own.new_empty(world * len(own), *own.shape[1:])\n"
        "dist.all_gather_into_tensor(everyone, own)  # everyone.float() behind it, where float32 is needed",
        "Their gradients are sent in 16 bits, too, and what was computed of them in float32, such as a norm, is rounded to 8 significant "
        "bits.", untried=_ALL_RANKS,
    ),
    Remedy(
        "tensors-gathered",
        "Exchange a tensor (all_gather_into_tensor, all_reduce), and what is only for a log once in n steps: *_object pickles, copies to "
        "the CPU and waits on every rank",
        "dist.all_gather_into_tensor(table, counts)  # counts on the GPU; then one table.tolist()", untried=_ALL_RANKS,
    ),
    Remedy(
        "tensors-sent",
        "Send the tensors themselves, from GPU to GPU: broadcast_object_list copies each to the CPU, pickles them, and sends the bytes by "
        "way of the GPU",
        "flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()\ndist.broadcast(flat, src=0)\n"
        "torch.nn.utils.vector_to_parameters(flat, model.parameters())", untried=_ALL_RANKS,
    ),
    Remedy(
        "plan-as-tensor",
        "Send what ranks that share a network need for the next call as one tensor of numbers on the GPU, of a fixed size: here an object "
        "is pickled, its size and its bytes are sent apart, and each rank waits to read both back. Ranks that run the same scheduler, and "
        "sample from the same logits with the same seed, need nothing sent at all",
        "plan = torch.zeros(room, dtype=torch.int64, device='cuda')  # once: tokens, positions, block tables, each at its place\n"
        "if dist.get_rank() == 0: plan[: len(numbers)].copy_(torch.tensor(numbers).pin_memory(), non_blocking=True)\n"
        "dist.broadcast(plan, src=0, group=group)  # nothing is read back: the network takes its tokens and positions from plan",
        "Ranks that sample by seeds of their own come apart. What the host of a rank has to know goes by a gloo group or shared memory.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "values-at-once",
        "Reduce these values in one all_reduce of what each rank takes of its own parts, and read them only where they are logged: here "
        "all ranks meet for each one, many times in each step",
        "values = torch.stack([value_of(p.to_local()) for p in model.parameters()])\n"
        "dist.all_reduce(values)",
        "Sums and squares of norms add up; reduce in the group over which parameters are split, and count what is not split once.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "weights-sent-once",
        "Send the weights of one rank once, before the loop: ranks that begin alike and reduce their gradients stay alike",
        "for p in model.parameters(): dist.broadcast(p.data, 0)  # once, before the loop", "All ranks must make the same updates.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "weights-in-one",
        "Send the weights as one flat tensor, and only when the other ranks need them: in each of the many messages all ranks meet",
        "flat = torch.nn.utils.parameters_to_vector(model.parameters())\n"
        "dist.broadcast(flat, 0)  # one message\n"
        "torch.nn.utils.vector_to_parameters(flat, model.parameters())",
        "The parameters must have one dtype.", untried=_ALL_RANKS,
    ),
    Remedy(
        "own-statistics",
        "Use BatchNorm of each rank, or GroupNorm: SyncBatchNorm synchronizes all ranks in each layer, forward and backward",
        "model = DistributedDataParallel(model)  # without convert_sync_batchnorm",
        "Batches of each rank must be large enough (16 or more).", untried=_ALL_RANKS,
    ),
    Remedy(
        "process-for-each-gpu",
        "Start a process for each GPU (torchrun) and wrap the network in DistributedDataParallel: DataParallel copies all weights to every "
        "GPU in each step, collects outputs and gradients on one of them, and launches for all from one Python",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl')\n"
        "model = DistributedDataParallel(model.cuda())  # torchrun --nproc-per-node=gpu train.py; DistributedSampler, batch / GPUs",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "whole-on-each-gpu",
        "Give each GPU the whole model and batches of its own, a process each (torchrun), and reduce gradients with "
        "DistributedDataParallel: split by layers, one GPU works at a time",
        'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # torchrun --nproc-per-node=gpu train.py\n'
        "model = DistributedDataParallel(model.to(device))",
        "Batches of all GPUs together are as many times as large: fit the learning rate to that, or divide the batch size.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "sharded-over-gpus",
        "Shard the parameters of each layer over the GPUs (fully_shard), a process each (torchrun) with batches of its own: split by "
        "layers, one GPU works at a time",
        "for layer in model.model.layers: fully_shard(layer)  # torchrun --nproc-per-node=gpu train.py\nfully_shard(model)",
        "The layers stand in a list of the network; batches of all GPUs together are as many times as large.", untried=_ALL_RANKS,
    ),
    Remedy(
        "tensor-parallel",
        "Let the GPUs work at the same time: split each layer over them (tensor parallel), feed micro-batches through a pipeline, or, "
        "if the model fits on one GPU, give each GPU a copy of it and batches of its own",
        'model = AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")  # torchrun, one process per GPU',
        "The model must have a tensor-parallel plan.", untried=_ALL_RANKS,
    ),
)  # fmt: skip
