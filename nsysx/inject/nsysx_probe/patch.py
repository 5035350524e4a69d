"""Puts calls around the body of another Python function without a wrapper.

A wrapper adds a frame to every traceback, shifts ``warnings.warn(stacklevel=...)``, and does not reach callers that bound the
function earlier. So the function object stays and only its code is exchanged: the same source inside ``try`` / ``finally``,
compiled under the same file name with the same lines and columns. Tracebacks, warnings and identity do not change, and after the
old code is put back the program runs at its full speed.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from . import interrupts

#: ``BODY`` stands for the original body, ``RESULT`` for it with every ``return x`` as ``return _nsysx_out(_nsysx_e, x)``. A frame that
#: was left holds no local variable of ours: tracebacks may show them (``traceback.StackSummary`` with ``capture_locals``).
AROUND = """
if _nsysx_compiling():
    BODY
_nsysx_t = ENTER(FIRST)
try:
    BODY
finally:
    LEAVE(_nsysx_t)
    del _nsysx_t
"""

#: Passes on what a function returns; nothing stays to be done when it raises.
RESULT = """
if _nsysx_compiling():
    BODY
RESULT
"""

#: Stands for the constant of the patched code that holds what the template calls, until it is compiled.
_STAND_IN = "what the probe calls"
_COMPILING = "_nsysx_compiling"

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag


class UnpatchableError(Exception):
    """The function has no source, or a form that this module does not handle."""


class _Names:
    """What a template calls, as attributes. It is a constant of the patched code, so nothing shows in the function's module."""

    def __init__(self, names: dict[str, Any]) -> None:
        vars(self).update((name.removeprefix("_nsysx_"), value) for name, value in names.items())

    def __reduce__(self) -> Any:
        """Pickle (cloudpickle, for other processes) as something whose every call does nothing."""
        return eval, (
            "type('', (), {'__getattr__': lambda self, name: lambda *given: given[-1] if given else None})()",
        )


class _Hide(ast.NodeTransformer):
    """Makes the names of a template attributes of one constant."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.names:
            stand_in = ast.copy_location(ast.Constant(_STAND_IN), node)
            return ast.copy_location(ast.Attribute(stand_in, node.id.removeprefix("_nsysx_"), ast.Load()), node)
        return node


class _Result(ast.NodeTransformer):
    """Passes the value of each ``return`` through ``_nsysx_out``, but not in nested functions."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            passes, entered = (
                ast.copy_location(ast.Name(name, ast.Load()), node) for name in ("_nsysx_out", "_nsysx_e")
            )
            node.value = ast.copy_location(ast.Call(passes, [entered, node.value], []), node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node


class _Fill(ast.NodeTransformer):
    """Replaces the statements ``BODY`` and ``RESULT`` of a template. A body that stays as it is may stand in several places."""

    def __init__(self, body: list[ast.stmt], hide: _Hide) -> None:
        self.body, self.hide = body, hide

    def visit_Expr(self, node: ast.Expr) -> Any:
        word = node.value.id if isinstance(node.value, ast.Name) else ""
        if word not in ("BODY", "RESULT"):
            return node
        body = copy.deepcopy(self.body) if word == "RESULT" else list(self.body)
        if not isinstance(body[-1], (ast.Return, ast.Raise)):  # else the template would go on behind the body
            body.append(ast.copy_location(ast.Return(None), body[-1]))
        return [self.hide.visit(_Result().visit(s)) for s in body] if word == "RESULT" else body


def _place(node: ast.AST, line: int) -> None:
    """Give every node of the template one position: the line of the ``def``."""
    for child in ast.walk(node):
        if "lineno" in child._attributes:
            child.lineno = child.end_lineno = line  # type: ignore[attr-defined]
            child.col_offset = child.end_col_offset = 0  # type: ignore[attr-defined]


def rebuild(function: FunctionType, template: str, names: dict[str, Any]) -> CodeType:
    """Return the code of ``function`` with ``template``, which may use ``names``, around its body.

    Raises UnpatchableError where that is not safe.
    """
    old = function.__code__
    in_class = old.co_freevars == ("__class__",)  # it calls super()
    if ("__class__" in old.co_freevars and not in_class) or old.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    ):
        raise UnpatchableError(f"{function.__qualname__} uses super() in a closure or is a generator")
    definition = _definition(function)
    _surround(function, definition, template, names)
    tree, scopes = _in_scopes(function, definition, in_class)
    code: CodeType = compile(tree, old.co_filename, "exec", old.co_flags & _FUTURES, dont_inherit=True)
    for name in [*scopes, old.co_name]:
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    if not _same_signature(code, old):
        raise UnpatchableError(f"{function.__qualname__} compiles to another signature")
    naming: dict[str, Any] = {}
    if sys.version_info >= (3, 11):
        naming["co_qualname"] = old.co_qualname
    constants = tuple(_Names(names) if c == _STAND_IN else c for c in code.co_consts)
    return interrupts.covered(code.replace(co_consts=constants, **naming))


