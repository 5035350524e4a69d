"""A command line made from declared options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from nsysx.option import Declared, declared

_Holder = TypeVar("_Holder")
#: The heading of advanced options in the help.
ADVANCED = "Advanced options"


def _parameter(one: Declared) -> inspect.Parameter:
    option = one.option
    kind, default = (list[str] | None, None) if isinstance(one.default, tuple) else (one.kind, one.default)
    info = typer.Option(
        *one.names, metavar=option.metavar, help=option.help, min=option.least,
        rich_help_panel=ADVANCED if option.advanced else None,
    )  # fmt: skip
    return inspect.Parameter(
        one.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if one.flag else default,
        annotation=Annotated[kind, info],
    )


def with_options(work: Callable[..., None], others: Callable[..., None], holder: type) -> Callable[..., None]:
    """Return ``work`` as a command whose parameters are those of ``others`` and the options declared in ``holder``."""
    hints = get_type_hints(others, include_extras=True)
    before = [p.replace(annotation=hints[p.name]) for p in inspect.signature(others).parameters.values()]
    parameters = sorted([*before, *map(_parameter, declared(holder))], key=lambda p: p.kind)

    def command(**given: Any) -> None:
        work(**given)

    command.__name__, command.__doc__ = work.__name__.strip("_"), work.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def options_of(holder: type[_Holder], given: Mapping[str, Any]) -> _Holder:
    """Return the options from what the command line gave for each parameter."""
    values = {}
    for one in declared(holder):
        value = given[one.parameter]
        values[one.field] = not value if one.off else tuple(value or ()) if isinstance(one.default, tuple) else value
    return holder(**values)


class Grouped(TyperCommand):
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
