"""How a model is sharded over the ranks, and when its units are gathered. A change would have to be made on all ranks at once."""

from __future__ import annotations

from . import Change, Remedy

_SHARDED_SO = "how parameters are divided among the ranks, the program says"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "larger-shards",
        "Shard larger units, several blocks in each fully_shard(): the ranks wait for each other's launches in every gather, not "
        "for data; DistributedDataParallel is enough for a model that fits one GPU",
        "for blocks in zip(*[iter(model.blocks)] * 4): fully_shard(list(blocks))  # 4 blocks a unit",
        "A larger unit needs more memory while it is gathered.", untried=_SHARDED_SO,
    ),
    Remedy(
        "blocks-as-units",
        "Shard each block as one unit, and none of the layers in it: at every unit the ranks meet and wait for each other's launches, and "
        "FSDP's hooks run on the host, whatever its size",
        "for block in model.blocks: fully_shard(block)  # then fully_shard(model)",
        "A larger unit needs more memory while it is gathered.", untried=_SHARDED_SO,
    ),
    Remedy(
        "gathered-once",
        "Gather the parameters once before this loop, and free them behind it: keep each unit gathered meanwhile; as it is, each call "
        "gathers all of them again",
        "units = [m for m in model.modules() if isinstance(m, FSDPModule)]  # from torch.distributed.fsdp\n"
        "for unit in units: unit.set_reshard_after_forward(False, recurse=False)\n"
        "...  # the loop\n"
        "for unit in units: unit.reshard(); unit.set_reshard_after_forward(unit is not model, recurse=False)",
        "All gathered parameters must fit while the loop runs, and no optimizer may step inside it.", untried=_SHARDED_SO,
    ),
    Remedy(
        "unit-of-root",
        "Leave out fully_shard for a part that one forward calls several times: the unit around it then has it, and is gathered once",
        "fully_shard(model)  # and not fully_shard(model.refine) before it, where forward calls self.refine in a loop",
        "Its parameters stay gathered as long as those of the unit around it: those of the whole model until backward.",
        untried=_SHARDED_SO,
    ),
    Remedy(
        "checkpoint-not-reentrant",
        "Use checkpoints that are not reentrant around the units of a sharded model (use_reentrant=False), or put them inside of the "
        "units: backward then gathers each unit once",
        "x = checkpoint(layer, x, use_reentrant=False)  # layer: a unit of FSDP",
        "It computes the same again; keyword arguments and results that are no tensors are allowed, too.", untried=_SHARDED_SO,
    ),
    Remedy(
        "gathered-for-step",
        "Keep the parameters gathered through all micro-steps of a step, and free them behind the last: nothing changes them before the "
        "optimizer, and as it is, each micro-step gathers all of them again",
        "last = micro_step == micro_steps - 1  # before the forward of each\n"
        "model.set_requires_gradient_sync(last)\n"
        "model.set_reshard_after_forward(False)\n"
        "model.set_reshard_after_backward(last)",
        "All gathered parameters must fit beside the activations and the gradients.", untried=_SHARDED_SO,
    ),
    Remedy(
        "whole-network",
        "Keep a network that nothing trains whole on each GPU, without fully_shard: what never changes need not be gathered in each step",
        "teacher.requires_grad_(False).eval()  # not sharded; the student alone is",
        "It must fit on each GPU, and each rank loads all of it.", untried=_SHARDED_SO,
    ),
    Remedy(
        "root-in-parts",
        "Make the embedding and the head units of their own, before fully_shard(model): the head's gather and reduction then run beside "
        "the blocks",
        "fully_shard(model.embed)  # before fully_shard(model), with the options of the blocks\n"
        "fully_shard(model.head, reshard_after_forward=False)",
        "They must not share their weight. What backward needs at once stays gathered behind forward.", untried=_SHARDED_SO,
    ),
    Remedy(
        "whole-base",
        "Keep the network whole on each GPU, with DistributedDataParallel in place of FSDP: of the few parameters that are trained there "
        "is little to share out, and as it is each pass gathers the frozen ones",
        "model = DistributedDataParallel(model.cuda(), gradient_as_bucket_view=True)  # not FSDP; in the type it computes in",
        "The whole network must fit on each GPU beside the activations, and each rank loads all of it.", untried=_SHARDED_SO,
    ),
    Remedy(
        "sharded-blocks",
        "Shard each block as a unit of its own, then the whole, so that the gather of one block and the reduction of another run beside "
        "computation; keep them gathered until backward, as the whole model is now",
        "for block in model.blocks: fully_shard(block, reshard_after_forward=False)  # then fully_shard(model)",
        "NCCL takes multiprocessors from what it runs beside: a GPU that computes all the time gains little.", untried=_SHARDED_SO,
        may_lose=True,
    ),
    Remedy(
        "grouped-blocks",
        "Shard the blocks in a few units of several blocks each, then the whole, so that the gather of one unit and the reduction of "
        "another run beside computation; keep them gathered until backward, as the whole model is now",
        "for first in range(0, len(model.blocks), 4):\n"
        "    fully_shard([*model.blocks[first : first + 4]], reshard_after_forward=False)\n"
        "fully_shard(model)",
        "FSDP's hooks of each unit run on the host, which has little time left here: with one for each block the step may get longer.",
        untried=_SHARDED_SO, may_lose=True,
    ),
    Remedy(
        "no-reshard",
        "Keep gathered parameters until backward: reshard_after_forward=False (FSDP: ShardingStrategy.SHARD_GRAD_OP)",
        "fully_shard(block, reshard_after_forward=False)", "All gathered parameters must fit beside the activations.",
        untried=_SHARDED_SO,
    ),
    Remedy(
        "backward-prefetch",
        "Gather the next unit's parameters while the backward of this one runs: backward_prefetch=BackwardPrefetch.BACKWARD_PRE",
        "model = FullyShardedDataParallel(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
        "One more unit must fit while it is gathered.", untried=_SHARDED_SO,
    ),
    Remedy(
        "forward-prefetch",
        "Launch the gather of the next unit before the forward of this one: set_modules_to_forward_prefetch (FSDP: forward_prefetch=True)",
        "for unit, following in zip(model.blocks, model.blocks[1:]): unit.set_modules_to_forward_prefetch([following])",
        "Units must run in the same order in every step, and one more must fit while it is gathered.", untried=_SHARDED_SO,
    ),
    Remedy(
        "limited-gathers", "Let FSDP gather two units at a time: limit_all_gathers=True, the default",
        "model = FullyShardedDataParallel(model, limit_all_gathers=True)", untried=_SHARDED_SO,
    ),
    Remedy(
        "no-offload", "Keep parameters, gradients and the optimizer's state on the GPU: no CPUOffloadPolicy",
        "fully_shard(block)  # no offload_policy", "They must fit: their sizes are divided by the ranks.", untried=_SHARDED_SO,
    ),
    Remedy(
        "shards-kept",
        "Work on each rank's own part of the weights (.to_local()), and gather whole weights only to save them: here each step gathers "
        "them",
        "average.lerp_(weight.to_local(), 1 - decay)  # average: made of .to_local(), too",
        "What is computed must go part by part, as averages and sums do.", untried=_SHARDED_SO,
    ),
    Remedy(
        "weights-to-generator",
        "Hand weights on to the other network on the GPU, on all ranks at once: here whole ones are gathered one by one, and copied to the "
        "CPU and back. Cast them before the gather, which then moves half of the bytes, and copy them in place",
        "with torch.no_grad():\n"
        "    for name, p in model.named_parameters():  # all ranks, in the same order\n"
        "        whole = p.detach().to(torch.bfloat16).full_tensor()  # FSDP2; cast before the gather\n"
        "        generator_params[name].copy_(whole)",
        "A generator in other processes is sent flat buckets of such weights over a group of its own; one that is split over ranks takes "
        "its part. Of adapters (LoRA) only these need go.",
        untried=_SHARDED_SO,
    ),
)  # fmt: skip
