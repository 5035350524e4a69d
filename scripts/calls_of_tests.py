"""A plugin of pytest for scripts/mutate: which functions of the package each test calls, and how long it takes.

NSYSX_CALLS names the JSON file that is written: node id -> [seconds, ["nsysx/replay/engine.py:80", ...], whether it passes], the
line being the first of the function. What a fixture calls that tests share counts for each of them. Standard library only, but for pytest.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

PACKAGE = str(Path.cwd() / "nsysx") + os.sep


class Calls:
    """Notes the code that runs, for the test or the fixture at hand."""

    def __init__(self) -> None:
        #: By identity: the hash of code is that of all its constants, computed each time.
        self.code: dict[int, CodeType] = {}
        self.fixtures: dict[int, tuple[float, dict[int, CodeType]]] = {}
        self.failed: set[str] = set()
        self.tests: dict[str, tuple[float, list[str], bool]] = {}

    def trace(self, frame: Any, _event: str, _value: Any) -> None:
        self.code[id(frame.f_code)] = frame.f_code

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.code, began = {}, time.perf_counter()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seconds, code = time.perf_counter() - began, dict(self.code)
        defined = getattr(item, "_fixtureinfo", None)
        for name in defined.names_closure if defined else ():
            for fixture in defined.name2fixturedefs.get(name, ()):
                took, called = self.fixtures.get(id(fixture), (0.0, {}))
                seconds, code = seconds + took, {**code, **called}
        files = ((c.co_filename, c.co_firstlineno) for c in code.values())
        called = {f"nsysx/{file[len(PACKAGE) :]}:{line}" for file, line in files if file.startswith(PACKAGE)}
        self.tests[item.nodeid] = round(seconds, 3), sorted(called), item.nodeid not in self.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        around, began = self.code, time.perf_counter()
        self.code = {}
        yield
        if fixturedef.scope != "function":
            self.fixtures[id(fixturedef)] = time.perf_counter() - began, self.code
        self.code = {**around, **self.code}

    def pytest_sessionfinish(self) -> None:
        if self.tests:
            Path(os.environ["NSYSX_CALLS"]).write_text(json.dumps(self.tests), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Calls(), "calls-of-tests")
