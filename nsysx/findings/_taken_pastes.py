"""Code to paste for tensors whose pieces are taken one by one (`_taken_pieces`): in the names of the program, where its line says them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nsysx.events.taken_apart import AGAIN, TakenTensor
from nsysx.findings._fix import Fix
from nsysx.findings._pieces_in_text import PieceInText, pieces_in
from nsysx.findings._work_bounds import FEW_PIECES_SHARE, MOST_LENGTHS_WRITTEN, MOST_LINES_NAMED
from nsysx.model import Row

#: The forms: pieces that do not overlap, windows that do, and rows by their numbers.
PIECES, WINDOWS, PICKED = "pieces", "windows", "picked"
_TOGETHER, _BY_NUMBER = "taken-apart-once", "picked-once"
_CALLED = re.compile(r"\.\w+\(.*\)$")


class PiecesOfLine(NamedTuple):
    """A line of the program that takes pieces: where it stands, its text (None if that was not recorded), and the tensors."""

    where: Row
    text: str | None
    tensors: list[TakenTensor]


def form_of(tensor: TakenTensor) -> str | None:
    """Return in which form the pieces of a tensor can be taken together, None where in none."""
    d, sizes = tensor.dimension, set(tensor.pieces)
    if tensor.by == AGAIN:
        return PIECES
    if d is None:
        return None
    if tensor.by == "index":
        return PICKED
    if tensor.by == "select":
        return PIECES if tensor.covered >= FEW_PIECES_SHARE else PICKED
    if tensor.covered <= 1:
        return PIECES
    return WINDOWS if len(sizes) == 1 and _stride(tensor, d) else None


def _stride(tensor: TakenTensor, d: int) -> int:
    """Return how far each window lies from the one before, 0 where their number does not tell."""
    length, size, others = tensor.size[d], tensor.pieces[0][d], len(tensor.pieces) - 1
    stride, rest = divmod(length - size, others)
    return stride if not rest and 0 < stride < size else 0


def fix_of(form: str, lines: Sequence[PiecesOfLine], tensors: Sequence[TakenTensor]) -> Fix | None:
    """Return the remedy; None where the texts of the lines are known and none takes a piece: what they call does."""
    if lines and not any(_takes(line) for line in lines):
        return None
    fix, tensor = Fix.by_name(_BY_NUMBER if form == PICKED else _TOGETHER), tensors[0]
    named = [(line, pieces) for line in lines[:MOST_LINES_NAMED] if (pieces := _named(line))]
    taken = [each for _, pieces in named for each in pieces]
    if not _have_form(form, lines, tensors, taken):
        return None
    wholes = list(dict.fromkeys(each.whole for each in taken if form != PICKED or each.then is None))
    if form == PICKED:
        return _picked(fix, tensor, wholes)
    if not wholes:
        return fix.but(paste="\n".join(_general(tensor)))
    parts = _names(wholes)
    first = {each.whole: (each, _fitting(line, each)) for line, pieces in named[::-1] for each in pieces[::-1]}
    calls = {whole: _call(form, *first[whole]) for whole in wholes}
    alone = all(_is_number(each.start) for each in taken)  # q, k, v = qkv[0], qkv[1], qkv[2]
    once, inside = ("# once, before", "") if alone else ("# once, before the loop", "  # in it")
    whole_calls = ", ".join(_of_whole(first[whole][0], call) for whole, call in calls.items())
    paste = [f"{', '.join(parts.values())} = {whole_calls}  {once}"]
    paste += [f"{_rewritten(form, line, pieces, parts)}{inside}" for line, pieces in named]
    why = fix.text.partition(": ")[2]
    listed = f"{', '.join(wholes[:-1])} and {wholes[-1]}" if len(wholes) > 1 else wholes[0]
    how = (
        ""
        if tensor.by == AGAIN
        else f" by {' and '.join(dict.fromkeys(call.partition('.')[0] for call in calls.values()))}"
    )
    do = f"{'Call' if tensor.by == AGAIN else 'Take'} {listed} {'' if tensor.by == AGAIN else 'apart '}once{how}"
    begin = "".join(dict.fromkeys(_where_they_begin(form, line, pieces) for line, pieces in named))
    words = f"{do}{'' if alone else ', before the loop'}: {why}"
    return fix.but(text=words, paste="\n".join(paste), condition=f"{begin}{fix.condition}")


def _have_form(
    form: str, lines: Sequence[PiecesOfLine], tensors: Sequence[TakenTensor], taken: Sequence[PieceInText]
) -> bool:
    """Return whether what lines take, as far as their texts tell (``taken``), can be taken together in a form."""
    stepped = any("::" in (line.text or "") or _steps(line) for line in lines) and tensors[0].by == "slice"
    if form == WINDOWS:  # their size alone may be chance
        return bool(taken) and not stepped and not all(_is_number(each.start) for each in taken)
    return not stepped or (bool(taken) and all(map(_even, tensors)))


def _steps(line: PiecesOfLine) -> bool:
    return any(each.stepped for each in _fitting_pieces(line) or ())


def _where_they_begin(form: str, line: PiecesOfLine, pieces: Sequence[PieceInText]) -> str:
    """Return what must hold of where slices begin, "" for others."""
    words = list[str]()
    for each in pieces:
        number, tensor = _number(form, each, _fitting(line, each)), _fitting(line, each)
        if each.by != "slice" or each.stepped or number == each.start:
            continue
        if number == "n":
            words.append("n: the number of the piece. ")
        elif " // " in number:
            words.append(f"Pieces begin at multiples of {_apart(form, each, tensor)}. ")
    return "".join(dict.fromkeys(words))


def _fitting(line: PiecesOfLine, each: PieceInText) -> TakenTensor:
    """Return the tensor of a line whose pieces have the size of those that an expression takes."""
    return next(tensor for tensor in line.tensors if _fits(each, tensor))


def _names(wholes: Sequence[str]) -> dict[str, str]:
    """Return of each tensor's expression a name for its parts."""
    plain = [_CALLED.sub("", whole) for whole in wholes]
    short = [whole.rpartition(".")[2] for whole in plain]
    chosen = short if len(set(short)) == len(short) else [re.sub(r"\W+", "_", whole) for whole in wholes]
    return {whole: f"{name.strip('_')}_parts" for whole, name in zip(wholes, chosen, strict=True)}


