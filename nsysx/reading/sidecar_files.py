"""The files beside a report, by its name. Standard library only: ``nsysx try`` looks for them on machines that read no reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysx.reading import opening


def report_name(path: Path) -> str:
    """Return the name of a report without its endings: ``a`` for ``a.sqlite.xz``."""
    name = path.name
    for ending in (*opening.PACKED_MAGIC.values(), ".sqlite", ".nsys-rep"):
        name = name.removesuffix(ending)
    return name if name != path.name else path.stem


def run_json(path: Path) -> dict[str, Any]:
    """Return what ``nsysx run`` wrote into NAME.run.json beside the report, {} if there is nothing usable."""
    path = path if path.name else opening.real(path)  # "." has no name
    value = opening.json_beside(path.with_name(f"{report_name(path)}.run.json"))
    if not isinstance(value, dict):
        return {}
    probe = value.get("probe", [])
    return value | {"probe": [p for p in probe if isinstance(p, dict)] if isinstance(probe, list) else []}
