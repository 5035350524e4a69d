"""The answer for a ticket: GitHub, GitLab and Jira read it, and no name in it can become markup, a mention or a link."""

from __future__ import annotations

import re

from nsysx.model import Summary
from nsysx.render import answer
from nsysx.render.answer_text import markdown_lines

#: The pattern of repeated modules, "blocks.*.mlp.*": as code it stays as it is, because it holds nothing that ends code.
_PATTERN = re.compile(r"(?<![\w.*])((?:[A-Za-z_]\w*\.)+\*(?:\.[\w*]+)*|\*(?:\.[A-Za-z_][\w*]*)+)(?![\w.*]\w)", re.ASCII)
#: What begins markup; an underscore inside a word does not, in any of them.
_MARKUP = re.compile(r"([\\`*\[\]<>#|~@&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def escape(text: str) -> str:
    """Return ``text`` such that Markdown shows it as it is: no markup, HTML, mention, issue link, table cell or formula.

    Digits, spaces and plain words stay as they are, and patterns of modules are code, so that the text can be read before it is
    rendered.
    """
    parts = _PATTERN.split(text)  # every second one is a pattern
    return "".join(f"`{part}`" if n % 2 else _escaped(part, begins=not n) for n, part in enumerate(parts))


def _escaped(text: str, *, begins: bool) -> str:
    """Return plain text with all markup escaped; ``begins``: it may stand at the start of a line."""
    text = _MARKUP.sub(lambda m: f"&#{ord(m[1])};", text)
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;")
    if not begins:
        return text
    # At the start of a line only the sign that would begin a list or a heading is escaped.
    text = re.sub(r"^(\s*)([-+=!>])", lambda m: f"{m[1]}&#{ord(m[2])};", text)
    return re.sub(r"^(\s*\d+)([.)])(?=\s|$)", lambda m: f"{m[1]}&#{ord(m[2])};", text)


def render(summary: Summary, *, redact: bool = True) -> str:
    """Return the answer as at most 25 lines of Markdown; home folders and the folders of files are hidden by default."""
    said = answer.build(summary, redact=redact)
    return "\n".join(markdown_lines(said, escape)) + "\n"
