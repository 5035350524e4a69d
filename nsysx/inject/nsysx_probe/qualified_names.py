"""Finds every module's qualified path when it is first called, and derives from it how its calls are treated."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from . import ranges
from .interrupts import of_program, shielded
from .output import Output
from .probe_bounds import MOST_ALIASES, MOST_LEAVES, MOST_WALKS

#: Path parts that wrappers add. So does ``module``, but only as an only child (DistributedDataParallel and similar).
WRAPPER_PARTS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))

#: An outermost call of a module without parameters opens no phase: it may be all that the program does (``sole_work``).
SOLE = "sole"
#: Modules of torch that a program calls between its own functions: activations, and what makes a region.
_HELPERS = ("torch.nn.", "torch.fx.", "torch._dynamo.")


class ModuleEntry:
    """What is known about one module: its prepared texts, and how its calls are treated."""

    __slots__ = (
        "__weakref__",
        "again",
        "always",
        "backward_text",
        "cls",
        "hook",
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
        self.text: Any = None  # the prepared text of its range; None: no range
        self.backward_text: Any = None
        self.again: ModuleEntry = self  # the entry for a call inside backward (recompute)
        self.slow = False  # an outermost call goes through enter and leave
        self.always = False  # a nested call does so, too
        self.root = ""  # the phase that an outermost call opens, or SOLE
        self.quiet = False  # the inside of a compiled region, which already has a range
        self.hook: Any = None  # the tensor that carries the backward mark, made at first use
        self.up: ModuleEntry | None = None  # the surrounding module

    def unfollow(self) -> None:
        """Treat the calls of a module without parameters as those of a helper: only what is inside a compiled region needs them."""
        self.root, self.slow = "", self.always


class Name(NamedTuple):
    """Where a module was found. ``level`` is its number of path parts below its root, without wrapper parts."""

    ref: Any
    path: str
    parent: int | None
    level: int
    quiet: bool


class _Numbers:
    """Numbers the modules of one class: each takes the smallest number that no living module has."""

    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []
        self._held: dict[int, Any] = {}  # number -> weak reference to its module

    @shielded
    def take(self, module: Any) -> int:
        free = self._free
        if free:
            number = min(free)
            free.remove(number)
        else:
            number = self._next
            self._next += 1

        def give_back(_reference: Any) -> None:  # as `Naming._remember.forget`
            nonlocal free
            free += (number,)

        self._held[number] = weakref.ref(module, give_back)
        return number


class Naming:
    """All known modules by ``id``."""

    def __init__(self, torch: Any, out: Output) -> None:
        self.torch = torch
        self.out = out
        self.entries: dict[int, ModuleEntry] = {}
        self.names: dict[int, Name] = {}
        self.aliases: dict[str, list[str]] = {}
        self.walks = 0
        self.depth = out.number("NSYSX_DEPTH")
        self.only = out.pattern("NSYSX_ONLY")
        self._lock = threading.RLock()
        self._main: Any = None  # the root with the empty path
        self._roots: dict[int, Any] = {}  # id -> weak reference, only of roots that have children
        self._numbers: dict[str, _Numbers] = {}
        #: Entries of modules that have neither a known parent nor children, by prefix, class and whether they have parameters.
        self._leaves: dict[tuple[str, type, bool], ModuleEntry] = {}
        self._plain_forward = torch.nn.Module.forward

    def learn(self, module: Any) -> ModuleEntry:
        """Return the entry of a module that is called for the first time. Never raises."""
        try:
            with self._lock:
                return self._learn(module)
        except Exception as error:
            self.out.wrong(f"learn {type(module).__name__}", error)
            return ModuleEntry()

    def recompiled(self, module: Any) -> None:
        """Forget the entry of a module on which ``compile()`` was called: its next call makes a compiled region."""
        self.entries.pop(id(module), None)

    def _learn(self, module: Any) -> ModuleEntry:
        name = self._name_if_alive(module)
        if name is None:
            leaf = self._leaf(module)
            if leaf is not None:
                return leaf
            self._name(module)
            name = self.names[id(module)]
        entry = self._entry(module, name)
        parent = self._parent(name.parent)
        if parent is not None:
            entry.up, entry.again.up = parent, parent.again
        self.entries[id(module)] = entry
        return entry

    def _name_if_alive(self, module: Any) -> Name | None:
        name = self.names.get(id(module))
        return name if name is not None and name.ref() is module else None

    def _parent(self, key: int | None) -> ModuleEntry | None:
        """Return the entry of the calling module: the nearest one above that has a forward (a ModuleList has none)."""
        while key is not None and key in self.names:
            module = self.names[key].ref()
            if module is None:
                return None
            if type(module).forward is not self._plain_forward:
                return self.entries.get(key) or self._learn(module)
            key = self.names[key].parent
        return None

    # ---- paths ------------------------------------------------------------------------------------------------------

    def _inside(self) -> bool:
        thread = self.out.thread
        return bool(thread.open or thread.phases)

    def _leaf(self, module: Any) -> ModuleEntry | None:
        """Return the entry of a module without children that was created inside a forward; None if it may be something else.

        Such modules come and go by the thousand: one that died leaves its name and its entry to the next.
        """
        cls = type(module)
        if not self._inside() or self.walks < MOST_WALKS or _children(module) or held(module).get("_is_replica"):
            return None
        if _is_of_region(module) or held(module).get("_compiled_call_impl") is not None:
            return None
        prefix = self._prefix(module)
        self._remember(module, prefix, None, 0, False)
        kind = (prefix, cls, bool(held(module).get("_parameters")))
        entry = self._leaves.get(kind)
        if entry is None:
            entry = self._entry(module, self.names[id(module)])
            if len(self._leaves) < MOST_LEAVES:
                self._leaves[kind] = entry
        self.entries[id(module)] = entry
        return entry

    @shielded
    def _name(self, module: Any) -> None:
        """Find the path of an unknown module, in a root that has grown since it was walked, or make the module a root."""
        inside = self._inside()
        # torch.compile made it from a region that already has a range.
        if inside and _is_of_region(module):
            self._remember(module, "GraphModule", None, 1, True)
            return
        if inside and self.walks < MOST_WALKS:
            self.walks += 1
            for root in [r() for r in self._roots.values()]:
                if root is not None:
                    self._walk(root, self.names[id(root)].path)
            if self._name_if_alive(module) is not None:
                return
        if held(module).get("_is_replica"):  # DataParallel: a copy of the root for one call
            self._walk(module, "")
            return
        children = bool(_children(module))
        if children and not inside and (self._main is None or self._main() is None) and has_parameters(module):
            prefix = ""
            self._main = weakref.ref(module)
        else:
            prefix = self._prefix(module)
        if children:
            key, roots = id(module), self._roots

            def forget(reference: Any) -> None:  # as in `_remember`
                if key in roots and roots[key] is reference:
                    del roots[key]

            roots[key] = weakref.ref(module, forget)
        self._walk(module, prefix)

    def _prefix(self, module: Any) -> str:
        """Return a name that no other living root has: its class name, with a number from the second module on."""
        word = ranges.word(class_name(module))
        numbers = self._numbers.get(word)
        if numbers is None:
            numbers = self._numbers[word] = _Numbers()
        number = numbers.take(module)
        return f"{word}#{number}" if number else word

    def _walk(self, root: Any, prefix: str) -> None:
        """Name ``root`` and every module below it. A module with several names keeps the first; the others are aliases."""
        seen: dict[int, str] = {}
        todo: list[tuple[Any, str, int | None, int, bool]] = [(root, prefix, None, 0, False)]
        while todo:
            module, path, parent, level, quiet = todo.pop()
            key = id(module)
            if key in seen:
                self._alias(seen[key], path)
                continue
            seen[key] = path
            if self._name_if_alive(module) is None or module is root:
                self._remember(module, path, parent, level, quiet)
            children = _children(module)
            compiled = type(module).__name__ == "OptimizedModule"
            for part, child in reversed(children):
                if part in WRAPPER_PARTS or (part == "module" and len(children) == 1):
                    todo.append((child, path, key, level, compiled))
                else:
                    todo.append((child, f"{path}.{part}" if path else part, key, level + 1, False))

    def _alias(self, first: str, other: str) -> None:
        if first != other and len(self.aliases) < MOST_ALIASES:
            others = self.aliases.setdefault(first, [])
            if other not in others:
                others.append(other)

    @shielded
    def _remember(self, module: Any, path: str, parent: int | None, level: int, quiet: bool) -> None:
        key = id(module)
        names, entries = self.names, self.entries

        def forget(reference: Any) -> None:
            # Python prints and drops an exception here, also that of a signal's handler: so there is no call.
            if key in names and names[key].ref is reference:
                del names[key]
                if key in entries:
                    del entries[key]

        names[key] = Name(weakref.ref(module, forget), path, parent, level, quiet)

    # ---- entries ----------------------------------------------------------------------------------------------------

    def _entry(self, module: Any, name: Name) -> ModuleEntry:
        cls = class_name(module)
        entry, again = ModuleEntry(name.path, cls), ModuleEntry(name.path, cls)
        entry.again = again
        region = type(module).__name__ == "OptimizedModule"
        compiled = region or held(module).get("_compiled_call_impl") is not None
        if cls.endswith("Loss") or type(module).__module__ == "torch.nn.modules.loss":
            entry.root = "loss"
        elif name.level <= 1 and not held(module).get("_is_replica") and has_parameters(module):
            entry.root = "forward"
        entry.quiet = again.quiet = name.quiet
        # A compiled region without parameters opens no phase, but its inside must still see that it is inside a region.
        entry.slow = bool(entry.root) or name.quiet or region
        entry.always = name.level == 0 or entry.root == "loss" or name.quiet
        if not entry.root and name.level == 0 and not held(module).get("_is_replica") and _is_users(module):
            entry.root, entry.slow, entry.always = SOLE, True, entry.slow
        again.slow = again.always = name.quiet or region
        if (self.depth is None or name.level <= self.depth) and (self.only is None or self.only.search(name.path)):
            flags = ("compiled",) if compiled else ()
            text = self.out.text
            entry.text = text(ranges.module(name.path, cls, *flags))
            again.text = text(ranges.module(name.path, cls, *flags, "recompute"))
            entry.backward_text = again.backward_text = text(ranges.module(name.path, cls, *flags, backward=True))
        return entry


def _is_of_region(module: Any) -> bool:
    """Return whether torch.compile made a module: a graph, a part of one that is cut at the buckets of DistributedDataParallel, or one
    that it compiles in turn.
    """
    kind = type(module)
    if kind.__name__ == "OptimizedModule":
        kind = type(held(module).get("_modules", {}).get("_orig_mod"))
    return kind.__module__.startswith(("torch.fx.", "torch._dynamo.backends."))


def class_name(module: Any) -> str:
    """Return the class name that the module's author gave it, even if a wrapper replaced the class."""
    cls = type(module)
    bases = cls.__bases__
    if len(bases) > 1 and bases[0].__name__ == "FSDPModule":  # fully_shard makes a subclass
        return str(bases[1].__name__)
    if cls.__name__ == "OptimizedModule" and "_orig_mod" in held(module).get("_modules", ()):
        return class_name(held(module)["_modules"]["_orig_mod"])
    if cls.__module__.startswith("torch.jit"):  # scripted and traced modules know their original class
        return str(getattr(module, "original_name", "") or cls.__name__)
    return cls.__name__


