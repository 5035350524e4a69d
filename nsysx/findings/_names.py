"""What findings call a place in the program."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers.module_names import folded, kernel_called, spoken
from nsysx.catalogue import Call
from nsysx.events.attribute import IN_STEP
from nsysx.events.layers import bare
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.findings._finding_bounds import MOST_NAMED_NETWORKS
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.judging.program import program_of
from nsysx.model import Row


def called(profile: Profile, module: str) -> str:
    """Return a module as people write it, see ``module_names.spoken``."""

    def classes(pattern: str) -> list[str]:
        tree = profile.once(_classes)
        return list(tree["cls"].filter(tree["module"].str.contains(f"^{pattern}$")))

    return spoken(module, classes)


def _classes(profile: Profile) -> pl.DataFrame:
    """Return module, cls: the modules whose class is known."""
    return profile.attributed.modules.select(pl.col("module").cast(pl.String), "cls").drop_nulls()


#: Directions of copies that a program makes, in words.
_WAYS = {"HtoD": "to the GPU", "DtoH": "to the host"}


def networks_called(profile: Profile) -> str:
    """Return the classes of the networks that the program calls: "GPT", "Encoder and Decoder", "" where none is known."""
    classes = program_of(profile).networks
    if len(classes) > MOST_NAMED_NETWORKS + 1:
        classes = (*classes[:MOST_NAMED_NETWORKS], f"{len(classes) - MOST_NAMED_NETWORKS} more")
    return f"{', '.join(classes[:-1])} and {classes[-1]}" if len(classes) > 1 else "".join(classes)


def launched_by(profile: Profile) -> Row:
    """Return what a step's launches belong to: the networks that the program calls, and its optimizer's step."""
    program, asked = program_of(profile), networks_called(profile)
    network = f"{asked}.forward{' and backward' if program.trains else ''}" if asked else ""
    optimizer = f"{program.optimizer_class}.step" if program.optimizer_class else ""
    return {"module": ", ".join(filter(None, (network, optimizer)))}


def near(profile: Profile, calls: Iterable[int]) -> str:
    """Return between which parts of the program most of these calls lie: "after Encoder.forward, before Adam.step".

    For calls outside of all modules. Where the capture names no part, it is the kernel before them; "" if there is none.
    """
    call_rows = np.fromiter(calls, np.int64)
    if not len(call_rows):
        return ""
    api = profile.attributed.api_calls
    in_module = lookup.coded(api["module"], {IN_STEP: 0}) < 0
    in_module &= api["module"].is_not_null().to_numpy()
    before, behind = _nearest_calls(in_module, api["thread"].to_numpy(), call_rows)
    earlier, later = (_part(profile, rows) for rows in (before, behind))
    if earlier and earlier == later:
        return f"between calls of {earlier}"
    if earlier and later:
        return f"between {earlier} and the next {later}"
    part = f"after {earlier}" if earlier else f"before {later}" if later else ""
    return part or _kernel_before(profile, call_rows)


def _nearest_calls(chosen: Flags, thread: I64, places: I64) -> tuple[I64, I64]:
    """Return the nearest of the chosen calls before and behind each of these, on its thread, -1 for none."""
    rows = np.flatnonzero(chosen)
    behind_row = np.searchsorted(rows, places)
    rows = np.concatenate(([-1], rows, [-1]))
    nearest = rows[behind_row], rows[behind_row + 1]
    before, behind = (np.where((row >= 0) & (thread[row] == thread[places]), row, -1) for row in nearest)
    return before, behind


def _part(profile: Profile, rows: I64) -> str:
    """Return the module of most of these calls, and the phase where it is not its usual one; "" where most have none."""
    api = profile.attributed.api_calls
    names = pl.DataFrame([lookup.at(api[c], rows).cast(pl.String) for c in ("module", "phase")])
    most = names.group_by("module", "phase").len().sort("len", "module", "phase", descending=[True, False, False])
    module, phase, _ = most.row(0)
    if module is None:
        return ""
    if phase == "optimizer":
        return f"{program_of(profile).optimizer_class or 'optimizer'}.step"
    name = called(profile, bare(module))
    return name if phase in (None, "", name, "forward", "evaluation") else f"{name}.{phase}"


def _kernel_before(profile: Profile, rows: I64) -> str:
    """Return "after the kernel NAME": the kernel that is mostly launched last before these calls."""
    api, ops = profile.attributed.api_calls, profile.attributed.gpu_ops
    before, _ = _nearest_calls(api["kind"].is_in(Call.LAUNCHES).to_numpy(), api["thread"].to_numpy(), rows)
    launched = ops["call", "name"].filter(
        (ops["op_kind"] == "kernel") & lookup.among(pl.Series(np.unique(before[before >= 0])), ops["call"])
    )
    names = launched.group_by(pl.col("name").cast(pl.String)).len().sort("len", "name", descending=[True, False])
    after = f"after {kernel_called(str(names['name'][0]))}" if names.height else ""
    return ", ".join(filter(None, (_moved(profile, rows), after)))


def _moved(profile: Profile, rows: I64) -> str:
    """Return "a copy of 128 MiB to the host" where most of these calls copy one way, "" elsewhere; the size is the usual one."""
    ops, calls = profile.attributed.gpu_ops["call", "op_kind", "bytes", "name"], np.unique(rows)
    copies = ops.filter((ops["op_kind"] == "memcpy") & lookup.among(pl.Series(calls), ops["call"]))
    way = _WAYS.get(str(copies["name"][0])) if copies.height and copies["name"].n_unique() == 1 else None
    if way is None or 2 * copies["call"].n_unique() < len(calls):
        return ""
    usual = copies["bytes"].median()
    return f"a copy of {units.size(float(usual))} {way}" if isinstance(usual, (int, float)) else f"a copy {way}"


def module_of_most(profile: Profile, work: pl.DataFrame) -> tuple[str, int]:
    """Return the module, numbers folded, in which most of this work is, and its time there (ns); "" outside of all modules.

    Columns: module, ns.
    """
    paths = work.select(pl.col("module").cast(pl.String), "ns").drop_nulls("module").filter(pl.col("module") != IN_STEP)
    if not paths.height:
        return "", 0
    paths = paths.with_columns(pl.col("module").map_elements(lambda m: folded(bare(m)), pl.String))
    sums = paths.group_by("module").agg(pl.col("ns").sum()).sort("ns", "module", descending=[True, False])
    return called(profile, str(sums["module"][0])), int(sums["ns"][0])


def mostly(profile: Profile, kernels: pl.DataFrame) -> Row:
    """Return where most of these kernels' time is: their module, numbers folded, else the kernel. Columns: name, module, ns."""
    names = (
        kernels.group_by("name", "module")
        .agg(pl.col("ns").sum())
        .with_columns(pl.col("name", "module").cast(pl.String))
    )
    module, _ = module_of_most(profile, names)
    if module:
        return {"module": module}
    most = names.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    return {"near": kernel_called(str(most["name"][0]))} if most.height else {}
