"""The settings of a program that change its speed, read once inside it, in the first X-ray step of each window.

`SettingsReader` reads what does not change when the step begins, watches while the step runs (autocast regions, checkpoint calls, kinds of
numbers, which backwards reduce gradients), and puts all of it into one record when the step ends. Outside that step every function
that the other parts call is one look at ``watching``. No tensor's values are read in a step but those of one batch that a loader has put
together on the CPU, and behind the window some of masks and of what networks are given; nothing is synchronized, CUDA is not started.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import patch, settings_card, settings_compile, settings_groups, settings_objects, settings_state, variable_places
from .autocast_places import AutocastEntries
from .batch_padding import BatchPadding
from .changes import place
from .evaluations import Evaluations
from .interrupts import of_program
from .loader_settings import LoaderSettings
from .network_inputs import NetworkInputs
from .output import Output
from .probe_bounds import MOST_LOADERS, MOST_OBJECTS, MOST_OUTPUTS, WIDEST_OUTPUT
from .saved_for_backward import SavedForBackward
from .setting_places import SettingPlaces
from .settings_state import asked, name_of
from .unread_gradients import UnreadGradients
from .untrained_weights import UntrainedWeights

#: What optimizers have to live for.
OF_OPTIMIZERS = ("optimizers", "unheld", "unread", "unread_weights", "gradient_readers", "gradient_buffers")


class SettingsReader:
    """``optimizers`` returns weak references to those that live; ``graphs`` how many CUDA graphs the program holds."""

    def __init__(
        self, torch: Any, out: Output, optimizers: Callable[[], list[Any]], graphs: Callable[[], int] = lambda: 0
    ) -> None:
        self.torch, self.out = torch, out
        self.watching, self.graphs = False, graphs
        self.outputs: list[Callable[[Any, Any], None]] = []  # `output` while it is watched: module calls look here
        self._optimizers = optimizers
        self._read: dict[str, Any] | None = None
        self._padding = BatchPadding(torch)
        self.saved_tensors = SavedForBackward(torch, out)
        self.inputs, self.untrained = NetworkInputs(torch, optimizers), UntrainedWeights(torch)
        self._seen: dict[str, Any] = {}
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._saves: dict[str, dict[str, int]] = {}  # of each line
        self.places = SettingPlaces(torch, out)
        self._loaders = LoaderSettings(torch, self.places)
        self.evaluations = Evaluations(torch, self._loaders.begun_before, lambda: self.inputs.held)
        self._patches: list[patch.Patch] | None = None
        self._began_ns = self._took_ns = self._saving_ns = 0

    def arm(self, patcher: patch.Patcher) -> None:
        """Follow torch.save, from where it opens its file to where it closes it."""
        room = self.torch.serialization
        patcher.around(room._open_zipfile_writer, "save", "None", self.saves, patch.nothing)
        for kind in (room._open_zipfile_writer_file, room._open_zipfile_writer_buffer):
            patcher.around(kind.__exit__, "saved", "None", self.saved, patch.nothing)
        self.places.arm(patcher)

    def recorded(self, index: int, *, last: bool, cold: bool) -> None:
        """A recorded step begins: the window's ``last`` one, behind which masks are read, or an X-rayed one of a ``cold`` start."""
        self.saved_tensors.begin(last=last)
        self.inputs.begin(index, holds=last or cold)

    # ---- the step that is watched -----------------------------------------------------------------------------------

    def begin(self, index: int) -> None:
        """Begin to watch step ``index``."""
        self._safely(lambda: self._begin(index))

    def _begin(self, index: int) -> None:
        before = time.perf_counter_ns()
        self._seen = {
            "step": index,
            "state": self._state(),
            "autocast": AutocastEntries(),
            "checkpoints": 0,
            "backwards": 0,
            "reducing": None,
            "networks": {},
            "wrappers": [],
            "stepping": {},
            "scalers": {},
            "activations": {},
            "largest": None,
            "float64_out": [],
            "anomaly": False,
            "unread": UnreadGradients(self.torch),
            "groups": asked(settings_groups.counts) or {},
            "left": MOST_OUTPUTS,
        }
        self._roots.clear()
        self.untrained.begin()
        self._padding = BatchPadding(self.torch)
        self._watch(True)
        self._took_ns = time.perf_counter_ns() - before

    def end(self) -> None:
        """End to watch, and make the record."""
        self.inputs.again.end()
        if self.watching:
            self._safely(self._end)

    def _end(self) -> None:
        before = time.perf_counter_ns()
        self._watch(False)
        older, self._read = self._read, self._made()
        if older and self._seen["stepping"] and not self._read["optimizers"]:  # gone, as at the program's end
            self._read.update((name, older[name]) for name in OF_OPTIMIZERS)
        self._read["took_ns"] = self._took_ns + time.perf_counter_ns() - before
        self._seen = {}

    def window_closed(self) -> None:
        """The window has closed: what had to wait for that is read now."""
        for part in (self._padding, self.saved_tensors, self.evaluations, self.inputs, self.untrained, self._loaders):
            self._safely(part.window_closed)

    def record(self, *, last: bool) -> dict[str, Any] | None:
        """Return the record, None as long as there is none. ``last``: no step comes that could be watched; the rest is read now."""
        if last:
            self.end()
            self._safely(self.evaluations.window_closed)
            self._safely(self.untrained.ended)
        if last and self._read is None:
            self._safely(self._without_step)
        if self._read is None:
            return None
        saves = [{"place": line, **about} for line, about in list(self._saves.items())[:MOST_LOADERS]]
        return {
            **self._read,
            "loaders": self._loaders.rows(),
            "saves": saves,
            "padding": self._padding.counts,
            **self.saved_tensors.record(),
            "inputs": self.inputs.rows,
            "given_again": self.inputs.again.rows,
            "untrained": self.untrained.rows,
            "evaluations": self.evaluations.record(),
            "given_rows": self.evaluations.given_rows.rows,
            **self.places.record(),
        }

    def _without_step(self) -> None:
        before = time.perf_counter_ns()
        self._seen = {"step": None, "state": self._state()}
        self._read = self._made()
        self._read["took_ns"] = time.perf_counter_ns() - before

    def _watch(self, on: bool) -> None:
        self.watching = on
        self.outputs[:] = [self.output] if on else []
        if on and self._patches is None:
            self._patches = self._made_patches()
        for each in self._patches or ():
            each.on() if on else each.off()

    def _safely(self, work: Callable[[], None]) -> None:
        """Do some work; a failure is noted and ends the watching, nothing else. Raises what is the program's."""
        try:
            work()
        except Exception as error:
            self.watching = False
            self.outputs.clear()
            for each in self._patches or ():
                each.off()
            if of_program(error):
                raise
            self.out.note(f"settings: {type(error).__name__}: {error}")

    def _traced(self) -> bool:
        """Return whether torch.jit traces: it would write down what a tensor is asked."""
        return self.torch._C._get_tracing_state() is not None

    def _made_patches(self) -> list[patch.Patch]:
        """Return the functions that are followed while a step is watched: they may be called in places that no phase knows."""
        patcher = patch.Patcher(self.torch.compiler.is_dynamo_compiling, self.out.wrong)
        patcher.around(self.torch.autocast.__enter__, "autocast", "self", self._autocast, patch.nothing)
        checkpoints = settings_objects.loaded("torch.utils.checkpoint", "checkpoint")
        if checkpoints is not None:
            inner = getattr(checkpoints, "__wrapped__", checkpoints)
            patcher.around(inner, "checkpoint", "None", self._checkpoint, patch.nothing)
        compiling = self.torch.compiler.is_dynamo_compiling
        return patcher.patches + self._loaders.patches(compiling, self._batch, self._drawn, self.out)

    # ---- what the other parts tell while the step runs --------------------------------------------------------------

    def _autocast(self, region: Any) -> None:
        def note() -> None:
            self._seen["autocast"].note(region, f"{region.device}:{name_of(region.fast_dtype)}")

        if self.watching:
            self._safely(note)

    def _checkpoint(self, _nothing: Any) -> None:
        if self.watching:
            self._seen["checkpoints"] += 1

    def _batch(self, iterator: Any, batch: Any) -> Any:
        """A loader returns a batch."""
        if self.watching and not self._traced():
            self._safely(lambda: self._padding.loaded(batch))
            self._safely(lambda: self._loaders.loads(iterator, batch))
        return batch

    def _drawn(self, iterator: Any, samples: Any) -> Any:
        """A loader has drawn the numbers of a batch."""
        if self.watching and not self._traced():
            self._safely(lambda: self._loaders.draws(iterator, samples))
        return samples

    def network(self, module: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        """A network is called, not from inside another one."""
        if self.watching and not self._traced():
            self._safely(lambda: self._network(module, args, kwargs or {}))
            self._safely(lambda: self._padding.called(module, args, kwargs or {}))
        if self.inputs.looks and not self._traced():
            self._safely(lambda: self.inputs.called(module, args, kwargs or {}))

    def evaluates(self, module: Any, given: tuple[Any, ...], step: int) -> None:
        """A network is called between two steps to evaluate, not from inside another one."""
        if not self._traced():
            self._safely(lambda: self.evaluations.called(module, given, step, recorded=self.out.recording))

    def _network(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._seen["unread"].inputs(module, args, kwargs)
        if id(module) in self._roots or len(self._roots) >= MOST_OBJECTS:
            return
        self._roots[id(module)] = weakref.ref(module)
        seen = self._seen
        seen["unread"].network(module)
        about = asked(lambda: settings_objects.network(self.torch, module))
        if about is not None:
            seen["networks"][id(module)] = about
        seen["wrappers"] += settings_objects.wrappers(module)
        seen["anomaly"] = seen["anomaly"] or bool(asked(self.torch.is_anomaly_enabled))
        seen["autocast"].told["forward"] = seen["autocast"].told["forward"] or self._autocast_now()

    def _autocast_now(self) -> str | None:
        try:
            if not self.torch.is_autocast_enabled("cuda"):
                return None
            return name_of(self.torch.get_autocast_dtype("cuda"))
        except Exception:  # an older torch
            return name_of(self.torch.get_autocast_gpu_dtype()) if self.torch.is_autocast_enabled() else None

    def backward(self) -> None:
        """A backward begins."""
        if self.watching:
            self._safely(self._backward)

    def _backward(self) -> None:
        seen = self._seen
        seen["backwards"] += 1
        seen["unread"].begins()
        seen["anomaly"] = seen["anomaly"] or bool(asked(self.torch.is_anomaly_enabled))
        reduce = [asked(settings_objects.reduces, network) for network in self._networks()]
        if any(answer is not None for answer in reduce):
            seen["reducing"] = (seen["reducing"] or 0) + any(reduce)

    def backward_ended(self) -> None:
        """The backward has ended."""
        if self.watching and self._seen["backwards"]:
            self._safely(lambda: self._seen["unread"].ended())

    def zeroes(self) -> None:
        """Gradients are about to be reset."""
        if self.watching and not self._traced():
            self._safely(lambda: self._seen["unread"].zeroes())

    def stepping(self, optimizer: Any, scaler: Any = None) -> None:
        """An optimizer steps, or a gradient scaler steps it."""
        if self.watching and not self._traced():
            self._safely(lambda: self._stepping(optimizer, scaler))

    def _stepping(self, optimizer: Any, scaler: Any) -> None:
        seen = self._seen
        if scaler is not None:
            seen["scalers"][id(scaler)] = settings_objects.scaler(scaler)
        if scaler is None and hasattr(optimizer, "param_groups"):
            seen["unread"].read(optimizer)
            self.untrained.stepping(self._networks())
        if id(optimizer) not in seen["stepping"] and hasattr(optimizer, "param_groups"):
            seen["stepping"][id(optimizer)] = settings_objects.gradients(self.torch, optimizer)

    def output(self, entry: Any, value: Any) -> None:
        """A module has returned ``value``."""
        if not self._traced():
            self._safely(lambda: self._output(entry, value))

    def _output(self, entry: Any, value: Any) -> None:
        seen, tensor = self._seen, self.torch.Tensor
        if isinstance(value, (tuple, list)):
            items: Any = value[:WIDEST_OUTPUT]
        else:
            items = list(value.values())[:WIDEST_OUTPUT] if isinstance(value, dict) else (value,)
        for item in items:
            if type(item) is not tensor or seen["left"] <= 0 or self.torch._C._len_torch_function_stack():
                continue
            seen["left"] -= 1
            name, elements = name_of(item.dtype), int(item.numel())
            total = seen["activations"].setdefault(name, [0, 0])
            total[0] += 1
            total[1] += elements
            size = elements * item.element_size()
            if name == "float64" and len(seen["float64_out"]) < MOST_OBJECTS:
                seen["float64_out"].append(entry.path)
            if seen["largest"] is None or size > seen["largest"]["bytes"]:
                shape = [int(n) for n in item.shape]
                seen["largest"] = {"module": entry.path, "dtype": name, "shape": shape, "bytes": size}

    def saves(self, _nothing: Any) -> None:
        """torch.save begins. That is counted always, because it is rare."""
        self._saving_ns = time.perf_counter_ns()

    def saved(self, _nothing: Any) -> None:
        """torch.save has written."""

        def note() -> None:
            row = self._saves.setdefault(place(), {"count": 0, "ns": 0})
            row["count"] += 1
            row["ns"] += time.perf_counter_ns() - self._saving_ns

        self._safely(note)

    def iterates(self, loader: Any, steps: int) -> None:
        """A loader makes an iterator, after so many steps. That is counted always, because it is rare."""
        self._safely(lambda: self._loaders.iterates(loader, steps))

    # ---- the record -------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        torch = self.torch
        return {
            "environment": asked(lambda: settings_state.environment_now(self.out.environ)),
            "switches": asked(lambda: settings_state.switches(torch)),
            "gc": asked(settings_state.collector),
            "cpu": asked(lambda: settings_state.processors(torch)),
        }

    def _made(self) -> dict[str, Any]:
        torch, seen = self.torch, self._seen
        state = seen.pop("state")
        living = [o for o in (ref() for ref in self._optimizers()) if o is not None][:MOST_OBJECTS]
        living = [] if self._traced() else living
        optimizers = []
        for each in settings_objects.of_program(living):
            about = asked(settings_objects.optimizer, torch, each)
            if about is not None:
                optimizers.append(
                    {**about, "gradients": seen.get("stepping", {}).get(id(each)), "made": self.places.made_at(each)}
                )
        if seen.get("anomaly") and state["switches"] is not None:
            state["switches"]["anomaly"] = True
        watched = seen["step"] is not None
        if watched:
            self._safely(lambda: self.untrained.judge(self._networks(), living, seen["unread"].readers()))
        if watched and (line := seen["autocast"].most_entered()):
            self.places.noted["autocast"] = line
        self.places.noted.update(asked(lambda: variable_places.places(self.out.environ)) or {})
        return {
            "step": seen["step"],
            **state,
            "memory": asked(lambda: settings_state.memory(torch)),
            "card": asked(lambda: settings_card.card(torch)),
            "compile": asked(settings_compile.compiled),
            "graphs": asked(self.graphs),
            "optimizers": optimizers,
            "scalers": list(seen["scalers"].values()) if watched else None,
            "autocast": seen["autocast"].told if watched else None,
            "checkpoints": seen["checkpoints"] if watched else None,
            "backwards": seen["backwards"] if watched else None,
            "reducing": seen["reducing"] if watched else None,
            "networks": list(seen["networks"].values()) if watched else None,
            "wrappers": seen["wrappers"] if watched else None,
            "groups": asked(self._groups) if watched else None,
            "activations": _activations(seen) if watched else None,
            "unheld": asked(lambda: seen["unread"].unheld(living)) if watched else None,
            "unread": asked(lambda: seen["unread"].finish(living)) if watched else None,
            "unread_weights": asked(lambda: seen["unread"].weights(living)) if watched else None,
            "gradient_readers": asked(seen["unread"].readers) if watched else None,
            "gradient_buffers": asked(seen["unread"].in_buffers) if watched else None,
        }

    def _networks(self) -> list[Any]:
        return [root for root in (ref() for ref in self._roots.values()) if root is not None]

    def _groups(self) -> list[dict[str, Any]]:
        return settings_groups.groups(self._seen["groups"], self._networks())


def _activations(seen: dict[str, Any]) -> dict[str, Any]:
    dtypes = {name: {"count": count, "elements": elements} for name, (count, elements) in seen["activations"].items()}
    return {"dtypes": dtypes, "largest": seen["largest"], "float64_in": seen["float64_out"]}
