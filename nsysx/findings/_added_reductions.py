"""What is reduced over the ranks one by one and then only added up: outputs in forward, gradients of one input in backward."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events.added_reductions import AddedReductions, added_reductions
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._added_pastes import reduced_once
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._once import Takes
from nsysx.findings._parting_lines import parting_line
from nsysx.findings._sent_again import again_sent, of_again
from nsysx.model import Row
from nsysx.replay.engine import RemoveOps


def _added(case: Case, *, back: bool) -> AddedReductions:
    """Return these reductions of forward, or of backward; none of a compiled program, of which it is not seen what reads what."""
    if case.program.compiled:
        return AddedReductions()
    both = added_reductions(case.profile)
    return both.backward if back else both.forward


def _saved_ns(case: Case, added: AddedReductions) -> int:
    return transfer_of_ops_ns(case, added.needless)


def _once(case: Case, added: AddedReductions) -> Saving:
    """Return what it saves if each sum is reduced once: all reductions go but one of each, and the sums stay.

    The replay takes what they wait for other ranks away, too, which may go on in another one: no more than their transfer is likely.
    """
    transfer = _saved_ns(case, added)
    worth = case.worth(RemoveOps(added.needless))
    if worth.likely_ns is None:
        return case.bound(transfer, "one reduction of each sum is left")
    return replace(worth, likely_ns=min(worth.likely_ns, transfer))


def _counts(case: Case, added: AddedReductions) -> str:
    """Say how many reductions of a step there are, of how many only the sum is read, and how many are needed."""
    whole, less = (round(len(ops) / case.steps) for ops in (added.ops, added.needless))
    most = max(len(group) for group in added.groups)
    return f"{units.several(whole, 'reduction')} of a step, up to {most} at a time, are only added up: {units.count(whole - less)} would do"


def _place(case: Case, *, back: bool) -> Row:
    """Return the line at which the reductions of most groups part."""
    return parting_line(case, [[(e.thread, e.start_ns) for e in group] for group in _added(case, back=back).groups])


# ---- forward ---------------------------------------------------------------------------------------------------------------


def added_up(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that reductions are made one by one of what is only added."""
    added = _added(case, back=False)
    return f"{_counts(case, added)}, of what is added first" if case.notable(_saved_ns(case, added)) else ""


def one_of_the_sum(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if each sum is reduced once."""
    return _once(case, _added(case, back=False))


def of_added(case: Case) -> Takes:
    """Return these reductions."""
    return Takes(_added(case, back=False).ops)


def place_of_added(case: Case) -> Row:
    """Return the line that makes most of them."""
    return _place(case, back=False)


def in_words_of_sum(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the sum's own line, where the layers can leave their reduction out."""
    paste = reduced_once(case, _added(case, back=False))
    return title, replace(remedy, paste=paste) if paste else remedy


# ---- backward --------------------------------------------------------------------------------------------------------------


def gradients_apart(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that gradients of one input are reduced once for each of several layers that are given it.

    Where each of these gathers that input, too, it is told with that.
    """
    added = _added(case, back=True)
    if not case.notable(_saved_ns(case, added)) or (added.ops <= of_again(case).ops and again_sent(case)):
        return ""
    return (
        f"{_counts(case, added)}. Each of several layers that are given one input (query, key, value) reduces the gradient of that by "
        "itself in backward, and autograd then adds these"
    )


def gradients_together(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if gradients of one input are added first, and reduced once."""
    return _once(case, _added(case, back=True))


def of_apart(case: Case) -> Takes:
    """Return these reductions."""
    return Takes(_added(case, back=True).ops)


def place_of_apart(case: Case) -> Row:
    """Return the line of forward from which most of these layers are called."""
    return _place(case, back=True)


#: What DTensor makes the input of a layer one of its own with.
_OF_DTENSOR = "_FromTorchTensor"


def in_words_of_function(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, with the function that reduces the gradients where the capture names it."""
    named = Counter(each.function for group in _added(case, back=True).groups for each in group)
    function = max(named, key=lambda name: named[name], default="")
    if function == _OF_DTENSOR:
        return title, replace(remedy, text=f"{remedy.text}: PrepareModuleInput of the block", paste=_PREPARED)
    if not function:
        return title, remedy
    paste = (
        f"h = {function}.apply(h)  # once, before all layers that are given h\n"
        f"return F.linear(x, self.weight)  # in them, without {function}"
    )
    return title, replace(remedy, paste=paste)


#: Layers that are given a DTensor make none, and autograd adds their gradients before it reduces them.
_PREPARED = (
    "parallelize_module(block, mesh, {\n"
    '    "attn": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),\n'
    '    "attn.wq": ColwiseParallel(), "attn.wk": ColwiseParallel(), "attn.wv": ColwiseParallel(),\n'
    "})"
)
