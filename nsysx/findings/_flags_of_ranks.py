"""A flag of all ranks that each step asks for, to know whether all go on: whether every rank still has a batch, or one wants to stop.

What a line reads to print can be read rarely. A flag that decides has to be asked for in each step, or the ranks part and wait for each
other for good; but no step has to wait for its own: it can be asked for a step ahead, beside the GPU, or not at all where the number of
steps is agreed on before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nsysx.advice import Alternative
from nsysx.findings._case import way

#: What is read decides at once.
_DECIDES = re.compile(r"^\s*(if|elif|while|assert)\b(?!.*\bstep\b\s*%)")
#: A flag of this step's own gradients or loss: whether they are finite, and the update is made.
_OF_THIS_STEP = re.compile(r"(?i)inf\b|nan\b|finite|overflow|skip|grad|norm")
_REDUCES = re.compile(r"^(?P<call>(?:\w+\.)*all_reduce\((?P<flag>[A-Za-z_][\w.]*).*)\)\s*$")


def flag_ahead(collectives: Iterable[str], reads: Iterable[str]) -> Alternative | None:
    """Return the remedy for lines that reduce a flag over all ranks which one of ``reads`` decides by; None where none decides."""
    made = list(collectives)
    deciding = next((text.strip() for text in reads if _DECIDES.search(text)), None)
    if deciding is None or any(map(_OF_THIS_STEP.search, (*made, deciding))):
        return None
    remedy = way("flag-ahead")
    called = next((m for text in made if (m := _REDUCES.match(text.strip())) and "async_op" not in text), None)
    if called is None:
        return remedy
    paste = (
        'flags = dist.new_group(backend="gloo")  # once; the flag of the next step, as a tensor on the CPU\n'
        f"work = {called['call']}, group=flags, async_op=True)\n"
        f"work.wait()  # a step later, and then: {deciding}"
    )
    return way("flag-ahead", remedy.text, paste)
