"""A setting that only costs: when it does, in which words it is told, and what it is worth to change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nsysx.advice import Alternative
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Need, Saving
from nsysx.findings._once import Takes
from nsysx.model import Row


class Costly(NamedTuple):
    """A setting. ``when`` returns what was seen if it costs, else ""; ``worth`` asks the replay, None: it has to be tried.

    ``seen`` is ``when`` for a capture whose settings were not read, None where it does not show there. ``takes``: the time that it is
    about, where that is known. ``leads``: what it costs cannot be small and nothing else is worth doing before it, known or not;
    ``yields``: in this capture something else is known better, and goes before it.
    ``phase``: where it acts; ``place``: where it is set, if not in the program's code; ``set_by``: names under which the probe notes the
    line that sets it. ``anywhere``: the advice to a program that is
    not written in Python, which a setting that kernels show may be of. ``need``: what the change needs, told where it is violated.
    ``oversight``: nobody means it, and other changes leave it as it is: it goes before an option for the whole network that saves more.
    ``fewer_steps``: no step gets shorter, there are fewer of them, as ``worth`` says.
    ``at``: the line that does it, where no setting is set. ``worded``: title and remedy in words of the capture.
    """

    name: str
    when: Callable[[Case, RecordedSettings], str]
    title: str
    remedy: Alternative
    worth: Callable[[Case, RecordedSettings | None], Saving | None] | None = None
    seen: Callable[[Case], str] | None = None
    takes: Callable[[Case], Takes] | None = None
    leads: bool = False
    yields: Callable[[Case], bool] | None = None
    oversight: bool = False
    fewer_steps: bool = False
    phase: str | None = None
    place: str | None = None
    anywhere: str | None = None
    need: Need | None = None
    set_by: tuple[str, ...] = ()
    at: Callable[[Case], Row] | None = None
    worded: Callable[[Case, str, Alternative], tuple[str, Alternative]] | None = None
