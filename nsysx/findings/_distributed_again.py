"""Lines of a step that send every rank a tensor which it has: ``distribute_tensor`` of tables, masks and batches, and checks of replicas.

``distribute_tensor`` takes what the first rank has, so that it broadcasts or scatters; ``from_local(run_check=True)`` broadcasts as well. A
rank that has made the same tensor, or read the same batch, needs neither.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._once import Takes
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

#: Calls that send what the first rank has, and what kernels do it.
_DISTRIBUTES = re.compile(r"\bdistribute_tensor\s*\((?!.*\bsrc_data_rank\s*=)")
_CHECKS = re.compile(r"\bfrom_local\s*\(.*\brun_check\s*=\s*True\b")
_SENDS = r"(?i)Broadcast|SendRecv"


def _source(case: Case, line_row: int) -> str:
    """Return what stands at a line (row of the places), "" where that does not send such a tensor."""
    code = case.profile.code()
    if code is None or line_row < 0:
        return ""
    file, line, _ = code.places.row(line_row)
    text = (lines.text_of(lines.texts(case.profile), file, line) or "").strip()
    return text if _DISTRIBUTES.search(text) or _CHECKS.search(text) else ""


def _sent(case: Case) -> tuple[pl.DataFrame, Flags, list[int]]:
    """Return all `communication`, which of it such lines launch, and the line of each (row of the places)."""
    code, comm = case.profile.code(), communication(case)
    if code is None or not comm.height:
        return comm, np.zeros(comm.height, np.bool_), []
    place_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    theirs = [line_row for line_row in np.unique(place_of_op).tolist() if _source(case, line_row)]
    sends = comm["name"].cast(pl.String).str.contains(_SENDS).fill_null(value=False).to_numpy()
    return comm, np.isin(place_of_op, theirs) & sends, place_of_op.tolist()


def sent_again(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that lines send every rank a tensor which it has."""
    _, chosen, _ = _sent(case)
    if not chosen.any() or not case.notable(transfer := exposed_transfer_ns(case, chosen)):
        return ""
    often = case.often(int(chosen.sum()), "message", "messages")
    return (
        f"{often} of a step ({units.duration(transfer)} of transfer that nothing hides) send all ranks what the first one has of a tensor "
        "(distribute_tensor, run_check=True), as a broadcast or a scatter in line: ranks that make or load the same need none"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if nothing is sent: no more than the transfer is likely, as what is waited for goes on elsewhere."""
    comm, chosen, _ = _sent(case)
    transfer = exposed_transfer_ns(case, chosen)
    worth = case.worth(RemoveOps(ops_of(comm.filter(chosen))))
    if worth.likely_ns is None:
        return case.bound(transfer, "each rank takes its own")
    return replace(worth, likely_ns=min(worth.likely_ns, transfer))


def taken(case: Case) -> Takes:
    """Return these messages."""
    comm, chosen, _ = _sent(case)
    return Takes(ops_of(comm.filter(chosen)))


def place_of_line(case: Case) -> Row:
    """Return the line that sends most of them."""
    code, (comm, chosen, place_of_op) = case.profile.code(), _sent(case)
    if code is None or not chosen.any():
        return {}
    ns = (comm["end_ns"] - comm["start_ns"]).to_numpy()
    return code.where_most(np.array(place_of_op)[chosen], ns[chosen])


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the program's own line, changed."""
    where = place_of_line(case)
    text = lines.text_of(lines.texts(case.profile), where["file"], where["line"]) if where else None
    paste = without_message(text or "")
    return title, replace(remedy, paste=paste) if paste else remedy


def without_message(text: str) -> str:
    """Return a line whose call sends nothing, "" where the call does not end in it."""
    text = re.sub(r"\brun_check\s*=\s*True\b", "run_check=False", text.strip())
    call, begin = _DISTRIBUTES.search(text), 0
    while call is not None:
        end = _closing(text, begin + call.end())
        if end < 0:
            return ""
        text = f"{text[:end].rstrip().removesuffix(',')}, src_data_rank=None{text[end:]}"
        begin = text.index("src_data_rank=None", begin) + len("src_data_rank=None")
        call = _DISTRIBUTES.search(text[begin:])
    return text


def _closing(text: str, begin: int) -> int:
    """Return where the bracket closes that was opened before ``begin``, -1 where it does not."""
    depth = 1
    for end in range(begin, len(text)):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if not depth:
            return end
    return -1
