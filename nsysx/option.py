"""How an option is declared: once, on the field of the dataclass that holds it; its type and default are the field's own.

    depth: Annotated[int | None, Option("Mark modules down to this depth. Default: all.", least=0)] = None

The command line, its help, the options kept in a file, the words for another process and the variables of the probe follow.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar, get_type_hints

_Holder = TypeVar("_Holder")


@dataclass(frozen=True, slots=True)
class Option:
    """What a command line needs to know of an option besides its type and default.

    ``metavar``: its value in the help, by command if they differ. ``names``: how it is typed, if not by the name of its field;
    ``--no-NAME`` turns off what is on by default. ``words``: the values that it takes. ``least``, ``most``: the range of a number.
    ``variable``: the environment variable that tells the probe. ``advanced``: it stands under a heading of its own in the help.
    ``hidden``: the help leaves it out, the manual does not. ``gone``: it has no effect any more, and the run says this instead.
    ``commands``: those that have it, if its class serves several. ``typed_only``: no file of options may set it, because it says
    what is overwritten, which program runs, where results go or who gets the reports.
    """

    help: str
    metavar: str | Mapping[str, str] | None = None
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    variable: str = ""
    advanced: bool = False
    commands: tuple[str, ...] = ()
    typed_only: bool = False
    hidden: bool = False
    gone: str = ""

    def shown_for(self, command: str) -> str | None:
        """Return its value as the help of this command shows it."""
        return self.metavar.get(command) if isinstance(self.metavar, Mapping) else self.metavar


class Declared(NamedTuple):
    """One field with its option. ``flag``: it is typed without a value. ``off``: typing it makes the field false."""

    field: str
    kind: Any
    default: Any
    option: Option

    @property
    def names(self) -> tuple[str, ...]:
        """Return how it is typed, its long name last."""
        return self.option.names or ("--" + self.field.replace("_", "-"),)

    @property
    def parameter(self) -> str:
        """Return its name in a file of options, without ``--`` and with ``_``; a word of Python's own gets a ``_`` behind it."""
        long = next(name for name in self.names if name.startswith("--"))
        name = long.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def flag(self) -> bool:
        """Return whether it is typed without a value."""
        return isinstance(self.default, bool)

    @property
    def off(self) -> bool:
        """Return whether typing it makes the field false."""
        return self.default is True

    def typed(self, value: Any) -> list[str]:
        """Return the words with which a command line says ``value``, also a default: a file of options may have another."""
        if value is None or (self.flag and value == self.default):
            return []
        long = "--" + self.parameter.rstrip("_").replace("_", "-")
        if self.flag:
            return [long]
        return [word for item in (value if isinstance(value, tuple) else (value,)) for word in (long, str(item))]


def declared(holder: type) -> Iterator[Declared]:
    """Yield the options of a dataclass in the order of its fields."""
    hints = get_type_hints(holder, include_extras=True)
    for field in fields(holder):
        for option in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(option, Option):
                yield Declared(field.name, hints[field.name].__origin__, field.default, option)


def options_of(holder: type[_Holder], given: Mapping[str, Any]) -> _Holder:
    """Return the options from what was given for each parameter, by a command line or a call; the others have their default."""
    values: dict[str, Any] = {}
    for option in declared(holder):
        if option.parameter in given:
            value = given[option.parameter]
            if isinstance(option.default, tuple):
                value = (value,) if isinstance(value, str) else tuple(value or ())
            values[option.field] = not value if option.off else value
    return holder(**values)
