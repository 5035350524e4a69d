"""Code to paste for tensors that grow (`_grown_by_cat`): in the names of the program, where its line says them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsysx.events.grown_tensors import GrownTensor
from nsysx.findings._case import Fix
from nsysx.findings._flow_work import in_short
from nsysx.findings._work_bounds import MOST_LINES_NAMED
from nsysx.model import Row

#: The remedies by name.
IN_PLACE, AT_END, RING, STATIC, WRITTEN = (
    "grown-in-place",
    "joined-at-end",
    "ring-of-rows",
    "static-cache",
    "written-in-place",
)
WITH_GRADIENTS = "grown-with-gradients"
#: whole = torch.cat([whole, new], dim=1)
_APPENDS = re.compile(
    r"^(?P<whole>[\w.]+)\s*=\s*torch\.(?:cat|concat|concatenate)\(\s*[\[(]\s*(?P=whole)\s*,\s*(?P<new>[\w.]+)\s*[\])]\s*"
    r"(?:,\s*(?:(?:dim|axis)\s*=\s*)?(?P<dim>-?\d+)\s*)?\)$"
)
#: torch.stack(history, dim=1), torch.stack(list(frames))
_STACKS = re.compile(r"\bstack\((?:[^,]*,\s*(?:dim\s*=\s*)?(?P<dim>\d+)\s*\))?")
#: A loop of the program's own over tokens.
_STATIC_OF_LOOP = (
    "past = transformers.StaticCache(config=model.config, max_cache_len=longest)  # once for each batch\n"
    "out = model(token, past_key_values=past, use_cache=True)"
)
_VIEWED = " Where view() fails on it, reshape()."
_NO_GRADIENT = "No gradient may run through what is written."
#: What reads the rows has gradients: it keeps them as they are, and rows that no one read are written behind them.
_READ_WITH_GRADIENTS = (
    f"{_NO_GRADIENT} Each forward whose backward has not run needs room of its own (.data: backward would refuse what "
    "was written into after it was read, and these rows were not)."
)
_ROOM_OF_FORWARD = (
    "The first rows are written in the same way. Each forward whose backward has not run needs room of its own, and nothing else may write "
    "into it."
)
_SLIDING = (
    "Begin when kept has its full length. No gradient may run through what is written; write it behind backward(), which reads the rows as "
    "they were."
)
_ONE_BY_ONE = " Single rows are read of the list: parts[-1] for the last ones."
#: The newest rows come first: the room is filled from its end on.
IN_FRONT = (
    "room = new.new_empty(len(new), longest, *new.shape[2:])  # once\n"
    "n += new.shape[1]; room.narrow(1, longest - n, new.shape[1]).copy_(new)\n"
    "whole = room.narrow(1, longest - n, n)  # not torch.cat([new, whole], 1)"
)
#: A window of the last rows moves on by the new ones.
WINDOW = (
    "room = new.new_empty(len(new), longest, *new.shape[2:])  # once: all rows that come\n"
    "room.narrow(1, n, new.shape[1]).copy_(new); n += new.shape[1]\n"
    "whole = room.narrow(1, n - length, length)  # not torch.cat([whole[:, 1:], new], 1)"
)
#: What a form of growth is called, and what it does.
CALLED = {
    "cat": "torch.cat",
    "pad": "F.pad",
    "room": "copies into longer ones",
    "written": "copies in which a part is written",
}
_COPIES = {"cat": "each torch.cat copies", "pad": "each F.pad copies", "room": "each longer tensor takes a copy of"}
_REPLACED = {"pad": "F.pad(whole, ...)", "room": "whole = a longer tensor, and whole copied into it"}


def fix_of(remedy: str, tensors: Sequence[GrownTensor], places: Sequence[Row], text: str) -> Fix:
    """Return the remedy; ``text``: of the first line."""
    fix, tensor = Fix.by_name(remedy), tensors[0]._replace(saved=any(each.saved for each in tensors))
    text = text.partition("  #")[0].rstrip()
    if len(places) > 1 and remedy in (IN_PLACE, WITH_GRADIENTS):
        do, _, why = fix.text.partition(": ")
        fix = fix.but(text=f"{do}, likewise in {', '.join(map(in_short, places[1:MOST_LINES_NAMED]))}: {why}")
    if remedy == STATIC:
        if "generate(" in text:
            return fix
        return fix.but(text=fix.text.replace("generate()", "transformers"), paste=_STATIC_OF_LOOP)
    if tensor.form in _REPLACED and remedy != WRITTEN:
        fix = fix.but(
            text=fix.text.replace(_COPIES["cat"], _COPIES[tensor.form]).replace("torch.cat makes", "is made"),
            paste=re.sub(r"torch\.cat\(\[whole, new\], (1|dim)\)", _REPLACED[tensor.form], fix.paste),
        )
    if remedy == AT_END:
        return _at_end(fix, tensor, text)
    if remedy == WITH_GRADIENTS:
        return _with_gradients(fix, tensor, text)
    if remedy == IN_PLACE and slides(tensor):
        return fix.but(paste=_sliding(tensor.dimension or 0), condition=_SLIDING)
    if remedy == IN_PLACE:
        fix = _in_place(fix, tensor, text)
        if tensor.saved:
            paste = fix.paste.replace("room.narrow(", "room.data.narrow(").replace("room[", "room.data[")
            return fix.but(paste=paste, condition=fix.condition.replace(_NO_GRADIENT, _READ_WITH_GRADIENTS))
    return fix


def _at_end(fix: Fix, tensor: GrownTensor, text: str) -> Fix:
    appends = _APPENDS.match(text)
    if tensor.read_alone:
        fix = fix.but(
            text="Keep the parts in a list and join them once, behind the loop: the rounds read single rows alone, which the list has, and "
            "each of these reads makes a gradient as large as the whole",
            condition=fix.condition.replace("Nothing may", "Nothing else may") + _ONE_BY_ONE,
        )
    if appends is not None:
        whole, new, dim = appends["whole"], appends["new"], appends["dim"] or "0"
        return fix.but(
            paste=f"parts.append({new})  # in the loop, not torch.cat([{whole}, {new}], {dim})\n"
            f"{whole} = torch.cat(parts, {dim})  # once, behind the loop",
            condition=fix.condition.replace("[whole]", f"[{whole}]"),
        )
    return fix.but(paste=fix.paste.replace("(parts,", "(parts[::-1],")) if tensor.in_front else fix


def _in_place(fix: Fix, tensor: GrownTensor, text: str) -> Fix:
    appends, stacks = _APPENDS.match(text), _STACKS.search(text)
    if tensor.in_front:
        return fix.but(paste=IN_FRONT, condition=f"Begin with n = 0. {_NO_GRADIENT}")
    if stacks is not None:
        return fix.but(paste=stacked(int(stacks["dim"] or 0), bounded=tensor.bounded), condition=_NO_GRADIENT)
    if tensor.bounded:
        return fix.but(paste=WINDOW, condition=f"Begin with the first rows in room, and n of them. {_NO_GRADIENT}")
    if appends is not None and tensor.size is not None:
        return _appended(fix, tensor, appends["whole"], appends["new"])
    return fix


def slides(tensor: GrownTensor) -> bool:
    """Return whether a tensor is a window over the steps whose rows are read with gradients: those may need their order, samples do not."""
    return tensor.kept and tensor.bounded and tensor.saved


def _sliding(d: int) -> str:
    """Return the lines that move a window of rows in room for two, at whose end it goes back to the start."""
    return (
        f"room, n, length = torch.cat([kept, kept], {d}), kept.shape[{d}], kept.shape[{d}]  # once\n"
        f"if n + new.shape[{d}] > room.shape[{d}]: room.narrow({d}, 0, length).copy_(kept.clone()); n = length\n"
        f"room.narrow({d}, n, new.shape[{d}]).copy_(new); n += new.shape[{d}]\n"
        f"kept = room.narrow({d}, n - length, length)  # not the last ones of torch.cat([kept, new], {d})"
    )


def stacked(dim: int, *, bounded: bool) -> str:
    """Return the lines that write a tensor behind those before it, in place of a stack of a list along a dimension."""
    others = ":, " * dim
    first = "max(n - length, 0)" if bounded else ""
    return (
        f"room, n = new.new_empty({_sizes_of_stack(dim)}), 0  # once\n"
        f"room[{others}n], n = new, n + 1  # not history.append(new)\n"
        f"whole = room[{others}{first}:n]  # not torch.stack(history, {dim})"
    )


def _sizes_of_stack(dim: int) -> str:
    """Return the sizes of room for tensors that are stacked along a dimension."""
    return ", ".join([*(f"new.shape[{d}]" for d in range(dim)), "longest", f"*new.shape{f'[{dim}:]' if dim else ''}"])


def _sizes_of_room(tensor: GrownTensor) -> str:
    """Return the sizes of room for a tensor that grows; its longest is not seen where it goes on over steps."""
    size = list(map(str, tensor.size or ()))
    if tensor.kept:
        size[tensor.dimension or 0] = "longest"
    return ", ".join(size)


def _appended(fix: Fix, tensor: GrownTensor, whole: str, new: str) -> Fix:
    """Return the remedy that writes the rows ``new`` behind those of ``whole``."""
    d, room = tensor.dimension or 0, f"{whole}_room"
    paste = (
        f"{room} = {new}.new_empty({_sizes_of_room(tensor)})  # once\n"
        f"{room}.narrow({d}, {whole}.shape[{d}], {new}.shape[{d}]).copy_({new})\n"
        f"{whole} = {room}.narrow({d}, 0, {whole}.shape[{d}] + {new}.shape[{d}])  # not torch.cat([{whole}, {new}], {d})"
    )
    begin = f"Begin with {whole} = {room}.narrow({d}, 0, 0)"
    copies = " contiguous() of it copies all rows again: leave that out." if d and tensor.made_contiguous else ""
    return fix.but(paste=paste, condition=f"{begin}. {_NO_GRADIENT}{copies or (_VIEWED if d else '')}")


def _with_gradients(fix: Fix, tensor: GrownTensor, text: str) -> Fix:
    """Return the remedy that writes rows behind those that autograd keeps."""
    function, appends, stacks = fix.paste.rpartition("room = ")[0], _APPENDS.match(text), _STACKS.search(text)
    if appends is not None and tensor.size is not None:
        whole, new, d = appends["whole"], appends["new"], tensor.dimension or 0
        room = f"{whole}_room"
        paste = (
            f"{room} = {new}.new_empty({_sizes_of_room(tensor)})  # once for each forward\n"
            f"{whole} = Grown.apply({whole}, {new}, {room}, {d})  # not torch.cat([{whole}, {new}], {d})"
        )
        begin = f"Begin with {whole} = {room}.narrow({d}, 0, 0)"
        return fix.but(paste=function + paste, condition=f"{begin}. {_ROOM_OF_FORWARD}{_VIEWED if d else ''}")
    if stacks is not None:
        dim = int(stacks["dim"] or 0)
        paste = (
            f"room = new.new_empty({_sizes_of_stack(dim)})  # once for each forward\n"
            f"whole = Grown.apply(whole, new.unsqueeze({dim}), room, {dim})  # not history.append(new), torch.stack(history, {dim})"
        )
        return fix.but(paste=function + paste, condition=fix.condition.replace("narrow(1,", f"narrow({dim},"))
    return fix
