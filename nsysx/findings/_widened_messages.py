"""Messages of lines of the program that send numbers of 16 bits as float32: twice the bytes, and nothing more in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.kernel_math import number_format
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import OperatorOfCalls, operator_of_calls
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.widened_messages import OperatorsByBits, messages
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import MOST_SHARE, ROUNDED_FOR_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._line_remedies import quoted
from nsysx.findings._once import Takes
from nsysx.model import Row
from nsysx.roofline.element_types import OF_FORMAT, types_of


class _Widened(NamedTuple):
    """Messages of lines: their GPU ``ops``; the line (row of the places) that sends most; where what it sends is converted, and how."""

    ops: frozenset[int]
    line_row: int
    conversion: Row
    behind: bool
    reduces: bool


def _by_bits(profile: Profile, of_calls: OperatorOfCalls) -> OperatorsByBits:
    """Return the operators of the flow by what the kernels that they launch read and write."""
    ops = profile.steady_ops
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
    for row, name, of_product in launched.filter(pl.col("row") >= 0).unique(maintain_order=True).iter_rows():
        types = types_of(name)
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
    comm = profile.steady_ops.select("op", "cls").filter(profile.steady_ops["cls"] == DeviceActivity.COMM.value)
    function = code.places["function"].to_list()
    owners = {str(function[row]).rpartition(".")[0] for row in chosen} - {""}
    backward = [row for row, name in enumerate(function) if name in {f"{owner}.backward" for owner in owners}]
    theirs = np.isin(code.places_of(code.op[comm["op"].to_numpy()]), [*chosen, *backward])
    most = max(chosen, key=lambda row: of_line[row])
    first = next(each for each, row in zip(sent, line_rows, strict=True) if row == most and each.conversion >= 0)
    return _Widened(
        frozenset(comm["op"].to_numpy()[theirs].tolist()),
        most,
        place_of_operator(code, flow, flow.start_ns[[first.conversion]]),
        first.behind,
        first.reduces,
    )


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
    if not widened.behind:
        how = f"what it sends was computed in 16 bits and converted before{there}"
    rounded = "; each of the ranks' numbers is then rounded before they are added" if widened.reduces else ""
    return (
        f"line {line}{f' ({quoted(text)})' if text else ''} sends float32, and {how}: {units.duration(transfer)} of a step is transfer "
        f"that nothing hides. In 16 bits the same numbers have half of the bytes{rounded}"
    )


def half_of_the_bytes(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that messages of half the bytes save: half of their exposed transfer."""
    return case.bound(_transfer_ns(case) / 2, "half of the bytes move, in half of the time")


def taken(case: Case) -> Takes:
    """Return these messages."""
    widened = case.profile.once(_widened)
    return Takes(frozenset() if widened is None else widened.ops)


def place_of_message(case: Case) -> Row:
    """Return the line that sends most of them."""
    widened, code = case.profile.once(_widened), case.profile.code()
    if widened is None or code is None:
        return {}
    return code.where(widened.line_row)