def _even(tensor: TakenTensor) -> bool:
    """Return whether pieces of one size make a tensor up."""
    return len(set(tensor.pieces)) == 1 and tensor.covered == 1


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def _call(form: str, each: PieceInText, tensor: TakenTensor) -> str:
    """Return the call that takes a tensor apart: of a method, but for one that the line makes itself."""
    d = each.dimension if each.dimension is not None else tensor.dimension or 0
    if each.by == AGAIN:
        return each.whole
    if form == WINDOWS:
        return _windows(tensor, d)
    if each.by == "select":
        return f"unbind({d})"
    if each.stepped:
        return f"unflatten({d}, (-1, {tensor.size[d] // tensor.pieces[0][d]})).unbind({d + 1})"
    return f"split({_split_sizes(tensor, d)}, {d})"


def _of_whole(each: PieceInText, call: str) -> str:
    """Return the expression that takes a tensor apart, and the pieces, where those are taken apart at once."""
    if each.by == AGAIN:
        return call
    taken = f"{each.whole}.{call}"
    return taken if each.then is None else f"[part.unbind({each.then[0]}) for part in {taken}]"


def _windows(tensor: TakenTensor, d: int) -> str:
    return f"unfold({d}, {tensor.pieces[0][d]}, {_stride(tensor, d)}).movedim(-1, {d + 1}).unbind({d})"


def _split_sizes(tensor: TakenTensor, d: int) -> str:
    """Return what split is given: one size, where all but the last piece have it, else that of each."""
    lengths = [piece[d] for piece in tensor.pieces]
    if _in_order(tensor, d):
        return str(max(lengths))
    return str(lengths) if tensor.covered == 1 and len(lengths) <= MOST_LENGTHS_WRITTEN else "sizes"


def _in_order(tensor: TakenTensor, d: int) -> bool:
    """Return whether the pieces are those of one size, side by side, of which the last may be shorter."""
    lengths = sorted((piece[d] for piece in tensor.pieces), reverse=True)
    return tensor.covered == 1 and len(set(lengths[:-1])) == 1


def _rewritten(form: str, line: PiecesOfLine, pieces: Sequence[PieceInText], parts: dict[str, str]) -> str:
    """Return a line that reads the parts."""
    text = (line.text or "").partition("  #")[0].rstrip()
    for each in reversed(pieces):
        number = f"[{_number(form, each, _fitting(line, each))}]{f'[{each.then[1]}]' if each.then else ''}"
        text = f"{text[: each.begin]}{parts[each.whole]}{number}{text[each.end :]}"
    return text


