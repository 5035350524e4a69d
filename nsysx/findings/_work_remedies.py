"""What can be done about a line of Python whose kernels only move memory, by what stands in the line. The first row that fits counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class WorkKind(NamedTuple):
    """A remedy, and the text of lines that it is for.

    ``outside``: it is for lines outside of networks alone. ``beside``: lines around such a line serve it, too. ``stays``: the families
    of kernels that are still needed; None where kernels become fewer, and no family goes. ``unchanging``: it is for programs that do
    not train: what they read stays as it is. ``also``: the text of other lines of the same function that are a part of it; ``needs``: what
    stands in one of all these. ``target``: what stands in a line near it of a program that does not train, and that has yet something to
    compare with.
    """

    remedy: str
    text: str
    outside: bool = False
    beside: bool = True
    stays: tuple[str, ...] | None = ()
    unchanging: bool = False
    also: str = ""
    needs: str = ""
    target: str = ""

    def goes_with(self, text: str, *, inside: bool, of_function: bool) -> bool:
        """Return whether a line near that which it is for goes with it; ``inside``: of a network; ``of_function``: both are of one."""
        if self.also:
            return of_function and re.search(f"{self.text}|{self.also}", text) is not None
        return re.search(self.text, text) is not None if inside else self.beside


#: Rows of one tensor against rows of another one: a[:, None] - b[None], a.unsqueeze(1) - b.unsqueeze(0).
_ROWS = r"(\[[^\]]*\bNone\b[^\]]*\]|\.unsqueeze\([^)]*\))"
_SOFTMAX = ("softmax and loss",)
#: Sums over the last dimensions that keep them, which a layer's normalization and a softmax are made of.
_KEPT = r"keepdims?\s*=\s*True"
KINDS = (
    # The comparison stays for what sums over pixels or voxels: those sums are of classes that lie apart.
    WorkKind("classes-compared", r"\bone_hot\(.*\)\s*\.(permute|movedim|moveaxis|transpose)\(", stays=(*_SOFTMAX, "reduction"),
             outside=True, needs=r"\.(sum|mean)\(|\beinsum\("),
    WorkKind("classes-as-numbers", r"\bone_hot\(", stays=_SOFTMAX),
    WorkKind("weights-converted-once", r"(?i)weight\w*(\(\))?\.(float|half|bfloat16|double|to|type)\(|\b(dequantize|unpack)\w*\(.*weight",
             unchanging=True),
    WorkKind("distances-by-product", rf"{_ROWS}\s*-\s*[\w.]+{_ROWS}"),
    WorkKind("sums-by-product", rf"{_ROWS}\s*\*[^=]*\)\.(sum|mean)\("),
    WorkKind("library-convolution", r"\bunfold\(", beside=False),
    WorkKind("preallocated", r"\btorch\.(cat|concat|hstack|vstack)\([^)]*(past|cache|histor|memor|buffer|prefix|generated|outputs?\b)",
             beside=False),
    WorkKind("largest-for-sort", r"\b(arg)?sort\(", beside=False),
    WorkKind("one-layout", r"(permute|transpose|movedim|rearrange)\([^()]*\)\.contiguous\(\s*\)", beside=False),
    WorkKind("kept-constant", r"\b(tril|triu|arange|meshgrid|linspace|hann_window|hamming_window|eye)\(", beside=False),
    WorkKind("views-for-copies",
             r"\brepeat_interleave\(|\.(repeat|tile)\(|\.expand\([^)]*\)\.(contiguous|clone|reshape|flatten)\(", beside=False),
    WorkKind("library-normalization",
             r"\brsqrt\(|\bsqrt\([^=]*(var|eps)|/\s*\(?\s*(std|sigma)\b|\.std\([^)]*keepdim", stays=None, needs=_KEPT,
             also=r"\.(mean|var|std|square|pow|float|type_as)\(|\bsqrt\(|\*\*\s*2|\beps\b|"
             r"\b(weight|gamma|scale|bias|beta|mean|mu|var|std|rms)\b"),
    WorkKind("library-activation",
             r"0\.044715|\berf\(|\b(\w+)\s*\*\s*(torch\.|F\.)?sigmoid\(\s*(\1\b|1\.702)|\btanh\(\s*(F\.|torch\.)?softplus\(|"
             r"\blog\(\s*1(\.0?)?\s*\+\s*(torch\.)?exp\(", beside=False, stays=None),
    WorkKind("library-softmax", r"\bexp\([^=]*max", stays=None, needs=_KEPT, also=r"\.a?max\(|\.sum\(|\bexp\("),
    WorkKind("fused-loss", r"\blog_softmax\(|\blogsumexp\(|softmax\([^)]*\)(\.clamp\w*\([^)]*\))?\.log\(|\blog\(\s*\w*softmax",
             outside=True, stays=_SOFTMAX, target=r"gather\(|take_along_dim|nll_loss|cross_entropy|one_hot|kl_div|(?i:label|target)"),
    WorkKind("foreach-parameters", r"^(?!.*clip_grad_norm_\((?!.*foreach=False)).*(\b(named_)?parameters\(\)|\bstate_dict\(|"
             r"\b(ema|shadow|average)\w*\b|\bdecay\w*\b(?!\s*\[)|(?<!autograd)\.grad\b)",
             outside=True, beside=False, stays=None),
    WorkKind("compile-function", r"", outside=True, stays=None),
)  # fmt: skip


def kinds_of(texts: list[str], *, outside: bool, trains: bool = False) -> Iterator[tuple[WorkKind, int]]:
    """Yield each kind that fits a line of these, the costliest first, and that line."""
    for kind in KINDS:
        compares = trains or not kind.target or any(re.search(kind.target, text) for text in texts)
        if (outside or not kind.outside) and not (trains and kind.unchanging) and compares:
            yield from ((kind, index) for index, text in enumerate(texts) if re.search(kind.text, text))