def held(module: Any) -> dict[str, Any]:
    """Return the attributes that a module holds itself, without its ``__getattribute__``, which may watch who asks."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def _children(module: Any) -> list[tuple[str, Any]]:
    below = held(module).get("_modules")
    if isinstance(below, dict):
        items = list(below.items())
    else:
        items = _asked(module.named_children)  # modules of torch.jit
    return [(name, child) for name, child in items if child is not None]


def _modules_of(root: Any) -> Iterator[Any]:
    """Return ``root`` and the modules below it, each once."""
    todo, seen = [root], set()
    while todo:
        module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module
        todo.extend(child for _, child in _children(module))


def has_parameters(root: Any) -> bool:
    """Return whether ``root`` or a module below it has parameters."""
    for module in _modules_of(root):
        held_here = held(module).get("_parameters")
        parameters = held_here.values() if isinstance(held_here, dict) else _asked(module.parameters, False)
        if any(p is not None for p in parameters):
            return True
    return False


def _is_users(root: Any) -> bool:
    """Return whether ``root`` or a module below it is no ready-made one of torch's."""
    return any(not type(module).__module__.startswith(_HELPERS) for module in _modules_of(root))


def _asked(method: Callable[..., Iterable[Any]], *args: Any) -> list[Any]:
    """Return what a module's own method tells; nothing if the ``__init__`` of its class does not call that of Module."""
    try:
        return list(method(*args))
    except AttributeError as error:
        if of_program(error):
            raise
        return []
