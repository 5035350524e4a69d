"""Layers of the stages of a pipeline: how many each rank has, how long one computes, what a stage has besides, and how many even them out.

A stage with as many layers as the others, and the head and the loss behind them, is the longest one; so is one with the embedding, where
that is large. Layers are numbered modules of one class (``layers.0``, ``h.1``), the class that takes most of the time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import (
    EVEN_STAGES_SAVING_SHARE,
    FEWEST_NAMED_LAYERS,
    LAYERS_OF_STAGE_SHARE,
    LIKE_LAYERS_TIMES,
    NAMED_STAGE_PARTS,
    SHARED_CUT_SHARE,
)
from nsysx.findings._job_bounds import HOSTS_OFTEN_FASTER_SHARE
from nsysx.findings._rank_rows import profiles_of_ranks
from nsysx.findings._stage_cut import counts_with, cut_with
from nsysx.findings._work_bounds import HOSTS_FASTER_SHARE
from nsysx.judging.judging_bounds import UNEVEN_CUT_SHARE
from nsysx.judging.other_work import others_of_gpu
from nsysx.judging.schedule import paced_ns
from nsysx.judging.uneven_stages import UnevenStages

#: A layer: the first part of a module's name that is a number, with what stands before it, else the first that ends with one.
_LAYER = re.compile(r"^((?:[A-Za-z_]\w*\.)*)(\d+)(?=\.|$)")
_NUMBERED = re.compile(r"^((?:[A-Za-z_]\w*\.)*?)([A-Za-z_]\w*\d)(?=\.|$)")


class _StageParts(NamedTuple):
    """The compute of one stage in a step (ns): the layers, by name, of each class, and all else by the first part of its module's name.

    ``launches``: class of layers -> the kernels in them, "" -> all that is launched.
    """

    layers: dict[str, dict[str, float]]
    others: dict[str, float]
    launches: dict[str, int]

    def beside(self, cls: str) -> dict[str, float]:
        """Return what the stage computes besides the layers of a class, by name: numbered modules of other classes by theirs (ns)."""
        numbered = {other: sum(layers.values()) for other, layers in self.layers.items() if other != cls}
        names = dict.fromkeys((*numbered, *self.others))
        return {name: numbered.get(name, 0.0) + self.others.get(name, 0.0) for name in names}


class StageLayers(NamedTuple):
    """The layers of the stages, in the order of the ranks, and of a better cut: how many each has; what one computes in a step, and what a
    stage computes besides (ns). ``beside``: what the longest stage has besides, by name (ns), longest first. ``host_layer_ns``,
    ``host_rest_ns``: what the host of each takes for the same, () where that is not known.
    """

    cls: str
    counts: tuple[int, ...]
    better: tuple[int, ...]
    layer_ns: tuple[float, ...]
    rest_ns: tuple[float, ...]
    beside: tuple[tuple[str, float], ...]
    host_layer_ns: tuple[float, ...] = ()
    host_rest_ns: tuple[float, ...] = ()

    @property
    def for_gpus(self) -> tuple[int, ...]:
        """How many layers each has where what GPUs compute alone is even."""
        return _dealt(self.rest_ns, sum(self.layer_ns) / len(self.layer_ns), sum(self.counts))

    @property
    def hosts_ns(self) -> tuple[float, ...]:
        """What the host of each stage takes with the better cut (ns), () where that is not known."""
        of_stages = zip(self.host_rest_ns, self.host_layer_ns, self.better, strict=False)
        return tuple(rest + count * layer for rest, layer, count in of_stages)

    def work_ns(self, layer_ns: Sequence[float], slower: Sequence[float]) -> tuple[float, ...]:
        """Return what each stage computes with the better cut, if a layer takes so long there and all else so many times as long (ns)."""
        return tuple(
            rest * more + count * layer
            for rest, more, count, layer in zip(self.rest_ns, slower, self.better, layer_ns, strict=True)
        )


def stage_layers(case: Case, stages: UnevenStages) -> StageLayers | None:
    """Return the layers of the stages, None where those of a rank are not known; ``better`` are those that it has where none are."""
    if _in_parts(case, len(stages.rows)):
        return None
    profiles = {each.process: each for each in profiles_of_ranks(case)}
    parts = [_parts(profiles[row["process"]]) if row["process"] in profiles else None for row in stages.rows]
    of_stages = [each for each in parts if each is not None]
    if len(of_stages) < len(parts) or any(map(_several_networks, profiles.values())):
        return None
    names = dict.fromkeys(cls for each in of_stages for cls in each.layers)
    whole = {cls: sum(sum(each.layers.get(cls, {}).values()) for each in of_stages) for cls in names}
    cls = max(whole, key=lambda name: whole[name], default=None)
    if cls is None or not all(each.layers.get(cls) for each in of_stages):
        return None
    layers = [each.layers[cls] for each in of_stages]
    if not _alike([ns for of_stage in layers for ns in of_stage.values()]) or not _stacked(layers):
        return None
    counts, layer_ns, rest_ns, host_layer_ns, host_rest_ns = [], [], [], [], []
    for work, each, host in zip(stages.work_ns, of_stages, stages.hosts_ns or [0.0] * len(of_stages), strict=True):
        ran = sum(each.layers[cls].values())
        # Kernels of several streams run beside each other: all are parts of what the stage computes.
        of_layers = ran * work / max(ran + sum(each.beside(cls).values()), 1.0)
        if of_layers < LAYERS_OF_STAGE_SHARE * work:
            return None
        counts.append(len(each.layers[cls]))
        layer_ns.append(of_layers / counts[-1])
        rest_ns.append(work - of_layers)
        launching = host * each.launches.get(cls, 0) / max(each.launches.get(_OUTSIDE, 0), 1)
        host_layer_ns.append(launching / counts[-1])
        host_rest_ns.append(host - launching)
    better = _dealt(rest_ns, sum(layer_ns) / len(layer_ns), sum(counts), host_rest_ns, host_layer_ns)
    others = of_stages[stages.longest_at].beside(cls)
    beside = tuple(sorted(others.items(), key=lambda item: -item[1])[:NAMED_STAGE_PARTS])
    made = StageLayers(cls, tuple(counts), better, tuple(layer_ns), tuple(rest_ns), beside)
    if not stages.hosts_ns:
        return made
    return made._replace(host_layer_ns=tuple(host_layer_ns), host_rest_ns=tuple(host_rest_ns))


def _in_parts(case: Case, stages: int) -> bool:
    """Return whether some of the ranks are a group of their own: they may be replicas, each with stages, not as many stages as ranks."""
    settings = settings_of(case.profile)
    return settings is not None and any(len(ranks) < stages for ranks in settings.groups_of_ranks())


def _several_networks(profile: Profile) -> bool:
    """Return whether a rank trains several networks, as the stages of an interleaved schedule are: their layers have the same names."""
    settings = settings_of(profile)
    networks = None if settings is None else settings.rows("networks")
    return sum(bool(network.get("parameters")) for network in networks or ()) > 1


def _alike(layers_ns: Sequence[float]) -> bool:
    """Return whether layers take about as long each: only then their number says how long several take."""
    return max(layers_ns) <= LIKE_LAYERS_TIMES * min(layers_ns)


def _stacked(layers: Sequence[Mapping[str, float]]) -> bool:
    """Return whether layers, by name, stand in a list or are as many as such: the two halves of an MLP may be called fc1 and fc2."""
    in_list = all(_LAYER.match(name) for of_stage in layers for name in of_stage)
    return in_list or max(map(len, layers)) >= FEWEST_NAMED_LAYERS


def _dealt(
    rest_ns: Sequence[float],
    layer_ns: float,
    layers: int,
    host_rest_ns: Sequence[float] = (),
    host_layer_ns: Sequence[float] = (),
) -> tuple[int, ...]:
    """Return how many layers each stage has where each goes to the one that has least to compute yet; every stage has one.

    A stage whose host takes longer to launch than its GPU to compute has as much as that takes.
    """
    stages = range(len(rest_ns))
    counts = [1] * len(stages)
    host_rest_ns, host_layer_ns = host_rest_ns or [0.0] * len(stages), host_layer_ns or [0.0] * len(stages)
    for _ in range(layers - len(stages)):
        takes = [max(rest_ns[i] + counts[i] * layer_ns, host_rest_ns[i] + counts[i] * host_layer_ns[i]) for i in stages]
        counts[takes.index(min(takes))] += 1
    return tuple(counts)


def _parts(profile: Profile) -> _StageParts | None:
    """Return what a rank computes in a step by its layers and other modules, None without steps."""
    if not profile.scope.steps:
        return None
    ops = profile.steady_ops
    ops = ops.filter(ops["process"] == profile.process)
    launched, ops = ops.height, ops.filter(ops["cls"] == DeviceActivity.COMPUTE.value)
    sums = ops.group_by(pl.col("module").cast(pl.String)).agg(
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"), pl.len().alias("count")
    )
    class_of = _classes(profile)
    made = _StageParts({}, {}, {_OUTSIDE: launched})
    for module, ns, count in sums.iter_rows():
        of_step = profile.scope.per_step(int(ns))
        match = _LAYER.match(module or "") or _NUMBERED.match(module or "")
        cls = class_of.get(match[0]) if match else None
        if match and cls:
            layers = made.layers.setdefault(cls, {})
            layers[match[0]] = layers.get(match[0], 0.0) + of_step
            made.launches[cls] = made.launches.get(cls, 0) + count
        else:
            name = (module or "").partition(".")[0]
            name = _OUTSIDE if name.startswith("(") or not name else name
            made.others[name] = made.others.get(name, 0.0) + of_step
    return made


def _classes(profile: Profile) -> dict[str, str]:
    """Return the classes of a rank's own modules, by name: one name is often a layer on one rank, and an embedding or a head on another."""
    ranges = profile.ranges.ranges
    of_rank = ranges.filter((ranges["process"] == profile.process) & (ranges["kind"] == "module"))
    return dict(of_rank.select(pl.col("name", "cls").cast(pl.String)).drop_nulls().unique("name").iter_rows())


