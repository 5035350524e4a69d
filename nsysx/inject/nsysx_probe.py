"""The probe: NVTX ranges for steps, phases and modules of a PyTorch program that knows nothing about it.

``arm(torch)`` is called once, right after torch was imported. Rules that everything here keeps:

- Functions of torch are not wrapped: their code is exchanged (nsysx_patch), so tracebacks, warnings and bindings stay.
- No value of a tensor is read, nothing synchronizes, nothing is allocated on a device, no stack is walked.
- Nothing of ours raises into the program or prints. The first failure is noted in the probe file and ends the probe.
- Nothing of ours is put on the user's modules or tensors, so pickle, deepcopy and state dicts see what they always saw.

Backward by module: when a module returns, the autograd node of its output gets a hook that marks ``bwd path:Cls`` on the
thread that runs backward; the node of its input gets one of the surrounding module, unless a module returned that input.
A node is marked once, by the innermost module. What runs between two marks belongs to the first. The hook is handed to the
node through a tensor of our own, which is five times cheaper than ``register_prehook`` and leaves the graph as it is.

Environment: NSYSX_PROBE_DIR (where probe-<pid>.json goes), NSYSX_DEPTH=N (modules of at most N path parts), NSYSX_ONLY=REGEX
(modules whose path matches), NSYSX_BACKWARD=marks|ops|off, NSYSX_STEPS=A:B (steps A to B-1 are captured, all others run
without ranges), NSYSX_LINES=1 (a mark with the Python line of each wait), NSYSX_SIGTERM=0 (leave SIGTERM alone),
NSYSX_TIMING=1 (no ranges at all, only the length of each step).

Where modules are so small that all this costs more than ``BUDGET`` of a step, those without children lose their backward
marks, and at twice as much their ranges: their time then counts for the module that holds them. That is decided
within the first steps and said in the probe file; naming a NSYSX_BACKWARD, NSYSX_DEPTH or NSYSX_ONLY turns it off.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import nsysx_backend
import nsysx_patch
import nsysx_ranges
import nsysx_ranges as ranges
import nsysx_steps
import nsysx_timing

KINDS = ("step", "phase", "module", "backward_module", "sync", "info")

#: Parts of a path that wrappers add. ``module`` counts only where it is the only child (DistributedDataParallel and kin).
WRAPPER_PARTS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))

#: The share of a step that module ranges and backward marks may cost, by the costs measured at the start. Those are best
#: cases: among the program's own work, with cold caches, they were twice as much (H200, 200 tiny modules).
BUDGET = 0.015
#: The last step after which ranges are still taken back.
THINNED_BY = 3

MODULE_CALL = """
if _nsysx_compiling():
    BODY
_nsysx_e = _nsysx_find(id(self)) or _nsysx_learn(self)
if _nsysx_task() != -1:
    _nsysx_e = _nsysx_e.again
if _nsysx_e.slow and (_nsysx_e.always or not _nsysx_thread.open):
    _nsysx_t = _nsysx_enter(_nsysx_e, self)
    _nsysx_in(_nsysx_e, args, kwargs)
    try:
        RESULT
    finally:
        _nsysx_leave(_nsysx_t)
if _nsysx_e.text is None:
    BODY
_nsysx_push(_nsysx_e.text)
_nsysx_count()
if _nsysx_e.marked and _nsysx_grad():
    _nsysx_in(_nsysx_e, args, kwargs)
    try:
        RESULT
    finally:
        _nsysx_pop()
try:
    BODY
finally:
    _nsysx_pop()
"""

MODULE_CALL_UNMARKED = MODULE_CALL.replace("RESULT", "BODY").replace("_nsysx_in(_nsysx_e, args, kwargs)\n", "pass\n")
MODULE_CALL_UNMARKED = MODULE_CALL_UNMARKED.replace("if _nsysx_e.marked and _nsysx_grad():", "if False:")

#: Outside the capture window only the calls that may begin a step are looked at.
MODULE_CALL_IDLE = """
if _nsysx_compiling():
    BODY
_nsysx_e = _nsysx_find(id(self)) or _nsysx_learn(self)
if not _nsysx_e.slow or (_nsysx_thread.open and not _nsysx_e.always):
    BODY
_nsysx_t = _nsysx_enter(_nsysx_e, self)
try:
    BODY
finally:
    _nsysx_leave(_nsysx_t)
