"""Settings that only cost time and that no change can make yet: what depends on them is the program's own code."""

from __future__ import annotations

from . import Change, Remedy

_SET_BY_PROGRAM = "the program or its environment sets it: change it there, and time both"
_MACHINE = "who runs the machine sets it"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "unset-variable", "Unset this variable of the environment", "env -u NAME python train.py", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "no-profiler", "Run without torch's own profiler, or give it a schedule of few steps",
        "schedule = torch.profiler.schedule(wait=100, warmup=2, active=4, repeat=1)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "pad-to-longest",
        "Pad each batch to its own longest sample, and put samples of like lengths into one batch",
        'tokenizer.pad(samples, padding="longest", pad_to_multiple_of=64)',
        "The first in the collate_fn, rounded up, because each new length makes its first step slower; the second by a batch sampler: "
        "samples then meet by their length, no longer at random.",
        untried="how the samples are put together is the program's own code",
    ),
    Remedy(
        "detached",
        "Detach what another network made before it is used in this loss, or call that network under torch.no_grad(): its gradients "
        "are reset before an optimizer reads them",
        "loss = critic(fake.detach()).mean()  # or: with torch.no_grad(): fake = generator(z)",
        untried="which tensors to detach, the program says",
    ),
    Remedy(
        "no-gradient-of-activation",
        "Do not make this activation require a gradient (enable_input_require_grads(), x.requires_grad_(True)): no layer below is trained, "
        "and backward runs through all of these for it",
        "x = embed(ids).detach()  # not .requires_grad_(True); without enable_input_require_grads()",
        "What reads this gradient finds None; checkpoints with use_reentrant=True that hold trained layers need such an input.",
        untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "full-power", "Give the GPU its own power limit back", "sudo nvidia-smi -pl WATTS  # the default of nvidia-smi -q -d POWER",
        untried=_MACHINE,
    ),
    Remedy(
        "full-clocks", "Let the GPU choose its clocks", "sudo nvidia-smi -rac; sudo nvidia-smi -rgc", untried=_MACHINE,
    ),
    Remedy(
        "cool-gpu",
        "Find what holds down the GPU's clock, which no change of the program mends: cool it, look at its power supply, or use another GPU",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,POWER", untried=_MACHINE,
    ),
    Remedy(
        "own-gpu", "Give the program a GPU of its own", "nvidia-smi  # shows who else is there; CUDA_VISIBLE_DEVICES chooses another one",
        untried=_MACHINE,
    ),
    Remedy(
        "more-cores", "Give the program more cores, near its GPU",
        "taskset -c 0-7 python train.py  # or the scheduler's option, such as --cpus-per-task=8",
        untried="who starts the program gives it cores",
    ),
    Remedy(
        "free-cores", "Free the cores: fewer loader workers and threads than cores, and no other program on them",
        "ps -eo pid,psr,pcpu,comm --sort=-pcpu | head  # who uses which core",
        untried="what else runs there is not the program's to stop",
    ),
    Remedy(
        "default-backend", "Compile with the default backend", "model = torch.compile(model)", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "optimizer-on-gpu", "Keep parameters and state on the GPU if they fit: make the optimizer after model.cuda()",
        'model = model.to("cuda"); optimizer = torch.optim.AdamW(model.parameters())', untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "autocast-once",
        "Enter autocast once, around all of forward and loss, loops included: it keeps the weights that it has converted until the "
        "outermost autocast ends",
        'with torch.autocast("cuda", torch.bfloat16):  # once, not in each round of a loop\n    loss = loss_of(model(x), y)',
        "What runs in between runs in autocast, too.", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "fewer-checkpoints", "Checkpoint fewer parts, or none", "y = block(x)  # not checkpoint(block, x)",
        "What is kept must fit: try half of the parts first.", untried=_SET_BY_PROGRAM,
    ),
    Remedy(
        "one-checkpoint", "Checkpoint each part once, the block or what is inside of it, not both",
        "y = self.attention(x)  # in a block that is checkpointed as a whole; or gradient_checkpointing_enable() alone",
        "Backward then keeps the activations of one block at a time, no more than a checkpoint around the block alone does.",
        untried=_SET_BY_PROGRAM,
    ),
)  # fmt: skip
