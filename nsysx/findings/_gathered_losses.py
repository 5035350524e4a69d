"""Losses that every rank computes of the rows of all ranks: with its own rows alone each has a part of the work, and nothing is gathered.

Where gradients of all parameters are averaged over the ranks, the gradient of the mean of each rank's own rows becomes that of all of them.
"""

from __future__ import annotations

import ast
import math
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.gathered_losses import GatheredLoss, gathered_losses, is_alike
from nsysx.events.message_calls import with_messages
from nsysx.events.operator_flow import flow_of, is_view
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import BYTES_OF_HEAD_SHARE
from nsysx.findings._once import Takes
from nsysx.findings._parting_lines import parting_line
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.findings._repeated_work import RepeatedOperators, RepeatedWork, own_part, repeated_work, with_more
from nsysx.findings._ungathered_lines import Ungathered, numbered_line
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.records import whole_number
from nsysx.replay import peers
from nsysx.replay.edits import Edit, RemoveOps

#: Bytes of a number as gradients are reduced, if not as they are stored.
_REDUCED_BYTES = (2, 4)


def _of_all_ranks(profile: Profile) -> list[GatheredLoss]:
    """Return the losses that all ranks compute alike, as far as they were recorded."""
    losses, flow = list(gathered_losses(profile)), flow_of(profile)
    for other in peers.others(profile) if losses else ():
        theirs, their_flow = gathered_losses(other), flow_of(other)
        if flow is not None and their_flow is not None:
            losses = [loss for loss in losses if any(is_alike(flow, loss, their_flow, each) for each in theirs)]
    return losses


def _losses(case: Case) -> list[GatheredLoss]:
    """Return these losses; none where gradients are not averaged over the ranks."""
    settings = settings_of(case.profile)
    if settings is None or case.program.compiled:  # what a compiled program reads is not seen
        return []
    return [loss for loss in case.profile.once(_of_all_ranks) if _averaged(case, settings, loss)]


def _averaged(case: Case, settings: RecordedSettings, loss: GatheredLoss) -> bool:
    """Return whether the gradients of all that is trained are reduced among these ranks: no weight of the loss is another one on a rank.

    Their bytes say so, to within a part of those of the smallest of these weights.
    """
    stored, elements = (
        settings.trained_bytes(),
        sum(whole_number(row.get("elements")) or 0 for row in settings.rows("optimizers") or ()),
    )
    if not elements or not stored or not loss.smallest:
        return False
    reduced = _reduced_bytes(case, settings, loss)
    for element_bytes in {stored / elements, *_REDUCED_BYTES}:
        times = round(reduced / (elements * element_bytes))
        left = abs(reduced - times * elements * element_bytes)
        if times and left <= BYTES_OF_HEAD_SHARE * loss.smallest * element_bytes:
            return True
    return False


def _reduced_bytes(case: Case, settings: RecordedSettings, loss: GatheredLoss) -> float:
    """Return how many bytes are added up over these ranks, or all ranks, in and behind backward (a step)."""
    noted = case.profile.once(with_messages)
    noted = noted.filter(pl.col("op").is_in(case.ops["op"].implode()))
    among = noted.filter(pl.col("op").is_in(list(loss.gathers)))["communicator"].unique().to_list()
    members = nccl_notes.members(case.profile.trace).get(case.process, {})
    world = max((len(ranks) for ranks in settings.groups_of_ranks()), default=0)
    # Of a wrapper's group, which has ranks of its own to send to, as many are all ranks where no more were recorded.
    all_ranks = max(world, loss.ranks + (max(world, len(peers.ranks(case.profile))) != loss.ranks))
    of_all = [name for name, member in members.items() if member.size and member.size >= all_ranks]
    elsewhere = pl.col("phase").is_in(["forward", "evaluation"]).fill_null(value=False)
    reduced = noted.filter(
        (pl.col("kind") == "allreduce")
        & ~elsewhere
        & pl.col("communicator").is_in([*among, *of_all])
        & ~pl.col("op").is_in(list(loss.gathers))
    )
    return float(reduced["bytes"].fill_null(0).sum()) / case.steps


def _work(case: Case) -> RepeatedWork | None:
    """Return the work on the rows of all ranks, None without any."""
    return repeated_work(case, [RepeatedOperators(loss.rows, loss.joins, loss.ranks) for loss in _losses(case)])


def _gathers(case: Case) -> frozenset[int]:
    return frozenset[int]().union(*(loss.gathers for loss in _losses(case)))


