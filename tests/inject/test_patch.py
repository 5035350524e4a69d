"""Functions whose code is exchanged do their work once, however they end."""

from __future__ import annotations

from typing import Any

import pytest

from nsysx.inject.nsysx_probe import patch


def returns_nothing(log: list[str]) -> None:
    log.append("body")


def ends_in_a_loop(log: list[str]) -> None:
    for word in ("body",):
        log += [word]


def may_return(log: list[str]) -> None:
    log.append("body")
    if len(log) > 5:
        return


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("function", [returns_nothing, ends_in_a_loop, may_return])
def test_a_body_that_does_not_return_runs_once_and_under_the_compiler_without_us(
    function: Any, compiling: bool
) -> None:
    log: list[str] = []
    wrong: list[Any] = []
    patcher = patch.Patcher(lambda: compiling, lambda *what: wrong.append(what))
    patcher.around(function, "test", "None", lambda _: log.append("enter"), lambda _: log.append("leave"))
    try:
        function(log)
    finally:
        patcher.off()
    assert not wrong
    assert log == (["body"] if compiling else ["enter", "body", "leave"])
    function(log)
    assert log[-1] == "body"
