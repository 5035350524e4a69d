"""What ranks send to each other, and how often. A change would have to be made on all ranks at once, before they start."""

from __future__ import annotations

from . import Change, Remedy

_SENT_SO = "what ranks send to each other, the program says"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "copied-behind",
        "Send each row once and copy it where it arrives: the repetition behind the exchange, not before it; none at all where attention "
        "takes fewer heads of keys and values than of queries",
        "whole = x.new_empty(world * x.shape[0], *x.shape[1:])\n"
        "dist.all_gather_into_tensor(whole, x)  # x as it is: not x.repeat_interleave(n, dim=2)\n"
        "o = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # q of 32 heads, k and v of the 4 that were gathered",
        "Gradients of the copies are added up before they are sent back, on each rank, as autograd does by itself.", untried=_SENT_SO,
    ),
    Remedy(
        "row-for-each-rank",
        "Send each row once to every rank that needs it, and copy it there for each of that rank's experts; send back one sum for a row, "
        "weighted by its experts, not one result for each",
        "needed = F.one_hot(expert // experts_of_a_rank, world).amax(1).bool()  # [rows, ranks]; expert: [rows, k]\n"
        "rows = [needed[:, r].nonzero().squeeze(1) for r in range(world)]\n"
        "send = torch.cat([x[i] for i in rows])  # numbers and weights of the experts travel beside it, in the same order\n"
        "dist.all_to_all_single(recv, send, recv_counts, [len(i) for i in rows])",
        "Which rank owns which experts must be fixed; the sum of a row's results is then rounded once on each rank.", untried=_SENT_SO,
    ),
    Remedy(
        "experts-by-load",
        "Give the ranks experts by the tokens that these are sent, not by their number, so that each rank is sent as many",
        "tokens = torch.bincount(expert.flatten(), minlength=experts)  # summed over many steps\n"
        "dist.all_reduce(tokens)  # alike on all ranks\n"
        "owner, load, room = [0] * experts, [0] * world, [experts // world] * world\n"
        "for e in tokens.argsort(descending=True).tolist():\n"
        "    owner[e] = min((r for r in range(world) if room[r]), key=lambda r: load[r])\n"
        "    load[owner[e]] += int(tokens[e]); room[owner[e]] -= 1",
        "Experts move with their state of the optimizer; where loads change, place them anew from time to time, as at checkpoints. One "
        "expert that is busier than a rank's share must be held by several.", untried=_SENT_SO,
    ),
)  # fmt: skip
