"""Messages of lines of the program that send numbers of 16 bits as float32: twice the bytes, and nothing more in them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.kernel_math import number_format
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import OperatorOfCalls, operator_of_calls
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.widened_messages import OperatorsByBits, WidenedMessage, messages
from nsysx.findings._case import Case, Saving, way
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import MOST_SHARE, ROUNDED_FOR_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._line_remedies import quoted
from nsysx.findings._once import Takes
from nsysx.findings._rows_in_16_bits import MovedWork, cast_line, moved_work
from nsysx.findings._rows_in_16_bits import in_its_words as rows_in_16_bits
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay.edits import ScaleOps
from nsysx.roofline.element_types import OF_FORMAT, types_of


class _Widened(NamedTuple):
    """Messages of lines: their GPU ``ops``; the line (row of the places) that sends most; where what it sends is converted.

    ``share``: of all bytes that these lines send what goes. ``sent``: the messages of the X-ray that hold float32. ``first``: of that line
    the first of them, or one before which nothing was converted yet: what is sent back then has the type of what came.
    """

    ops: frozenset[int]
    line_row: int
    conversion: Row
    share: float
    first: WidenedMessage
    sent: tuple[WidenedMessage, ...]


def _by_bits(profile: Profile, of_calls: OperatorOfCalls) -> OperatorsByBits:
    """Return the operators of the flow by what the kernels that they launch read and write."""
    ops = profile.attributed.gpu_ops  # those of the X-ray step itself are known of each of its operators
    kernels = ops.filter((ops["op_kind"] == "kernel") & ops["call"].is_not_null())
    launched = pl.DataFrame(
        {
            "row": of_calls.forward[kernels["call"].to_numpy()],
            "name": kernels["name"].cast(pl.String),
            "format": number_format(kernels["name"], kernels["family"]),
        }
    )
    bytes_of: dict[int, set[int]] = {}
    widens, narrows = set[int](), set[int]()
    for row, name, of_product in launched.filter(launched["row"] >= 0).unique(maintain_order=True).iter_rows():
        types = types_of(name)
        if types.vector:  # it moves bytes of any type
            continue
        bytes_of.setdefault(row, set()).add(OF_FORMAT.get(of_product or "", types.written or types.size or 0))
        if types.written == 2:
            narrows.add(row)
        elif types.casts and types.size == 4:
            widens.add(row)
    halves = frozenset(row for row, each in bytes_of.items() if each == {2})
    return OperatorsByBits(frozenset(bytes_of), halves, frozenset(widens), frozenset(narrows))


def _widened(profile: Profile) -> _Widened | None:
    """Return the messages that could have half of the bytes, None without any."""
    flow, code, of_calls = flow_of(profile), profile.code(), operator_of_calls(profile)
    if flow is None or code is None or of_calls is None:
        return None
    sent = messages(flow, profile, _by_bits(profile, of_calls))
    if not any(each.conversion >= 0 for each in sent):
        return None
    line_rows = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in sent])))
    numbers = np.array([each.numbers for each in sent])
    wide = np.array([each.conversion >= 0 for each in sent])
    of_line = {
        row: int(numbers[(line_rows == row) & wide].sum())
        for row in np.unique(line_rows[wide & (line_rows >= 0)]).tolist()
    }
    chosen = [row for row, n in of_line.items() if n >= MOST_SHARE * numbers[line_rows == row].sum()]
    if not chosen:
        return None
    comm = profile.steady_ops["op", "cls", "name", "start_ns", "end_ns"].filter(
        profile.steady_ops["cls"] == DeviceActivity.COMM.value
    )
    function = code.places["function"].to_list()
    owners = {str(function[row]).rpartition(".")[0] for row in chosen} - {""}
    backward = [row for row, name in enumerate(function) if name in {f"{owner}.backward" for owner in owners}]
    places = code.places_of(code.op[comm["op"].to_numpy()])
    theirs = np.isin(places, [*chosen, *backward])
    most = max(chosen, key=lambda row: of_line[row])
    there = [each for each, row in zip(sent, line_rows, strict=True) if row == most and each.conversion >= 0]
    of_kind = np.array([nccl_notes.kind_of(str(name)) for name in comm["name"].to_list()], np.str_)
    if there[0].exchanges:
        theirs |= _without_line(of_kind, theirs, comm, places)
    first = next((each for each in there if each.behind), there[0])
    of_chosen = np.isin(line_rows, chosen)
    wide_numbers, whole = int(numbers[of_chosen & wide].sum()), int(numbers[of_chosen].sum())
    return _Widened(
        frozenset(comm["op"].to_numpy()[theirs].tolist()),
        most,
        place_of_operator(code, flow, flow.start_ns[[first.conversion]]),
        # The others may have 16 bits already.
        wide_numbers / (wide_numbers + whole),
        first,
        tuple(each for each, row in zip(sent, line_rows, strict=True) if row in chosen and each.conversion >= 0),
    )


def _without_line(of_kind: npt.NDArray[np.str_], theirs: Flags, comm: pl.DataFrame, places: I64) -> Flags:
    """Return the communication without a line of the kind of these, where most of that with one is theirs.

    Rows that are dealt out anew in each step make steps that do not resemble the X-ray's: half of their exchanges may have no line.
    """
    ns, kinds = (comm["end_ns"] - comm["start_ns"]).to_numpy(), set(of_kind[theirs].tolist())
    same_kind = np.isin(of_kind, list(kinds))
    mostly = ns[theirs].sum() > MOST_SHARE * ns[same_kind & (places >= 0)].sum()
    return np.asarray(same_kind & (places < 0) & mostly, np.bool_)


def _transfer_ns(case: Case) -> int:
    """Return the exposed transfer of these messages (ns a step); 0 without any."""
    widened = case.profile.once(_widened)
    return 0 if widened is None else transfer_of_ops_ns(case, widened.ops)


def sent_as_float32(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that numbers of 16 bits are sent as float32, and transfer for it is exposed."""
    widened, code, transfer = case.profile.once(_widened), case.profile.code(), _transfer_ns(case)
    if widened is None or code is None or transfer < 2 * ROUNDED_FOR_SHARE * case.step_ns:
        return ""
    file, line, _ = code.places.row(widened.line_row)
    text = lines.text_of(lines.texts(case.profile), file, line) or ""
    there = in_short(widened.conversion)
    there = f" ({there})" if there and widened.conversion != {"file": file, "line": line} else ""
    how = f"behind it all that came is converted to 16 bits{there}"
    if not widened.first.behind:
        how = f"what it sends was computed in 16 bits and converted before{there}"
    rounded = "; each of the ranks' numbers is then rounded before they are added" if widened.first.reduces else ""
    return (
        f"line {line}{f' ({quoted(text)})' if text else ''} sends float32, and {how}: {units.duration(transfer)} of a step is transfer "
        f"that nothing hides. In 16 bits the same numbers have half of the bytes{rounded}"
    )