def computed_of_all(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that every rank computes a loss of the rows of all ranks, where that is notable."""
    losses, work = _losses(case), _work(case)
    if work is None or not case.notable(case.per_step(work.needless_ns)):
        return ""
    transfer, rows_ns = transfer_of_ops_ns(case, _gathers(case)), case.per_step(int(work.between["ns"].sum()))
    loss = max(losses, key=lambda each: math.prod(each.whole))
    ranks = "both ranks gather" if work.ranks == 2 else f"all {work.ranks} ranks gather"
    sent = f", with {units.duration(transfer)} of transfer that nothing hides" if transfer else ""
    return (
        f"{ranks} the rows of all ({' x '.join(map(str, loss.whole))}{sent}), and each computes the same of all of them: "
        f"{_named(case, loss)}, {units.duration(rows_ns)} with the gradients. It works on each row by itself, with weights that all "
        "ranks hold whole, and their gradients are averaged over the ranks"
    )


def _named(case: Case, loss: GatheredLoss) -> str:
    """Return what is computed of a gather's rows, in words; views are not."""
    flow = flow_of(case.profile)
    names = [] if flow is None else [flow.names[row] for row in sorted(loss.rows)]
    return ", ".join(dict.fromkeys(name.removeprefix("aten::").strip("_") for name in names if not is_view(name)))


def own_rows_alone(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if each rank computes its own rows: its part of the work, and of the gather, and what goes back, all."""
    work, gathers = _work(case), _gathers(case)
    if work is None:
        return Saving(None, "no such loss is seen")
    needless, transfer = case.per_step(work.needless_ns), transfer_of_ops_ns(case, gathers)
    least, part = own_part(ops_of(work.between), work.ranks)
    joins: list[Edit] = [RemoveOps(ops_of(work.joins))] if work.joins.height else []
    why = (
        f"each rank computes 1 of {work.ranks} parts of what all of them compute, {units.duration(needless)} less on the GPU, and "
        "nothing is gathered"
    )
    worth = case.worth_between([least], [part, *joins], [part, *joins, RemoveOps(gathers)], why)
    if worth.likely_ns is None:
        return replace(case.bound(transfer + needless, why), confidence=why)
    return with_more(worth, transfer, max(worth.likely_ns, worth.most_ns or 0))


def taken(case: Case) -> Takes:
    """Return this work, and the gathers."""
    work, gathers = _work(case), _gathers(case)
    return Takes(gathers if work is None else gathers | ops_of(work.between) | ops_of(work.joins))


def place_of_loss(case: Case) -> Row:
    """Return the line at which gather and loss part."""
    flow = flow_of(case.profile)
    if flow is None:
        return {}
    groups = [
        [(flow.thread, loss.start_ns), (flow.thread, int(flow.start_ns[min(loss.losses)]))] for loss in _losses(case)
    ]
    return parting_line(case, groups)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the program's own line without the gather, where that line has both.

    Where rows are brought into another order, the line that does so says which targets are those of a rank's own rows.
    """
    losses, where = _losses(case), place_of_loss(case)
    text = lines.text_of(lines.texts(case.profile), where["file"], where["line"]) if where else None
    if losses and losses[0].reordered:
        return title, replace(way("own-rows-in-order"), paste=_in_order(str(text or ""), losses[0].dimension))
    rows = _own_line(str(text or ""), losses[0].dimension) if losses else None
    logged = remedy.paste.splitlines()[-1]
    return title, remedy if rows is None else replace(remedy, paste=f"{rows}\n{logged}")


def _in_order(text: str, dimension: int) -> str:
    """Return lines that find which rows, in the order of the loss, are a rank's own ones: its targets are these, in its own order."""
    paste = way("own-rows-in-order").paste
    rows, order = numbered_line(text) or ("h", "reordered(rows)")
    of_paste = {"reordered(rows)": order, "len(h)": f"{rows}.shape[{dimension}]", "[own]": f"[{':, ' * dimension}own]"}
    of_paste |= {"h.device": f"{rows}.device", "head(h)": f"head({rows})", "# h:": f"# {rows}:"}
    for there, here in of_paste.items():
        paste = paste.replace(there, here)
    return paste


def _own_line(text: str, dimension: int) -> str | None:
    """Return a line with a loss of gathered rows as one of a rank's own ones, None where it is another kind of line."""
    line = whole_statement(text)
    if line is None:
        return None
    ungathered = Ungathered()
    line = ungathered.visit(line)
    rows, value = ungathered.gathered, getattr(line, "value", None)
    if not isinstance(rows, ast.Name) or not isinstance(value, ast.Call) or len(value.args) != 2:
        return None
    if not any(isinstance(arg, ast.Name) and arg.id == rows.id for arg in value.args):
        return None
    part = f"[{':, ' * dimension}own]"
    for number, arg in enumerate(value.args):
        if isinstance(arg, ast.Name) and arg.id != rows.id:
            value.args[number] = ast.parse(f"{arg.id}{part}", mode="eval").body
    length = f"{rows.id}.shape[{dimension}]"
    return (
        f"own = slice(rank * {length}, (rank + 1) * {length})  # of this rank, of what goes with each row\n"
        f"{ast.unparse(line)}  # {rows.id}: not gathered"
    )
