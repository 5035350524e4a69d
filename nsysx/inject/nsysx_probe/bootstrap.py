"""Waits until the program imports torch, then arms the probe. Standard library only, Python 3.9 or newer.

It must cost nothing and stay unnoticed, so it adds one finder that looks only for the name ``torch``. A child forked before
torch was imported inherits the finder. But nsys does not record such a child, and sending ranges would kill it, so the probe is
not armed there.
"""

from __future__ import annotations

import os
import sys

if False:  # importing typing takes milliseconds, and only readers and type checkers need it
    from typing import Any

_PID = os.getpid()


def note(reason: str, lacks: str = "") -> None:
    """Write a probe file that says why this process has no ranges and which package it ``lacks``. Arming replaces the file."""
    folder = os.environ.get("NSYSX_PROBE_DIR")
    if not folder:
        return
    python = ".".join(map(str, sys.version_info[:3]))
    zeros = '{"step": 0, "phase": 0, "module": 0, "backward_module": 0, "info": 0}'
    text = (
        f'{{"pid": {os.getpid()}, "ppid": {os.getppid()}, "python": "{python}", "torch": null, "nvtx": null, '
        f'"backend": "off", "reason": "{reason}", "lacks": "{lacks}", "ranges": {zeros}, '
        '"ranges_pushed": 0, "pair_cost_ns": null, "errors": []}\n'
    )
    try:
        with open(f"{folder}/probe-{os.getpid()}.json", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
    except OSError:
        pass


class _TorchFinder:
    """Lets the other finders find torch, and arms the probe after torch has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._after(spec.loader)
                return spec
        return None

    @staticmethod
    def _after(loader: Any) -> None:
        # The loader keeps its type, which inspect, pkgutil and importlib.resources look at; only this object's method changes.
        try:
            space = {
                "execute": loader.exec_module,
                "restore": lambda: vars(loader).pop("exec_module", None),
                "arm": _arm,
            }
            # Python leaves a frame with this file name out of tracebacks, as it does with importlib's own frames.
            source = "def exec_module(module):\n    restore()\n    execute(module)\n    arm(module)\n"
            exec(compile(source, "<frozen importlib._bootstrap_external>", "exec"), space)  # noqa: S102
            loader.exec_module = space["exec_module"]
        except Exception:
            note("torch has a loader that cannot be followed")


def _arm(torch: object) -> None:
    if os.getpid() != _PID:
        note("this process was forked before torch was imported: nsys records nothing of it")
        return
    try:
        from . import probe

        probe.arm(torch)
    except Exception as error:
        note("probe failed: " + "".join(c for c in repr(error) if c.isalnum() or c in " _.:()-"))


def start() -> None:
    """Wait for torch if a profiler is attached; arm at once if torch is already imported (from a .pth file)."""
    if os.environ.get("NSYSX_PROBE", "1") == "0":
        note("turned off by NSYSX_PROBE=0")
    elif not (os.environ.get("NVTX_INJECTION64_PATH") or os.environ.get("NSYSX_FORCE")):
        note("no profiler is attached (NVTX_INJECTION64_PATH is not set)")
    elif "torch" in sys.modules:
        _arm(sys.modules["torch"])
    else:
        note("torch was not imported", lacks="torch")
        sys.meta_path.insert(0, _TorchFinder())


def next_sitecustomize(here: str) -> None:
    """Run the sitecustomize that ours hides, under its own name, as Python would have done."""
    # Every Python has loaded these two; importing importlib.machinery and importlib.util would take most of a millisecond.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    paths = [p for p in sys.path if os.path.abspath(p) != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", paths)
    ours = os.path.realpath(f"{here}/sitecustomize.py")
    if spec is None or spec.loader is None or (spec.origin and os.path.realpath(spec.origin) == ours):
        return
    module = module_from_spec(spec)
    before = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is not None:
            sys.modules["sitecustomize"] = before
        raise
