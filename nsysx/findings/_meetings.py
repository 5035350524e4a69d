"""Communication that the program's own lines or its normalization layers ask for, and what can be done about it there.

A wrapper reduces gradients from inside backward: its collectives have the line that runs backward. What another line launches in a loop,
or with objects that are pickled, is no matter of links or of buckets.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.activation_lines import sent_by_nodes
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import (
    _halos,
    _late_gradients,
    _layer_exchanges,
    _line_causes,
    _line_remedies,
    _reduced_twice,
    _roles_in_turn,
    _rows_of_all,
    _sent_objects,
    _summed_late,
    _synchronized_norms,
    _tables_of_ranks,
    _untrained_gathers,
    _waited_early,
)
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._drawn_blocks import drawn_ahead
from nsysx.findings._exposed_transfer import communication, exposed_share
from nsysx.findings._finding_bounds import (
    LOOP_LAUNCHES,
    MOST_SHARE,
    OWN_REMEDY_SHARE,
)
from nsysx.findings._links import SLOW_WAYS, slow_way, slowest
from nsysx.findings._looped_exchanges import behind_first_round
from nsysx.findings._messages_in_one import by_owners, in_one_message
from nsysx.findings._once import edits_without
from nsysx.findings._own_hooks import own_compression
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._sent_levels import sent_levels
from nsysx.findings._shards_in_words import of_average
from nsysx.findings._values_of_ranks import values_at_once
from nsysx.frames import lookup
from nsysx.judging.other_work import others_of_gpu
from nsysx.model import Row

#: Remedies of lines that are better than those of exposed communication.
_OF_LINES = (
    "gradients-in-buckets",
    "waited-behind-backward",
    "tensors-gathered",
    "tensors-sent",
    "own-part-of-data",
    "plan-as-tensor",
    "shards-kept",
    "shards-saved",
    "weights-to-generator",
    "weights-sent-once",
    "weights-in-one",
    "updates-gathered",
    "values-at-once",
)
#: Lines that exchange whole weights, which a step of training need not: remedy -> text of the line that communicates.
_OF_WEIGHTS = {
    "shards-saved": r"\bget_(model_|optimizer_)?state_dict\(",
    "shards-kept": r"\.full_tensor\(|\bsummon_full_params\(|\bstate_dict\(|_state_dict\(",
    "weights-sent-once": r"\b(broadcast|i?send|i?recv)\w*\([^,]*(param|weight|buffer|\bp\b|\w\.data\b)",
}
#: Lines that hand gradients on one at a time: to all ranks, or to the one that has the weights.
_OF_GRADIENTS = re.compile(r"\ball_reduce\w*\(|\b(reduce|gather|i?send|i?recv)\w*\([^,]*grads?\b")
#: What a hook does that lets backward go on, and what ends that at once: the wait for what was started.
_ASYNCHRONOUS = re.compile(r"\basync_op\s*=\s*True|\.get_future\(|\w+_hook\(")
_WAITED_FOR = re.compile(r"^(?!.*\blambda\b).*\.wait\(\)")


class CommunicationCause(NamedTuple):
    """What to do about communication, at which place, and what goes then: ``worth`` by the replay, None: what no communication saves.

    ``title``: what was found, where that is more than exposed communication.
    """

    fix: Fix
    where: Row
    worth: Saving | None = None
    title: str = ""


def meeting(case: Case) -> CommunicationCause | None:
    """Return the place that most of the communication of the steps comes from, if it is one that can be changed; else None."""
    comm = case.ops.select("op", "call", "module", ns=pl.col("end_ns") - pl.col("start_ns")).filter(
        case.ops["cls"] == DeviceActivity.COMM.value
    )
    of_program = _of_untrained(case, comm) or _of_hook(case, comm) or _of_line(case, comm) or _of_layers(case, comm)
    elsewhere = (
        _in_turn(case)
        or _of_tables(case)
        or _behind_backward(case)
        or _of_halos(case)
        or _of_levels(case)
        or _in_line(case)
        or _picked(case)
        or _early(case)
    )
    return of_program or elsewhere or _of_links(case)


def _of_untrained(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    """Return the gathers of a sharded network where nothing is trained, if most communication is theirs and they need not be; else None."""
    settings = settings_of(case.profile)
    wasted = None if settings is None else _untrained_gathers.needless(case, settings)
    if wasted is None:
        return None
    ns = int(comm.filter(comm["op"].is_in(list(wasted.gathers.gathers)))["ns"].sum())
    if ns < MOST_SHARE * int(comm["ns"].sum()):
        return None
    return CommunicationCause(Fix.by_name(wasted.way), wasted.gathers.where, wasted.worth, wasted.title)


def _of_hook(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    """Return the program's own communication hook of DDP, if most communication is its and it holds backward up; else None.

    A reduction that is not asynchronous runs where the gradients are computed, and the hook returns when it is launched: nothing runs
    beside it. Nor does anything if the hook waits for the reduction that it has started: the rest of backward is launched behind that wait.
    What reads a value waits for all gradients so far, once for each bucket.
    """
    code, settings = case.profile.code(), settings_of(case.profile)
    hooks = {row.get("hook") for row in settings.wrappers("DDP") or ()} if settings is not None else set()
    if code is None or not comm.height or not hooks - {None, ""} or case.profile.once(own_compression) is not None:
        return None
    inside = [n for n, function in enumerate(code.places["function"].to_list()) if function in hooks]
    theirs = comm.filter(pl.Series(np.isin(code.places_of(code.op[comm["op"].to_numpy()]), inside), dtype=pl.Boolean))
    if not inside or int(theirs["ns"].sum()) < MOST_SHARE * int(comm["ns"].sum()):
        return None
    source = lines.texts(case.profile)
    texts = [lines.text_of(source, *code.places.row(n)[:2]) or "" for n in inside]
    blocks = any(map(_WAITED_FOR.search, texts)) or not any(map(_ASYNCHRONOUS.search, texts))
    waits = code.made_at(case.profile.wait_sites(), inside).height / case.steps
    if not blocks and waits < 1:
        return None
    why = [f"reads a value {units.count(round(waits))} times in each step, and backward waits for it"] * (waits >= 1)
    why += ["waits for each reduction before backward goes on"] * blocks
    worth = case.worth(*edits_without(code.made_at(case.calls, inside), case.ops))
    costs_ns = {n: case.worth(*edits_without(code.made_at(case.calls, [n]), case.ops)).likely_ns or 0 for n in inside}
    file, line, function = code.places.row(max(inside, key=lambda n: costs_ns[n]))
    hook = way("asynchronous-hook")
    fix = Fix.by_name(hook, text=f"{hook.text}: {function} {' and '.join(why)}")
    title = "A communication hook of DDP holds backward up at each bucket of gradients"
    return CommunicationCause(fix, {"file": file, "line": line}, worth, title)


def _of_line(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    code = case.profile.code()
    if code is None or not comm.height:
        return None
    line_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    noted = line_of_op >= 0
    if not noted.any():
        return None
    ns = comm["ns"].to_numpy()
    sums = np.bincount(line_of_op[noted], ns[noted], minlength=code.places.height)
    most = int(sums.argmax())
    if (again := _reduced_twice.deleted(case, most)) is not None:
        return CommunicationCause(again, _reduced_twice.place_of_line(case), _reduced_twice.without(case, None))
    file, line, _ = code.places.row(most)
    text = lines.text_of(lines.texts(case.profile), file, line) or ""
    often = int((line_of_op == most).sum()) / case.steps
    fix = next((Fix.by_name(name) for name, of_weights in _OF_WEIGHTS.items() if re.search(of_weights, text)), None)
    fix = fix or _line_remedies.fix_of(_line_remedies.Seen(text))
    if often >= LOOP_LAUNCHES and _OF_GRADIENTS.search(text):
        fix = Fix.by_name("gradients-in-buckets")
    fix = _sent_objects.of_objects(case.profile, file, line, fix)
    if fix is not None and _line_causes.of_no_parameters(case, most, text, fix):
        fix = None
    if _rows_of_all.sums_of_part(case) == most:  # ranks that each update a part need not be sent the sum of the others'
        fix = None
    if _summed_late.line_of(case.profile) == most:  # reduced once, behind the last micro-batch, they need no buckets
        fix = None
    if (
        fix is not None
        and fix.ways
        and fix.ways[0].name == "gradients-in-buckets"
        and _in_backward(case, line_of_op == most, comm)
    ):
        fix = Fix.by_name("waited-behind-backward")
    fix = values_at_once(case.profile, most) or fix
    fix = of_average(case.profile, file, line, fix)
    gone = code.made_at(case.calls, [most])
    # What goes to the CPU is gathered all the same.
    if fix is not None and fix.ways[:1] == _sent_objects.GENERATOR.ways:
        gone = gone.filter(~pl.col("call").is_in(communication(case)["call"].drop_nulls().implode()))
    worth = case.worth(*edits_without(gone, case.ops), bound=True)
    if worth.likely_ns is None and not case.stepless:  # no replay tells more than what is exposed of this line's
        ops = frozenset(comm.filter(pl.Series(line_of_op == most))["op"].to_list())
        exposed_ns = exposed_share(case, ops) * case.taken_by((StepPart.COMM,))
        worth = case.bound(exposed_ns, f"all that is exposed of this line's is gone ({worth.confidence})")
    owned = by_owners(case.profile, file, line)
    if owned or (fix is not None and fix.ways and fix.ways[0].name == "weights-sent-once" and not _trained_alike(case)):
        # One rank trains, or each its part, and the others need what it made: they can have all of it in one message.
        fix = Fix.by_name("updates-gathered" if owned else "weights-in-one") if often >= LOOP_LAUNCHES else None
        paste = in_one_message(case.profile, file, line)
        fix = fix.but(paste=paste) if fix is not None and paste else fix
        worth = case.worth(*edits_without(_behind_first(case, code.made_at(case.calls, [most])), case.ops))
    if fix is None or not fix.ways or fix.ways[0].name not in _OF_LINES:
        return None
    # A sharded model gathers in forward and backward, too, and must: whole weights beside that are no less a thing of their line.
    whole = fix.ways[0].name in ("shards-kept", "values-at-once") and often >= LOOP_LAUNCHES
    if sums[most] < (OWN_REMEDY_SHARE if whole else MOST_SHARE) * ns.sum():
        return None
    return CommunicationCause(fix, {"file": file, "line": line}, worth)


def _in_backward(case: Case, chosen: Flags, comm: pl.DataFrame) -> bool:
    """Return whether most of some communication is launched within backward, as by hooks of parameters."""
    phase = case.ops.filter(case.ops["op"].is_in(comm.filter(pl.Series(chosen))["op"].implode()))["phase"].cast(
        pl.String
    )
    return float((phase == "backward").fill_null(value=False).mean() or 0) >= MOST_SHARE


def _trained_alike(case: Case) -> bool:
    """Return whether all ranks train the same weights: a wrapper or a line of the program reduces their gradients."""
    settings, code = settings_of(case.profile), case.profile.code()
    if settings is not None and settings.rows("wrappers"):
        return True
    comm = communication(case)
    sums = lookup.matching(comm["name"], r"AllReduce|ReduceScatter") & ~sent_by_nodes(case.profile, comm)
    reduces = comm.filter(pl.Series(sums, dtype=pl.Boolean))
    if (reduces["phase"].cast(pl.String) == "backward").fill_null(value=False).any():
        return True
    if code is None:
        return False
    source = lines.texts(case.profile)
    made = np.unique(code.places_of(code.op[reduces["op"].to_numpy()])).tolist()
    texts = (lines.text_of(source, *code.places.row(n)[:2]) or "" for n in made if n >= 0)
    return any(_OF_GRADIENTS.search(text) and "grad" in text for text in texts)


def _behind_first(case: Case, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of a line without the first of each step, in which the ranks wait for each other however much is sent."""
    return calls.sort("start_ns").filter(pl.Series(behind_first_round(calls.height, case.steps), dtype=pl.Boolean))


