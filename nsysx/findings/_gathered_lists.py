"""Tensors of all ranks that are gathered into a list and put together behind it: each of their bytes is copied twice more than it need be.

NCCL gathers into one tensor. For a list of tensors torch copies each rank's part out of that, and torch.cat copies all of them again.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import LINES_TO_A_READ
from nsysx.findings._once import Takes
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

#: What gathers into a list, and not so that gradients go back through it.
_INTO_LIST = re.compile(r"(?<!functional\.)\ball_gather\(")
_TOGETHER = re.compile(r"\b(cat|concat|stack)\(")


def _copies(profile: Profile) -> tuple[pl.DataFrame, int]:
    """Return what the GPU copies for gathers into lists that are put together behind them (op, ns), and the place of the longest."""
    ops = profile.steady_ops.select("op", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    code = profile.code()
    if code is None:
        return ops.clear(), -1
    source, places = lines.texts(profile), list(code.places.iter_rows())
    text = [lines.text_of(source, file, line) or "" for file, line, _ in places]
    pairs = [
        (n, m)
        for n, (file, line, function) in enumerate(places)
        if _INTO_LIST.search(text[n])
        for m, (of_file, behind, inside) in enumerate(places)
        if (of_file, inside) == (file, function) and 0 < behind - line <= LINES_TO_A_READ and _TOGETHER.search(text[m])
    ]
    line_of_op = code.places_of(code.op[ops["op"].to_numpy()])
    gathers = (ops["cls"] == DeviceActivity.COMM.value).to_numpy()
    pairs = [(n, m) for n, m in pairs if (gathers & (line_of_op == n)).any()]
    made = ~gathers & np.isin(line_of_op, [n for pair in pairs for n in pair])
    longest = max((n for n, _ in pairs), key=lambda n: int(ops["ns"].to_numpy()[line_of_op == n].sum()), default=-1)
    return ops.filter(pl.Series(made, dtype=pl.Boolean)), longest


def gathered_twice(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that tensors are gathered into a list and then put together, where the copies are notable."""
    copies, longest = case.profile.once(_copies)
    ns = case.per_step(int(copies["ns"].sum()))
    if longest < 0 or not case.notable(ns):
        return ""
    return (
        f"all_gather() into a list copies each rank's tensor out of what NCCL gathered, and torch.cat copies all of them again: "
        f"{units.duration(ns)} of copies in each step"
    )


def without_copies(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if these copies go."""
    return case.worth(RemoveOps(ops_of(case.profile.once(_copies)[0])))


def taken(case: Case) -> Takes:
    """Return these copies."""
    return Takes(ops_of(case.profile.once(_copies)[0]))


def place_of_gather(case: Case) -> Row:
    """Return the line that gathers most."""
    code, (_, longest) = case.profile.code(), case.profile.once(_copies)
    if code is None or longest < 0:
        return {}
    return code.where(longest)
