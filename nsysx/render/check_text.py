"""A budget check for people and for CI: terminal, Markdown, JUnit XML and GitHub annotations."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

from nsysx.comparing.budget import BudgetLine, BudgetVerdict
from nsysx.render.markdown import escape
from nsysx.render.safe_text import clean

_WORDS = {0: "Budget kept", 1: "Budget broken", 4: "The budget checks nothing", 5: "Budget inconclusive"}
_MARKS = {"kept": "ok  ", "broken": "FAIL", "inconclusive": "??  ", "not_measured": "--  "}
_ORDER = {"broken": 0, "inconclusive": 1, "not_measured": 2, "kept": 3}
#: Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _sorted(verdict: BudgetVerdict) -> list[BudgetLine]:
    return sorted(verdict.results, key=lambda r: _ORDER[r.status])


def terminal(verdict: BudgetVerdict) -> str:
    """Return one line per budget, broken ones first."""
    head = f"{_WORDS[verdict.exit_code]}: {clean(verdict.capture, 80)}"
    return "\n".join([head, *(f"{_MARKS[r.status]} {clean(r.detail, 300)}" for r in _sorted(verdict))])


def markdown(verdict: BudgetVerdict) -> str:
    """Return the check for a ticket or a job summary."""
    out = [f"### {_WORDS[verdict.exit_code]}", "", "| | |", "|---|---|"]
    out += [f"| {r.status.replace('_', ' ')} | {escape(clean(r.detail, 300))} |" for r in _sorted(verdict)]
    return "\n".join(out) + "\n"


def junit(verdict: BudgetVerdict) -> str:
    """Return the check as JUnit XML: broken is a failure, inconclusive an error, not measured skipped."""
    states = [r.status for r in verdict.results]
    counts = {
        "tests": len(states),
        "failures": states.count("broken"),
        "errors": states.count("inconclusive"),
        "skipped": states.count("not_measured"),
    }
    attributes = {k: str(v) for k, v in counts.items()}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "nsysx check", **attributes})
    tags = {"broken": "failure", "inconclusive": "error", "not_measured": "skipped"}
    for r in verdict.results:
        name, detail = (_NOT_XML.sub("?", clean(x, 500)) for x in (r.name, r.detail))
        case = ElementTree.SubElement(suite, "testcase", {"classname": "nsysx.budget", "name": name})
        if tag := tags.get(r.status):
            ElementTree.SubElement(case, tag, {"message": detail})
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _value(text: str, *, prop: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if prop else text


def github(verdict: BudgetVerdict, in_repository: Callable[[str], str] = str) -> str:
    """Return GitHub workflow commands: an error per broken line, a warning per undecided one.

    ``in_repository`` gives the path of a recorded file as the repository has it: GitHub shows an annotation only there.
    """
    lines = []
    for r in _sorted(verdict):
        if r.status == "kept":
            continue
        fields = []
        if r.file:
            fields.append(f"file={_value(clean(in_repository(r.file), 300), prop=True)}")
            fields += [f"line={r.line}"] if r.line else []
        fields.append(f"title={_value('nsysx ' + clean(r.name, 80), prop=True)}")
        level = "error" if r.status == "broken" else "warning"
        lines.append(f"::{level} {','.join(fields)}::{_value(clean(r.detail, 400))}")
    return "\n".join(lines) + ("\n" if lines else "")
