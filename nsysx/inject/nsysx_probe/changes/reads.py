"""A bound: what the host reads of the device is answered from the step before, so that no read waits.

The same line of the program, called the same number of times in a step, gets the value that it had when its last copy ended. The
copy of the new value is begun and not waited for. The size of ``nonzero`` cannot be known without a wait: its first answer is kept.
Only reads of device tensors are answered, so a program without any is unchanged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from . import Change, Remedy, Watch
from ._wrapping import replace_method

#: Methods of a tensor that read it, and what they give for a copy on the host.
_READS = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__")


class _Kept:
    """What one line read: a value that has arrived, and the buffer of a copy that is under way with its event."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.buffer: Any = None
        self.event: Any = None


class Answers:
    """Answers reads of the tensors of which ``waits`` is true, from the step before."""

    def __init__(self, torch: Any, watch: Watch, waits: Callable[[Any], bool]) -> None:
        self.torch, self.watch, self.waits = torch, watch, waits
        self.kept: dict[Any, _Kept] = {}
        self.counts: dict[Any, int] = {}
        self.inside = False
        watch.why_not = "no value is read from the device"
        watch.each_step.append(self.counts.clear)
        watch.can_turn()

    def key(self, tensor: Any, name: str) -> Any:
        """Return what tells one read of a step from the others: the line, how often it came, and the tensor's shape."""
        frame = sys._getframe(3)  # key, read, its wrapper, the program
        line = (frame.f_code, frame.f_lineno, name)
        self.counts[line] = self.counts.get(line, 0) + 1
        return *line, self.counts[line], tensor.shape, tensor.dtype

    def arrived(self, kept: _Kept) -> Any:
        """Return the newest value whose copy has ended."""
        if kept.buffer is not None and (kept.event is None or kept.event.query()):
            kept.value, kept.buffer = kept.buffer, None
        return kept.value

    def begin_copy(self, kept: _Kept, tensor: Any) -> None:
        """Begin to copy a tensor to the host, unless the copy before is still under way."""
        if kept.buffer is not None:
            return
        kept.buffer = self.torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        kept.buffer.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            kept.event = self.torch.cuda.Event()
            kept.event.record()

    def read(self, tensor: Any, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the answer to one read."""
        if self.inside or not self.watch.on or not self.waits(tensor):
            return original(tensor, *args, **kwargs)
        key = self.key(tensor, name)
        self.inside = True
        try:
            kept = self.kept.get(key)
            if kept is None:
                kept = self.kept[key] = _Kept(tensor.detach().to("cpu", copy=True))
            else:
                self.watch.took()
            value = self.arrived(kept)
            answer = value.clone() if name == "cpu" else original(value, *args, **kwargs)
            self.begin_copy(kept, tensor.detach())
            return answer
        finally:
            self.inside = False

    def nonzero(self, tensor: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the first answer of this call of ``nonzero`` again."""
        if self.inside or not self.watch.on or not self.waits(tensor):
            return original(tensor, *args, **kwargs)
        key = self.key(tensor, "nonzero")
        if key not in self.kept:
            self.kept[key] = _Kept(original(tensor, *args, **kwargs))
        else:
            self.watch.took()
        value = self.kept[key].value
        return value.clone() if isinstance(value, self.torch.Tensor) else value


def answer(torch: Any, watch: Watch, waits: Callable[[Any], bool] = lambda tensor: bool(tensor.is_cuda)) -> None:
    """Answer the reads of all tensors of which ``waits`` is true."""
    answers = Answers(torch, watch, waits)

    def replaced(name: str, original: Any) -> Any:
        @functools.wraps(original)
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            return answers.read(self, name, original, *args, **kwargs)

        return read

    for name in _READS:
        replace_method(torch, name, functools.partial(replaced, name))
    for owner in (torch.Tensor, torch):
        original = owner.nonzero

        def nonzero(self: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            return answers.nonzero(self, original, *args, **kwargs)

        owner.nonzero = nonzero


CHANGES = (
    Change(
        "bound-reads", "reads of the device answered from the step before", "", answer,
        alters="computation", needs="cuda", beware="a bound: the program decides by old values",
    ),
)  # fmt: skip
_LEFT_OUT = "what stands for the values that are left out, the program says"
_OWN_CODE = "what a round computes is the program's own code"
UNTRIED = (
    Remedy(
        "flag-ahead",
        "Ask for this flag a step ahead, or agree on the number of steps before the loop (all_reduce of len(loader) with MIN): it keeps "
        "the ranks together and has to stay, but no step has to wait for its own",
        'flags = dist.new_group(backend="gloo")  # once; the flag of the next step, as a tensor on the CPU\n'
        "work = dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=flags, async_op=True)\nwork.wait()  # a step later",
        "Every rank has to decide by the flag of the same step, and ask as often as the others.", untried=_OWN_CODE,
    ),
    Remedy(
        "keep-on-gpu", "Keep the value on the GPU, or read it less often: nsysx explain NSX101",
        "running += loss.detach()  # .item() once in 100 steps", "You see the value some steps later.",
        untried="which value may come later, the program says; bound-reads tells what all of them cost",
    ),
    Remedy(
        "read-at-once", "Copy the whole tensor once, before the loop, and read the numbers from the list",
        "rows = scores.tolist()  # one copy and one wait for all of them\nfor row in rows:\n    write(row)",
        untried=_OWN_CODE,
    ),
    Remedy(
        "validate-args-off",
        "Switch the checks of torch.distributions off, once at the start: each of them reads back whether all of its numbers are valid",
        "torch.distributions.Distribution.set_default_validate_args(False)  # or Categorical(logits=logits, validate_args=False)",
        "Numbers that are not valid (NaN) then go on unseen: look for them now and then.", untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-by-noise",
        "Draw one of each row by noise: torch.multinomial, and Categorical.sample, read back whether the probabilities are valid",
        "noise = torch.empty_like(logits).exponential_().log()\n"
        "drawn = (logits - noise).argmax(-1)  # in place of torch.multinomial(logits.softmax(-1), 1)",
        "The draws are as likely, and others for the same seed. Numbers that are not valid go on unseen.", untried=_OWN_CODE,
    ),
    Remedy(
        "inputs-at-once",
        "Collect the inputs of all rounds first, ask the network once for all of them, and copy its answers to the host once: here it is "
        "called with a batch of one in each round, and read back", "answers = net(torch.stack(inputs).to(device)).cpu()",
        "Inputs of one round must not depend on each other's results.", untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-for-all",
        "Draw the numbers of all rows in one call and keep them on the GPU: indices and masks made of them do for the whole batch what the "
        "loop does row by row, and nothing is read back", "first = torch.randint(high, (len(x), 1, 1), device=x.device)",
        "Each row must get numbers of its own, as before; the seed gives other ones.", untried=_OWN_CODE,
    ),
    Remedy(
        "ratios-on-gpu",
        "Keep the norms and their ratios on the GPU, for all parameters at once: here the host reads two numbers for each parameter, and "
        "launches nothing until it has them",
        "w, u = (torch.stack(torch._foreach_norm(each)) for each in (params, updates))  # lists of tensors\n"
        "ratio = torch.where((w > 0) & (u > 0), w / u, 1.0).clamp(max=10.0)\n"
        "torch._foreach_mul_(updates, list(ratio.unbind()))\ntorch._foreach_add_(params, updates, alpha=-lr)",
        "The bounds of the ratio are those of your loop.", untried=_OWN_CODE,
    ),
    Remedy(
        "checked-in-some-rounds", "Ask in every 10th round alone whether it was the last: the others are launched ahead",
        "if k % 10 == 9 and residual.item() < tolerance: break  # k counts the rounds", "Up to 9 rounds more run.", untried=_OWN_CODE,
    ),
    Remedy(
        "fixed-shape",
        "Use an operation of fixed shape: torch.where, masked_fill, weights of 0, or topk with a fixed count; nonzero() and x[mask] "
        "ask the GPU for a size", "out = torch.where(mask, x, 0)  # in place of x[mask]", untried=_LEFT_OUT,
    ),
    Remedy(
        "fixed-shape-loss",
        "Use an operation of fixed shape: torch.where, masked_fill, weights of 0; or compute the indices once, if they stay the same",
        "loss = F.cross_entropy(logits, target, ignore_index=IGNORE)\n# or: loss = (per_pixel * keep).sum() / keep.sum()",
        "The masked values must be cheap enough to compute and throw away.", untried=_LEFT_OUT,
    ),
    Remedy(
        "rounds-at-once",
        "Do all rounds as one batch: use operations on the whole batch (a mask over all, torchvision.ops.batched_nms) and one .cpu() at "
        "the end",
        "kept = torchvision.ops.batched_nms(boxes.view(-1, 4), scores.view(-1), image_of_box, 0.5)\nresult = kept.cpu()",
        untried=_OWN_CODE,
    ),
    Remedy(
        "groups-at-once",
        "Do all {count} rounds of {name} at once: sort the rows by group (argsort) and use one grouped product, instead of asking the GPU "
        "for the rows of each group",
        "order, ends = e.argsort(), F.one_hot(e, n).sum(0).cumsum(0).int()\n"
        "h = F.silu(F.grouped_mm(x[order], w1, offs=ends))\n"
        "y = F.grouped_mm(h, w2, offs=ends)[order.argsort()]",
        "e: the group of each row, of n; w1: [n, in, out], the weights of all groups in one tensor. Without grouped_mm (torch before 2.9; "
        "other GPUs, other types than bfloat16): a capacity, smaller groups padded, and torch.bmm.", untried=_OWN_CODE,
    ),
)  # fmt: skip
