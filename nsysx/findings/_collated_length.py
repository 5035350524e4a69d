"""The length that a collate function pads to, in the program's own lines: that of the longest sample of the batch takes its place.

Programs that call a tokenizer let it pad. Others make an array for the batch and write each sample into it, or lengthen each sample.
Lengths are rounded up, so that there are few of them: a new one costs its first step, in which kernels are chosen and loaded for it (a
language model on an H200: 80 to 150 ms for each new length, 27 ms a step once all were seen).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from nsysx.advice import Alternative
from nsysx.analyses.lines import texts
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case
from nsysx.findings._input_bounds import SHORT_MULTIPLE
from nsysx.findings._padding import reaches_beyond, rounding

#: A call of a tokenizer of a library, and what makes it pad to a fixed length.
_TOKENIZER = re.compile(r"\b(\w*tokenizer\w*|\w*processor|tok)(\.pad|\.batch_encode_plus|\.encode_plus|\.__call__)?\(")
_FIXED = re.compile(r"padding\s*=\s*(\"max_length\"|'max_length')(\s*,\s*max_length\s*=\s*[\w.\[\]\"']+)?")
_TOKENIZERS_MULTIPLE = re.compile(r"(\bpad_to_multiple_of\s*=\s*)\d+")
#: What stands for a length: a name, an attribute, an entry or a number.
_LENGTH = r"(?P<length>[A-Za-z_][\w.]*(?:\[[\"']\w+[\"']\])?|\d+)"
#: Lines that make an array for a batch (rows, length), and that lengthen one sample.
_MADE = re.compile(
    r"\b(?:np|numpy|torch)\.(?:full|zeros|ones|empty)\(\s*[(\[]?\s*(?:len\(\w+\)|[\w.]+)\s*,\s*"
    + _LENGTH
    + r"\s*[,)\]]"
)
_NEW = re.compile(r"\.new_(?:full|zeros|ones|empty)\(\s*[(\[]?\s*(?:len\(\w+\)|[\w.]+)\s*,\s*" + _LENGTH + r"\s*[,)\]]")
_LENGTHENED = re.compile(
    r"\(\s*0\s*,\s*" + _LENGTH + r"\s*-\s*(?:len\(|\w+(?:\)|\.(?:shape|size|numel)))|"
    r"\*\s*\(\s*(?P<times>[A-Za-z_][\w.]*|\d+)\s*-\s*len\("
)
#: A loop over the samples of a batch, and the length of one of them.
_LOOP = re.compile(
    r"\bfor\s+(?:\w+\s*,\s*\((?P<inner>[^()]+)\)\s+in\s+enumerate\((?P<counted>\w+)\)|"
    r"\w+\s*,\s*(?P<item>\w+)\s+in\s+enumerate\((?P<numbered>\w+)\)|"
    r"\(?(?P<plain>[\w\s,]+?)\)?\s+in\s+(?P<over>\w+))\s*(?::|\])"
)
_LEN = re.compile(r"\blen\((?P<sample>(?P<name>\w+)(?:\[[^\[\]]+\]|\.\w+)?)\)")


#: Of which of the two changes the likely step is.
_FIRST_IS_PRICED = "The likely step is that of the first change alone."


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the lines of the program's own collate function, with a tokenizer's only where one is called."""
    source = texts(case.profile)
    file, function = _collates(case)
    lines = _function(source.get(file) or {}, function)
    calls = [text for text in lines or _every(source) if _TOKENIZER.search(text)]
    settings = settings_of(case.profile)
    rounded_to, width = rounding(settings)
    remedy = replace(remedy, condition=_with_lengths(remedy.condition, rounded_to, width))
    if reaches_beyond(settings):
        # Two changes, and the price of the first: how far batches of like lengths are possible, no batch tells.
        remedy = replace(remedy, condition=f"{_FIRST_IS_PRICED} {remedy.condition}")
    if calls:
        fixed, longest = next((text for text in calls if _FIXED.search(text)), None), 'padding="longest"'
        paste = remedy.paste if fixed is None else fixed
        if fixed is not None and "pad_to_multiple_of" not in fixed:
            longest += f", pad_to_multiple_of={rounded_to}"
        if width:  # the number is that of the price, whatever stands there
            paste = _TOKENIZERS_MULTIPLE.sub(rf"\g<1>{rounded_to}", paste)
        return title, replace(remedy, paste=_FIXED.sub(longest, paste))
    return title, replace(remedy, paste=as_long_as_longest(lines, rounded_to) or _GENERAL.format(rounded_to=rounded_to))


