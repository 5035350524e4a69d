"""Batches that a loader with pin_memory=True leaves in pageable memory, because their class is none that torch pins.

torch pins tensors, their containers, and what has a method pin_memory; an object of any other class it hands on as it is, without a word.
A copy of what the CPU has made in the step is none of these, whatever the loader pins, and neither is what a dataset copies
before there is a batch.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx.analyses import copy_sites
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Call
from nsysx.events.operator_flow import flow_of, is_view
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import MUCH_READ_BACK_BYTES
from nsysx.model import Row

_THAT_PINS = Fix.by_name("batch-that-pins")
#: What of a loader's record says that it made a batch in the step that was watched.
_MADE = ("drawn", "batches", "parts")
#: A line that makes a tensor of what is none.
_MAKES = re.compile(r"\bfrom_numpy\(|\bas_?tensor\(|\btorch\.tensor\(|\bfrombuffer\(|\w*Tensor\(")
#: The method of a class that moves all of an object, by its qualified name.
_MOVES = re.compile(r"(?:^|\.)([A-Za-z_]\w*)\.(?:to|cuda|to_\w+|move\w*|send\w*)(?:\.<locals>\..*|\.<\w+>)?$")


def moves_all(function: str) -> str:
    """Return the class whose method moves all of an object to a device, by the qualified name of a function; "" for any other."""
    moved = _MOVES.search(function)
    return moved[1] if moved and moved[1] != "<locals>" else ""


def function_of(case: Case, copies: pl.DataFrame) -> str:
    """Return the qualified name of the function that makes these copies, "" where no X-ray says it."""
    code, calls = case.profile.code(), copies["call"].drop_nulls().to_numpy()
    places = code.places_of(code.call[calls]) if code is not None and len(calls) else np.empty(0, np.int64)
    places = places[places >= 0]
    return str(code.places["function"][int(np.bincount(places).argmax())]) if code is not None and len(places) else ""


def that_pins(case: Case, row: Row, copies: pl.DataFrame) -> Fix | None:
    """Return the advice to give the class of the batch a method that pins it, None where these pageable copies are none of a batch."""
    if row["phase"] == "data" or row["bytes"] < MUCH_READ_BACK_BYTES * case.steps or not _pins(case):
        return None
    text = text_of(texts(case.profile), row["file"], row["line"]) or ""
    if _MAKES.search(text) or _pinned_beside(case) or _made_in_step(case, copies):
        return None
    name = moves_all(function_of(case, copies))
    fix = _THAT_PINS
    if name:
        fix = fix.but(
            text=fix.text.replace("the class of the batch", name),
            paste=fix.paste.replace("the class of the batch", name),
        )
    return fix if not text or "non_blocking" in text else fix.but(condition="The copies need non_blocking=True, too.")


def _pins(case: Case) -> bool:
    """Return whether the loader of the steps pins what it returns, and a function of the program makes its batches.

    What torch's own function makes of samples are tensors, tuples and dicts, all of which are pinned.
    """
    settings = settings_of(case.profile)
    loaders = (settings.rows("loaders") if settings is not None else None) or ()
    at_work = [row for row in loaders if any(row.get(key) for key in _MADE)] or list(loaders)
    return bool(at_work) and all(
        row.get("pin_memory") is True and row.get("collate") not in ("default_collate", "default_convert")
        for row in at_work
    )


def _pinned_beside(case: Case) -> bool:
    """Return whether as much is copied to the GPU from pinned memory in the steps: then the loader's batches are pinned."""
    return any(
        row["direction"] == "HtoD" and row["src_kind"] == "pinned" and row["bytes"] >= MUCH_READ_BACK_BYTES * case.steps
        for row in case.typed_rows(copy_sites.ROWS)
    )


def _made_in_step(case: Case, copies: pl.DataFrame) -> bool:
    """Return whether operators of the step have made what these copies move, in an X-ray step; views of it are it."""
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    made_by = case.calls.filter(case.calls["call"].is_in(copies["call"].drop_nulls().implode()))
    calls = made_by.filter(made_by["kind"] == Call.COPY)["call"].to_numpy()
    if flow is None or of_calls is None:
        return False
    made = 0
    for row in set(of_calls.within(flow, gradients=False)[calls].tolist()) - {-1}:
        maker = row
        while (makers := flow.makers[maker]) and (maker == row or is_view(flow.names[maker])):
            maker = makers[0]
        made += maker != row and not is_view(flow.names[maker])
    return made > 0