"""


class Entry:
    """What is known about one module: its prepared texts and how its calls are to be treated."""

    __slots__ = (
        "again",
        "always",
        "backward_text",
        "cls",
        "hook",
        "leaf",
        "marked",
        "path",
        "quiet",
        "root",
        "slow",
        "text",
        "up",
    )

    def __init__(self, path: str = "", cls: str = "") -> None:
        self.path = path
        self.cls = cls
        self.text: Any = None  # prepared range, None: no range
        self.backward_text: Any = None
        self.again: Entry = self  # the entry for a call inside backward: recompute
        self.slow = False  # takes the way through enter and leave, where it is called outside of any other
        self.always = False  # takes it inside of others, too
        self.root = ""  # the phase that a call outside of everything else opens
        self.quiet = False  # the inside of a compiled region, which has its range already
        self.leaf = False  # has no children, and is no loss
        self.marked = True  # backward marks are wanted
        self.hook: Any = None  # the tensor that carries the backward mark, built at first use
        self.up: Entry | None = None  # the surrounding module


class Name(NamedTuple):
    """Where a module was found. ``level`` counts path parts below its root; wrapper parts are no level."""

    ref: Any
    path: str
    parent: int | None
    level: int
    quiet: bool


class _Thread(threading.local):
    """Ranges of ours that are open on this thread, except those of ordinary modules."""

    def __init__(self) -> None:
        self.open = 0  # calls of roots, direct children and losses
        self.phases: list[str] = []
        self.pushed: list[bool] = []


def _class_name(module: Any) -> str:
    cls = type(module)
    bases = cls.__bases__
    if len(bases) > 1 and bases[0].__name__ == "FSDPModule":  # fully_shard makes a class of its own
        return str(bases[1].__name__)
    if cls.__name__ == "OptimizedModule" and "_orig_mod" in module.__dict__.get("_modules", ()):
        return _class_name(module.__dict__["_modules"]["_orig_mod"])
    if cls.__module__.startswith("torch.jit"):  # scripted and traced modules know what they were made from
        return str(getattr(module, "original_name", "") or cls.__name__)
    return cls.__name__


class Probe:
    """Everything that is armed in one process."""

    def __init__(self, torch: Any, backend: Any, environ: dict[str, str]) -> None:
        self.torch = torch
        self.backend = backend
        self.environ = environ
        self.pid = os.getpid()
        self.errors: list[str] = []
        self.reason: str | None = None
        self.counts = {kind: itertools.count() for kind in KINDS}
        self.pair_cost_ns: int | None = None
        self.module_cost_ns: int | None = None
        self.backward_mark_cost_ns: int | None = None
        self.patches: list[nsysx_patch.Patch] = []
        self.module_patches: dict[str, nsysx_patch.Patch] = {}
        self.removers: list[Any] = []
        self.armed = False
        self.thread = _Thread()
        self.driver: int | None = None
        self.steps = nsysx_steps.Steps(self._begin_step, self._end_step)
        self._step_end: Any = None
        self.entries: dict[int, Entry] = {}
        self.names: dict[int, Name] = {}
        self.taken: dict[str, Any] = {}  # path prefix of a root -> weak reference to it
        self.roots: list[Any] = []
        self.walks = 0
        self.texts: dict[str, Any] = {}
        self.aliases: dict[str, list[str]] = {}
        self.depth = self._number("NSYSX_DEPTH")
        self.only = self._pattern("NSYSX_ONLY")
        self.backward = environ.get("NSYSX_BACKWARD", "marks")
        self.window: tuple[int, int] | None = self._window()
        self.timing = nsysx_timing.Timing(torch, self.window) if environ.get("NSYSX_TIMING") == "1" else None
        self.recording = self.window is None and self.timing is None
        self.may_thin = not any(environ.get(f"NSYSX_{name}") for name in ("BACKWARD", "DEPTH", "ONLY"))
        self.thinned: dict[str, Any] | None = None
        self.step_began: tuple[int, dict[str, int]] | None = None  # ns, what had been counted
        self.trained_root: Any = None
        self.lock = threading.RLock()
        self.capturing: list[int | None] | None = None  # ends of optimizer steps (their key) and backwards (None)
        self.graphs: Any = weakref.WeakKeyDictionary()  # CUDA graph -> what was captured in it

    # ---- options ----------------------------------------------------------------------------------------------------

    def _number(self, name: str) -> int | None:
        text = self.environ.get(name, "")
        if text and not text.isdigit():
            self.errors.append(f"{name}={text[:40]!r} is not a number")
        return int(text) if text.isdigit() else None

    def _pattern(self, name: str) -> Any:
        text = self.environ.get(name, "")
        try:
            return re.compile(text) if text else None
        except re.error as error:
            self.errors.append(f"{name} is not a regular expression: {error}")
            return None

    def _window(self) -> tuple[int, int] | None:
        text = self.environ.get("NSYSX_STEPS", "")
        if not text:
            return None
        first, _, last = text.partition(":")
        if first.isdigit() and last.isdigit() and int(first) < int(last):
            return int(first), int(last)
        self.errors.append(f"NSYSX_STEPS={text[:40]!r} is not A:B with A < B")
        return None

    # ---- failure, exit, fork ----------------------------------------------------------------------------------------

    def fail(self, where: str, error: BaseException) -> None:
        """Note a failure of ours and end the probe for good; never raises."""
        try:
            if len(self.errors) < 20:
                self.errors.append(f"{where}: {type(error).__name__}: {error}"[:300])
            self.disarm()
        except Exception:
            pass

    def disarm(self) -> None:
        """Give every function its own code back. Calls that are running still end their ranges."""
        self.armed = False
        for patch in self.patches:
            patch.off()
        for remove in self.removers:
            remove()
        self.removers.clear()

    def forked(self) -> None:
        """In a child made by fork nothing is recorded by nsys: be as if not there, and leave the parent's file alone."""
        try:
            self.disarm()
            if signal.getsignal(signal.SIGTERM) is _on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except Exception:
            pass

    def exit(self) -> None:
        """End what is open and leave the final counts; runs at exit of the process that was armed, not of its forks."""
        if os.getpid() != self.pid:
            return
        try:
            if self.armed:
                self.steps.exit()
                self.disarm()
                if self.recording:
                    self.info(self.facts())
            self.write(self.timing.facts() if self.timing else None)
        except Exception:
            pass

    # ---- what is written --------------------------------------------------------------------------------------------

    def counted(self) -> dict[str, int]:
        """Return how many ranges and marks of each kind went out."""
        return {kind: int(count.__reduce__()[1][0]) for kind, count in self.counts.items()}

    def facts(self) -> dict[str, Any]:
        """Return what the reader needs to judge the ranges; the mark that carries them is not counted in them."""
        return {
            "pid": self.pid,
            "ranges": self.counted(),
            "steps": {
                "rule": self.steps.rule,
                "count": self.steps.index + 1,
                "last_closed_by": self.steps.closed_by,
                "empty": self.steps.empty,
                "thinned_from": self.thinned["from_step"] if self.thinned else None,
            },
        }

    def record(self) -> dict[str, Any]:
        """Return the object of the probe file."""
        counted = self.counted()
        nvtx = sys.modules.get("nvtx")
        return {
            "pid": self.pid,
            "ppid": os.getppid(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": str(getattr(self.torch, "__version__", "")),
            "nvtx": _version("nvtx") if nvtx is not None else None,
            "backend": self.backend.name if self.backend else "off",
            "reason": self.reason,
            "ranges": counted,
            "ranges_pushed": sum(counted.values()),
            "pair_cost_ns": self.pair_cost_ns,
            "module_cost_ns": self.module_cost_ns,
            "backward_mark_cost_ns": self.backward_mark_cost_ns,
            "errors": self.errors,
            "backward": self.backward,
            "steps": self.facts()["steps"],
            "thinned": self.thinned,
            "modules": len(self.names),
            "aliases": self.aliases,
            "capture_steps": list(self.window) if self.window else None,
            "rank": self.environ.get("RANK"),
        }

    def write(self, timing: dict[str, Any] | None = None) -> None:
        """Write the probe file in one go, if a folder for it was named."""
        folder = self.environ.get("NSYSX_PROBE_DIR")
        if not folder:
            return
        try:
            path = Path(folder) / f"probe-{self.pid}.json"
            scratch = path.with_suffix(".tmp")
            record = self.record() if timing is None else self.record() | {"timing": timing}
            scratch.write_text(json.dumps(record) + "\n", encoding="utf-8")
            scratch.replace(path)
        except OSError:
            pass

    def hello(self) -> None:
        """Say in the report itself who records here and at what cost."""
        self.info(
            {
                "pid": self.pid,
                "backend": self.backend.name,
                "pair_cost_ns": self.pair_cost_ns,
                "module_cost_ns": self.module_cost_ns,
                "backward_mark_cost_ns": self.backward_mark_cost_ns,
                "torch": str(self.torch.__version__),
                "backward": self.backward,
            }
        )

    def info(self, facts: dict[str, Any]) -> None:
        """Send a mark with facts about the probe."""
        self.backend.mark(self.backend.prepare(ranges.info(json.dumps(facts, separators=(",", ":")))))
        next(self.counts["info"])

    # ---- ranges -----------------------------------------------------------------------------------------------------

    def text(self, text: str) -> Any:
        """Return a prepared text, made once: registered names are never freed, so equal texts must share one."""
        prepared = self.texts.get(text)
        if prepared is None:
            prepared = self.backend.prepare(text)
            if len(self.texts) < 100_000:
                self.texts[text] = prepared
        return prepared

    def open_phase(self, name: str, detail: str = "") -> int:
        """Open a phase on this thread and return the level that ``close`` needs."""
        thread = self.thread
        if self.recording:
            self.backend.push(self.text(ranges.phase(name, detail)))
            next(self.counts["phase"])
        thread.phases.append(name)
        thread.pushed.append(self.recording)
        return len(thread.phases)

    def close(self, level: int) -> None:
        """Close the phases of this thread down to ``level``, those included that an exception left open."""
        thread = self.thread
        while len(thread.phases) >= level > 0:
            thread.phases.pop()
            if thread.pushed.pop():
                self.backend.pop()

    def _begin_step(self, index: int) -> None:
        if self.timing is not None:
            self.timing.border(index)
            return
        if self.window and self.window[0] <= index < self.window[1]:
            self._start_capture(time.perf_counter_ns())
        self.step_began = (time.perf_counter_ns(), self.counted()) if index <= THINNED_BY or self.window else None
        if not self.recording:
            return
        backend = self.backend
        text = self.text(ranges.step(index))
        if threading.current_thread() is threading.main_thread():
            backend.push(text)
            self._step_end = backend.pop
        else:  # another thread may have to end it at exit
            token = backend.start(text)
            self._step_end = lambda: backend.end(token)
        next(self.counts["step"])

    def _end_step(self) -> None:
        if self.timing is not None:
            self.timing.border(None)
            if self.window and self.steps.index + 1 >= self.window[1]:
                self.disarm()
            return
        end, self._step_end = self._step_end, None
        if end is not None:
            end()
        if self.recording and 1 <= self.steps.index <= THINNED_BY:
            self._weigh()
        if self.window and self.steps.index + 1 >= self.window[1]:
            self._stop_capture()

    # ---- what is too cheap to be ranged -----------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Take ranges back where the step that ends here paid too much for them."""
        if self.step_began is None or not self.may_thin or not self.module_cost_ns or self.capturing is not None:
            return
        began, before = self.step_began
        now = self.counted()
        modules, marks = (now[kind] - before[kind] for kind in ("module", "backward_module"))
        cost = modules * self.module_cost_ns + marks * (self.backward_mark_cost_ns or 0)
        share = cost / max(time.perf_counter_ns() - began, 1)
        if share > BUDGET and not self.thinned:
            self._thin("marks", self.steps.index + 1, share)
        elif share > 2 * BUDGET and self.thinned and self.thinned["level"] == "marks":
            self._thin("ranges", self.steps.index + 1, share)

    def _weigh_ahead(self, now_ns: int) -> None:
        """The same before a capture window: by what the step before took and the modules that were called so far."""
        if self.step_began is None or not self.may_thin or not self.module_cost_ns:
            return
        spent = max(now_ns - self.step_began[0], 1)
        called = [e for e in list(self.entries.values()) if e.text is not None]
        marked = len(called) * (self.backward_mark_cost_ns or 0)
        share = (len(called) * self.module_cost_ns + marked) / spent
        if share > BUDGET:
            less = sum(not e.leaf for e in called) * (self.backward_mark_cost_ns or 0)
            enough = (len(called) * self.module_cost_ns + less) / spent <= 2 * BUDGET
            self._thin("marks" if enough else "ranges", self.window[0] if self.window else 0, share)

    def _thin(self, level: str, step: int, share: float) -> None:
        with self.lock:
            self.thinned = {"from_step": step, "level": level, "share": round(share, 4)}
            for entry in list(self.entries.values()):
                self._thin_one(entry)

    def _thin_one(self, entry: Entry) -> None:
        if self.thinned and entry.leaf:
            entry.marked = entry.again.marked = False
            if self.thinned["level"] == "ranges":
                entry.text = entry.again.text = None

    # ---- capture window ---------------------------------------------------------------------------------------------

    def _start_capture(self, now_ns: int) -> None:
        if self.recording:
            return
        self._cuda_profiler("cudaProfilerStart")
        self.recording = True
        self.calibrate()
        self._weigh_ahead(now_ns)
        self.hello()

    def _stop_capture(self) -> None:
        if self.recording:
            self.info(self.facts())
            self.recording = False
            self._cuda_profiler("cudaProfilerStop")
        self.disarm()  # nothing is left to do: the rest runs as if we were not here

    def _cuda_profiler(self, call: str) -> None:
        torch = self.torch
        try:
            if not torch.backends.cuda.is_built():
                note = f"{call} was not called: this torch is built without CUDA"
            elif not torch.cuda.is_available():
                note = f"{call} was not called: no CUDA device"
            else:
                getattr(torch.cuda.cudart(), call)()
                return
        except Exception as error:
            note = f"{call}: {type(error).__name__}: {error}"
        if len(self.errors) < 20:
            self.errors.append(note[:300])

    # ---- modules: names ---------------------------------------------------------------------------------------------

    def learn(self, module: Any) -> Entry:
        """Return the entry of a module that is called for the first time; never raises."""
        try:
            with self.lock:
                return self._learn(module)
        except Exception as error:
            if len(self.errors) < 20:
                self.errors.append(f"learn {type(module).__name__}: {type(error).__name__}: {error}"[:300])
            return Entry()

    def _learn(self, module: Any) -> Entry:
        name = self._known(module)
        if name is None:
            self._name(module)
            name = self.names[id(module)]
        entry = self._entry(module, name)
        parent = self._parent(name.parent)
        if parent is not None:
            entry.up, entry.again.up = parent, parent.again
        self.entries[id(module)] = entry
        return entry

    def _known(self, module: Any) -> Name | None:
        name = self.names.get(id(module))
        return name if name is not None and name.ref() is module else None

    def _parent(self, key: int | None) -> Entry | None:
        """Return the entry of the module that calls this one: the next one above that has a forward (a ModuleList has none)."""
        while key is not None and key in self.names:
            module = self.names[key].ref()
            if module is None:
                return None
            if type(module).forward is not self.torch.nn.Module.forward:
                return self.entries.get(key) or self._learn(module)
            key = self.names[key].parent
        return None

    def _name(self, module: Any) -> None:
        """Find the path of an unknown module: in a root that grew since it was walked, or as a root of its own."""
        inside = bool(self.thread.open or self.thread.phases)
        if inside and type(module).__module__.startswith(
            "torch.fx."
        ):  # what torch.compile made of a region that has its range
            self._remember(module, "GraphModule", None, 1, True)
            return
        if inside and self.walks < 8:
            self.walks += 1
            for root in [r() for r in self.roots]:
                if root is not None:
                    self._walk(root, self.names[id(root)].path)
            if self._known(module) is not None:
                return
        if module.__dict__.get("_is_replica"):  # DataParallel: a copy of the root for one call
            self._walk(module, "")
            return
        children = bool(_children(module))
        prefix = ""
        if not (children and not inside and self._free("") and _has_parameters(module)):
            own = prefix = ranges.word(_class_name(module))
            number = 0
            while not self._free(prefix):
                number += 1
                prefix = f"{own}#{number}"
        reference = weakref.ref(module)
        self.taken[prefix] = reference
        if children:
            self.roots = [r for r in self.roots if r() is not None] + [reference]
        self._walk(module, prefix)

    def _free(self, prefix: str) -> bool:
        holder = self.taken.get(prefix)
        return holder is None or holder() is None

    def _walk(self, root: Any, prefix: str) -> None:
        """Name every module under ``root``. A module with several names keeps its first; the others are aliases."""
        seen: dict[int, str] = {}
        todo: list[tuple[Any, str, int | None, int, bool]] = [(root, prefix, None, 0, False)]
        while todo:
            module, path, parent, level, quiet = todo.pop()
            key = id(module)
            if key in seen:
                if seen[key] != path and len(self.aliases) < 50:
                    others = self.aliases.setdefault(seen[key], [])
                    if path not in others:
                        others.append(path)
                continue
            seen[key] = path
            if self._known(module) is None or module is root:
                self._remember(module, path, parent, level, quiet)
            children = _children(module)
            compiled = type(module).__name__ == "OptimizedModule"
            for part, child in reversed(children):
                if part in WRAPPER_PARTS or (part == "module" and len(children) == 1):
                    todo.append((child, path, key, level, compiled))
                else:
                    todo.append((child, f"{path}.{part}" if path else part, key, level + 1, False))

    def _remember(self, module: Any, path: str, parent: int | None, level: int, quiet: bool) -> None:
        key = id(module)
        names, entries = self.names, self.entries

        def forget(reference: Any) -> None:
            name = names.get(key)
            if name is not None and name.ref is reference:
                del names[key]
                entries.pop(key, None)

        names[key] = Name(weakref.ref(module, forget), path, parent, level, quiet)

    def _entry(self, module: Any, name: Name) -> Entry:
        cls = _class_name(module)
        entry, again = Entry(name.path, cls), Entry(name.path, cls)
        entry.again = again
        if cls.endswith("Loss") or type(module).__module__ == "torch.nn.modules.loss":
            entry.root = "loss"
        elif name.level <= 1 and not module.__dict__.get("_is_replica") and _has_parameters(module):
            entry.root = "forward"
        entry.quiet = again.quiet = name.quiet
        entry.slow = bool(entry.root) or name.quiet
        entry.always = name.level == 0 or entry.root == "loss" or name.quiet
        entry.leaf = not entry.always and not _children(module)
        again.slow = again.always = name.quiet
        if (self.depth is None or name.level <= self.depth) and (self.only is None or self.only.search(name.path)):
            compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
            flags = ("compiled",) if compiled else ()
            entry.text = self.text(ranges.module(name.path, cls, *flags))
            again.text = self.text(ranges.module(name.path, cls, *flags, "recompute"))
            entry.backward_text = again.backward_text = self.text(ranges.module(name.path, cls, *flags, backward=True))
        self._thin_one(entry)
        return entry

    def recompiled(self, module: Any) -> None:
        """``module.compile()`` was called: its next call is another kind of region."""
        self.entries.pop(id(module), None)

    # ---- modules: calls that may open a phase -----------------------------------------------------------------------

    def enter(self, entry: Entry, module: Any) -> int:
        """Open the ranges of a root, a loss or a compiled inside; return what ``leave`` needs."""
        thread = self.thread
        level = 0
        ranged = 0
        try:
            nested = thread.open > 0
            if entry.root and (not nested or entry.root == "loss"):
                level = self._enter_phase(entry, module)
            if self.recording and entry.text is not None and not (entry.quiet and nested):
                self.backend.push(entry.text)
                next(self.counts["module"])
                ranged = 1
        except Exception as error:
            self.fail("enter", error)
        thread.open += 1
        return level << 1 | ranged

    def _enter_phase(self, entry: Entry, module: Any) -> int:
        phases = self.thread.phases
        me = threading.get_ident()
        if self.driver is None and me == threading.main_thread().ident:
            self.driver = me
        if self.driver not in (None, me):
            return 0
        if entry.root == "loss":
            return 0 if "loss" in phases else self.open_phase("loss", entry.cls)
        if "data" in phases:  # a transform that is a module
            return 0
        grad = self.torch.is_grad_enabled()
        if not phases and self.driver == me:
            if grad:
                self.trained_root = weakref.ref(module)
            self.steps.forward(grad)
        return self.open_phase("forward" if grad else "evaluation", entry.cls)

    def leave(self, token: int) -> None:
        """Close what ``enter`` opened."""
        thread = self.thread
        thread.open -= 1
        try:
            if token & 1:
                self.backend.pop()
            level = token >> 1
            if level:
                self.close(level)
                if not thread.phases and not thread.open and self.driver == threading.get_ident():
                    self.steps.forward_end()
        except Exception as error:
            self.fail("leave", error)

    # ---- phases around functions of torch ---------------------------------------------------------------------------

    def enter_fetch(self, loader: Any) -> int:
        """A DataLoader iterator is asked for a batch."""
        try:
            me = threading.get_ident()
            if self.thread.phases or self.thread.open or me != (self.driver or threading.main_thread().ident):
                return 0
            self.steps.fetch(self._training(), _exhausted(loader))
            return self.open_phase("data", "DataLoader")
        except Exception as error:
            self.fail("fetch", error)
            return 0

    def leave_fetch(self, level: int) -> None:
        """The batch is there, or the loader is at its end."""
        try:
            if level:
                self.close(level)
                if sys.exc_info()[0] is StopIteration:  # this runs inside the finally of the loader's own __next__
                    self.steps.epoch_end()
        except Exception as error:
            self.fail("fetch", error)

    def enter_loader(self, _first: Any) -> int:
        """A DataLoader makes an iterator: it may start worker processes and fill their queues."""
        try:
            if (
                self.thread.phases
                or self.thread.open
                or threading.get_ident() != (self.driver or threading.main_thread().ident)
            ):
                return 0
            if self.steps.index >= 0:  # before that it is preparation, not a step
                self.steps.fetch(self._training())
            return self.open_phase("data", "DataLoader.__iter__")
        except Exception as error:
            self.fail("loader", error)
            return 0

    def _training(self) -> bool:
        root = self.trained_root() if self.trained_root is not None else None
        return bool(self.torch.is_grad_enabled()) and (root is None or root.__dict__.get("training") is not False)

    def enter_backward(self, _first: Any) -> int:
        """The autograd engine is started, from Python, on this thread."""
        try:
            thread = self.thread
            if self._traced():
                return 0
            if self.torch._C._current_graph_task_id() == -1 and not thread.open:
                self.driver = self.driver or threading.get_ident()
                if not thread.phases and self.driver == threading.get_ident():
                    self.steps.backward()
            return self.open_phase("backward")
        except Exception as error:
            self.fail("backward", error)
            return 0

    def _traced(self) -> bool:
        """Say whether tensors are fake: torch.compile looks at a backward here and runs none."""
        native = self.torch._C
        try:
            return native._get_dispatch_mode(native._TorchDispatchModeKey.FAKE) is not None
        except AttributeError:
            return False

    def leave_backward(self, level: int) -> None:
        """Backward has returned."""
        try:
            if not level:
                return
            self.close(level)
            if not self.thread.phases and self.driver == threading.get_ident():
                self.steps.backward_end()
                if self.capturing is not None:
                    self.capturing.append(None)
        except Exception as error:
            self.fail("backward", error)

    def enter_optimizer(self, optimizer: Any, detail: str = "") -> int:
        """An optimizer, or a scaler that may skip it, begins its step."""
        try:
            return self.open_phase("optimizer", detail or type(optimizer).__name__)
        except Exception as error:
            self.fail("optimizer", error)
            return 0

    def leave_optimizer(self, level: int, optimizer: Any) -> None:
        """An optimizer's step has returned."""
        try:
            self.close(level)
            if "optimizer" in self.thread.phases:
                return
            in_backward = self.torch._C._current_graph_task_id() != -1
            if in_backward or self.driver in (None, threading.get_ident()):
                self.steps.optimizer_end(id(optimizer), in_backward)
                if self.capturing is not None:
                    self.capturing.append(id(optimizer))
        except Exception as error:
            self.fail("optimizer", error)

    def simple(self, name: str) -> tuple[Any, Any]:
        """Return enter and leave of a phase that has no influence on steps."""

        def enter(_first: Any) -> int:
            try:
                return self.open_phase(name)
            except Exception as error:
                self.fail(name, error)
                return 0

        def leave(level: int) -> None:
            try:
                self.close(level)
            except Exception as error:
                self.fail(name, error)

        return enter, leave

    # ---- CUDA graphs ------------------------------------------------------------------------------------------------

    def begin_capture(self, _graph: Any) -> None:
        """Work is captured from here on: what it completes is what each replay completes."""
        self.capturing = []

    def end_capture(self, graph: Any) -> None:
        """The capture ended."""
        try:
            self.graphs[graph], self.capturing = self.capturing or [], None
        except Exception as error:
            self.fail("capture", error)

    def enter_replay(self, graph: Any) -> Any:
        """A graph is launched. Outside of everything else no module is called for it: it stands for what was captured."""
        try:
            me = threading.get_ident()
            if self.thread.phases or self.thread.open or me != (self.driver or threading.main_thread().ident):
                return None
            self.steps.forward(self.torch.is_grad_enabled())
        except Exception as error:
            self.fail("replay", error)
            return None
        return graph

    def leave_replay(self, graph: Any) -> None:
        """The launch has returned."""
        try:
            if graph is None:
                return
            self.steps.forward_end()
            for key in self.graphs.get(graph, ()):
                if key is None:
                    self.steps.backward_end()
                else:
                    self.steps.optimizer_end(key)
        except Exception as error:
            self.fail("replay", error)

    # ---- backward by module -----------------------------------------------------------------------------------------

    def marking(self) -> tuple[Any, Any]:
        """Return the two calls around a module call that give its autograd nodes their marks.

        Both are hot: the plain case, one tensor, is written out.
        """
        torch = self.torch
        tensor = torch.Tensor
        modes = torch._C._len_torch_function_stack
        plainly = torch._C.DisableTorchFunction
        fail = self.fail_marks

        def mark(function: Any, entry: Entry | None) -> None:
            if entry is not None:
                hook = entry.hook
                if hook is None:
                    hook = self.carrier(entry)
                    if hook is None:
                        return
                function.metadata["nsysx"] = None
                function._register_hook_dict(hook)

        def look(value: Any, entry: Entry | None, level: int = 0) -> None:
            """Mark what is in a result that is not one plain tensor."""
            if isinstance(value, tensor):
                # A subclass or a mode of the user's may watch every access.
                if type(value) is tensor or type(value).__module__.startswith("torch.distributed."):
                    with plainly():
                        function = value.grad_fn
                        if function is not None and "nsysx" not in function.metadata:
                            mark(function, entry)
            elif level < 3:
                if isinstance(value, dict):
                    value = list(value.values())
                elif hasattr(type(value), "__dataclass_fields__"):
                    value = list(vars(value).values())
                if isinstance(value, (tuple, list)):
                    for item in value[:32]:
                        look(item, entry, level + 1)

        def entered(entry: Entry, args: Any, kwargs: Any) -> None:
            try:
                for value in (*args, *kwargs.values()) if kwargs else args:
                    if type(value) is tensor:
                        if modes():
                            look(value, entry.up)
                            continue
                        function = value.grad_fn
                        if function is not None and "nsysx" not in function.metadata:
                            mark(function, entry.up)
            except Exception as error:
                fail(error)

        def returned(entry: Entry, value: Any) -> Any:
            try:
                if type(value) is tensor and not modes():
                    function = value.grad_fn
                    if function is not None and "nsysx" not in (notes := function.metadata):
                        hook = entry.hook
                        if hook is None:
                            mark(function, entry)
                        else:
                            notes["nsysx"] = None
                            function._register_hook_dict(hook)
                elif value is not None:
                    look(value, entry)
            except Exception as error:
                fail(error)
            return value

        return entered, returned

    def fail_marks(self, error: BaseException) -> None:
        """Go on without backward marks."""
        try:
            if len(self.errors) < 20:
                self.errors.append(f"backward marks ended: {type(error).__name__}: {error}"[:300])
            self.backward = "failed"
            if self.armed:
                self.use_module_call()
        except Exception:
            pass

    def carrier(self, entry: Entry) -> Any:
        """Return a tensor of our own whose hooks are this module's mark; None while tensors cannot be made plainly."""
        torch = self.torch
        if torch._C._len_torch_dispatch_stack() or entry.backward_text is None:
            return None
        text, mark, count = entry.backward_text, self.backend.mark, self.counts["backward_module"].__next__

        def hook(_gradient: Any) -> None:
            mark(text)
            count()

        with torch._C.DisableTorchFunction():
            tensor = torch.empty(0, device="cpu")
            tensor._backward_hooks = {0: hook}
        entry.hook = entry.again.hook = tensor
        return tensor

    # ---- arming -----------------------------------------------------------------------------------------------------

    def patch(self, function: Any, template: str, names: dict[str, Any], what: str) -> nsysx_patch.Patch | None:
        """Exchange the code of a function; note it where that cannot be done."""
        try:
            patch = nsysx_patch.Patch(function, template, names)
        except Exception as error:
            self.errors.append(f"{what}: {type(error).__name__}: {error}"[:300])
            return None
        patch.on()
        self.patches.append(patch)
        return patch

    def around(self, function: Any, what: str, first: str, enter: Any, leave: Any) -> None:
        """Put ``enter(first)`` and ``leave(token)`` around the body of a function."""
        names = {
            "_nsysx_compiling": self.torch.compiler.is_dynamo_compiling,
            f"_nsysx_enter_{what}": enter,
            f"_nsysx_leave_{what}": leave,
        }
        template = nsysx_patch.AROUND.replace("ENTER", f"_nsysx_enter_{what}").replace("LEAVE", f"_nsysx_leave_{what}")
        self.patch(function, template.replace("FIRST", first), names, what)

    def use_module_call(self) -> None:
        """Switch ``Module.__call__`` to what is wanted now."""
        marked = self.backward in ("marks", "ops")
        which = "idle" if not self.recording else "marked" if marked else "unmarked"
        patch = self.module_patches.get(which)
        if patch is not None:
            patch.on()

    def _patch_module_call(self) -> None:
        torch, backend = self.torch, self.backend
        entered, returned = self.marking()
        names = {
            "_nsysx_compiling": torch.compiler.is_dynamo_compiling,
            "_nsysx_find": self.entries.get,
            "_nsysx_learn": self.learn,
            "_nsysx_task": torch._C._current_graph_task_id,
            "_nsysx_thread": self.thread,
            "_nsysx_enter": self.enter,
            "_nsysx_leave": self.leave,
            "_nsysx_push": backend.push,
            "_nsysx_pop": backend.pop,
            "_nsysx_count": self.counts["module"].__next__,
            "_nsysx_grad": torch.is_grad_enabled,
            "_nsysx_in": entered,
            "_nsysx_out": returned,
        }
        call = torch.nn.Module.__call__
        templates = {"marked": MODULE_CALL, "unmarked": MODULE_CALL_UNMARKED, "idle": MODULE_CALL_IDLE}
        self.module_patches = {k: nsysx_patch.Patch(call, t, names) for k, t in templates.items()}
        self.patches.extend(self.module_patches.values())
        self.use_module_call()

    def calibrate(self) -> None:
        """Measure our own cost; a figure that cannot be had is None."""
        try:
            self._calibrate()
        except Exception as error:
            self.errors.append(f"calibration: {type(error).__name__}: {error}"[:300])

    def _calibrate(self) -> None:
        """Measure what a range, a module call and a backward mark cost in this process, on ranges outside of our domain."""
        torch, patch = self.torch, self.module_patches["marked" if self.backward in ("marks", "ops") else "unmarked"]
        scratch = nsysx_backend.scratch(torch, self.backend)
        self.pair_cost_ns = nsysx_backend.pair_cost_ns(scratch)

        class Nothing(torch.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                return x

        module, entry, text = Nothing(), Entry(), scratch.prepare("calibration")
        entry.text = entry.again.text = text
        with torch._C.DisableTorchFunction():
            x = torch.empty(1, device="cpu")
            leaf = torch.empty(1, device="cpu", requires_grad=True)
            fresh = [leaf.view(1) for _ in range(100)]
            entry.hook = torch.empty(0, device="cpu")
            entry.hook._backward_hooks = {0: scratch.mark}
        space = torch.nn.Module.__call__.__globals__
        kept = {name: patch.names[name] for name in ("_nsysx_push", "_nsysx_pop", "_nsysx_count", "_nsysx_find")}
        instead = (scratch.push, scratch.pop, itertools.count().__next__, {id(module): entry}.get)
        try:
            patch.off()
            bare = nsysx_backend.best_ns(lambda: module(x))
            patch.on()
            space.update(zip(kept, instead, strict=True))
            self.module_cost_ns = max(0, nsysx_backend.best_ns(lambda: module(x)) - bare)
        finally:
            space.update(kept)
            self.use_module_call()
        mark_node = patch.names["_nsysx_out"]
        values = iter(fresh)  # a node is hooked once only
        node = nsysx_backend.best_ns(lambda: mark_node(entry, next(values)), batches=5, size=len(fresh) // 5)
        self.backward_mark_cost_ns = node + nsysx_backend.best_ns(lambda: scratch.mark(text))

    def arm(self) -> None:
        """Put everything in place."""
        torch = self.torch
        try:
            _hide_from_dynamo(torch)
        except Exception as error:
            self.errors.append(f"dynamo: {type(error).__name__}: {error}"[:300])
        self._patch_module_call()
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            fetch = loader._BaseDataLoaderIter.__next__
            self.around(fetch, "fetch", "self", self.enter_fetch, self.leave_fetch)
            self.around(loader.DataLoader.__iter__, "loader", "None", self.enter_loader, self.leave_fetch)
        self.around(
            torch.autograd.graph._engine_run_backward, "backward", "None", self.enter_backward, self.leave_backward
        )
        self._arm_engine()
        self.around(torch.nn.Module.compile, "compile", "self", lambda module: module, self.recompiled)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self.around(_plain(getattr(torch.nn.utils, name)), name, "None", *self.simple("clip"))
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            self.around(_plain(owner.zero_grad), "zero_grad", "None", *self.simple("zero_grad"))
        self._arm_optimizers()
        graph = torch.cuda.CUDAGraph
        self.around(graph.capture_begin, "capture_begin", "self", self.begin_capture, lambda _token: None)
        self.around(graph.capture_end, "capture_end", "self", lambda graph: graph, self.end_capture)
        self.around(graph.replay, "replay", "self", self.enter_replay, self.leave_replay)
        if self.backward == "ops":
            self._arm_operators()
        if self.environ.get("NSYSX_LINES") == "1":
            self._arm_lines()
        self.armed = True

    def _arm_engine(self) -> None:
        """See also those who call the engine without ``torch.autograd`` (Megatron), and give all others the engine itself."""
        variable = self.torch.autograd.Variable
        engine = variable._execution_engine
        known = self.torch.autograd.graph._engine_run_backward.__name__
        enter, leave = self.enter_backward, self.leave_backward

        class Engine(type(engine)):  # type: ignore[misc]
            @property
            def run_backward(self) -> Any:
                if sys._getframe(1).f_code.co_name == known:
                    return engine.run_backward

                def run_backward(*args: Any, **kwargs: Any) -> Any:
                    level = enter(None)
                    try:
                        return engine.run_backward(*args, **kwargs)
                    finally:
                        leave(level)

                return run_backward

        try:
            variable._execution_engine = Engine()
        except Exception as error:
            self.errors.append(f"engine: {type(error).__name__}: {error}"[:300])
            return

        def remove() -> None:
            if type(variable._execution_engine) is Engine:
                variable._execution_engine = engine

        self.removers.append(remove)

    def _arm_operators(self) -> None:
        """Every operator and autograd node as a range with its sequence number: torch's own, costly, and only with CUDA."""
        if not self.torch.backends.cuda.is_built():
            self.errors.append("NSYSX_BACKWARD=ops needs a torch built with CUDA: marks are used")
            return
        try:  # what emit_nvtx does, without its torch.cuda.synchronize: CUDA must not start before the program wants it
            from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

            autograd = self.torch._C._autograd
            config = ProfilerConfig(ProfilerState.NVTX, False, False, False, False, False, _ExperimentalConfig())
            autograd._enable_profiler(config, set())
            self.removers.append(autograd._disable_profiler)
        except Exception as error:
            self.errors.append(f"ops: {type(error).__name__}: {error}"[:300])

    def _arm_lines(self) -> None:
        """Mark the Python line that is about to wait. Torch calls back before it synchronizes; it cannot be turned off again."""
        torch = self.torch
        if not torch.backends.cuda.is_built():
            self.errors.append("NSYSX_LINES needs a torch built with CUDA")
            return
        own = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen")
        foreign: dict[str, bool] = {}
        count = self.counts["sync"].__next__

        def waits(*_: Any) -> None:
            try:
                if not (self.armed and self.recording):
                    return
                frame = sys._getframe(1)
                inner = frame
                while frame is not None:
                    file = frame.f_code.co_filename
                    known = foreign.get(file)
                    if known is None:
                        known = foreign[file] = not file.startswith(own)
                    if known:
                        break
                    frame = frame.f_back  # type: ignore[assignment]
                frame = frame or inner
                code = frame.f_code
                self.backend.mark(self.text(ranges.sync(code.co_filename, frame.f_lineno, code.co_name)))
                count()
            except Exception as error:
                self.fail("lines", error)

        try:
            from torch.cuda import _gpu_trace

            torch._C._activate_gpu_trace()
            _gpu_trace.register_callback_for_stream_synchronization(waits)
            _gpu_trace.register_callback_for_device_synchronization(waits)
            _gpu_trace.register_callback_for_event_synchronization(waits)
        except Exception as error:
            self.errors.append(f"lines: {type(error).__name__}: {error}"[:300])

    def _arm_optimizers(self) -> None:
        seen: set[int] = set()

        def made(optimizer: Any) -> None:
            """An optimizer was made; torch has put one and the same function around the step of its class by now."""
            try:
                self.steps.made_optimizer()
                step = type(optimizer).step
                if id(step) not in seen:
                    seen.add(id(step))
                    self.around(step, "optimizer", "args[0]", begin, end)
            except Exception as error:
                self.fail("optimizer", error)

        def begin(optimizer: Any) -> tuple[int, Any]:
            return self.enter_optimizer(optimizer), optimizer

        def end(token: tuple[int, Any]) -> None:
            self.leave_optimizer(*token)

        self.around(self.torch.optim.Optimizer.__init__, "made", "self", lambda optimizer: optimizer, made)
        scaler = sys.modules.get("torch.amp.grad_scaler")
        if scaler is not None:
            self.around(
                scaler.GradScaler.step,
                "scaler",
                "optimizer",
                lambda optimizer: (self.enter_optimizer(optimizer, "GradScaler"), optimizer),
                end,
            )


_OURS = (nsysx_backend, nsysx_patch, nsysx_ranges, nsysx_steps, nsysx_timing)


def _plain(function: Any) -> Any:
    """Return the function under its decorators."""
    return getattr(function, "__wrapped__", function)


def _hide_from_dynamo(torch: Any) -> None:
    """Tell the frame evaluator of torch.compile never to compile our functions, nor what they call: they run between its own."""
    native = torch._C._dynamo.eval_frame
    if hasattr(native, "set_code_exec_strategy"):
        plain = native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.SKIP)

        def skip(code: CodeType) -> None:
            native.set_code_exec_strategy(code, plain)
    else:
        skip = native.skip_code  # torch < 2.7
    todo: list[Any] = [vars(m) for m in (sys.modules[__name__], *_OURS)]
    while todo:
        one = todo.pop()
        if isinstance(one, CodeType):
            skip(one)
            todo.extend(one.co_consts)
        elif isinstance(one, dict):
            todo.extend(v for v in one.values() if getattr(v, "__module__", "nsysx").startswith("nsysx"))
        elif isinstance(one, FunctionType):
            todo.append(one.__code__)
        elif isinstance(one, property):
            todo.append(one.fget)
        elif isinstance(one, (staticmethod, classmethod)):
            todo.append(one.__func__)
        elif isinstance(one, type):
            todo.append(dict(vars(one)))


def _version(package: str) -> str | None:
    try:
        from importlib.metadata import version

        return version(package)
    except Exception:
        return None


def _children(module: Any) -> list[tuple[str, Any]]:
    held = module.__dict__.get("_modules")
    items = held.items() if isinstance(held, dict) else module.named_children()
    return [(name, child) for name, child in items if child is not None]


def _has_parameters(module: Any) -> bool:
    todo, seen = [module], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        held = one.__dict__.get("_parameters")
        if any(p is not None for p in (held.values() if isinstance(held, dict) else one.parameters(recurse=False))):
            return True
        todo.extend(child for _, child in _children(one))
    return False


def _exhausted(loader: Any) -> bool:
    """Say whether the next fetch is known to end the loader: a map-style loader knows how many batches it has."""
    try:
        return loader._sampler_iter is not None and loader._num_yielded >= len(loader._index_sampler)
    except Exception:
        return False


def _on_sigterm(_signal: int, _frame: Any) -> None:
    """End through Python's exit, so that nsys keeps the tail of the capture, with the code that a shell reports."""
    sys.exit(143)


_probe: Probe | None = None


def arm(torch: Any) -> None:
    """Arm the probe in this process. Called by the bootstrap after ``import torch``; does nothing the second time."""
    global _probe
    if _probe is not None:
        return
    environ = dict(os.environ)
    if environ.get("NSYSX_TIMING") == "1":
        backend, why = nsysx_backend.nowhere(), []
    else:
        backend, why = nsysx_backend.choose(torch, environ.get("NSYSX_BACKEND", ""))
    probe = _probe = Probe(torch, backend, environ)
    if backend is None:
        probe.reason = "no NVTX backend: " + "; ".join(why)
        probe.write()
        return
    if why:
        probe.reason = "; ".join(why)
    try:
        probe.arm()
        os.register_at_fork(after_in_child=probe.forked)
        atexit.register(probe.exit)
        if probe.timing is None:
            probe.calibrate()
        if probe.recording:
            probe.hello()
        if (
            environ.get("NSYSX_SIGTERM") != "0"
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, _on_sigterm)
    except Exception as error:
        probe.fail("arm", error)
    probe.write()


def step() -> None:
    """Begin the next step here: what ``nsysx.step()`` calls."""
    probe = _probe
    if probe is None or not probe.armed:
        return
    try:
        if not probe.thread.phases and not probe.thread.open:
            probe.driver = probe.driver or threading.get_ident()
            probe.steps.step()
    except Exception as error:
        probe.fail("step", error)
