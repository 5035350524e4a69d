"""Sampled Python stacks as places: the user's own line, and the framework function that it was in.

The own line is that of the innermost frame outside installed packages, the standard library and frameworks. Between it and the
innermost frame lies the framework; wrappers (``Module._call_impl``, decorators, comprehensions) say nothing and are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.frames import derived, frame_columns, lookup
from nsysx.frames.intervals import I64

Flags = npt.NDArray[np.bool_]

#: What a library wrote into a temporary folder and runs: the dotted name of a module, and the eight letters of Python's tempfile.
_MADE = r"/te?mp/(?:[^/]+/)*\w+(?:\.\w+)+_[a-z0-9_]{8}\.py$"
#: Code that is not the user's: installed packages, the standard library, torch and frameworks from their sources. What a
#: notebook runs is called "<ipython-input-...>", and is the user's.
LIBRARY = re.compile(
    r"(site|dist)-packages/|/lib(64)?/python\d|^<(?!ipython)"
    r"|/torch/(_|nn/|optim/|autograd/|utils/|cuda/|amp/|distributed/|fx/|backends/|compiler/|export/|library\.py|functional\.py)"
    rf"|{_MADE}"
    r"|/src/(transformers|accelerate|diffusers|peft|datasets|lightning)/|/deepspeed/runtime/|/megatron/core/"
)
#: The probe of ``nsysx run`` wraps what it marks.
_PROBE = re.compile(r"/nsysx/inject/")
#: Functions that only call others: torch's and the standard library's wrappers, and those that the compiler makes.
_WRAPPER = re.compile(
    r"^(<.*|_?(wrapper|wrapped|inner)|_call_impl|_wrapped_call_impl|__call__|__torch_function__|_fn|fn|call_fn"
    r"|decorate_\w+|_no_grad_wrapper|_use_grad\w*|maybe_fallback|profile_hook_step|inner_wrapper)$"
)
#: What a framework's path is shown from.
_ROOT = re.compile(r"^.*(?:site|dist)-packages/|^.*/(?=torch/)|^.*(?:/lib(?:64)?/python[\d.]+|/src)/")
#: Where a thread waits while autograd's own thread runs the backward pass.
_BACKWARD = re.compile(r"/torch/autograd/(graph|__init__)\.py$")

UNKNOWN = "?"


@dataclass(frozen=True)
class Places:
    """What stacks say, one element per stack number.

    ``place`` is a row of ``places``: function, file, line (the user's own), framework ("torch/optim/adam.py:_fused_adam", null in
    the user's own code). ``waits``: the stack stands in a call of autograd's engine. ``known``: the stack has frames at all.
    """

    place: I64
    places: pl.DataFrame
    waits: Flags
    known: Flags


def _slashes(file: str) -> str:
    return file.replace("\\", "/")


def short(file: str) -> str:
    """Return a framework's file from its package on."""
    below_root = _ROOT.sub("", _slashes(file))
    return below_root if below_root != _slashes(file) else "/".join(_slashes(file).split("/")[-3:])


def spoken(file: str, line: int | None, function: str) -> str:
    """Return a place for a sentence, without its folder: "train.py:12 augment"."""
    inside = "" if function == "<module>" else f" {function}"
    return f"{_slashes(file).rsplit('/', 1)[-1]}{'' if line is None else f':{line}'}{inside}"


def is_library(file: str) -> bool:
    """Return whether a file is not the user's own."""
    return bool(LIBRARY.search(_slashes(file)))


def _first_chosen_rows(chosen: Flags, heads: I64, rows: int) -> I64:
    """Return the first chosen row of each stack, ``rows`` where there is none."""
    first: I64 = np.minimum.reduceat(np.where(chosen, np.arange(rows), rows), heads)
    return first


def places(stacks: pl.DataFrame) -> Places:
    """Return the places of all stacks; ``stacks`` as in ``frames.frame_columns.STACKS``, sorted by stack and depth."""
    number = stacks["stack"].to_numpy()
    count = int(number[-1]) + 1 if len(number) else 0
    resolved = np.zeros(count, np.bool_)
    names, file = lookup.distinct(stacks["file"])
    functions, function = lookup.distinct(stacks["function"])
    if not len(number):
        none = pl.DataFrame(schema=_PLACE)
        return Places(np.empty(0, np.int64), none, resolved, resolved)
    of_file = [n or UNKNOWN for n in names]
    probe = np.array([bool(_PROBE.search(_slashes(n))) for n in of_file])[file]
    library = np.array([is_library(n) for n in of_file])[file]
    wrapper = np.array([f is None or bool(_WRAPPER.match(f)) for f in functions])[function]
    engine = np.array([bool(_BACKWARD.search(_slashes(n))) for n in of_file])[file]
    heads = np.flatnonzero(np.diff(number, prepend=-1))
    rows = len(number)
    number_of = number[heads]
    resolved[number_of] = True
    outer = _first_chosen_rows(~library & ~probe, heads, rows)
    inner = _first_chosen_rows(library & ~probe & ~wrapper, heads, rows)
    some = _first_chosen_rows(library & ~probe, heads, rows)
    inner = np.where(inner < outer, inner, np.where(some < outer, some, rows))
    # A stack without any line of the user's own stands for itself.
    outer = np.where(outer < rows, outer, np.where(inner < rows, inner, heads))
    waits = np.zeros(count, np.bool_)
    innermost = np.minimum(_first_chosen_rows(~probe, heads, rows), rows - 1)
    waits[number_of] = engine[innermost]
    key = pl.DataFrame(
        {
            "function": lookup.named([f or UNKNOWN for f in functions], function[outer]),
            "file": lookup.named(of_file, file[outer]),
            "line": stacks["line"].gather(outer),
            "_file": np.where(inner < rows, file[np.minimum(inner, rows - 1)], -1),
            "_function": np.where(inner < rows, function[np.minimum(inner, rows - 1)], -1),
        }
    )
    distinct = key.unique(maintain_order=True).with_row_index("place")
    of_stack = key.join(distinct, on=key.columns, how="left", nulls_equal=True, maintain_order="left")["place"]
    framework = [
        None if f < 0 else f"{short(of_file[f])}:{functions[g] or UNKNOWN}"
        for f, g in distinct["_file", "_function"].iter_rows()
    ]
    place_of = np.full(count, -1)
    place_of[number_of] = of_stack.cast(pl.Int64).to_numpy()
    described = distinct.select(
        pl.col("function").cast(pl.String),
        pl.col("file").cast(pl.String),
        "line",
        pl.Series("framework", framework, dtype=pl.String),
    )
    return Places(place_of, described, waits, resolved)


_PLACE = frame_columns.schema(derived.PLACES)
