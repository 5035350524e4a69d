"""Waits until the program imports torch, then arms the probe. Standard library only, Python 3.9 or newer.

It must cost nothing and stay unnoticed, so it adds one finder that looks only for the name ``torch`` and goes once torch has been
executed. A child forked before torch was imported inherits the finder. But nsys does not record such a child, and sending ranges
would kill it, so the probe is not armed there.
"""

from __future__ import annotations

import os
import sys

if False:  # importing typing takes milliseconds, and only readers and type checkers need it
    from typing import Any

#: Why a child has no ranges that was forked before torch was imported.
FORKED = "this process was forked before torch was imported: nsys records nothing of it"

_PID = os.getpid()
_files: dict[tuple[str, int], str] = {}  # the probe file by its folder and the process, once it is known
_run: list[str] = []  # the folders whose sitecustomize has been run


def record_file(folder: str) -> str:
    """Return the probe file of this process. A program that it has replaced (exec) keeps its own, if it had a probe."""
    key = (folder, os.getpid())
    if key not in _files:
        path = f"{folder}/probe-{os.getpid()}.json"
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                armed = '"backend": "off"' not in file.read()
        except OSError:
            armed = False
        _files[key] = f"{folder}/probe-{os.getpid()}-exec.json" if armed else path
    return _files[key]


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
        with open(record_file(folder), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
    except OSError:
        pass


class _Follow:
    """Stands for the ``exec_module`` of one of torch's loaders: runs it, then arms the probe.

    The loader keeps its type, which inspect, pkgutil and importlib.resources look at; only this object's method changes, until
    torch has been executed. A spec may also be made, compared, copied or pickled by a program that only asks whether there is a
    torch, and never executed.
    """

    def __init__(self, loader: Any, finder: _TorchFinder) -> None:
        self.loader = loader
        self.finder = finder
        self.execute = loader.exec_module

    def __eq__(self, other: object) -> bool:
        return callable(other)  # two loaders of one file are equal if their attributes are

    def __hash__(self) -> int:
        return 0

    def __reduce__(self) -> Any:  # a copy is not followed
        copy = object.__new__(type(self.loader))
        vars(copy).update({k: v for k, v in vars(self.loader).items() if k != "exec_module"})
        return getattr, (copy, "exec_module")

    def done(self, module: Any) -> None:
        """Torch has been executed: leave no trace, and arm the probe."""
        vars(self.loader).pop("exec_module", None)
        self.finder.executed(module)


# Python leaves a frame with this file name out of tracebacks, as it does with importlib's own frames.
_CALL = "def __call__(self, module):\n    self.finder.running += 1\n    try:\n        self.execute(module)\n"
_CALL += "    finally:\n        self.finder.running -= 1\n    self.done(module)\n"


class _TorchFinder:
    """Lets the other finders find torch, and arms the probe after torch has been executed, however often it is looked for before.

    Many programs ask for torch's spec before they import it (``importlib.util.find_spec``), import it lazily, or try again after
    an import that failed: so this finder stays until a torch has been executed completely. If another finder in front of this
    one, or a loader whose method cannot be replaced, brings torch in unseen, the next import of anything tells.
    """

    def __init__(self) -> None:
        self.running = 0  # how many of the loaders that are followed execute torch now
        self.gone = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            if "torch" in sys.modules:
                self._look()
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        try:
            if not self.gone and hasattr(loader, "exec_module") and "exec_module" not in vars(loader):
                if "__call__" not in vars(_Follow):
                    space: dict[str, Any] = {"__name__": __name__}
                    exec(compile(_CALL, "<frozen importlib._bootstrap_external>", "exec"), space)  # noqa: S102
                    _Follow.__call__ = space["__call__"]  # type: ignore[method-assign]
                loader.exec_module = _Follow(loader, self)
        except Exception:
            note("torch has a loader that cannot be followed")

    def _look(self) -> None:
        """Arm the probe if torch has been executed by a loader that is not followed."""
        module = sys.modules.get("torch")
        try:
            held = object.__getattribute__(module, "__dict__")  # a module that waits for its first use is not to notice
        except AttributeError:
            return
        if not self.running and "nn" in held and not getattr(held.get("__spec__"), "_initializing", False):
            self.executed(module)

    def executed(self, module: Any) -> None:
        """Arm the probe and go: torch has been executed completely."""
        gone, self.gone = self.gone, True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        ahead = sys.modules.get("nsysx_probe.ahead")
        if ahead is not None:
            ahead.stop()
        if not gone:
            _arm(module)


def _arm(torch: object) -> None:
    of_program: Any = None
    here = os.getpid() == _PID
    try:
        if not here:
            note(FORKED)
        # It may be a loader's worker, also if a server has forked it.
        if here or "multiprocessing.spawn" in sys.modules:
            from . import import_places

            of_program = import_places.load("interrupts").of_program
            if here:
                import_places.load("probe").arm(torch)
            import_places.load("worker_lines").follow_started(torch, os.environ)
    except Exception as error:
        if of_program is not None and of_program(error):
            raise
        note("probe failed: " + "".join(c for c in repr(error) if c.isalnum() or c in " _.:()-"))


def _stay_ahead() -> None:
    """Pass the probe on to other programs although a launcher puts another sitecustomize first."""
    try:
        from . import ahead

        ahead.start()
    except (ImportError, AttributeError):  # a Python without these functions
        pass


def start() -> None:
    """Wait for torch if a profiler is attached; arm at once if torch is already imported (from a .pth file)."""
    if _run:  # a sitecustomize that was run from here has looked for the next one, and found ours
        return
    if os.environ.get("NSYSX_PROBE", "1") == "0":
        note("turned off by NSYSX_PROBE=0")
    elif not (os.environ.get("NVTX_INJECTION64_PATH") or os.environ.get("NSYSX_FORCE")):
        note("no profiler is attached (NVTX_INJECTION64_PATH is not set)")
    elif "torch" in sys.modules:
        _arm(sys.modules["torch"])
    else:
        note("torch was not imported", lacks="torch")
        sys.meta_path.insert(0, _TorchFinder())
        _stay_ahead()


def next_sitecustomize(here: str) -> None:
    """Run the sitecustomize that ours hides, under its own name, as Python would have done."""
    # Every Python has loaded these two; importing importlib.machinery and importlib.util would take most of a millisecond.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    _run.append(here)
    paths = [p for p in sys.path if os.path.abspath(p) not in _run]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", paths)
    ours = os.path.realpath(f"{here}/sitecustomize.py")
    if spec is None or spec.loader is None or (spec.origin and os.path.realpath(spec.origin) == ours):
        return
    _run.append(os.path.dirname(os.path.abspath(spec.origin or "")))  # noqa: PTH100, PTH120
    module = module_from_spec(spec)
    before = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is not None:
            sys.modules["sitecustomize"] = before
        raise
