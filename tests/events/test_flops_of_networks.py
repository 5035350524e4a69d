"""FLOPs of whole networks, forward and backward, from the sizes that each operator is given: as many as torch counts itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nsysx.events import operator_flops

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.torch_networks import NETWORKS


class Sizes(TorchDispatchMode):
    """Notes each operator with the sizes of its arguments, as the probe's X-ray steps record them."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.unknown = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        sizes = json.dumps([list(a.shape) if isinstance(a, torch.Tensor) else [] for a in args])
        made = None
        if name == "aten::convolution_backward":
            made = ",".join(str(i) for i, wanted in enumerate(args[-1]) if wanted)
        out = json.dumps(list(result.shape)) if isinstance(result, torch.Tensor) else None
        number, why = operator_flops.flops_of_operator(name, sizes, out, made)
        self.flops += number or 0
        self.unknown += why is not None
        return result


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_a_step_has_as_many_as_torch_counts(make: Callable[[], Callable[[], Any]]) -> None:
    torch.manual_seed(0)
    loss = make()
    with FlopCounterMode(display=False) as counter, Sizes() as noted:
        loss().backward()
    assert noted.unknown == 0
    assert noted.flops == counter.get_total_flops() > 0
