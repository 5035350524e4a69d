"""What ranges mean that frameworks and other profilers write by themselves, where their text says it.

PyTorch (``record_function`` under ``emit_nvtx`` or ``nsys --pytorch``), nsys's function traces, Lightning and NeMo, DeepSpeed,
the layer markers of vLLM and SGLang, and the dicts of DLProf and PyProf, as their sources write them. Megatron's timers push no
ranges; programs that do so under their names mean the same phases.
"""

from __future__ import annotations

import re

#: kind, name, class, as ``nvtx_ranges.meaning`` has them.
Known = tuple[str, str, str]

_LIGHTNING_MODULE = re.compile(r"^\[pl\]\[module\]([\w.]{1,300}): ([\w.\-]{0,300})$")
_LIGHTNING_STEP = re.compile(r"^\[pl\]\[profile\]run_training_batch$")
#: A Python dict as text, its first key says what it is of. A second one follows the module, with what came out of it.
_LAYER_MARKER = re.compile(r"^\{'Module': '([^'\\]{0,300})'")
_LAYER_IN, _LAYER_OUT = "'Inputs': [", "'Outputs': ["
_DLPROF = re.compile(r"^\{'mod': '([\w.]{1,200})', 'op': '(\w{1,200})'")
_VLLM_STEP = re.compile(r"^execute_(context_\d+\(\d+\)_generation_\d+\(\d+\)|new_\d+_cached_\d+)$")
_LIGHTNING = r"^\[pl\]\[profile\]"
_PHASES = {
    "data": (
        r"^enumerate\(DataLoader\)|_BaseDataLoaderIter\.__next__$",
        rf"{_LIGHTNING}.{{0,200}}dataloader_next$",
        r"^batch-generator$",
    ),
    "zero_grad": (r"^torch\.optim\..{1,200}\.zero_grad$", rf"{_LIGHTNING}.{{0,200}}optimizer_zero_grad$"),
    "optimizer": (
        r"^torch\.optim\..{1,200}\.step$",
        r"^DeepSpeed\w{1,80}\.step$",
        r"^optimizer-inner-step$",
    ),
    "backward": (
        r"^torch\.(_tensor\.Tensor|autograd)\.backward$",
        r"^DeepSpeedEngine\.backward$",
        rf"{_LIGHTNING}\[Strategy\]\w{{1,80}}\.backward$",
        r"^backward-compute$",
    ),
    "clip": (r"^optimizer-clip-main-grad$", rf"{_LIGHTNING}.{{0,200}}configure_gradient_clipping$"),
    "loss": (r"^torch\.nn\.modules\.loss\.\w{1,80}\.forward$",),
    "forward": (
        r"^DeepSpeedEngine\.forward$",
        r"^forward-compute$",
        rf"{_LIGHTNING}\[Strategy\]\w{{1,80}}\.training_step$",
        r"^gpu_model_runner: forward$",
    ),
}
_PHASE = {phase: re.compile("|".join(patterns)) for phase, patterns in _PHASES.items()}


def meaning_of_text(text: str) -> Known | None:
    """Return the meaning of a text that a framework is known to write, None of any other."""
    if match := _LIGHTNING_MODULE.match(text):
        return "module", match[2], match[1].rpartition(".")[2]
    if match := _LAYER_MARKER.match(text):
        if _LAYER_OUT in text and _LAYER_IN not in text:
            return "range", f"{match[1]} (outputs)", ""
        return "module", match[1], "" if match[1] else "Module"
    if match := _DLPROF.match(text):
        return "op", f"{match[1]}.{match[2]}", ""
    if _LIGHTNING_STEP.match(text) or _VLLM_STEP.match(text):
        return "step", text, ""
    phase = next((phase for phase, pattern in _PHASE.items() if pattern.search(text)), None)
    return None if phase is None else ("phase", phase, "")
