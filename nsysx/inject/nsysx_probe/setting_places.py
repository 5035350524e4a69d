"""Where the program sets what changes its speed: the line of its own code that does so first. Noted once, before and between steps."""

from __future__ import annotations

import inspect
import operator
import weakref
from typing import Any

from . import patch, settings_objects
from .changes import place
from .output import Output
from .probe_bounds import MOST_OBJECTS, MOST_TABLES
from .settings_state import asked

#: What sets something: the name under which its line is noted, the function of torch, and which of its calls do, by its own names.
_SETTERS = (
    ("anomaly", "autograd.set_detect_anomaly.__init__", "mode"),
    ("anomaly", "autograd.detect_anomaly.__init__", "True"),
    ("deterministic", "use_deterministic_algorithms", "mode"),
    ("DDP", "nn.parallel.DistributedDataParallel.__init__", "True"),
    ("DataParallel", "nn.DataParallel.__init__", "True"),
    ("SyncBatchNorm", "nn.SyncBatchNorm.convert_sync_batchnorm.__func__", "True"),
    ("comm_hook", "nn.parallel.DistributedDataParallel.register_comm_hook", "hook"),
    ("compile", "_TorchCompileWrapper.__init__", "True"),  # of a backend that is not the usual one
    ("scaler", "amp.GradScaler.__init__", "enabled"),
    ("float64", "set_default_dtype", "str(d) == 'torch.float64'"),
    ("double", "nn.Module.double", "True"),
    ("no_matmul_tf32", "set_float32_matmul_precision", "precision == 'highest'"),
    ("no_matmul_tf32", "backends.cuda.cuBLASModule.__setattr__", "name == 'allow_tf32' and value is False"),
    ("sdpa", "backends.cuda.enable_flash_sdp", "enabled is False"),
    ("sdpa", "backends.cuda.enable_mem_efficient_sdp", "enabled is False"),
    ("sdpa", "nn.attention._sdpa_kernel", "len(backends) == 1"),
)
#: The same of what a program imports, if at all, before it starts torch.distributed.
_SHARDERS = (
    ("FSDP", "distributed.fsdp.FullyShardedDataParallel.__init__", "True"),
    ("FSDP", "distributed.fsdp.fully_shard", "True"),
    ("stage", "distributed.pipelining.stage._PipelineStageBase.__init__", "True"),
    ("checkpoint", "distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper.__init__", "True"),
    ("schedule", "distributed.pipelining.schedules._PipelineSchedule.__init__", "n_microbatches"),
)


class SettingPlaces:
    """``noted``: name of a setting -> file:line; autocast: where its regions are entered most often in the step that was watched.

    ``numbers``: name of a setting -> the number that it was set to; schedule: its micro-batches. ``tables``: class, rows and width of
    embeddings, and the line that makes them, each once. ``loader_lines``: file:line of what made a loader, which may be gone by then.
    """

    def __init__(self, torch: Any, out: Output) -> None:
        self.noted: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.tables: list[dict[str, Any]] = []
        self.loader_lines: dict[str, None] = {}
        self._torch, self._out = torch, out
        self._patcher: patch.Patcher | None = None
        self._made: dict[int, tuple[weakref.ref[Any], str]] = {}

    def record(self) -> dict[str, Any]:
        """Return what the probe's file holds of it."""
        return {"tables": list(self.tables), "places": dict(self.noted), "numbers": dict(self.numbers)}

    def arm(self, patcher: patch.Patcher) -> None:
        """Follow the functions that set something."""
        self._patcher, torch = patcher, self._torch
        self._follow(_SETTERS + _SHARDERS)
        patcher.around(torch.backends.ContextProp.__set__, "backend", "self.setter", self._sets, patch.nothing)
        for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag):
            table = "(type(self).__name__, num_embeddings, embedding_dim)"
            patcher.around(kind.__init__, "table_made", table, self._makes_table, patch.nothing)
        loaders = settings_objects.loaded("torch.utils.data.dataloader", "DataLoader")
        if loaders is not None:  # what its __init__ ends with
            patcher.around(
                loaders.check_worker_number_rationality, "loader_made", "self", self._makes_loader, patch.nothing
            )
        starts = settings_objects.loaded("torch.distributed.distributed_c10d", "_update_default_pg")
        if starts is not None:
            patcher.around(starts, "group", "None", lambda _: self._follow(_SHARDERS), patch.nothing)

    def _follow(self, setters: tuple[tuple[str, str, str], ...]) -> None:
        assert self._patcher is not None
        for name, path, when in setters:
            function = inspect.unwrap(asked(operator.attrgetter(path), self._torch) or patch.nothing)
            if not any(function in (each.function, patch.nothing) for each in self._patcher.patches):
                self._once(function, name, when)

    def _once(self, function: Any, name: str, when: str) -> None:
        """Note where the program calls a function first with ``when`` true; from then on the function has its own code."""
        assert self._patcher is not None
        patches = self._patcher.patches

        def enter(sets: Any) -> None:
            if sets:
                self.note(name, sets)
                for each in patches:
                    if each.function is function:
                        each.off()

        self._patcher.around(function, f"places_{name}", when, enter, patch.nothing)

    def _sets(self, setter: Any) -> None:
        """A switch of torch.backends is set, such as cudnn.benchmark."""
        self.note(str(getattr(setter, "__name__", "")).removeprefix("_set_"))

    def note(self, name: str, value: Any = None) -> None:
        """Note the line that runs now for a setting that has none yet; what it is set to if that is a number, the line of a function."""
        try:
            if name not in self.noted:
                self.noted[name] = place()
                if type(value) is int:
                    self.numbers[name] = value
                line = settings_objects.line_of(value) if callable(value) else None
                if line is not None:
                    self.noted[f"{name} function"] = line
        except Exception as error:
            self._out.wrong("places of settings", error)

    def made(self, thing: Any) -> None:
        """An optimizer or a loader is being made: keep its line, unless there are many."""
        try:
            if len(self._made) >= MOST_OBJECTS:
                self._made = {key: kept for key, kept in self._made.items() if kept[0]() is not None}
            if len(self._made) < MOST_OBJECTS:
                self._made[id(thing)] = weakref.ref(thing), place()
        except Exception as error:
            self._out.wrong("places of objects", error)

    def _makes_loader(self, loader: Any) -> None:
        """A loader is being made: its options are changed in that line."""
        self.made(loader)
        line = self.made_at(loader)
        if line and len(self.loader_lines) < MOST_OBJECTS:
            self.loader_lines[line] = None

    def _makes_table(self, table: tuple[str, Any, Any]) -> None:
        """A table of embeddings is being made: note its line, unless there are many."""
        try:
            if len(self.tables) < MOST_TABLES:
                rows, width = int(table[1]), int(table[2])
                row = {"class": table[0], "rows": rows, "width": width, "made": place()}
                if row["made"] and row not in self.tables:
                    self.tables.append(row)
        except Exception as error:
            self._out.wrong("places of tables", error)

    def made_at(self, thing: Any) -> str | None:
        """Return the file:line that made an optimizer or a loader, None where that is not known."""
        ref, line = self._made.get(id(thing), (lambda: None, ""))
        return line or None if ref() is thing else None
