"""Operations of cuDNN's recurrent layers, which ``torch.utils.flop_counter`` does not count."""

from __future__ import annotations

import math
from collections.abc import Sequence

NAMES = ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward")


def operations(name: str, sizes: Sequence[Sequence[int]]) -> int | None:
    """Return 2 x places x numbers of all weight matrices, twice that backward; None for packed sequences, whose lengths are no sizes.

    Each weight (gates x hidden, input) is multiplied once at every place of every sequence: the equations of cuDNN's
    ``cudnnRNNMode_t`` (https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-adv-library.html). Both gradients take as
    many each.
    """
    if name not in NAMES or not sizes or len(sizes[0]) != 3:
        return None
    weights = sum(math.prod(s) for s in sizes[1:] if len(s) == 2)
    return 2 * sizes[0][0] * sizes[0][1] * weights * (2 if name.endswith("_backward") else 1)