def _definition(function: FunctionType) -> ast.FunctionDef:
    """Return the definition of a function, parsed from its source, with the positions that it has in its file."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(code)
        indented = lines[0][:1].isspace()
        # In a block of its own and behind as many lines as in its file, it is parsed with its positions.
        before = "\n" * (first - 2) + "if True:\n" if indented else "\n" * (first - 1)
        (outer,) = ast.parse(before + "".join(lines)).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise UnpatchableError(f"no source of {function.__qualname__}") from error
    definition = outer.body[0] if indented and isinstance(outer, ast.If) else outer
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise UnpatchableError(f"source of {function.__qualname__} is not its definition")
    return definition


def _surround(function: FunctionType, definition: ast.FunctionDef, template: str, names: dict[str, Any]) -> None:
    """Put the template around the body of a definition, after its docstring.

    Its first statement asks whether Dynamo compiles. Dynamo cannot read constants of ours, so they come after it.
    """
    body = definition.body
    documented = bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    head = [body.pop(0)] if documented and isinstance(body[0].value.value, str) else []  # type: ignore[attr-defined]
    if not body:
        raise UnpatchableError(f"{function.__qualname__} has no body")
    frame = ast.parse(template)
    _place(frame, definition.lineno)
    hide = _Hide(names)
    definition.body = head + _Fill(body, hide).visit(hide.visit(frame)).body


def _in_scopes(function: FunctionType, definition: ast.FunctionDef, in_class: bool) -> tuple[ast.Module, list[str]]:
    """Return a module in which the definition closes over the same names as before, and the names of its enclosing scopes."""
    free = function.__code__.co_freevars
    if in_class:  # __class__ exists only inside a class statement
        scope = function.__qualname__.split(".")[-2]
        outer = ast.parse(f"class {scope}: pass")
    elif free:  # the function's free variables need an enclosing scope
        scope = "closure"
        outer = ast.parse(f"def closure({', '.join(free)}): pass")
    else:
        return ast.Module([definition], []), []
    _place(outer, definition.lineno)
    outer.body[0].body = [definition]  # type: ignore[attr-defined]
    return outer, [scope]


def _same_signature(new: CodeType, old: CodeType) -> bool:
    """Return whether two codes take the same arguments, close over the same names and begin on the same line."""
    count = old.co_argcount + old.co_kwonlyargcount + bool(old.co_flags & 4) + bool(old.co_flags & 8)
    return (
        new.co_freevars == old.co_freevars
        and new.co_firstlineno == old.co_firstlineno
        and new.co_varnames[:count] == old.co_varnames[:count]
        and (new.co_argcount, new.co_posonlyargcount, new.co_kwonlyargcount)
        == (old.co_argcount, old.co_posonlyargcount, old.co_kwonlyargcount)
        and (new.co_flags ^ old.co_flags) & 0xC == 0
    )


def _asked(function: FunctionType, compiling: Any) -> str:
    """Return how the function's code can ask Dynamo, which reads globals only; best by the ``torch`` of its module."""
    compiler = getattr(function.__globals__.get("torch"), "compiler", None)
    code = function.__code__
    if getattr(compiler, "is_dynamo_compiling", None) is not compiling or "torch" in (
        *code.co_varnames,
        *code.co_cellvars,
    ):
        return _COMPILING
    return "torch.compiler.is_dynamo_compiling"


class Patch:
    """A function and its two codes. ``on`` and ``off`` are safe at any time: a running call keeps the code it began with.

    ``each_step``: the function usually runs in each step, and not to end it.
    """

    def __init__(self, function: FunctionType, template: str, names: dict[str, Any], *, each_step: bool = True) -> None:
        self.each_step = each_step
        self.function = function
        self.old = function.__code__
        compiling = names.pop(_COMPILING)
        asked = _asked(function, compiling)
        self.new = rebuild(function, template.replace(_COMPILING, asked), names)
        self.names = {_COMPILING: compiling} if asked == _COMPILING else {}

    def on(self) -> None:
        """Install the instrumented code."""
        self.function.__globals__.update(self.names)
        self.function.__code__ = self.new

    def on_again(self) -> None:
        """Install it where the function still has its own code."""
        if self.function.__code__ is self.old:
            self.on()

    def off(self) -> None:
        """Put the original code back, unless someone else has replaced it meanwhile."""
        if self.function.__code__ is self.new:
            self.function.__code__ = self.old


def nothing(_token: Any) -> None:
    """Do nothing: the leave function of a patch that needs none."""


class Patcher:
    """All functions whose code was exchanged. ``note(what, error)`` is called for a function where that is not possible."""

    def __init__(self, compiling: Any, note: Callable[[str, BaseException], None]) -> None:
        self.patches: list[Patch] = []
        self._compiling = compiling
        self._note = note

    def around(
        self, function: Any, what: str, first: str, enter: Any, leave: Any, *, each_step: bool = False
    ) -> list[Patch]:
        """Put ``enter(first)`` and ``leave(token)`` around the body of a function; ``each_step``: see `Patch`. Return how, [] if not."""
        names = {
            "_nsysx_compiling": self._compiling,
            f"_nsysx_enter_{what}": enter,
            f"_nsysx_leave_{what}": leave,
        }
        template = AROUND.replace("ENTER", f"_nsysx_enter_{what}").replace("LEAVE", f"_nsysx_leave_{what}")
        try:
            patch = Patch(function, template.replace("FIRST", first), names, each_step=each_step)
        except Exception as error:
            self._note(what, error)  # raises what is the program's
            return []
        patch.on()
        self.patches.append(patch)
        return [patch]

    def off(self) -> None:
        """Give every function its own code back. Running calls still end their ranges."""
        for patch in self.patches:
            patch.off()
