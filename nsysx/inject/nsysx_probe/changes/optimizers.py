"""Optimizers that update all parameters in few kernels, and gradients that are dropped instead of zeroed."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from . import Change, Remedy, Watch
from ._wrapping import with_arguments


def _with(argument: str, other: str) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = f"no optimizer with the argument {argument} was made"

        def change(named: dict[str, Any]) -> Any:
            if named.get(argument):
                watch.why_not = f"{argument}=True is set already"
                return None
            before = {argument: named.get(argument), other: named.get(other)}
            named[argument] = True
            named.pop(other, None)
            watch.took()
            return lambda optimizer: made.append((weakref.ref(optimizer), before))

        def turn(on: bool) -> None:
            for reference, before in made:
                if (optimizer := reference()) is not None:
                    _turn(optimizer, {argument: True, other: None} if on else before)

        made: list[tuple[Any, dict[str, Any]]] = []
        watch.can_turn(turn)

        for name in dir(torch.optim):
            kind = getattr(torch.optim, name)
            if inspect.isclass(kind) and argument in inspect.signature(kind.__init__).parameters:
                with_arguments(kind, change)

    return arm


def _turn(optimizer: Any, how: dict[str, Any]) -> None:
    """Let an optimizer make its updates as these arguments say. Fused ones have their count of steps on the device."""
    for group in optimizer.param_groups:
        group.update({name: value for name, value in how.items() if name in group})
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if hasattr(step, "to") and not group.get("capturable"):
                optimizer.state[parameter]["step"] = step.to(parameter.device if how.get("fused") else "cpu")
    if hasattr(optimizer, "_step_supports_amp_scaling"):  # what GradScaler leaves to a fused optimizer
        optimizer._step_supports_amp_scaling = bool(how.get("fused"))


def _to_none(torch: Any, watch: Watch) -> None:
    watch.why_not = "zero_grad drops gradients already"
    watch.can_turn()
    for owner in (torch.optim.Optimizer, torch.nn.Module):

        def wrapped(original: Any) -> Any:
            @functools.wraps(original)
            def zero_grad(self: Any, set_to_none: bool = True) -> Any:
                if not watch.on:
                    return original(self, set_to_none=set_to_none)
                if not set_to_none:
                    watch.took()
                return original(self, set_to_none=True)

            return zero_grad

        owner.zero_grad = wrapped(owner.zero_grad)


def _merged(torch: Any, watch: Watch) -> None:
    watch.why_not = "no optimizer has two groups with the same options"

    def change(named: dict[str, Any]) -> None:
        named["params"] = groups = list(named["params"])
        if not all(isinstance(group, dict) for group in groups):
            return
        merged: dict[str, dict[str, Any]] = {}
        for number, group in enumerate(groups):
            given = group["params"]
            tensors = [given] if isinstance(given, torch.Tensor) else list(given)
            groups[number] = {**group, "params": tensors}  # what was given may be a generator, which is used up now
            options = {name: value for name, value in group.items() if name != "params"}
            merged.setdefault(repr(sorted(options.items())), {**options, "params": []})["params"] += tensors
        if len(merged) < len(groups):
            watch.places_before |= {id(p): before for before, p in enumerate(p for g in groups for p in g["params"])}
            named["params"] = list(merged.values())
            watch.took()

    with_arguments(torch.optim.Optimizer, change)


def _without_scaler(torch: Any, watch: Watch) -> None:
    watch.why_not = "no GradScaler that scales was made"

    def change(named: dict[str, Any]) -> None:
        if named.get("enabled", True):
            named["enabled"] = False
            watch.took()

    with_arguments(torch.amp.GradScaler, change)


CHANGES = (
    Change(
        "fused", "fused=True for the optimizer", "fused=True,  # one more argument of the optimizer", _with("fused", "foreach"),
        alters="numerics", needs="optimizer", group="optimizer",
        beware="results differ by rounding",
        advice="Use fused=True for the optimizer: all parameters in a few kernels", example="",
        condition="The parameters must be floating-point tensors on the GPU.",
    ),
    Change(
        "foreach", "foreach=True for the optimizer", "foreach=True,  # one more argument of the optimizer",
        _with("foreach", "fused"), alters="memory", needs="optimizer",
        group="optimizer",
    ),
    Change(
        "set-to-none", "zero_grad without zeroing", "optimizer.zero_grad(set_to_none=True)", _to_none,
        alters="memory", needs="optimizer",
        beware="code that reads .grad after zero_grad finds None",
    ),
    Change(
        "groups-merged", "groups of the optimizer with the same options merged",
        'groups = [{"params": tensors, **options} for options, tensors in merged]\n'
        "optimizer = torch.optim.AdamW(groups)", _merged, needs="optimizer",
        alters="numerics", beware="a scheduler with a factor for each group finds fewer groups",
        advice="Merge the optimizer's groups with the same options into one each: every group is updated by itself, here a tensor at a "
        "time",
        condition="A scheduler must have the same factor for all tensors of a group.",
    ),
    Change(
        "no-scaler", "no GradScaler", "loss.backward(); optimizer.step()", _without_scaler, needs="optimizer",
        alters="numerics", beware="float16 loses small gradients without it",
        advice="Leave the GradScaler out: bfloat16 has the range of float32",
    ),
)  # fmt: skip
UNTRIED = (
    Remedy(
        "shorter-history",
        "Let the optimizer keep fewer pairs of old vectors: each takes two rounds of a direction, with a number that the host reads",
        "optimizer = torch.optim.LBFGS(model.parameters(), history_size=10)  # and the other options as they are; 100 by default",
        "Its directions become others: compare the loss. All pairs in two matrices need no rounds: one product with each, and one read.",
        untried="with other directions it takes other steps",
    ),
    Remedy(
        "whole-state",
        "Let each rank keep the whole state of the optimizer and update all parameters: no rank then sends what it has updated",
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True, **options)  # the options of ZeroRedundancyOptimizer",
        "The state must fit on each GPU; a checkpoint then is optimizer.state_dict(), without consolidate_state_dict().",
        untried="an optimizer of all ranks, the program makes",
    ),
    Remedy(
        "updates-in-buckets",
        "Send what each rank has updated in one message: parameters_as_bucket_view=True for ZeroRedundancyOptimizer",
        "optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, **options)",
        "Parameters become views of the buckets: load weights into them in place, and make it behind any .to().",
        untried="an optimizer of all ranks, the program makes",
    ),
    Remedy(
        "sparse-embeddings",
        "Give large embeddings sparse gradients (sparse=True) and an optimizer for them: only the rows that a step used are updated",
        "table = torch.nn.Embedding(rows, width, sparse=True)  # or EmbeddingBag\n"
        "tables = torch.optim.SparseAdam(list(table.parameters()))",
        "Moments of rows that a step does not use stay as they are; SparseAdam has no weight decay.",
        untried="which parameters it is for is the program's own code",
    ),
    Remedy(
        "factors-now-and-then",
        "Factorize each matrix now and then, in turn (a tenth of them in each step), and go on with the factor that is there in between",
        "if step % 10 == i % 10: basis = torch.linalg.qr(average @ basis)[0]  # i: of the matrix",
        "The factor is some steps old: compare the loss. Begin with a full factorization in the first step.",
        untried="an optimizer of its own, the program makes",
    ),
    Remedy(
        "shared-updates",
        "Deal the matrices out to the ranks, largest first: each rank's optimizer holds and updates its own alone, and gathers the updated "
        "ones of the others, all of it started before any is waited for. Other parameters keep an optimizer on every rank",
        "matrices = sorted(matrices, key=torch.Tensor.numel, reverse=True)  # all ranks alike; as many as ranks at least\n"
        "optimizer = Muon(matrices[rank::world], lr=lr)  # this rank's alone\n"
        "# in each step; then model.zero_grad(), for optimizer.zero_grad() leaves gradients of the others\'\n"
        "optimizer.step()\nsent = []\n"
        "for i in range(0, len(matrices), world):\n"
        "    group = matrices[i : i + world]\n"
        "    own = group[0].new_empty(group[0].numel())  # of the largest one\'s size\n"
        "    for p in group[rank : rank + 1]:\n"
        "        own[: p.numel()] = p.detach().flatten()\n"
        "    out = own.new_empty(world * len(own))\n"
        "    sent.append((group, out.chunk(world), dist.all_gather_into_tensor(out, own, async_op=True)))\n"
        "for group, parts, work in sent:\n"
        "    work.wait()\n"
        "    for p, new in zip(group, parts):\n"
        "        p.data.copy_(new[: p.numel()].view_as(p))",
        "The matrices must have one dtype. Each rank has the state of its own alone, to be saved and loaded by rank; whether a gradient is "
        "finite (GradScaler) must be asked of all ranks.",
        untried="how parameters are divided among the ranks, the program says",
    ),
)  # fmt: skip