def _of_layers(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    """Return the layers that normalize over all ranks, if most communication is theirs."""
    layers = _synchronized_norms.layers(case.profile)
    if not layers:
        return None
    theirs = comm.filter(comm["module"].cast(pl.String).is_in(layers).fill_null(value=False))
    if int(theirs["ns"].sum()) < MOST_SHARE * int(comm["ns"].sum()):
        return None
    return CommunicationCause(Fix.by_name("own-statistics"), {}, _synchronized_norms.without(case, None))


def _in_turn(case: Case) -> CommunicationCause | None:
    """Return that a rank that trains and one that does not wait for each other in turn; else None."""
    turns = _roles_in_turn.in_turn(case.profile)
    if turns is None:
        return None
    fix, title = Fix.by_name("roles-at-once"), _roles_in_turn.title(turns)
    return CommunicationCause(fix, _roles_in_turn.place(case), _roles_in_turn.worth(case, turns), title)


def _of_tables(case: Case) -> CommunicationCause | None:
    """Return that whole tables are reduced of which few rows are looked up; else None."""
    tables = _tables_of_ranks.reduced_whole(case)
    if tables is None:
        return None
    remedy = way("rows-of-tables")
    title = "Gradients of whole tables are reduced, of which a step looks up few rows"
    return CommunicationCause(
        Fix.by_name(remedy, text=f"{remedy.text}: {tables.text}"), tables.where, tables.saving, title
    )


def _early(case: Case) -> CommunicationCause | None:
    """Return that a line waits for its collectives before work that needs nothing of them; else None."""
    early = _waited_early.waited_early(case)
    if early is None:
        return None
    title = "The GPU waits for a collective before work that needs nothing of it"
    return CommunicationCause(
        Fix.by_name("async-collectives", text=early.text, condition=""), early.where, early.saving, title
    )


def _behind_backward(case: Case) -> CommunicationCause | None:
    """Return that gradients are reduced in a few messages behind backward, not beside it; else None."""
    late = None if _rows_of_all.sums_of_part(case) is not None else _late_gradients.reduced_late(case)
    if late is None:
        return None
    fix = way("gradients-in-buckets")
    told = f"Reduce gradients in buckets while backward runs, as DistributedDataParallel does: {late.text}"
    title = "Gradients are reduced behind backward, with nothing beside it"
    return CommunicationCause(Fix.by_name(fix, text=told), late.where, late.saving, title)


def _of_halos(case: Case) -> CommunicationCause | None:
    """Return that a field waits for the borders of its neighbours, inside and all; else None."""
    halos = _halos.waited_halos(case)
    if halos is None:
        return None
    title = "A whole field waits for the borders of its neighbours"
    if halos.wider:
        fix = Fix.by_name("wider-border", text=halos.text)
        return CommunicationCause(fix, halos.where, halos.saving, f"{title} before each of several layers")
    return CommunicationCause(Fix.by_name("inside-first", text=halos.text), halos.where, halos.saving, title)


def _of_levels(case: Case) -> CommunicationCause | None:
    """Return that the skip connections of all levels of a network cross a link; else None."""
    levels = sent_levels(case)
    if levels is None:
        return None
    title = "Skip connections of all levels are sent from one rank to another"
    return CommunicationCause(Fix.by_name("cut-between-levels", text=levels.text), levels.where, levels.saving, title)


def _in_line(case: Case) -> CommunicationCause | None:
    """Return the exchanges of layers that could run beside the work around them, if that saves what is worth a word."""
    title = "Layers wait for what they exchange before work that needs nothing of it"
    cause = _of_exchanges(case, _layer_exchanges.exchanged_in_line(case), "exchanged-ahead", title)
    code = case.profile.code()
    blocks = None if cause is None or code is None else drawn_ahead(case.profile, code, cause.where)
    if cause is None or blocks is None:
        return cause
    return cause._replace(fix=cause.fix.but(paste=blocks.paste), where=blocks.where)


def _picked(case: Case) -> CommunicationCause | None:
    """Return the gathers of rows from which layers take some by number, if their transfer is worth a word."""
    title = "The rows of all ranks are gathered for layers that take some of them by number"
    return _of_exchanges(case, _layer_exchanges.gathered_to_pick(case), "rows-exchanged", title)


def _of_exchanges(
    case: Case, made: _layer_exchanges.Exchanges | None, remedy: str, title: str
) -> CommunicationCause | None:
    if made is None or not case.notable(made.saving.likely_ns or 0):
        return None
    return CommunicationCause(Fix.by_name(remedy), made.where, made.saving, title)


def _of_links(case: Case) -> CommunicationCause | None:
    """Return that data takes a slow way between GPUs of one host, where most of the exposed communication is transfer."""
    rows = rank_rows(case)
    exposed = sum(row["comm_ns"] for row in rows)
    if not exposed or sum(row["exposed_transfer_ns"] or 0 for row in rows) < MOST_SHARE * exposed:
        return None
    settings = settings_of(case.profile)
    if settings is not None and (name := slow_way(settings)):
        text = f"Unset {name}={settings.variable(name).strip()}: {SLOW_WAYS[name][1]}"
        unset = way("unset-variable", text, f"env -u {name} torchrun train.py")
        return CommunicationCause(Fix.by_name(unset), settings.place(name) or {"near": name})
    # Between ranks that share a GPU there are no links.
    if others_of_gpu(case.profile) or (slow := slowest(rows)) is None:
        return None
    return CommunicationCause(Fix(slow), {})
