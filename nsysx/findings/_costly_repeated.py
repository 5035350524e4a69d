"""What every rank of a job computes whole and alike in each step, of which each could do its part."""

from __future__ import annotations

from nsysx.findings import _gathered_losses as gathered_losses
from nsysx.findings import _whole_batches as whole_batches
from nsysx.findings import _whole_branches as whole_branches
from nsysx.findings import _whole_tokens as whole_tokens
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly

REPEATED_BY_RANKS = (
    Costly(
        "loss of all rows",
        gathered_losses.computed_of_all,
        "Every rank computes the loss of all ranks' rows",
        way("own-rows-of-loss"),
        worth=gathered_losses.own_rows_alone,
        takes=gathered_losses.taken,
        oversight=True,
        at=gathered_losses.place_of_loss,
        worded=gathered_losses.in_its_words,
    ),
    Costly(
        "batch of all ranks",
        whole_batches.encoded_whole,
        "Every rank runs a frozen network on the whole batch",
        way("own-part-of-batch"),
        worth=whole_batches.shared_out,
        seen=whole_batches.encoded_whole,
        takes=whole_batches.taken,
        oversight=True,
        at=whole_batches.place_of_call,
        worded=whole_batches.in_its_words,
    ),
    Costly(
        "layers computed whole",
        whole_branches.computed_whole,
        "Every rank computes whole what could be split over the ranks",
        way("layers-split-too"),
        worth=whole_branches.split_too,
        seen=whole_branches.computed_whole,
        takes=whole_branches.taken,
        oversight=True,
        at=whole_branches.place_of_plan,
        worded=whole_branches.in_its_words,
    ),
    Costly(
        "tokens of all ranks",
        whole_tokens.worked_on_whole,
        "Every rank works on all tokens between split layers",
        way("tokens-shared-out"),
        worth=whole_tokens.shared_out,
        seen=whole_tokens.worked_on_whole,
        takes=whole_tokens.taken,
        at=whole_tokens.place_of_sum,
        worded=whole_tokens.in_its_words,
    ),
)
