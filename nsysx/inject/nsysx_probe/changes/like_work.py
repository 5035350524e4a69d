"""Work that is uneven among the ranks of a job, and work that one of them does for all.

A change would have to be made on all ranks at once, before they start.
"""

from __future__ import annotations

from . import Change, Remedy

_ALL_RANKS = "how work and parameters are divided among the ranks, the program says"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "equal-work", "Give every rank the same work: equal lengths per batch, an even split of layers and samples",
        "sampler = DistributedSampler(data, shuffle=True)  # batches of equal length on every rank",
        "It must be the work that differs between ranks: batch size, sequence lengths, an uneven shard.", untried=_ALL_RANKS,
    ),
    Remedy(
        "equal-host-work", "Give every rank as much to do in its Python: as many items, and as large ones",
        "own = sorted(items, key=cost)[rank::world]  # not items[rank * n : (rank + 1) * n]",
        "It must be the items that differ between ranks, not the CPUs.", untried=_ALL_RANKS,
    ),
    Remedy(
        "dealt-by-cost",
        "Deal out what each rank computes for all by what it costs, not by number",
        "owner, load, cost = {}, [0] * world, lambda p: p.numel() * depth(p)\n"
        "for p in sorted(params, key=cost, reverse=True):\n"
        "    owner[p] = load.index(min(load)); load[owner[p]] += cost(p)",
        "depth(p): min(p.shape) of what this line runs for (matrices in Muon or Shampoo), 1 of the rest. Items must be computed whole, "
        "each on one rank; what is sent from each rank changes with it.", untried=_ALL_RANKS,
    ),
    Remedy(
        "even-stages",
        "Cut the stages of the pipeline by the time that their layers take, forward and backward, not by their number or parameters",
        "cut = min(range(1, len(ms)), key=lambda i: max(sum(ms[:i]), sum(ms[i:])))  # ms: measured time of each layer, two stages",
        "Each rank must have room for the activations of its stage.", untried=_ALL_RANKS,
    ),
    Remedy(
        "mixed-shares",
        "Give every rank a mix of the data (every n-th item, or a random share), not one stretch of it: as many items are not as much work",
        "own = data[rank::world]  # not data[rank * n : (rank + 1) * n]",
        "It must be the items that differ: masks, lengths, or what of each is computed.", untried=_ALL_RANKS,
    ),
    Remedy(
        "tables-by-cost",
        "Place embedding tables by what they cost (ids a sample x width), not by their number, so that each rank looks up as much",
        "owner, load = [0] * len(cost), [0] * world\n"
        "for t in sorted(range(len(cost)), key=lambda t: -cost[t]):  # cost[t] = ids a sample x width\n"
        "    owner[t] = load.index(min(load)); load[owner[t]] += cost[t]",
        "A table that costs more than one rank's share must be split, by columns or rows; each rank needs room for its tables.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "like-batches",
        "Give every rank as much work in each step: batches of like length to all ranks at the same time (one order by length that all "
        "ranks share, dealt out in turn; sizes drawn by one seed of all ranks), or as many tokens in each batch, not as many samples",
        "groups = list(zip(*[iter(sorted(batches, key=cost))] * world))\n"
        "random.Random(epoch).shuffle(groups)\nown = [group[rank] for group in groups]",
        "batches: those of all ranks, in one order on each; cost(batch): its work, as its longest sample. It must be the work of the "
        "batches that differs: lengths, sizes, or what of each sample is computed.", untried=_ALL_RANKS,
    ),
    Remedy(
        "like-order",
        "Shuffle the batches, and draw their sizes, alike on all ranks, with no rank in the seed: now each goes through its own in another "
        "order, and batches of unlike length come in the same step",
        "random.Random(seed + epoch).shuffle(batches)  # no rank in it: the same order on all ranks",
        "What is shuffled must be alike at the same place on all ranks: sizes, or batches sorted by length and dealt out in turn "
        "(batches[rank::world]).", untried=_ALL_RANKS,
    ),
    Remedy(
        "like-layers",
        "Draw which layers run alike on all ranks, by a seed that has the step in it and no rank: now each rank draws for itself, and each "
        "step lasts as long as the deepest of these draws",
        "draw = random.Random(seed * 1_000_003 + step)  # the same on all ranks\n"
        "keep = [draw.random() >= layer_drop for _ in layers]\n"
        "for layer, kept in zip(layers, keep):\n    x = layer(x) if kept else x",
        "Samples of one step then all leave out the same layers.", untried=_ALL_RANKS,
    ),
    Remedy(
        "equal-attention",
        "Give every rank the same share of attention, which grows with how far back each token looks: of one sequence over n ranks under "
        "a causal mask, rank r takes parts r and 2n - 1 - r of 2n (zigzag), not one stretch; of sequences of its own, those whose squared "
        "lengths add up alike",
        "own = torch.cat([x.chunk(2 * world)[p] for p in (rank, 2 * world - 1 - rank)])  # tokens, targets and positions alike",
        "That is half of it: each part needs an attention call of its own, with a causal mask over all that stands before it in the "
        "sequence; keys and values that are gathered from all ranks come in the order of ranks, and have to be put back in order.",
        untried=_ALL_RANKS,
    ),
    Remedy(
        "shared-evaluation",
        "Share the evaluation between the ranks, each its part of the data, with one all_reduce of the sums at its end; or evaluate "
        "less often",
        "loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))",
        "Sums and counts add up over the ranks; a metric of all predictions at once has to be gathered.", untried=_ALL_RANKS,
    ),
    Remedy(
        "shared-making",
        "Give each rank its part of what all of them compute between the steps (an index, features, labels of a teacher), and gather the "
        "parts once",
        "part = encode(rows.chunk(dist.get_world_size())[dist.get_rank()])  # as now, of this rank's rows\n"
        "every = part.new_empty(len(rows), *part.shape[1:])\n"
        "dist.all_gather_into_tensor(every, part.contiguous())  # in place of encode(rows)",
        "The rows must divide by the ranks, else fill them up. What is made of a row must depend on no other row (batch statistics), and "
        "all ranks must come here together.",
        untried=_ALL_RANKS,
    ),
)  # fmt: skip
