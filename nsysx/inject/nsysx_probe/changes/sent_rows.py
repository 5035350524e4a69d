"""What ranks send to each other, how often, and what one of them owns. A change would have to be made on all ranks at once."""

from __future__ import annotations

from . import Change, Remedy

_SENT_SO = "what ranks send to each other, the program says"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "objects-as-tensors",
        "Send the tensors themselves, from GPU to GPU, not as pickled objects",
        "tensor = x.to('cuda', non_blocking=True) if dist.get_rank() == 0 else torch.empty(shape, dtype=dtype, device='cuda')\n"
        "dist.broadcast(tensor, src=0)  # each tensor of what the other ranks use",
        "Tensors need the same shape in each step, and where they are gathered on each rank: pad them, or send their sizes before.",
        untried=_SENT_SO,
    ),
    Remedy(
        "own-tokens-to-experts",
        "Let each rank of the group take its part of the tokens before the router, and gather the results behind the experts: with "
        "sequence parallelism simply do not gather before the experts",
        "class OwnTokens(torch.autograd.Function):  # in front of the router\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x.chunk(dist.get_world_size(tp))[dist.get_rank(tp)].contiguous()\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        y = g.new_empty(dist.get_world_size(tp) * len(g), *g.shape[1:])\n"
        "        dist.all_gather_into_tensor(y, g.contiguous(), group=tp)\n"
        "        return y\n"
        "class AllTokens(torch.autograd.Function):  # behind the experts\n"
        "    forward, backward = staticmethod(OwnTokens.backward), staticmethod(OwnTokens.forward)\n"
        "x = OwnTokens.apply(x.flatten(0, 1))  # then router, exchanges and experts as they are\n"
        "y = AllTokens.apply(y)",
        "Gradients of the router are of a rank's own tokens then: add them up over the group; those of the experts are no longer too large "
        "by the group's size.",
        untried=_SENT_SO,
    ),
    Remedy(
        "reduced-beside-weights",
        "Reduce the gradient of the input before the weight's gradient is made, and wait behind that: one function for the layer and its "
        "reduction, in place of a function before the layer",
        "class ColumnLinear(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, w):\n"
        "        ctx.save_for_backward(x, w)\n"
        "        return F.linear(x, w)\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        x, w = ctx.saved_tensors\n"
        "        gx = (g @ w).contiguous()\n"
        "        sent = dist.all_reduce(gx, group=tp, async_op=True)\n"
        "        gw = g.flatten(0, -2).t() @ x.flatten(0, -2)  # beside the message\n"
        "        sent.wait()\n"
        "        return gx, gw\n"
        "y = ColumnLinear.apply(x, self.weight)  # without the function that reduced before",
        "Under autocast give it x and w in 16 bits; a bias is added behind it.",
        untried=_SENT_SO,
    ),
    Remedy(
        "branch-beside-exchanges",
        "Call the branch that needs nothing of the exchanges (a shared expert) ahead of them, on a stream of its own: it then runs beside "
        "them, and autograd runs its backward on that stream, too",
        "side.wait_stream(torch.cuda.current_stream())  # ahead of the first exchange; side = torch.cuda.Stream(), made once\n"
        "with torch.cuda.stream(side):\n"
        "    shared_out = self.shared(x)\n"
        "# exchange, experts and exchange as they are, then:\n"
        "torch.cuda.current_stream().wait_stream(side)\n"
        "return out + shared_out",
        "The branch must not write what the experts read. With CUDA_DEVICE_MAX_CONNECTIONS=1 streams share a queue.",
        untried=_SENT_SO,
    ),
    Remedy(
        "taken-from-own-rank",
        "Let each rank take what it has of the tensor (src_data_rank=None; run_check=False), and make tables once, before the steps: "
        "distribute_tensor sends what the first rank has, in each call",
        "table = distribute_tensor(table, mesh, [Replicate()], src_data_rank=None)  # or from_local, run_check=False",
        "Every rank must have the same tensor: draw random ones from one seed; what the first rank alone reads has to be sent.",
        untried=_SENT_SO,
    ),
    Remedy(
        "sparse-pipeline",
        "Let TorchRec's pipeline run the step: it copies the next batch and exchanges its ids while this one is computed",
        "pipeline = TrainPipelineSparseDist(model, optimizer, device, execute_all_batches=True)  # once\n"
        "batches = iter(loader)\n"
        "output = pipeline.progress(batches)  # each step: forward, backward and optimizer",
        "The network must return (loss, output), and give its tables what stands in the batch unchanged: else they are not pipelined, "
        "which its log says.",
        untried="the pipeline takes the loop's place",
    ),
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
        "exchanged-in-16-bits",
        "Cast these rows to 16 bits before they are sorted and sent: what reads them behind the exchange converts them anyway, half of the "
        "bytes are sent and moved, and their gradients go back in 16 bits, too",
        "rows = rows.to(torch.bfloat16)  # before they are sorted and sent",
        "Sums of what comes back, and of gradients of copies, are then added in 16 bits, unless they are converted to float32 first.",
        untried=_SENT_SO,
    ),
    Remedy(
        "converted-behind",
        "Exchange these rows in the 16 bits that they are computed in, and convert what comes to float32 behind it, where that is "
        "needed: half of the bytes are sent and moved, and their gradients go in 16 bits, too",
        "rows = exchange(rows).float()  # not exchange(rows.float())",
        "Their gradients are rounded to 16 bits before they are sent.", untried=_SENT_SO,
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
    Remedy(
        "update-shared-out",
        "Let each rank update its part of the parameters: gradients are reduced and scattered, each rank steps on what it was sent, and "
        "the parts are gathered; one rank alone does the same work while all others wait",
        "half = flat_param.numel() // world  # flat_param and flat_grad padded to a multiple of world\n"
        "g_own = flat_grad.new_empty(half)\n"
        "dist.reduce_scatter_tensor(g_own, flat_grad)\n"
        "p_own = flat_param[rank * half:(rank + 1) * half]  # the optimizer of each rank holds this alone\n"
        "adam_step(p_own, g_own / world)\n"
        "dist.all_gather_into_tensor(flat_param, p_own.clone())",
        "The update must go number by number, as of SGD, Adam and Lion: norms of whole parameters (LAMB) need a sum over the ranks. "
        "ZeroRedundancyOptimizer does the same parameter by parameter.", untried=_SENT_SO,
    ),
    Remedy(
        "updates-gathered",
        "Gather what the ranks have updated in one message, each rank's parameters as one flat part: broadcasts of one after the other are "
        "a launch and a meeting of all ranks each",
        "owned = [params[r::world] for r in range(world)]  # those that each rank updates\n"
        "most = max(sum(p.numel() for p in part) for part in owned)\n"
        "own = torch.cat([p.data.flatten() for p in owned[rank]])\n"
        "whole = own.new_empty(world * most)\n"
        "dist.all_gather_into_tensor(whole, F.pad(own, (0, most - own.numel())))\n"
        "for part, flat in zip(owned, whole.chunk(world)):\n"
        "    new = flat[:sum(p.numel() for p in part)].split([p.numel() for p in part])\n"
        "    torch._foreach_copy_([p.data for p in part], [t.view_as(p) for t, p in zip(new, part)])",
        "The parameters must have one dtype. Where they are views of one flat tensor in the order of their owners, no copies are needed.",
        untried=_SENT_SO,
    ),
    Remedy(
        "borders-sent",
        "Send each neighbour the border that it reads, not every rank the whole field: sends and receives of these rows or columns",
        "ops = []\n"
        "for peer, mine, theirs in ((rank - 1, u[..., :h], left), (rank + 1, u[..., -h:], right)):  # left, right: of a border's size\n"
        "    if 0 <= peer < world:\n"
        "        ops += [dist.P2POp(dist.isend, mine.contiguous(), peer), dist.P2POp(dist.irecv, theirs, peer)]\n"
        "for work in dist.batch_isend_irecv(ops): work.wait()  # what needs no border can be computed before",
        "Where gradients go through it, they take the same way back, in a function of autograd.", untried=_SENT_SO,
    ),
    Remedy(
        "inside-first",
        "Compute the inside of the field, which needs no border, while the borders travel, and its edges behind them",
        "works = dist.batch_isend_irecv(ops)  # ops: sends of own borders, receives into left and right, w wide\n"
        "new = torch.empty_like(u)\n"
        "new[..., w:-w] = stencil(u)  # needs w cells on each side, and returns as many fewer\n"
        "for work in works: work.wait()\n"
        "new[..., :w] = stencil(torch.cat([left, u[..., :2 * w]], -1))\n"
        "new[..., -w:] = stencil(torch.cat([u[..., -2 * w:], right], -1))",
        "The work on the edges is done for 2 x w cells more. What is sent must not be written before it is sent.", untried=_SENT_SO,
    ),
    Remedy(
        "cut-before-exchange",
        "Cut to what is used before the exchange, in the dimensions that the transform behind it leaves alone, and on the way back pad "
        "behind the exchange: what is dropped, or zero, need not be sent",
        "x = exchange(torch.fft.rfft(u, dim=-1)[..., :modes].contiguous())  # few modes are used: cut, then exchange\n"
        "x = torch.fft.fft(x, dim=-2)[..., rows, :]\n"
        "u = torch.fft.irfft(exchange_back(torch.fft.ifft(y, dim=-2)), n=u.size(-1), dim=-1)  # irfft pads by itself",
        "The modes must be shared out evenly over the ranks.", untried=_SENT_SO,
    ),
    Remedy(
        "wider-border",
        "Exchange a wider border once, before the first of several layers, and let each layer use up as much of it as it reads",
        "x = exchange_halo(x, width=len(convs))  # once; a convolution of 3 reads one row on each side\n"
        "for conv in convs:\n"
        "    x = F.gelu(conv(x))  # no padding along the split: one row less on each side",
        "Rows of the border are computed on both ranks. At the edge of the whole field what pads it must be set anew before each layer.",
        untried=_SENT_SO,
    ),
    Remedy(
        "waited-behind-backward",
        "Only start each reduction in the hook (async_op=True), and wait for all of them behind backward: nothing needs a gradient before; "
        "DistributedDataParallel does that in buckets, with fewer messages",
        "def hook(p): works.append(dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True))\n"
        "loss.backward()\n"
        "for work in works: work.wait()  # before clipping and the optimizer\n"
        "works.clear()",
        "What is done to a gradient (division, casts) belongs before its reduction or behind the waits.", untried=_SENT_SO,
    ),
    Remedy(
        "rows-in-one-call",
        "Call the sharded network once, with the rows of all calls, and take the result apart: each unit is gathered once for all of them, "
        "and products have more rows",
        "long = max(a.size(1), b.size(1))  # a, b: what the two calls are given; pad: the number of no token, which masks leave out\n"
        "rows = torch.cat([F.pad(each, (0, long - each.size(1)), value=pad) for each in (a, b)])\n"
        "first, second = model(rows).split([len(a), len(b)])  # not model(a), model(b)",
        "Activations of all rows are there at once, as before the one backward now. A batch norm sees all rows together then.",
        untried=_SENT_SO,
    ),
    Remedy(
        "scales-of-last-step",
        "Scale by the largest numbers of the step before, and reduce those of all layers in one message behind the optimizer (delayed "
        "scaling): no layer waits for the other ranks",
        "largest[slot] = x.detach().abs().amax()  # in the layer; slot: its number in one vector for all\n"
        "y = quantized(x, scale[slot])  # from the step before\n"
        "# once, behind optimizer.step():\n"
        "dist.all_reduce(largest, op=dist.ReduceOp.MAX)\n"
        "scale.copy_(448.0 / largest.clamp(min=1e-12))  # 448: the largest number of FP8 (e4m3)",
        "Begin with a step that scales by its own numbers. A scale is a step old: leave it some room, or keep the largest of a few steps.",
        untried=_SENT_SO,
    ),
)  # fmt: skip
