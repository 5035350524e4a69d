"""What a line that gathers whole weights for an average of them is told: to average each rank's own part, in the words of its wrapper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nsysx.analyses.lines import text_of
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Fix
from nsysx.findings._work_bounds import LINES_AROUND_AVERAGE

#: A loop over the parameters of an average and of the network that it follows, and the weight of what is new.
_PAIRS = re.compile(r"\bzip\(\s*(?P<average>[\w.]+)\.parameters\(\)\s*,\s*(?P<network>[\w.]+)\.parameters\(\)")
_WEIGHT = re.compile(r"\b(?:lerp_?\(.*,\s*|add_?\(.*\balpha\s*=\s*)(?P<weight>[\w.]+(?:\s*-\s*[\w.]+)?)\s*\)\s*$")


def of_average(settings: RecordedSettings | None, source: Mapping[str, Any], file: str, line: int, fix: Fix) -> Fix:
    """Return the advice of such a line with the names of the program, where lines around it average parameters in pairs; else as it is."""
    if settings is None or not fix.ways or fix.ways[0].name != "shards-kept":
        return fix
    near = range(line - LINES_AROUND_AVERAGE, line + LINES_AROUND_AVERAGE + 1)
    texts = [(text_of(source, file, number) or "").partition("  #")[0] for number in near]
    pairs = next((match for text in texts if (match := _PAIRS.search(text))), None)
    weight = next((match["weight"] for text in texts if (match := _WEIGHT.search(text))), "1 - decay")
    average, network = (pairs["average"], pairs["network"]) if pairs is not None else ("ema", "model")
    if settings.wrappers("FSDP") and not settings.wrappers("fully_shard"):
        text = "Shard the average by the same policy as the network, and let each rank average its own part, without summon_full_params(): "
        return fix.but(
            text=f"{text}whole weights are needed to save them; here each step gathers them",
            paste=f"{average} = FullyShardedDataParallel({average}, ...)  # once, with the options of {network}\n"
            f"for e, p in zip({average}.parameters(), {network}.parameters()): e.lerp_(p, {weight})  # without summon_full_params()",
        )
    if pairs is None:
        return fix
    return fix.but(
        paste=f"torch._foreach_lerp_([e.to_local() for e in {average}.parameters()],  # {average}: sharded as {network} is\n"
        f"                     [p.to_local() for p in {network}.parameters()], {weight})"
    )
