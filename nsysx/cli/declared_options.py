"""A command line made from declared options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from nsysx.option import Declared, declared, options_of

#: The heading of advanced options in the help.
ADVANCED = "Advanced options"


class TypedOnly(NamedTuple):
    """Marks an option of a command that no file of options may set, see `Option`."""


TYPED_ONLY = TypedOnly()


def typed_only(command: Callable[..., None]) -> set[str]:
    """Return the parameters of a command that no file of options may set."""
    hints = get_type_hints(command, include_extras=True)
    return {name for name, hint in hints.items() if TYPED_ONLY in getattr(hint, "__metadata__", ())}


def _parameter(option_of: Declared, command: str) -> inspect.Parameter:
    option = option_of.option
    kind, default = option_of.kind, option_of.default
    if isinstance(default, tuple):  # it may be typed several times
        kind, default = GenericAlias(list, get_args(kind)[0]) | None, None
    info = typer.Option(
        *option_of.names, metavar=option.shown_for(command), help=option.help, min=option.least, max=option.most,
        rich_help_panel=ADVANCED if option.advanced else None, hidden=option.hidden or bool(option.gone),
    )  # fmt: skip
    typed = Annotated[kind, info, TYPED_ONLY] if option.typed_only else Annotated[kind, info]
    default = False if option_of.flag else default
    return inspect.Parameter(option_of.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=typed)


def with_options(work: Callable[..., None]) -> Callable[..., None]:
    """Return ``work`` as a command: a parameter whose type declares options stands for those of them that the command has."""
    name, hints = work.__name__.strip("_"), get_type_hints(work, include_extras=True)
    holders = {parameter: hint for parameter, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    plain: dict[str, inspect.Parameter] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(work).parameters.values():
        if (holder := holders.get(parameter.name)) is None:
            plain[parameter.name] = parameter.replace(annotation=hints[parameter.name])
        else:
            options += [
                _parameter(option, name) for option in declared(holder) if name in (option.option.commands or (name,))
            ]
    parameters = sorted([*plain.values(), *options], key=lambda p: p.kind)

    def command(**given: Any) -> None:
        work(**{p: given[p] for p in plain}, **{p: options_of(holder, given) for p, holder in holders.items()})

    command.__name__, command.__doc__ = name, work.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


class Quick:
    """A command or a group of them that has typer convert only what needs it: most options are left out, most others are texts.

    Making the converters takes as long as analyzing two thousand kernels.
    """

    callback: Callable[..., Any] | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, as click does."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        kinds = get_type_hints(self.callback) if self.callback is not None else {}
        for param in params:
            if not isinstance(param.process_value, partial):
                param.process_value = partial(_value, param, _kinds(kinds.get(param.name)), param.process_value)
            if param.param_type_name == "argument":  # its name says what it is; the help would add <list[Path]>
                param.display_type_rich = lambda ctx: ""
        return params


def _kinds(hint: Any) -> set[Any]:
    """Return the plain types of which a hint is made."""
    inner = get_args(hint)
    return {kind for arg in inner for kind in _kinds(arg)} if inner else {hint}


def _value(param: Any, kinds: set[Any], convert: Callable[[Any, Any], Any], context: Any, given: Any) -> Any:
    """Return the value of a parameter: what was given, where that is all there is to it, else what ``convert`` makes of it."""
    several = param.multiple or param.nargs == -1
    if given is None and not param.required:
        value = () if several else None
        return value if param.callback is None else param.callback(context, param, value)
    words = given if several and isinstance(given, list | tuple) else [given]
    if param.callback is not None or not words or not all(isinstance(word, str) for word in words):
        return given if given is param.default and type(given) in kinds else convert(context, given)
    if Path in kinds:
        if "" in words:  # as of a variable that is not set; as a path it would be this folder
            raise typer.BadParameter("it names no file", ctx=context, param=param)
        if any(os.access(word, os.F_OK) and not os.access(word, os.R_OK) for word in words):
            return convert(context, given)  # which refuses them
        words = [Path(word) for word in words]
    elif str not in kinds:
        return convert(context, given)
    return [*words] if several else words[0]


class Command(Quick, TyperCommand):
    """A command without groups of options."""


class Commands(Quick, TyperGroup):
    """The commands."""


class Grouped(Command):
    """A command whose advanced options stand under a heading of their own in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and advanced options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], ADVANCED: []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                sections[getattr(param, "rich_help_panel", None) or usual].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
