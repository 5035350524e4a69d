"""What the parameters are at some steps of a run, in few numbers, so that two runs can be compared: see `Weights`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .interrupts import of_program
from .probe_bounds import PROJECTED_NUMBERS, PROJECTIONS

#: The relative spacing of numbers with the 10 bits of TF32's mantissa.
_TF32 = 2.0**-10


class Weights:
    """Norm and projections of each parameter of the optimizers, at the steps at which `keep` is called.

    A projection is the dot product with cos(k), cos(2 k), ..., scaled so that the mean square of the projections of a difference
    is about its squared norm: two runs that have only these numbers know how far their parameters are apart. (Any fixed directions
    that the parameters know nothing of serve: Johnson and Lindenstrauss 1984.)

    The parameters of two runs are compared by their order. ``places``: what it was, by id, where a change gave them another.
    """

    def __init__(
        self, torch: Any, living: Callable[[], list[Any]], places: Callable[[], Mapping[int, int]] = dict
    ) -> None:
        self.torch, self.living, self.places = torch, living, places
        self.points: list[tuple[int, list[Any], list[Any]]] = []
        self.why_not = ""
        self.autocast: set[str] = set()
        _note_autocast(torch, self.autocast)

    def keep(self, steps: int) -> None:
        """Keep what the parameters are after so many steps. Nothing waits for the device: `record` reads the numbers."""
        torch, waves = self.torch, dict[tuple[Any, int], Any]()
        try:
            if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
                return
            with torch.no_grad():
                norms, projections = [], []
                for parameter in self._parameters():
                    flat = parameter.detach().reshape(-1)
                    part = flat[:: max(1, -(-len(flat) // PROJECTED_NUMBERS))].double()
                    key = (part.device, len(part))
                    if key not in waves:
                        waves[key] = self._waves(*key)
                    norms.append(torch.linalg.vector_norm(flat, dtype=torch.float64))
                    projections.append((waves[key] * part).sum(1) * (2 * len(flat) / max(1, len(part))) ** 0.5)
            if norms:
                self.points.append((steps, norms, projections))
        except Exception as error:
            if of_program(error):
                raise
            self.why_not = self.why_not or f"{type(error).__name__}: {error}"

    def record(self) -> dict[str, Any]:
        """Return ``points``, each with ``steps``, ``norms`` (parameters,) and ``projections`` (parameters x 4,), and what rounds.

        ``epsilon`` is the relative spacing of the coarsest numbers that the program is known to compute with, ``numbers`` their name.
        """
        points = [
            {
                "steps": steps,
                "norms": [float(v) for v in norms],
                "projections": [x for p in projections for x in p.tolist()],
            }
            for steps, norms, projections in self.points
        ]
        epsilon, numbers = max(self._rounds(), default=(None, ""))
        return {"points": points, "epsilon": epsilon, "numbers": numbers, "why_not": self.why_not}

    def _parameters(self) -> list[Any]:
        places, every = self.places(), list[Any]()
        for optimizer in self.living():
            held = [p for group in optimizer.param_groups for p in group["params"]]
            every += sorted(held, key=lambda p: places.get(id(p), len(held)))
        return [p.to_local() if hasattr(p, "to_local") else p for p in every]

    def _waves(self, device: Any, length: int) -> Any:
        torch = self.torch
        numbers = torch.arange(1, length + 1, device=device, dtype=torch.float64)
        return torch.stack([(k * numbers).cos() for k in range(1, PROJECTIONS + 1)])

    def _rounds(self) -> set[tuple[float, str]]:
        """Return (relative spacing, name) of each kind of numbers that the program computes with."""
        torch, parameters = self.torch, self._parameters()
        names = {str(p.dtype).rpartition(".")[2] for p in parameters if p.dtype.is_floating_point} | self.autocast
        rounds = {(float(torch.finfo(getattr(torch, name)).eps), name) for name in names}
        on_gpu = [p for p in parameters if p.is_cuda]
        convolves = any(p.dim() > 2 for p in on_gpu) and torch.backends.cudnn.allow_tf32
        if on_gpu and (convolves or torch.get_float32_matmul_precision() != "highest"):
            rounds.add((_TF32, "TF32"))
        return rounds


def _note_autocast(torch: Any, seen: set[str]) -> None:
    """Note the type of each autocast that is entered."""
    enter = torch.autocast.__enter__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if getattr(self, "_enabled", False) and getattr(self, "fast_dtype", None) is not None:
            seen.add(str(self.fast_dtype).rpartition(".")[2])
        return enter(self)

    torch.autocast.__enter__ = __enter__