def _with_lengths(condition: str, rounded_to: int, width: int) -> str:
    """Return why lengths are rounded up, with how many of them there are then and would be by the least multiple."""
    if rounded_to <= SHORT_MULTIPLE:
        return condition
    few, many = (-(-width // step) for step in (rounded_to, SHORT_MULTIPLE))
    lengths = f"rounded up to multiples of {rounded_to} ({few} lengths; those of {SHORT_MULTIPLE} are {many})"
    return condition.replace("rounded up", lengths, 1)


#: For samples that are tensors, where the program's own lines say nothing.
_GENERAL = (
    "batch = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)  # as long as the longest of this batch\n"
    "batch = torch.nn.functional.pad(batch, (0, -batch.shape[1] % {rounded_to}))  # rounded up, for samples of one dimension"
)


def as_long_as_longest(lines: Sequence[str], multiple: int) -> str:
    """Return the lines that give a batch of a collate function the length of its longest sample, rounded up to a multiple; "" where its
    own lines do not say how.
    """
    made = next(
        ((text, match) for text in lines for p in (_MADE, _NEW, _LENGTHENED) if (match := p.search(text))), None
    )
    samples = _samples(lines)
    if made is None or not samples:
        return ""
    text, match = made
    length = next(name for name in match.groupdict().values() if name)
    beside = _beside(lines)
    most = f"(max({samples}) + {beside})" if beside else f"max({samples})"
    longest = f"-(-{most} // {multiple}) * {multiple}"
    given = next(
        (re.fullmatch(rf"{re.escape(length)}\s*=\s*(?P<value>.+)", each) for each in lines if each.startswith(length)),
        None,
    )
    if given is not None:
        return f"{length} = min({given['value']}, {longest})"
    start, end = (match.start(), match.end())
    changed = text[:start] + re.sub(rf"(?<![\w.]){re.escape(length)}(?![\w.])", "longest", text[start:end]) + text[end:]
    return f"longest = min({length}, {longest})\n{changed}"


def _samples(lines: Sequence[str]) -> str:
    """Return the lengths of all samples as an expression, "" where no loop over them shows one."""
    loop, size, _ = _length_of_sample(lines)
    if loop is None or size is None:
        return ""
    targets, over = loop["inner"] or loop["item"] or loop["plain"], loop["counted"] or loop["numbered"] or loop["over"]
    return f"len({size['sample']}) for {targets.strip()} in {over}"


def _length_of_sample(lines: Sequence[str]) -> tuple[re.Match[str] | None, re.Match[str] | None, int]:
    """Return the loop over the samples, where it asks for the length of one, and the number of that line; None without them.

    A name that has got another value before (``tokens = [cls] + tokens``) is no longer what the loop took from the batch.
    """
    for number, text in enumerate(lines):
        loop = _LOOP.search(text)
        if loop is None:
            continue
        names = {name.strip() for name in (loop["inner"] or loop["item"] or loop["plain"]).split(",")}
        for later, each in enumerate(lines[number:], number):
            size = next((m for m in _LEN.finditer(each) if m["name"] in names), None)
            if size is not None:
                return loop, size, later
            names -= {name for name in names if re.match(rf"{name}\s*=[^=]", each)}
    return None, None, 0


def _beside(lines: Sequence[str]) -> int:
    """Return how many places a sample's row has beside its own items: those of the marks that are written before and behind it."""
    _, size, first = _length_of_sample(lines)
    if size is None:
        return 0
    named = re.match(rf"(?P<name>\w+)\s*=[^=].*{re.escape(size.group())}", lines[first])
    length = rf"(?:{re.escape(size.group())}{'|' + re.escape(named['name']) if named else ''})"
    plus = r"(?:\s*\+\s*(?P<more>\d+))?"
    # A slice ends before its number, so that it has as many places; an index is one of them itself.
    ends = re.compile(rf":\s*{length}{plus}\s*[\],]")
    index = re.compile(rf"[\[,]\s*{length}{plus}\s*\](?!\s*\*)")
    most = 0
    for each in lines[first:]:
        written = each.partition("=")[0]
        most = max([most, *(int(m["more"] or 0) for m in ends.finditer(written))])
        most = max([most, *(int(m["more"] or 0) + 1 for m in index.finditer(written))])
    return most


def _collates(case: Case) -> tuple[str, int]:
    """Return file and first line of the collate function of the program's loader, ("", 0) where it has none of its own."""
    settings = settings_of(case.profile)
    where = {} if settings is None else settings.place("collate")
    return str(where.get("file") or ""), int(where.get("line") or 0)


def _function(source: dict[str, str], first: int) -> list[str]:
    """Return the lines of a function that begins at a line, as they ran: up to what it returns."""
    lines = []
    for number in sorted(int(n) for n in source if n.isdigit() and int(n) > first > 0):
        lines.append(source[str(number)].strip())
        if lines[-1].startswith("return"):
            break
    return lines


def _every(source: object) -> list[str]:
    """Return all lines of the program that were noted."""
    files = source.values() if isinstance(source, dict) else ()
    return [text for lines in files if isinstance(lines, dict) for text in lines.values() if isinstance(text, str)]
