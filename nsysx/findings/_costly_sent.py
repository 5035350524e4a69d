"""What ranks send to each other that they need not, or not like that."""

from __future__ import annotations

from nsysx.findings import _alike_exchanges as alike_exchanges
from nsysx.findings import _branches_behind as branches_behind
from nsysx.findings import _distributed_again as distributed_again
from nsysx.findings import _gradients_in_line as gradients_in_line
from nsysx.findings import _norms_by_hand as norms_by_hand
from nsysx.findings import _pickled_in_steps as pickled
from nsysx.findings import _sent_copies as sent_copies
from nsysx.findings import _summed_late as summed_late
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly

OF_SENT = (
    Costly(
        "copies sent",
        sent_copies.copies_are_sent,
        "Rows are copied before they are sent",
        way("copied-behind"),
        worth=sent_copies.sent_once,
        seen=sent_copies.copies_are_sent,
        takes=sent_copies.taken,
        oversight=True,
        at=sent_copies.place_of_message,
        worded=sent_copies.in_its_words,
    ),
    Costly(
        "gradients of each micro-batch",
        summed_late.reduced_each,
        "Gradients are reduced over the ranks for each micro-batch",
        way("reduced-behind-last"),
        worth=summed_late.reduced_once,
        takes=summed_late.taken,
        leads=True,
        oversight=True,
        at=summed_late.place_of_line,
        worded=summed_late.in_its_words,
    ),
    Costly(
        "objects in each step",
        pickled.sent_in_each_step,
        "Tensors are pickled for other ranks in each step",
        way("objects-as-tensors"),
        worth=pickled.as_tensors,
        takes=pickled.taken,
        oversight=True,
        at=pickled.place_of_line,
        worded=pickled.in_its_words,
    ),
    Costly(
        "tensors distributed again",
        distributed_again.sent_again,
        "All ranks are sent a tensor that each has",
        way("taken-from-own-rank"),
        worth=distributed_again.without,
        seen=distributed_again.sent_again,
        takes=distributed_again.taken,
        oversight=True,
        at=distributed_again.place_of_line,
        worded=distributed_again.in_its_words,
    ),
    Costly(
        "branch behind exchanges",
        branches_behind.called_behind,
        "A branch is called behind exchanges that it needs nothing of",
        way("branch-beside-exchanges"),
        worth=branches_behind.beside,
        seen=branches_behind.called_behind,
        takes=branches_behind.taken,
        phase="forward",
        at=branches_behind.place_of_call,
        worded=branches_behind.in_its_words,
    ),
    Costly(
        "gradients of inputs in line",
        gradients_in_line.reduced_behind,
        "Gradients of inputs are reduced behind those of the weights, not beside them",
        way("reduced-beside-weights"),
        worth=gradients_in_line.beside_weights,
        seen=gradients_in_line.reduced_behind,
        takes=gradients_in_line.taken,
        phase="backward",
        at=gradients_in_line.place_of_reduction,
        worded=gradients_in_line.in_its_words,
    ),
    Costly(
        "norms by hand",
        norms_by_hand.seen,
        "Normalization over all ranks is made of many operators",
        way("own-statistics"),
        worth=norms_by_hand.without,
        seen=norms_by_hand.seen,
        takes=norms_by_hand.taken,
        phase="forward",
        at=norms_by_hand.place,
        worded=norms_by_hand.worded,
    ),
    Costly(
        "tokens sent by each",
        alike_exchanges.sent_alike,
        "Ranks with the same tokens each send all of them to the experts",
        way("own-tokens-to-experts"),
        worth=alike_exchanges.own_tokens,
        seen=alike_exchanges.sent_alike,
        takes=alike_exchanges.taken,
        oversight=True,
        at=alike_exchanges.place_of_exchange,
        worded=alike_exchanges.in_its_words,
    ),
)
