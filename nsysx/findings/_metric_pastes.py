"""The lines of a metric of numpy, in the program's own names, as they are with tensors that stay on the GPU."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

_TO_HOST = re.compile(r"\.cpu\(\)(?:\.numpy\(\))?")
_SAME = re.compile(r"(\w+)\s*=\s*\1")
_MASK = re.compile(r"(?P<mask>\w+)\s*=\s*(?=[^=])[^()]*(?:[<>]=?|!=|==)[^()]*")
_ASSIGNS = re.compile(r"(?P<name>[A-Za-z_][\w.]*)\s*(?P<adds>\+?)=(?!=)\s*(?P<value>.*)")
_COUNTS = re.compile(r"(?P<counts>.*=\s*)torch\.bincount\((?P<index>\w+),\s*minlength=(?P<bins>[^(),]+)\)(?P<more>.*)")
#: Functions that torch has by the name and with the arguments of numpy.
_ALIKE = re.compile(r"\b(?:np|numpy)\.(?=(?:bincount|where|abs|sum|argmax|argmin|argsort|diag)\()")
#: What torch writes otherwise, or has not.
_OTHERWISE = re.compile(
    r"\b(?:np|numpy)\.|\.(?:astype|tolist|item|numpy|copy|clip|take|ptp|nonzero)\(|\baxis\s*=|\.(?:size|T|dtype)\b(?!\()|\.(?:max|min)\([^)]"
)
#: Calls of a paste that are known to take tensors of the GPU: those of torch, those of tensors, and the length of one.
_KNOWN_CALLS = re.compile(r"(?<![\w.])(?!torch\.|len\()[A-Za-z_]\w*\(")


def on_gpu(source: Mapping[int, str], numbers: Sequence[int], copying: Collection[int]) -> str:
    """Return the lines of a metric with tensors, "" where a line holds what torch writes otherwise.

    ``numbers``: the lines to change; ``copying``: those that copy to the host.
    """
    between = range(numbers[0], numbers[-1] + 1)
    if any(n not in source for n in between):
        return ""
    changed, on_device = list[str](), ""
    for n in between:
        line = source[n].partition("  #")[0].strip()
        text = _TO_HOST.sub("", line) if n in copying else line
        text = _ALIKE.sub("torch.", text.replace(".astype(np.int64)", ".long()")).replace(".mean(", ".double().mean(")
        assigns = _ASSIGNS.fullmatch(text)
        if not text:
            continue
        if assigns is None or _OTHERWISE.search(text) or _KNOWN_CALLS.search(text):
            return ""
        on_device = on_device or (assigns["name"] if n in copying else "")
        if not _SAME.fullmatch(text):
            changed.append(text)
    paste, sums = list[str](), list[str]()
    for text in _without_mask(changed):
        assigns = _ASSIGNS.fullmatch(text)
        if assigns is not None and assigns["adds"] and not assigns["value"].startswith("len("):
            name = assigns["name"]
            paste.append(f"{name} = torch.as_tensor({name}, device={on_device}.device) + {assigns['value']}")
            sums.append(name)
        else:
            paste.append(text)
    if not sums:
        return ""
    paste += [f"# where it is read: torch.as_tensor({name}).cpu().numpy()" for name in sums]
    return "\n".join(paste)


def _without_mask(changed: list[str]) -> list[str]:
    """Return lines that count the items of a mask, with one more bin for the others: no size is waited for to pick items."""
    masks = [match["mask"] for text in changed if (match := _MASK.fullmatch(text))]
    counts = [(n, match) for n, text in enumerate(changed) if (match := _COUNTS.fullmatch(text))]
    if len(masks) != 1 or len(counts) != 1:
        return changed
    (mask,), ((counting, count),) = masks, counts
    picks = [n for n, text in enumerate(changed) if f"[{mask}]" in text]
    uses = sum(len(re.findall(rf"\b{mask}\b", text)) for text in changed)
    picked = re.fullmatch(rf"{count['index']}\s*=\s*(.*)", changed[picks[0]]) if len(picks) == 1 else None
    index = sum(len(re.findall(rf"(?<![\w.]){count['index']}\b", text)) for text in changed)
    if picked is None or index != 2 or picked[1].count(f"[{mask}]") + 1 != uses:
        return changed
    bins, whole = count["bins"].strip(), picked[1].replace(f"[{mask}]", "")
    changed[picks[0]] = f"{count['index']} = torch.where({mask}, {whole}, {bins})"
    one_more = f"{count['counts']}torch.bincount({count['index']}.flatten(), minlength={bins} + 1)[:{bins}]"
    changed[counting] = one_more + count["more"]
    return changed
