"""Where the program sets what changes its speed: the line of its own code that does so first. Noted once, before and between steps."""

from __future__ import annotations

from typing import Any

from . import patch, settings_objects
from .changes import place
from .output import Output


class SettingPlaces:
    """``noted``: name of a setting -> file:line."""

    def __init__(self, torch: Any, out: Output) -> None:
        self.noted: dict[str, str] = {}
        self._torch, self._out = torch, out
        self._patcher: patch.Patcher | None = None

    def arm(self, patcher: patch.Patcher) -> None:
        """Follow the functions that set something."""
        self._patcher, torch = patcher, self._torch
        self._once(torch.autograd.set_detect_anomaly.__init__, "anomaly", "mode")
        self._once(torch.autograd.detect_anomaly.__init__, "anomaly", "True")
        self._once(torch.use_deterministic_algorithms, "deterministic", "mode")
        ddp = settings_objects.loaded("torch.nn.parallel.distributed", "DistributedDataParallel")
        if ddp is not None:
            self._once(ddp.__init__, "DDP", "True")
        patcher.around(torch.backends.ContextProp.__set__, "backend", "self.setter", self._sets, patch.nothing)

    def _once(self, function: Any, name: str, when: str) -> None:
        """Note where the program calls a function first with ``when`` true; from then on the function has its own code."""
        assert self._patcher is not None
        patches = self._patcher.patches

        def enter(sets: Any) -> None:
            if sets:
                self._note(name)
                for each in patches:
                    if each.function is function:
                        each.off()

        self._patcher.around(function, f"places_{name}", when, enter, patch.nothing)

    def _sets(self, setter: Any) -> None:
        """A switch of torch.backends is set, such as cudnn.benchmark."""
        self._note(str(getattr(setter, "__name__", "")).removeprefix("_set_"))

    def _note(self, name: str) -> None:
        try:
            if name not in self.noted:
                self.noted[name] = place()
        except Exception as error:
            self._out.wrong("places of settings", error)
