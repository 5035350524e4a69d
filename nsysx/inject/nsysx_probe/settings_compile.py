"""What torch.compile has done so far, by its own counters: backends, graphs, breaks with reason and line, recompilations."""

from __future__ import annotations

import re
import sys
from typing import Any

from .probe_bounds import LONGEST_BREAK, MOST_COMPILE_ENTRIES
from .settings_state import asked

#: What Dynamo calls the rest of a function after a break: its name and line are in it.
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")


def compiled() -> dict[str, Any] | None:
    """Return what was compiled; None where Dynamo was never loaded, so that nothing was."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    counters: Any = asked(lambda: utils.counters) or {}
    return {
        "backends": asked(_backends),
        "graphs": asked(lambda: int(counters.get("stats", {}).get("unique_graphs", 0))),
        "frames": asked(lambda: int(counters.get("frames", {}).get("total", 0))),
        "breaks": asked(lambda: _breaks(counters.get("graph_break", {}))),
        "broken_at": asked(lambda: _broken_at(utils)),
        "recompilations": asked(lambda: _recompilations(utils)),
        "cudagraph_skips": asked(lambda: int(counters.get("inductor", {}).get("cudagraph_skips", 0))),
        "optimize_ddp": asked(lambda: bool(sys.modules["torch._dynamo.config"].optimize_ddp)),
        "recompile_limit": asked(lambda: int(sys.modules["torch._dynamo.config"].recompile_limit)),
    }


def _backends() -> list[dict[str, Any]]:
    """Return each backend that compiles, with its mode and its options."""
    cached = sys.modules["torch._dynamo.eval_frame"].cached_backends
    backends: list[dict[str, Any]] = []
    for backend in list(cached.values()):
        if backend is None:
            continue
        inner = getattr(backend, "compiler_fn", None)
        name = getattr(backend, "compiler_name", None) or getattr(inner, "__name__", None)
        options = getattr(backend, "config", None)
        switched = (
            {k: v for k, v in options.items() if isinstance(v, (bool, int, str))} if isinstance(options, dict) else {}
        )
        about = {
            "name": str(name or getattr(backend, "__name__", type(backend).__name__))[:60],
            "dynamic": getattr(backend, "dynamic", None),
            "mode": _mode(switched),
            "options": dict(list(switched.items())[:MOST_COMPILE_ENTRIES]),
        }
        if about not in backends:
            backends.append(about)
    return backends[:MOST_COMPILE_ENTRIES]


def _mode(options: dict[str, Any]) -> str:
    if options.get("max_autotune"):
        return "max-autotune" if options.get("triton.cudagraphs") else "max-autotune-no-cudagraphs"
    return "reduce-overhead" if options.get("triton.cudagraphs") else "default"


def _breaks(counted: Any) -> list[dict[str, Any]]:
    most = sorted(counted.items(), key=lambda item: -item[1])[:MOST_COMPILE_ENTRIES]
    return [{"reason": _short(reason), "count": int(count)} for reason, count in most]


def _short(reason: Any) -> str:
    """Return the sentence and the explanation of a break, without Dynamo's hints."""
    lines = [line.strip() for line in str(reason).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("Hint:", "Developer debug", "For more details"))]
    return " ".join(kept)[:LONGEST_BREAK]


def _broken_at(utils: Any) -> list[dict[str, Any]]:
    """Return where functions were broken: Dynamo compiles what follows a break under a name that tells the line."""
    places: dict[tuple[str, str, int], None] = {}
    for metrics in list(utils.get_compilation_metrics()):
        match = _RESUMED.match(str(metrics.co_name))
        if match is not None and metrics.co_filename:
            places[str(metrics.co_filename), match[1], int(match[2])] = None
    return [{"file": file, "function": name, "line": line} for file, name, line in list(places)[:MOST_COMPILE_ENTRIES]]


def _recompilations(utils: Any) -> list[dict[str, Any]]:
    """Return how often each function was compiled again, and because of which guard."""
    counted: dict[tuple[str, str, int], dict[str, Any]] = {}
    for metrics in list(utils.get_compilation_metrics()):
        reason = getattr(metrics, "recompile_reason", None)
        if not reason:
            continue
        key = (str(metrics.co_filename), str(metrics.co_name), int(metrics.co_firstlineno or 0))
        file, name, line = key
        row = counted.setdefault(key, {"file": file, "function": name, "line": line, "count": 0, "reason": ""})
        row["count"] += 1
        row["reason"] = str(reason)[:LONGEST_BREAK]
    return sorted(counted.values(), key=lambda row: -row["count"])[:MOST_COMPILE_ENTRIES]
