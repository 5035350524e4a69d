"""Values of which each rank has a part, and which the ranks add up one by one: norms, sums, largest ones and checks of each parameter.

Of a tensor that is split over the ranks a norm is one number, a part of which each rank has; ``full_tensor()`` of it, or an all_reduce in
a loop, makes all ranks meet for these few bytes. Whole weights, which the same calls gather, are large messages. What layers exchange
within a forward or a backward is theirs, and a loop whose rounds need one another (power iteration, conjugate gradients) has to meet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.rounds_in_sequence import in_sequence
from nsysx.findings._case import Fix, way
from nsysx.findings._finding_bounds import FEWEST_VALUES_OF_RANKS, MOST_SHARE, VALUE_OF_RANKS_BYTES
from nsysx.findings._gathered_metrics import metric_of_line
from nsysx.findings._line_remedies import of_training
from nsysx.findings._norm_loops import ParameterLoop, parameters_around
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.reading import nccl_notes

#: What to do about them.
AT_ONCE = way("values-at-once")
#: What a line takes of each tensor, and what of the parts of ranks adds up: the first that fits.
_LARGEST, _CHECKS = r"\b(amax|amin|aminmax|max|min|maximum)\(|\binf\b", r"\bis_?(finite|nan|inf)\("
_NORMS, _OTHERS = r"\b(vector_norm|norm)\(", r"\b(sum|mean|v?dot|var|std|all|any|count_nonzero|item|tolist)\(|\bfloat\("
_TAKES = re.compile("|".join((_LARGEST, _CHECKS, _NORMS, _OTHERS)))
#: One number of a tensor that is split over the ranks, where the sizes of messages are not known.
_WHOLE_OF_VALUE = re.compile(
    rf"({_LARGEST}|{_CHECKS}|{_NORMS}|\b(sum|mean|v?dot|all|any)\().*\.full_tensor\(|\.full_tensor\(\)\.item\("
)
_SPLIT = re.compile(r"\.full_tensor\(|\bDTensor\b")
_OF_PARAMETERS = re.compile(r"\b(p|w|g)\b|param|weight|grad")
_REDUCES = r"(?i)All_?Reduce"
#: Phases in which layers exchange what they compute.
_OF_LAYERS = ("forward", "backward", "evaluation")


def values_at_once(profile: Profile, line_row: int) -> Fix | None:
    """Return the advice to reduce the values of a line at once, None where it does not make all ranks meet for each of many."""
    return profile.once(_advised).get(line_row)


def _advised(profile: Profile) -> Mapping[int, Fix]:
    """Return what to do, by row of places: about lines at which ranks meet for values or a metric, and lines that take or read these."""
    code, steps = profile.code(), profile.scope.steps
    if code is None or not steps:
        return {}
    ops = profile.steady_ops.filter(profile.steady_ops["cls"] == DeviceActivity.COMM.value)
    place_of_op = code.places_of(code.op[ops["op"].to_numpy()])
    source, advised = lines.texts(profile), dict[int, Fix]()
    for line_row in np.unique(place_of_op[place_of_op >= 0]).tolist():
        theirs = ops.filter(pl.Series(place_of_op == line_row, dtype=pl.Boolean))
        text = lines.text_of(source, *code.places.row(line_row)[:2]) or ""
        of_layers = theirs["phase"].cast(pl.String).is_in(_OF_LAYERS).any()
        metric = metric_of_line(profile, code, code.op[theirs["op"].to_numpy()], text)
        if metric is not None and theirs.height >= steps:
            advised[line_row] = metric
            continue
        if theirs.height < FEWEST_VALUES_OF_RANKS * steps or of_layers or of_training(text):
            continue
        if _are_values(profile, theirs, text) and not _needs_one_another(profile, code, line_row):
            times = theirs.height / steps
            beside = _beside(profile, code, line_row, times)
            file, line, _ = code.places.row(line_row)
            fix = _fix("\n".join((text, *beside.values())), times, parameters_around(source.get(file or "", {}), line))
            advised = dict.fromkeys((line_row, *beside), fix) | advised
    return advised


def _are_values(profile: Profile, ops: pl.DataFrame, text: str) -> bool:
    """Return whether what a line sends are single values, by the sizes of its messages; by its text where these are not known."""
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    sizes = [message.bytes for message in nccl_notes.messages(profile.trace, ops, members)]
    seen = [size for size in sizes if size is not None]
    if 2 * len(seen) >= len(sizes):
        few = sum(size <= VALUE_OF_RANKS_BYTES for size in seen)
        return few >= MOST_SHARE * len(seen)
    return _WHOLE_OF_VALUE.search(text) is not None and bool(lookup.matching(ops["name"], _REDUCES).all())


def _needs_one_another(profile: Profile, code: CodeLines, line_row: int) -> bool:
    flow = flow_of(profile)
    if flow is None:
        return False
    there: I64 = code.places_of(code.at(flow.thread, flow.start_ns))
    return in_sequence(flow, there == line_row)


def _beside(profile: Profile, code: CodeLines, line_row: int, times: float) -> dict[int, str]:
    """Return the lines of the same function (row of places -> text) that take one value of each tensor, or read it, as often."""
    file, _, function = code.places.row(line_row)
    source, calls = lines.texts(profile), profile.steady_calls
    place_of_call = code.places_of(code.call[calls["call"].to_numpy()])
    often = np.bincount(place_of_call[place_of_call >= 0], minlength=code.places.height)
    beside = dict[int, str]()
    for other, (other_file, number, other_function) in enumerate(code.places.iter_rows()):
        alike = (other_file, other_function) == (file, function) and other != line_row
        if not alike or often[other] < MOST_SHARE * times * profile.scope.steps:
            continue
        text = (lines.text_of(source, other_file, number) or "").partition("  #")[0]
        if _TAKES.search(text):
            beside[other] = text
    return beside


def _fix(text: str, times: float, loop: ParameterLoop) -> Fix:
    """Return what to do about values of this kind, with code that computes them in one all_reduce."""
    part = ".to_local()" if _SPLIT.search(text) else ""
    gradients = re.search(r"grad|\bg\b", text) is not None
    of_all = loop.header
    each = f"{loop.name}{'.grad' if gradients else '.detach()'}{part}"
    if not _OF_PARAMETERS.search(text):
        return _in_words("values", times, "values = torch.stack(values)  # of all rounds, on the GPU")
    if re.search(_CHECKS, text):
        bad = f"values = torch.stack([(~torch.isfinite({each})).any() {of_all}]).float()"
        return _in_words("checks", times, bad, "MAX", "  # 1 where one is not finite")
    if re.search(_NORMS, text) and not re.search(r"\binf\b", text):
        return _norms(times, part, text, loop, gradients=gradients)
    if re.search(_LARGEST, text):
        return _in_words("largest values", times, f"values = torch.stack([{each}.abs().amax() {of_all}])", "MAX")
    behind = "  # a mean: / p.numel(), of the whole" if "mean(" in text else ""
    return _in_words("sums", times, f"values = torch.stack([{each}.sum() {of_all}]){behind}")


def _norms(times: float, part: str, text: str, loop: ParameterLoop, *, gradients: bool) -> Fix:
    """Return the advice for norms: squares of the norms of the parts add up, those of what each rank has whole count once."""
    name, each = "grads" if gradients else "parts", f"{loop.name}{'.grad' if gradients else '.detach()'}{part}"
    kept = re.search(r"\bdtype=([\w.]+)", text)
    dtype = kept[1] if kept else "torch.float32" if ".float()" in text else ""
    norms = f"torch.stack(torch._foreach_norm({{}}{f', 2, dtype={dtype}' if dtype else ''})).square()"
    group = re.search(r"\bgroup=[\w.]+(\(\))?", text)
    among = f", {group[0]}" if group else ""
    if loop.split:
        paste = (
            f"{name} = [{each} {loop.header} if {loop.split}]  # split over the ranks\n"
            f"whole = [{each} {loop.header} if not ({loop.split})]\n"
            f"square = {norms.format(name)}.sum()\n"
            f"dist.all_reduce(square{among})\n"
            f"square += {norms.format('whole')}.sum()  # each rank has these: once\n"
            f"{loop.whole} = square.sqrt()  # on the GPU; float({loop.whole}) only where it is logged"
        )
        scaled = f"{name} + whole"
    else:
        paste = (
            f"{name} = [{each} {loop.header}]\n"
            f"squares = {norms.format(name)}\n"
            f"dist.all_reduce(squares{among})\n"
            f"{loop.whole} = squares.sum().sqrt()  # on the GPU; each norm: squares.sqrt().tolist(), where it is logged"
        )
        scaled = name
    if not gradients:
        return _fix_of("norms", times, paste)
    factor = f"({loop.most} / ({loop.whole} + 1e-6)).clamp(max=1.0)" + (f".to({name}[0].dtype)" if dtype else "")
    clipped = f"{paste}\ntorch._foreach_mul_({scaled}, {factor})"
    return _fix_of("norms", times, clipped, _DTENSORS if part else _PLAIN)


#: What a function of PyTorch does, for tensors that know that they are split, and for such that do not.
_DTENSORS = "; of DTensors torch.nn.utils.clip_grad_norm_ does so, where they are only for clipping"
_PLAIN = "; torch.nn.utils.clip_grad_norm_ does not: of plain tensors each rank gets the norm of its own parts"


def _in_words(what: str, times: float, values: str, operation: str = "", behind: str = "") -> Fix:
    reduced = f", op=dist.ReduceOp.{operation}" if operation else ""
    shown = "shown = values.tolist()  # only in a step that logs them"
    return _fix_of(what, times, f"{values}\ndist.all_reduce(values{reduced}){behind}\n{shown}")


def _fix_of(what: str, times: float, paste: str, more: str = "") -> Fix:
    text = AT_ONCE.text.replace("these values", f"these {what}", 1)
    text = text.replace("many times in each step", f"{units.count(round(times))} times in each step", 1)
    return Fix.by_name(way(AT_ONCE.name, f"{text}{more}", paste))