def half_of_the_bytes(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what messages of half the bytes save: half of their exposed transfer, and of what moves the rows that are exchanged."""
    widened = case.profile.once(_widened)
    if widened is None:
        return case.bound(0, "nothing is sent as float32")
    sent = _transfer_ns(case) * widened.share
    moved = moved_work(case, widened.sent) if widened.first.exchanges else MovedWork()
    if not moved.converts_ns + moved.moves_ns:
        return case.bound(sent, "half of the bytes move, in half of the time")
    # A host that launches too late for what there is waits as much longer for the GPU: the replay of the transfer says how much is left.
    replayed = case.worth(ScaleOps(widened.ops, 1 - widened.share, less_work=True)).likely_ns
    left = 1.0 if replayed is None or not sent else min(1.0, replayed / sent)
    halved = sent + moved.moves_ns / 2
    likely = min(round(left * (halved + moved.converts_ns)), case.step_ns)
    most = min(max(likely, round(halved + moved.converts_ns + moved.reads_ns / 2)), case.step_ns)
    why = (
        f"half of the bytes are sent and moved: {units.duration(round(sent))} of transfer, {units.duration(round(moved.moves_ns / 2))} of "
        f"moving go at most, and {units.duration(round(moved.converts_ns))} of conversions"
    )
    # Work of half the size takes more than half the time at worst, as the root says.
    error = left * halved * (1 - (1 - math.sqrt(0.5)) / 0.5)
    return Saving(likely, why, error_ns=min(round(error), likely), most_ns=most, source="limits")


def taken(case: Case) -> Takes:
    """Return these messages."""
    widened = case.profile.once(_widened)
    return Takes(frozenset() if widened is None else widened.ops)


def place_of_message(case: Case) -> Row:
    """Return the line that sends most of them; of rows that are exchanged the one that can cast them before."""
    widened, code = case.profile.once(_widened), case.profile.code()
    if widened is None or code is None:
        return {}
    line = cast_line(case, widened.first, None) if widened.first.exchanges else None
    return line.where if line is not None and line.where else code.where(widened.line_row)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for rows that are exchanged, with the line that can cast them."""
    widened, settings = case.profile.once(_widened), settings_of(case.profile)
    if widened is None or not widened.first.exchanges:
        return title, remedy
    line, behind = cast_line(case, widened.first, settings), widened.first.behind
    title = "Rows that are computed on in 16 bits are exchanged as float32" if behind else title
    return title, rows_in_16_bits(
        way("exchanged-in-16-bits" if behind else "converted-behind"), line, settings, behind=behind
    )