def _number(form: str, each: PieceInText, tensor: TakenTensor) -> str:
    """Return which part a piece is, in the program's own numbers."""
    if each.by != "slice" or each.stepped:
        return each.start
    d, apart = each.dimension if each.dimension is not None else tensor.dimension or 0, _apart(form, each, tensor)
    if form != WINDOWS and not _in_order(tensor, d):
        return "n"
    if _is_number(each.start):
        return str(int(each.start) // apart)
    product = re.fullmatch(rf"(\w+) \* {apart}", each.start)
    return product[1] if product else each.start if apart == 1 else f"{_in_brackets(each.start)} // {apart}"


def _apart(form: str, each: PieceInText, tensor: TakenTensor) -> int:
    """Return how far pieces lie from each other."""
    d = each.dimension if each.dimension is not None else tensor.dimension or 0
    return _stride(tensor, d) if form == WINDOWS else max(piece[d] for piece in tensor.pieces)


def _in_brackets(text: str) -> str:
    """Return an expression as a part of another one."""
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"


def _general(tensor: TakenTensor) -> Iterator[str]:
    """Yield the lines for a tensor that the text does not name."""
    d, size = tensor.dimension or 0, " x ".join(map(str, tensor.size))
    if tensor.by == AGAIN:
        yield f"parts = w.chunk(n)  # or split(), unbind(): once, before the loop; w: of {size}"
    elif tensor.by == "select":
        yield f"parts = w.unbind({d})  # once, before the loop; w: of {size}"
    else:
        yield f"parts = w.split({_split_sizes(tensor, d)}, {d})  # once, before the loop; w: of {size}"
    taken = ":, " * d
    yield f"parts[n]  # in it, not w[{taken}{'a:b' if tensor.by == 'slice' else 'n'}]"


def _picked(fix: Fix, tensor: TakenTensor, wholes: Sequence[str]) -> Fix:
    """Return the remedy for rows by their numbers."""
    whole, d = wholes[0] if len(wholes) == 1 else "w", tensor.dimension or 0
    name = _names([whole])[whole]
    if tensor.by == "index":
        paste = (
            f"{name} = {whole}.index_select({d}, torch.cat(numbers)).split([len(each) for each in numbers], {d})  # once, before the loop\n"
            f"{name}[n]  # in it, not {whole}[{':, ' * d}numbers[n]]"
        )
        return fix.but(paste=paste)
    paste = (
        f"rows = {whole}.index_select({d}, torch.tensor(numbers, device={whole}.device)).unbind({d})  # once, before the loop\n"
        f"{name} = dict(zip(numbers, rows))\n"
        f"{name}[n]  # in it, not {whole}[{':, ' * d}n]"
    )
    return fix.but(paste=paste, condition="numbers: of the pieces that are read, which are known before the loop.")


def _fitting_pieces(line: PiecesOfLine) -> list[PieceInText] | None:
    """Return the expressions of a line that may take the pieces; None where its text is not known whole."""
    pieces = pieces_in(line.text.partition("  #")[0].rstrip()) if line.text is not None else None
    by = "select" if line.tensors[0].by == "index" else line.tensors[0].by
    if pieces and any(tensor.inner != "select" for tensor in line.tensors):  # one of the numbers is a tensor
        pieces = [each if each.then is None else each._replace(whole="", dimension=None, then=None) for each in pieces]
    return pieces and [each for each in pieces if each.by == by and any(_fits(each, tensor) for tensor in line.tensors)]


def _takes(line: PiecesOfLine) -> bool:
    """Return whether a line may take the pieces itself: it may call a package that does."""
    return _fitting_pieces(line) != []


def _named(line: PiecesOfLine) -> list[PieceInText]:
    """Return the expressions of a line that take the pieces, none where its text does not tell which those are."""
    pieces = _fitting_pieces(line) or []
    told = len({each.whole for each in pieces}) == _at_once(line.tensors) and all(each.whole for each in pieces)
    return pieces if told else []


def _at_once(tensors: Sequence[TakenTensor]) -> int:
    """Return of how many tensors a loop takes pieces at once, as most of these say."""
    halfway = [(tensor.numbers[0] + tensor.numbers[-1]) / 2 for tensor in tensors]
    counts = [sum(tensor.numbers[0] <= number <= tensor.numbers[-1] for tensor in tensors) for number in halfway]
    return Counter(counts).most_common(1)[0][0]


def _fits(each: PieceInText, tensor: TakenTensor) -> bool:
    """Return whether a piece of that dimension has the size of those of a tensor."""
    d, size, piece = each.dimension, tensor.size, tensor.pieces[0]
    if d is None or tensor.by in (AGAIN, "index"):
        return True
    if each.by == "select":
        return size[:d] + size[d + 1 :] == piece
    return d < len(piece) and size[:d] + size[d + 1 :] == piece[:d] + piece[d + 1 :] and piece[d] < size[d]
