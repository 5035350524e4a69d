"""What findings call a place in the program."""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.events.profile import Profile


def called(profile: Profile, module: str) -> str:
    """Return a module as people write it: one that is only a number, "*" for several, by its class: "4 x MoE", "MoE (0)"."""
    if not re.fullmatch(r"\d+|\*", module):
        return module
    tree = profile.attributed.modules.select(pl.col("module").cast(pl.String), "cls").drop_nulls()
    rows = tree.filter(tree["module"].str.contains("^[0-9]+$" if module == "*" else f"^{module}$"))
    if rows["cls"].n_unique() != 1:
        return units.several(rows.height, "module") if rows.height > 1 else f"module {module}"
    name = str(rows["cls"][0])
    return f"{rows.height} x {name}" if rows.height > 1 else f"{name} ({module})"
