"""The grammar of the range texts that the probe writes and the report reads, in one file so that the two cannot drift apart.

Standard library only: the probe imports it by its bare name inside the target program, the report imports it as
``nsysx.inject.ranges``.

Every range is in the NVTX domain ``nsysx``. Without domains (``torch.cuda.nvtx``), each text has the prefix ``nsysx:`` in the
default domain instead. The texts are meant to be read in the Nsight Systems GUI, too::

    step                             one training step, on the thread that drives it; its number is the payload (or: step 12)
    forward | backward | optimizer AdamW | data DataLoader | ...      a phase, with an optional detail
    blocks.0.attn.qkv:Linear         the call of a module: qualified path, colon, class; flags may follow
    blocks.0:Block recompute         the same, re-run by activation checkpointing
    :GPT compiled                    the root module (its path is empty), as one compiled region
    bwd blocks.0.attn.qkv:Linear     backward of that module, on whatever thread autograd runs it
    sync train.py:41 training_step   a mark: the Python line that is about to wait for the device
    info {"pair_cost_ns": 700, ...}  a mark: what the probe reports about itself, as JSON
    gc {"ago_ns": 9, "ns": 5, ...}   a mark: a garbage collection that ended ``ago_ns`` before it and took ``ns``, as JSON
    compile {"ago_ns": 9, ...}       a mark: a compilation of torch.compile, likewise

``bwd`` texts are marks, too: what the thread does from there to the next ``bwd`` mark, or to the end of the enclosing backward
phase, is backward of that module.

Before its first space (after a leading ``bwd``) a module text contains exactly one colon, and any other text contains none.
"""

from __future__ import annotations

from typing import NamedTuple

from .probe_bounds import MOST_PATH_LETTERS, MOST_STEP_DIGITS, MOST_TEXT_LETTERS

DOMAIN = "nsysx"
PREFIX = "nsysx:"
#: The domain of the lines of Python, ``PATH:LINE FUNCTION``, which an X-ray step records as nested ranges.
LINES_DOMAIN = "nsysx-lines"

#: Phases in their usual order within a step.
PHASES = ("data", "h2d", "forward", "loss", "backward", "clip", "optimizer", "zero_grad", "evaluation")

#: The kinds that show the program's work; marks of all other kinds are about the probe, Python or a wait.
WORK = ("step", "phase", "module", "backward_module")

#: Marks about a pause of Python itself.
PAUSES = ("gc", "compile")

FLAGS = ("recompute", "compiled", "graph")


class Label(NamedTuple):
    """A decoded range text.

    ``kind`` is ``step``, ``phase``, ``module``, ``backward_module``, ``sync``, ``info``, ``gc``, ``compile`` or ``other``.
    ``name`` is the phase, the module's qualified path ("" for the root), the ``file:line function`` of a sync mark, the JSON of
    an info, gc or compile mark, or else the whole text. ``cls`` is a module's class or a phase's detail; ``number`` is the step's.
    """

    kind: str
    name: str = ""
    cls: str = ""
    number: int = -1
    flags: tuple[str, ...] = ()


def word(text: str) -> str:
    """Return ``text`` with "_" in place of the colons and white space that the grammar uses."""
    return "".join("_" if c in ": \t\r\n" else c for c in text)


#: The text of every step. Its number is the range's payload, because a text that was registered is never freed; where there are
#: no payloads (``torch.cuda.nvtx``), and in older reports, the number follows the text.
STEP = "step"


def step(index: int) -> str:
    """Return the text of step ``index`` where there are no payloads."""
    return f"{STEP} {index}"


def phase(name: str, detail: str = "") -> str:
    """Return the text of a phase. Raises ValueError if ``name`` is not one of PHASES."""
    if name not in PHASES:
        raise ValueError(f"not a phase: {name}")
    detail = word(detail)
    return (f"{name} {detail}" if detail else name)[:MOST_TEXT_LETTERS]


def module(path: str, cls: str, *flags: str, backward: bool = False) -> str:
    """Return the text of a module call: ``path`` is the qualified path ("" for the root), ``cls`` the class name.

    A path that is too long loses its middle, so two different modules may share a text; the class name is kept, up to 80
    characters. Raises ValueError for a flag that is not one of FLAGS.
    """
    path, cls = word(path), word(cls)[:80]
    room = MOST_TEXT_LETTERS - len(cls) - 40
    if len(path) > room:
        path = f"{path[: room // 2 - 1]}..{path[-(room // 2 - 1) :]}"
    text = f"{path}:{cls}"
    for flag in flags:
        if flag not in FLAGS:
            raise ValueError(f"not a flag: {flag}")
        text += f" {flag}"
    return f"bwd {text}" if backward else text


def info(json_text: str) -> str:
    """Return the text of an info mark."""
    return f"info {json_text}"


def pause(kind: str, json_text: str) -> str:
    """Return the text of a mark about a pause. Raises ValueError if ``kind`` is not one of PAUSES."""
    if kind not in PAUSES:
        raise ValueError(f"not a pause: {kind}")
    return f"{kind} {json_text}"


def line(path: str, number: int, function: str) -> str:
    """Return the text of a line in the domain of lines; a path that is too long loses its beginning."""
    path = path if len(path) <= MOST_PATH_LETTERS else f"..{path[2 - MOST_PATH_LETTERS :]}"
    return f"{path}:{number} {word(function)[:80]}"


def sync(file: str, line: int, function: str) -> str:
    """Return the text of the mark before a wait; a long path loses its beginning, never the line number."""
    tail = f":{line} {word(function)[:60]}"
    room = MOST_TEXT_LETTERS - len("sync ") - len(tail)
    return f"sync {file if len(file) <= room else '..' + file[2 - room :]}{tail}"


def decode(text: str) -> Label:
    """Return what a range text means; a text outside the grammar is ``other``, with the text as its name."""
    text = text.removeprefix(PREFIX)
    head, _, tail = text.partition(" ")
    if text == STEP:
        return Label("step", text)
    if head == STEP and tail.isascii() and tail.isdigit() and len(tail) <= MOST_STEP_DIGITS:
        return Label("step", text, number=int(tail))
    if head in ("info", "sync") or (head in PAUSES and tail.startswith("{")):
        return Label(head, tail)
    kind = "module"
    if head == "bwd":
        kind = "backward_module"
        head, _, tail = tail.partition(" ")
    if ":" in head:
        path, _, cls = head.partition(":")
        flags = tuple(tail.split(" ")) if tail else ()
        if cls and ":" not in cls and all(f in FLAGS for f in flags):
            return Label(kind, path, cls, flags=flags)
    elif head in PHASES and kind == "module":
        return Label("phase", head, tail)
    return Label("other", text)
