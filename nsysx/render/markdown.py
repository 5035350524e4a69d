"""The answer for a ticket: GitHub, GitLab, Slack and Jira show it, and no name in it can become markup, a mention or a link.

Names of kernels, modules and files contain signs that start markup somewhere. They are set as code, where every sign stands for
itself, and which also reads well unrendered. Only what code does not make harmless everywhere is escaped sign by sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsysx.model import Summary
from nsysx.render import answer_words
from nsysx.render.answer_text import markdown_lines
from nsysx.render.render_bounds import MARKDOWN_NAME

#: A word that contains a sign that starts markup; an underscore inside a word never does, nor "<" before a number alone.
_MARKUP = re.compile(r"[\\`*\[\]>#|~@&$]|(?<=\w)<|<(?!\d)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|://|www\.")
#: What code does not make harmless in all of them: what ends code or a table cell, mentions, links, Jira macros, and what a
#: parser without code spans would take for an HTML tag that loads or runs something.
_NEVER_CODE = re.compile(r"[`|@$]|\]\(|\[~|!\[|://|www\.|\{[a-z]+[:}]|<[!/?#]|=\S", re.IGNORECASE)
#: The signs that are escaped there; blanks, letters and digits start nothing.
_SIGN = re.compile(r"([\\`*\[\]<>#|~@&${}!=]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
#: Signs that start nothing when they stand alone between blanks.
_ALONE = frozenset(("<", ">", "->", "=>", "&", "#", "*", "~", "$", "@"))
#: A word, without the punctuation around it.
_WORD = re.compile(r"(?P<before>[(\"']*)(?P<core>.*?)(?P<after>[.,:;!?\"']*)", re.DOTALL)
#: Opening and closing brackets of a name; an arrow closes none, and "a < b" opens none.
_OPENS, _CLOSES = re.compile(r"(?<=\w)<|(?<=[\w>])\("), re.compile(r"(?<!-)>|\)")


def cell(text: str) -> str:
    """Return ``text`` for a cell of a table, where nothing starts a line; see ``escape``."""
    return "".join(_words(text))


def escape(text: str) -> str:
    """Return ``text`` so that Markdown shows it unchanged: no markup, HTML, mention, issue link, table cell or formula."""
    marked = cell(text)
    # At the start of a line, only a sign that would start a list or a heading is escaped: not that of a number.
    marked = re.sub(r"^(\s*)([-+](?!\d)|[=!>#*])", lambda m: f"{m[1]}&#{ord(m[2])};", marked)
    return re.sub(r"^(\s*\d+)([.)])(?=\s|$)", lambda m: f"{m[1]}&#{ord(m[2])};", marked)


def _words(text: str) -> Iterator[str]:
    """Yield the words and the blanks between them; words with markup signs are code."""
    parts = re.split(r"(\s+)", text)  # every other one is blank
    index = 0
    while index < len(parts):
        word, taken = parts[index], 1
        if index % 2 == 0 and word not in _ALONE and _MARKUP.search(word):
            taken = _parts_of_name(parts, index)
            yield _code("".join(parts[index : index + taken]))
        else:
            yield word
        index += taken


def _parts_of_name(parts: list[str], index: int) -> int:
    """Return how many parts the name at ``index`` has: it continues over blanks to where its brackets close, or where it was cut."""
    opened = _open(parts[index])
    for last in range(index, min(len(parts), index + 2 * MARKDOWN_NAME + 1), 2):
        # Inside of a name, "(" opens a bracket after a blank, too: that of a cast.
        opened += _open(parts[last]) + parts[last].startswith("(") if last > index else 0
        if opened <= 0 or parts[last].endswith("…"):
            return last - index + 1
    return 1


def _open(word: str) -> int:
    """Return how many brackets a word leaves open."""
    return len(_OPENS.findall(word)) - len(_CLOSES.findall(word))


def _code(name: str) -> str:
    """Return a name as code, with the punctuation around it outside; escaped where code is not enough."""
    parts = _WORD.fullmatch(name)
    assert parts is not None
    before, core, after = parts["before"], parts["core"], parts["after"]
    while core.endswith(")") and core.count(")") > core.count("("):
        core, after = core[:-1], ")" + after
    if not core or _NEVER_CODE.search(core):
        core = _SIGN.sub(lambda m: f"&#{ord(m[1])};", core).replace("://", "&#58;//")
        return before + re.sub(r"(?i)www\.", lambda m: f"{m[0][:3]}&#46;", core) + after
    return f"{before}`{core}`{after}"


def render(summary: Summary, *, redact: bool = True) -> str:
    """Return the answer as at most 25 lines of Markdown; home folders and the folders of files are hidden by default."""
    worded = answer_words.build(summary, redact=redact)
    return "\n".join(markdown_lines(worded, escape)) + "\n"
