"""The settings of a program that change its speed, as its probe read them once inside it. What was not read is None: unknown, not off."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsysx import ids
from nsysx.events.profile import Profile
from nsysx.model import Row
from nsysx.records import whole_number

#: Lines of objects: the kind, what holds the line, and the number by which one comes first. ``loop`` is where a loader is iterated.
#: ``samples``, ``collate`` and ``shares`` are the program's own functions that make its samples, put its batches together and choose them.
_OBJECTS = {
    "optimizer": ("optimizers", "made", "elements"),
    "loader": ("loaders", "made", "iterators"),
    "loop": ("loaders", "place", "iterators"),
    "samples": ("loaders", "samples", "iterators"),
    "collate": ("loaders", "collates", "iterators"),
    "shares": ("loaders", "shares", "iterators"),
}


def file_and_line(noted: Any) -> Row:
    """Return file and line of a place as the probe notes it (file:line), empty where it noted none."""
    file, _, line = str(noted or "").rpartition(":")
    return {"file": file, "line": int(line)} if file and line.isdigit() else {}


#: What people call groups of ranks that share a network or a sequence, and must be given the same.
_OF_ONE_NETWORK = re.compile(
    r"(?i)(?<![a-z])(tp|cp|sp|pp|ep|tensor|context|sequence|seq|pipe|pipeline|stage|expert|model)(?![a-z])"
)
#: Bytes of numbers by their kind.
BYTES_OF_KIND = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


@dataclass(frozen=True)
class RecordedSettings:
    """What the probe's file holds under ``settings``. Every answer is None where the file does not tell."""

    record: Mapping[str, Any]

    def variable(self, name: str) -> str:
        """Return the value of an environment variable, "" where it is not set or not known."""
        environment = self._part("environment")
        values = environment.get("values")
        value = values.get(name) if isinstance(values, Mapping) else None
        return value if isinstance(value, str) else ""

    def switch(self, name: str) -> Any:
        """Return a switch of torch."""
        return self._part("switches").get(name)

    def cpu(self, name: str) -> Any:
        """Return a fact about the processors that the program may use."""
        return self._part("cpu").get(name)

    def card(self, name: str) -> Any:
        """Return a fact about the GPU, as the driver has it."""
        return self._part("card").get(name)

    def place(self, *names: str) -> Row:
        """Return file and line where the program first sets one of these, the first that is known; empty if none is.

        Names of `_OBJECTS` are those of objects: of the loader that is iterated most, of the optimizer with most parameters.
        """
        places = self._part("places")
        noted = (self._of_object(name) if name in _OBJECTS else places.get(name) for name in names)
        return next((row for row in map(file_and_line, noted) if row), {})

    def micro_batches(self) -> int | None:
        """Return the micro-batches of a pipeline's step: as its schedule is made, else its backwards; None where that is not known.

        Whether the ranks are stages of one the messages between them tell; those that a wrapper spans are none.
        """
        of_schedule = whole_number(self._part("numbers").get("schedule"))
        return of_schedule or (self.number("backwards") if self.rows("wrappers") == () else None)

    def _of_object(self, name: str) -> Any:
        kind, key, most = _OBJECTS[name]
        row = max(self.rows(kind) or (), key=lambda row: whole_number(row.get(most)) or 0, default={})
        return row.get(key)

    def autocast(self, name: str) -> Any:
        """Return a fact about the autocast regions of the step that was watched."""
        return self._part("autocast").get(name)

    def activations(self, name: str) -> Any:
        """Return a fact about what the modules of that step returned."""
        return self._part("activations").get(name)

    def compiled(self, name: str) -> Any:
        """Return a fact about torch.compile."""
        return self._part("compile").get(name)

    def number(self, name: str) -> int | None:
        """Return a count: ``backwards`` of the step, those ``reducing`` gradients, ``checkpoints``, ``graphs``."""
        return whole_number(self.record.get(name))

    def rows(self, name: str) -> tuple[Row, ...] | None:
        """Return the objects of a kind: optimizers, scalers, networks, wrappers, loaders."""
        rows = self.record.get(name)
        return tuple(r for r in rows if isinstance(r, Mapping)) if isinstance(rows, list) else None

    def groups_of_ranks(self) -> list[list[int]]:
        """Return the ranks of each process group that has several, as far as they are known."""
        ranks = (row.get("ranks") for row in self.rows("groups") or ())
        return [each for each in ranks if isinstance(each, list) and len(each) > 1]

    def divides_network(self) -> bool:
        """Return whether a group of ranks is, by its name, one that shares a network or a sequence."""
        names = (str(row.get(name) or "") for row in self.rows("groups") or () for name in ("dimension", "description"))
        return any(_OF_ONE_NETWORK.search(name) for name in names)

    def trained_bytes(self, kind: str = "") -> int:
        """Return the bytes of all parameters of the optimizers, as numbers of a kind ("": as they are); 0 where that is not known."""
        whole = 0
        for row in self.rows("optimizers") or ():
            elements, kinds = whole_number(row.get("elements")) or 0, row.get("dtypes")
            stored = str(next(iter(kinds), "float32")) if isinstance(kinds, Mapping) else "float32"
            whole += elements * BYTES_OF_KIND.get(kind or stored, 4)
        return whole

    def wrappers(self, kind: str) -> tuple[Row, ...] | None:
        """Return the wrappers of ranks of one kind: DDP, FSDP or fully_shard."""
        rows = self.rows("wrappers")
        return None if rows is None else tuple(r for r in rows if r.get("kind") == kind)

    def _part(self, name: str) -> Mapping[str, Any]:
        part = self.record.get(name)
        return part if isinstance(part, Mapping) else {}


def settings_of(profile: Profile) -> RecordedSettings | None:
    """Return the settings of the shown process, None where its probe did not read them."""
    return profile.once(_read)


def _read(profile: Profile) -> RecordedSettings | None:
    records = [p.get("settings") for p in ids.records_of(profile.trace.capture.probe, profile.steps.process)]
    return next((RecordedSettings(r) for r in records if isinstance(r, Mapping)), None)
