"""What losses compare with, as hashes of some of its numbers: ranks that augment the same samples each for itself have the same targets.

A loop that takes rows of a tensor itself has no loader whose batches could be looked at. Targets are held in the steps in which what
networks are given is, and read with it. They are whole numbers: of what is drawn, floats may be alike on ranks with samples of their own.
"""

from __future__ import annotations

import sys
from typing import Any

from . import patch
from .batch_parts import batch_parts
from .changes import place
from .held_memory import has_room
from .probe_bounds import HELD_CALLS, MOST_HELD_NETWORKS, MOST_PARTED
from .settings_state import asked

#: torch's losses of classes, with the name of what each compares with. Modules of these call the functions.
_LOSSES = {"cross_entropy": "target", "nll_loss": "target", "ctc_loss": "targets"}

#: What Dynamo counts: functions that it has looked at, and graphs, also those of a function that is compiled as a whole.
_COUNTED = (("frames", "total"), ("stats", "unique_graphs"))


def _compiled() -> bool:
    """Return whether torch.compile has compiled anything."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None) or {}
    frames, graphs = (counters.get(kind, {}).get(name, 0) for kind, name in _COUNTED)
    return bool(frames or graphs)


class LossTargets:
    """``rows``: of each line that computes a loss ``place`` and ``parts``, as of a batch, for each call that was looked at."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.holds = False
        self.rows: list[dict[str, Any]] = []
        self._held: list[tuple[dict[str, Any], Any, int]] = []
        self._calls: dict[str, int] = {}
        self._patches: list[patch.Patch] | None = None

    def begin(self, *, holds: bool) -> None:
        """A recorded step begins, in which targets are looked at or not."""
        self.holds = holds
        self._calls.clear()
        if _compiled():  # what is compiled would be so anew: it is for a loss with the code that it had
            return
        if holds and self._patches is None:
            self._patches = [made for made in map(self._patch, _LOSSES) if made is not None]
        for each in self._patches or ():
            each.on() if holds else each.off()

    def read(self) -> None:
        """The window has closed: read what is held."""
        for row, target, version in self._held:
            resting = not target.is_cuda or self.torch.cuda.current_stream(target.device).query()
            whole = resting and target._version == version
            row["parts"].append(asked(batch_parts, self.torch, [("target", target)]) if whole else None)
        self._held.clear()

    def _patch(self, name: str) -> patch.Patch | None:
        """Return how one of torch's losses is followed, None where a library has put a function of its own in its place."""
        functional = self.torch.nn.functional
        function = getattr(functional, name, None)
        code = getattr(function, "__code__", None)
        if code is None or function.__module__ != functional.__name__ or _LOSSES[name] not in code.co_varnames:
            return None
        names = {
            "_nsysx_compiling": self.torch.compiler.is_dynamo_compiling,
            "_nsysx_targets": self._compares,
            "_nsysx_none": patch.nothing,
        }
        template = patch.AROUND.replace("ENTER", "_nsysx_targets").replace("LEAVE", "_nsysx_none")
        return asked(patch.Patch, function, template.replace("FIRST", _LOSSES[name]), names)  # type: ignore[no-any-return]

    def _compares(self, target: Any) -> None:
        """A loss is computed."""
        asked(self._hold, target)

    def _hold(self, target: Any) -> None:
        torch = self.torch
        if not self.holds or type(target) is not torch.Tensor or target.is_floating_point() or not target.numel():
            return
        if torch._C._get_tracing_state() is not None or target.layout != torch.strided or target.is_inference():
            return
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            return
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None and getattr(getattr(trees, "local", None), "tree_manager_containers", None):
            return  # they record anew when a tensor of theirs lives longer than before
        where = place()
        calls = self._calls.get(where, 0)
        row = next((row for row in self.rows if row["place"] == where), None)
        if calls >= HELD_CALLS or (not calls and len(self._calls) >= MOST_HELD_NETWORKS):
            return
        if row is None:
            self.rows.append(row := {"place": where, "parts": []})
        self._calls[where] = calls + 1
        if len(row["parts"]) < MOST_PARTED and has_room(torch, [*(held for _, held, _ in self._held), target]):
            self._held.append((row, target, target._version))