#: All that is in no module.
_OUTSIDE = ""


def cut_once(case: Case, stages: UnevenStages, layers: StageLayers, micro_batches: float) -> StageLayers:
    """Return the layers with the cut that is even for the GPUs where hosts, by their replay, would hold a part of it up, and lose nothing.

    Hosts mostly take somewhat less than replayed: then a step is as short as with the cut that these leave, and at the most as long as now.
    With fewer launches it is right without another cut.
    """
    even = layers._replace(better=layers.for_gpus)
    if not layers.host_layer_ns or even.better in (layers.better, layers.counts):
        return layers
    longest = [max(layers.layer_ns)] * len(layers.counts)

    def step_ns(cut: StageLayers, faster: float) -> float:
        hosts = [(1 - faster) * ns for ns in cut.hosts_ns]
        return paced_ns(cut.work_ns(longest, [1.0] * len(longest)), micro_batches, hosts)

    no_longer = step_ns(even, HOSTS_OFTEN_FASTER_SHARE) <= step_ns(layers, HOSTS_OFTEN_FASTER_SHARE)
    now_ns = max(stages.step_ns(micro_batches), case.step_ns)
    return even if no_longer and step_ns(even, 0.0) <= now_ns else layers


def moved(case: Case, stages: UnevenStages, layers: StageLayers, micro_batches: tuple[float, float]) -> Saving | None:
    """Return what a step saves with the better cut; None where that is little. ``micro_batches``: the fewest and the most it may have.

    At most the layers take as long as on the longest stage. At least they take as long as where they take longest, and on a GPU that
    ranks share all else of a stage is slower, too, in proportion: there it runs beside the work of the other one for longer. What a stage
    gains by fewer layers is never all that the step gains; of ranks that share a GPU it is near the least. Hosts launch what their stage
    has then: the one that takes longest may set the pace (`uneven_stages` says what was measured).
    """
    if layers.better == layers.counts:
        return None
    few, many = micro_batches
    slowest, longest = max(layers.layer_ns), layers.layer_ns[stages.longest_at]
    even, shared = [1.0] * len(layers.counts), bool(others_of_gpu(case.profile))
    slower = [slowest / ns for ns in layers.layer_ns] if shared else even
    least = stages.step_ns(few) - paced_ns(layers.work_ns([slowest] * len(even), slower), few, layers.hosts_ns)
    hosts = (
        [(1 - HOSTS_FASTER_SHARE) * ns for ns in layers.hosts_ns]
        if layers.better == layers.for_gpus
        else layers.hosts_ns
    )
    best = paced_ns(layers.work_ns([longest] * len(even), even), many, hosts)
    most = max(case.step_ns * (1 - best / stages.step_ns(many)), least)
    why = "the longest stage sets the pace; layers take between as long as on it and as where they take longest"
    least, most = round(max(min((1 - UNEVEN_CUT_SHARE) * least, case.step_ns), 0)), round(min(most, case.step_ns))
    saving = Saving.between(least, max(most, least), why)
    if shared:
        why += ", and ranks that share a GPU slow each other more"
        likely = round(least + SHARED_CUT_SHARE * (most - least))
        saving = replace(saving, likely_ns=likely, confidence=why, error_ns=max(likely - least, likely // 2))
    return saving if (saving.likely_ns or 0) >= EVEN_STAGES_SAVING_SHARE * case.step_ns else None


def in_words(stages: UnevenStages, layers: StageLayers) -> str:
    """Return a sentence on what the longest stage computes, and one on what the better cut makes of it."""
    count, ns_each = layers.counts[stages.longest_at], layers.layer_ns[stages.longest_at]
    parts = [f"{count} layers ({layers.cls}) take {units.duration(round(count * ns_each))}"]
    parts += [f"{name} {units.duration(round(ns))}" for name, ns in layers.beside if name]
    parts += [f"what is in no module, as a loss, {units.duration(round(ns))}" for name, ns in layers.beside if not name]
    mean = sum(layers.layer_ns) / len(layers.layer_ns)
    then = max(layers.work_ns([mean] * len(layers.counts), [1.0] * len(layers.counts)))
    return (
        f"Of rank {stages.longest['rank']}'s work, {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}. With "
        f"{_listed(layers.better)} layers in place of {_listed(layers.counts)} the longest stage computes {units.duration(round(then))}."
    )


def text_of(stages: UnevenStages, layers: StageLayers) -> str:
    """Return what to do, in words."""
    ranks = _listed([row["rank"] for row in stages.rows])
    return (
        f"Cut the layers into {_listed(layers.better)} (ranks {ranks}), not {_listed(layers.counts)}: stages that take equally long, with "
        "all that they have besides layers (embedding, head, loss), not equally many layers"
    )


def paste_of(layers: StageLayers, text: str = "") -> str:
    """Return the lines that cut the layers so; ``text``: the line that cuts them now, with whose names they are written."""
    if counted := counts_with(text, layers.counts, layers.better):
        return f"{counted}  # not {list(layers.counts)}"
    dealt = f"layers_of = {list(layers.better)}  # not {list(layers.counts)}"
    cut = cut_with(text, layers.better, "layers_of")
    if cut:
        return f"{dealt}\n{cut}" if "layers_of" in cut else cut
    return (
        f"{dealt}\n"
        "first = sum(layers_of[:stage])\n"
        "mine = range(first, first + layers_of[stage])  # the layers of this stage"
    )


def _listed(counts: Sequence[int]) -> str:
    return f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"
