"""The options of DeepSpeed's engine that decide what ranks send to each other, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .qualified_names import held
from .settings_state import asked

#: Options of ZeRO, as its configuration names them: switches and numbers.
_OF_ZERO = (
    "overlap_comm",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
)


def options(engine: Any, parameters: Iterable[Any]) -> dict[str, Any]:
    """Return the stage of ZeRO and its options, the micro-steps of a step, and how many numbers the parameters have, and those trained.

    Where the stage parts them, a parameter is empty between its uses and knows how many numbers it has.
    """
    configuration: Any = held(engine).get("_config")
    zero: Any = asked(lambda: configuration.zero_config)
    numbers = trained = 0
    for parameter in parameters:
        each: Any = asked(_numbers, parameter) or 0
        numbers += each
        trained += each if parameter.requires_grad else 0
    return {
        "kind": "DeepSpeed",
        "count": 1,
        "stage": asked(lambda: int(configuration.zero_optimization_stage)),
        "micro_steps": asked(lambda: int(configuration.gradient_accumulation_steps)),
        **{name: asked(_plain_option, zero, name) for name in _OF_ZERO},
        "elements": numbers,
        "trained_elements": trained,
    }


def _numbers(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _plain_option(zero: Any, name: str) -> Any:
    value = getattr(zero, name)
    return value if isinstance(value, (bool, int)) else int(value) if isinstance(value, float) else None
