"""Layers that each rank leaves out by draws of its own (layer drop, stochastic depth): a step lasts as long as the deepest of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix
from nsysx.findings._work_bounds import FEWEST_SKIPPED_LAYERS, SEED_OF_ALL_RANKS
from nsysx.model import Row
from nsysx.replay import peers

#: A layer of a list, by its path, and a line that decides by a draw.
_LAYER = re.compile(r"^(.+)\.\d+$")
_DRAW = r"(\brandom\.(random|uniform)\(|\brng\.\w+\(|\w*\.random\(|\brand(_like)?\(|\buniform_?\(|\bbernoulli_?\()"
_DRAWS = re.compile(rf"{_DRAW}.*(<|>)|(<|>).*{_DRAW}|\bbernoulli_?\(")
#: Draws that a name is given to, which another line compares: itself, or each of them.
_NAMES_DRAWS = re.compile(rf"^(?P<name>[A-Za-z_]\w*)\s*=(?!=).*{_DRAW}")
_EACH_OF = r"\bfor\b\s+(?P<each>[\w\s,()]+?)\s+in\b.*(?<![\w.]){}\b"
_COMPARED = r"(?<![\w.])(?:{0})(?:\[[^\]]*\])?(?:\.item\(\))?\s*(?:<|>|\.[gl][et]\()|(?:<|>)=?\s*(?:{0})\b"
#: What draws on the host by a generator that all of a library's draws share, and the same by one of the draw's own.
_BY_OWN = (
    (re.compile(r"(?<![\w.])random\.(random|uniform)\("), r"{rng}.\1(", "random.Random({seed})"),
    (
        re.compile(r"(?<![\w.])(?:np|numpy)\.random\.(?:rand|random)\((?=[^,]*$)"),
        r"{rng}.random(",
        "np.random.default_rng({seed})",
    ),
    (
        re.compile(r"(?<![\w.])(?:np|numpy)\.random\.(uniform|binomial)\("),
        r"{rng}.\1(",
        "np.random.default_rng({seed})",
    ),
    (re.compile(r"(\.(?:uniform|bernoulli)_\()\)"), r"\1generator={rng})", "torch.Generator().manual_seed({seed})"),
    (
        re.compile(r"(\.(?:uniform|bernoulli)_\(|\btorch\.rand\()((?:[^()]|\([^()]*\))+)\)"),
        r"\1\2, generator={rng})",
        "torch.Generator().manual_seed({seed})",
    ),
)
#: What draws on the device of another tensor, or by a generator that the program has.
_ELSEWHERE = re.compile(r"device|generator|cuda|_like\b|\bnew_|\bbernoulli\(")


class SkippedLayers(NamedTuple):
    """``path`` of a list of layers; of ``steps`` seen on all ranks, how many layers ran in each on the rank with most, on average over
    them, and on average over the ranks, too. ``where``: the line that draws, empty where several do; ``text``: what stands there.
    """

    path: str
    steps: int
    most: float
    mean: float
    where: Row
    text: str

    def fix(self) -> Fix:
        """Return what to do, with the line that draws by a generator of its own, where its text tells how."""
        general, statement = Fix.by_name("like-layers"), self.text.partition("  #")[0].strip()
        if _ELSEWHERE.search(statement):
            return general
        rng = "self.layer_rng" if re.search(r"\bself\b", statement) else "layer_rng"
        for draws, by_own, made in _BY_OWN:
            line = draws.sub(by_own.format(rng=rng), statement)
            if line != statement:
                there = "in __init__" if rng.startswith("self.") else "before the steps"
                first = f"{rng} = {made.format(seed=SEED_OF_ALL_RANKS)}  # once, {there}: the same seed on all ranks"
                return general.but(paste=f"{first}\n{line}")
        return general

    def sentence(self) -> str:
        """Return what was seen, as a sentence."""
        return (
            f"Each rank leaves out layers of {self.path} by draws of its own: {self.mean:.1f} run on average, and {self.most:.1f} on "
            "the rank that runs most in that step."
        )


def skipped_layers(profile: Profile) -> SkippedLayers | None:
    """Return the list of layers of which ranks run unlike ones in the same step, and others in the next; None without one.

    A line has to decide by a draw: what a rank owns (experts, stages), and what its data choose, is no such list.
    """
    draws = _lines_that_draw(profile)
    ranks = [_layers_of_steps(each) for each in (profile, *peers.others(profile))] if draws else []
    common = sorted(set[int].intersection(*(set(rank) for rank in ranks))) if len(ranks) > 1 else []
    if len(common) < 2:
        return None
    lists = {path for rank in ranks for layers in rank.values() for path, _ in layers}
    for path in sorted(lists):
        ran = [[{layer for stack, layer in rank[number] if stack == path} for number in common] for rank in ranks]
        unlike = sum(any(first != each[i] for each in ran) for i, first in enumerate(ran[0]))
        every = set[str].union(*(layers for of_rank in ran for layers in of_rank))
        varies = all(len({frozenset(layers) for layers in of_rank}) > 1 for of_rank in ran)
        if 2 * unlike > len(common) and varies and len(every) >= FEWEST_SKIPPED_LAYERS:
            counts = [[len(of_rank[i]) for of_rank in ran] for i in range(len(common))]
            most, mean = (
                sum(pick(row) for row in counts) / len(counts) for pick in (max, lambda row: sum(row) / len(row))
            )
            drawn = draws[0] if len(draws) == 1 else {}
            return SkippedLayers(
                path, len(common), most, mean, drawn, text_of(texts(profile), **drawn) or "" if drawn else ""
            )
    return None


def _layers_of_steps(profile: Profile) -> dict[int, set[tuple[str, str]]]:
    """Return the layers (path of their list, name) that each step ran, by its number, where modules were recorded."""
    ranges, steps = profile.ranges.ranges, profile.steps
    is_module = (
        (pl.col("kind") == "module") & (pl.col("process") == steps.process) & ~pl.col("repeated") & ~pl.col("recompute")
    )
    modules = ranges.filter(is_module)["start_ns", "end_ns", "name"].sort("start_ns")
    tiles = steps.cpu.filter(steps.cpu["process"] == steps.process).sort("start_ns")
    tiles = tiles.select("start_ns", pl.col("end_ns").alias("until_ns"), "number")
    inside = modules.join_asof(tiles, on="start_ns", strategy="backward").filter(pl.col("end_ns") <= pl.col("until_ns"))
    ran: dict[int, set[tuple[str, str]]] = {}
    for number, name in inside["number", "name"].iter_rows():
        layers, match = ran.setdefault(number, set()), _LAYER.search(name)
        if match:
            layers.add((match[1], name))
    return ran


def _lines_that_draw(profile: Profile) -> list[Row]:
    """Return the lines of the program that decide by a draw, or draw what another line of their file decides by."""
    return [
        {"file": file, "line": int(line)}
        for file, of_file in texts(profile).items()
        for line, text in of_file.items()
        if isinstance(text, str) and (_DRAWS.search(text) or _decides_elsewhere(text, of_file))
    ]


def _decides_elsewhere(text: str, of_file: Mapping[str, object]) -> bool:
    """Return whether a line gives draws a name, and another one of the file compares it, or each of what it names."""
    drawn = _NAMES_DRAWS.search(text.strip())
    if drawn is None:
        return False
    others = [other for other in of_file.values() if isinstance(other, str) and other != text]
    each_of = re.compile(_EACH_OF.format(re.escape(drawn["name"])))
    names = [
        drawn["name"],
        *(name for other in others if (each := each_of.search(other)) for name in re.findall(r"\w+", each["each"])),
    ]
    compared = re.compile(_COMPARED.format("|".join(map(re.escape, names))))
    return any(compared.search(other) for other in others)
