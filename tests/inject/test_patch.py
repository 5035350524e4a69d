"""Functions whose code is exchanged do their work once, however they end."""

from __future__ import annotations

import pickle
import traceback
import types
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


def test_the_names_stay_out_of_the_module_and_a_pickled_copy_does_the_work_alone() -> None:
    before, entered = set(globals()), []
    patcher = patch.Patcher(lambda: False, lambda what, error: pytest.fail(f"{what}: {error}"))
    patcher.around(returns_nothing, "test", "None", entered.append, lambda _: entered.append("leave"))
    try:
        assert set(globals()) - before <= {"_nsysx_compiling"}  # this module has no torch
        constants = tuple(
            pickle.loads(pickle.dumps(c)) if type(c).__module__ == patch.__name__ else c
            for c in returns_nothing.__code__.co_consts
        )
        assert constants != returns_nothing.__code__.co_consts
        copy = types.FunctionType(returns_nothing.__code__.replace(co_consts=constants), globals())
        log: list[str] = []
        copy(log)
        assert log == ["body"]
        assert entered == []
    finally:
        patcher.off()


def fails(log: list[str]) -> None:
    mine = len(log)
    raise ValueError(mine)


def test_a_traceback_with_its_local_variables_shows_none_of_ours() -> None:
    """As of `rich`, pytest -l, or an error service; of a running frame two are to be seen."""
    patcher = patch.Patcher(lambda: False, lambda what, error: pytest.fail(f"{what}: {error}"))
    patcher.around(fails, "test", "None", lambda _: 1, lambda _: None)
    try:
        with pytest.raises(ValueError) as caught:
            fails([])
    finally:
        patcher.off()
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack[-1]
    assert (told.name, told.locals) == ("fails", {"log": "[]", "mine": "0"})


class Indented:
    def text(self) -> str:
        return """one
        and another
"""


def test_what_a_function_of_a_class_says_over_several_lines_stays_the_same() -> None:
    patcher = patch.Patcher(lambda: False, lambda what, error: pytest.fail(f"{what}: {error}"))
    before = Indented().text()
    patcher.around(Indented.text, "test", "None", lambda _: None, lambda _: None)
    try:
        assert Indented().text() == before == "one\n        and another\n"
    finally:
        patcher.off()
