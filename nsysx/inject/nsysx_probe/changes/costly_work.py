"""What to do about GPU work of a line: by what the line calls and in which form. None of it can be tried yet."""

from __future__ import annotations

from . import Change, Remedy

_OWN_CODE = "what the line makes is the program's own code"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "same-dtype",
        "Cast the inputs of this line back to the model's dtype (x.to(weight.dtype)): the parameters are 16-bit, and a float32 tensor "
        "(a table, a constant, a mask) promoted the work to float32",
        "q, k = rotary(q).to(v.dtype), rotary(k).to(v.dtype)  # float32 tables promote what they touch",
        "Compute what needs float32 (angles, sums) before the cast.", untried=_OWN_CODE,
    ),
    Remedy(
        "adapters-converted",
        "Convert the adapter's weights to the type of what it is given, not that to float32: they are small, and so are their gradients",
        "z = F.linear(F.linear(drop(x), A.weight.to(x.dtype)), B.weight.to(x.dtype))\n"
        "y = torch.add(y, z, alpha=scale)  # y: of the layer itself",
        "Its results have 16 bits then, as those of the layers do; the optimizer keeps float32 weights.", untried=_OWN_CODE,
    ),
    Remedy(
        "parametrized-once",
        "Let the calls of a step share the weights that parametrizations make: torch.nn.utils.parametrize.cached() around them",
        "with torch.nn.utils.parametrize.cached():\n    for part in parts:\n        outputs.append(net(part))",
        "No optimizer may step inside of it. Weight norm by hooks (torch.nn.utils.weight_norm) has no cache: "
        "torch.nn.utils.parametrizations.weight_norm has.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "depthwise-of-planes",
        "Write this depthwise Conv3d as a Conv2d: a kernel of (k, 1, 1) goes over time and all places of a frame, one of (1, k, k) over "
        "frames; torch has only slow kernels of its own for three dimensions",
        "self.conv = nn.Conv2d(c, c, (3, 1), padding=(1, 0), groups=c)  # not nn.Conv3d(c, c, (3, 1, 1), padding=(1, 0, 0), groups=c)\n"
        "y = self.conv(x.flatten(3)).view_as(x)  # B C T H W as B C T H*W; one of (1, 3, 3): x.transpose(1, 2).flatten(0, 1)",
        "Kernels that are longer in all three dimensions are sums of such, frame by frame. Old weights: weight.flatten(3).",
        untried=_OWN_CODE,
    ),
    Remedy(
        "one-backward",
        "Add up first and run one backward: gradients of several losses, or rows, that are added up are those of the sum",
        "sum(losses).backward()  # once, not loss.backward(retain_graph=True) for each",
        "Nothing may read the gradients in between. The graphs of all losses are kept until then.", untried=_OWN_CODE,
    ),
    Remedy(
        "last-layer-gradients",
        "Ask for the gradient of the last layer's weight alone: backward then ends there, and not below it, and the ratio of two losses "
        "is taken there as VQGAN's formula does",
        'w = net.get_submodule("decoder.conv_out").weight\n'
        "g = torch.autograd.grad(loss, w, retain_graph=True)[0]  # for each loss; its norm in place of the sum of all norms",
        "The norms, and so the weight between the losses, become other numbers: of one layer in place of all.", untried=_OWN_CODE,
    ),
    Remedy(
        "derivatives-once",
        "Call the network once and differentiate it once, with a graph; take the second derivatives of what comes out",
        "u = net(x)  # once\n"
        "first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]  # all first derivatives\n"
        "second = [torch.autograd.grad(first[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(3)]",
        "Each row of the result must be made of its own row of the input alone, as sums over all rows take it anyway.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "real-transform",
        "Use the transforms of real numbers (torch.fft.rfft, irfft): of the whole transform one half mirrors the other",
        "y = torch.fft.irfft2(torch.fft.rfft2(x) * kernel[..., : n // 2 + 1], s=x.shape[-2:])",
        "What is between must keep the mirror: products with the transform of real numbers do.", untried=_OWN_CODE,
    ),
    Remedy(
        "scaled-rows",
        "Scale the rows or columns by the vector itself: a product with its diagonal matrix multiplies by zeros",
        "y = x * scale  # not x @ torch.diag(scale)", untried=_OWN_CODE,
    ),
    Remedy(
        "mixed-before-resampled",
        "Apply the 1x1 convolution (or linear layer) first, and resample its few output channels: the order does not change the result",
        'y = F.interpolate(self.classify(x), size=size, mode="bilinear", align_corners=False)',
        "Only casts and layout changes may lie between the two.", untried=_OWN_CODE,
    ),
    Remedy(
        "narrowed-first",
        "Take first what is read of it, and compute with that: each row of the result is made of its own row alone",
        "y = head(x[index])  # index: by which the rows are read now; not head(x)[index]",
        "Nothing else may read the other rows.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-by-embedding",
        "Look rows up with F.embedding or index_select: the backward of x[index] sorts the indices and adds up equal ones one at a time",
        "rows = F.embedding(index, table)  # not table[index]",
        "No number may be negative: these count from the start alone.", untried=_OWN_CODE,
    ),
    Remedy(
        "sums-by-product", "Sum over this dimension by a GEMM (torch.einsum, @): here all products are written to memory",
        'y = torch.einsum("bik,bjk->bij", a, b)  # not (a[:, :, None] * b[:, None]).sum(-1)', untried=_OWN_CODE,
    ),
    Remedy(
        "library-convolution", "Use torch's convolution or pooling: unfold() writes each element once for each window that holds it",
        "y = F.conv2d(x, weight.view(out, in_, k, k), padding=k // 2)", untried=_OWN_CODE,
    ),
    Remedy(
        "largest-for-sort", "Use torch.topk for the few that are kept instead of sorting everything (largest=False: the smallest)",
        "values, index = scores.topk(k)",
        "Only the first of the sorted values may be needed.", untried=_OWN_CODE,
    ),
    Remedy(
        "one-layout",
        "Keep one layout from layer to layer (channels_last, or Linear in place of 1x1 convolutions): contiguous() after a permute moves "
        "the whole tensor", "model = model.to(memory_format=torch.channels_last)", untried=_OWN_CODE,
    ),
    Remedy(
        "kept-constant", "Create this once and keep it on the GPU (register_buffer): it is the same in each step",
        'self.register_buffer("mask", torch.ones(n, n, dtype=torch.bool).tril(), persistent=False)', untried=_OWN_CODE,
    ),
    Remedy(
        "classes-as-numbers",
        "Use class numbers in place of one-hot rows: F.cross_entropy(logits, target, label_smoothing=...) in a loss, an index or an "
        "embedding elsewhere",
        "loss = F.cross_entropy(logits, target, label_smoothing=0.1)  # target: class numbers\n"
        "rows = F.embedding(index, weight)  # for F.one_hot(index, n).float() @ weight\n"
        "sums = x.new_zeros(n, x.size(-1)).index_add_(0, index, x)  # for F.one_hot(index, n).float().T @ x",
        untried=_OWN_CODE,
    ),
    Remedy(
        "classes-compared",
        "Compare the labels with the numbers of the classes in a compiled function: no one-hot rows are written for each pixel, in int64 "
        "and again as float32",
        "onehot = target[:, None] == torch.arange(classes, device=target.device).view(-1, 1, 1)\n"
        "dice_loss = torch.compile(dice_loss)  # the function of this line: fused, nothing of this is written",
        "Sums and products with it stay as they are.", untried=_OWN_CODE,
    ),
    Remedy(
        "added-by-number", "Add the rows up by their number, without a one-hot matrix: index_add_",
        "sums = x.new_zeros(n, x.size(-1)).index_add(0, index, x)  # not F.one_hot(index, n).to(x.dtype).T @ x",
        "On a GPU it adds in no fixed order, rounds each sum to the format of x (x.float() for 16 bits), and waits where most rows have "
        "the same few numbers.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-to-slots",
        "Move the rows of tokens to their slots and back by number: products with a mask of experts and places multiply by zeros",
        "slot = torch.where(keep, choice * places + place, experts * places)  # the last one: no place\n"
        "rows = x.new_zeros(experts * places + 1, x.size(-1)).index_copy(0, slot, x)\n"
        "rows = rows[:-1].unflatten(0, (experts, places))\n"
        "y = F.embedding(slot, F.pad(rows.flatten(0, 1), (0, 0, 0, 1)))\n"
        "y = y * gate.to(y.dtype)[..., None]",
        "choice, place and gate: of each token its expert, its place there and its weight; keep: whether it has one. What the experts "
        "compute stays, between the two.", untried=_OWN_CODE,
    ),
    Remedy(
        "fused-loss", "Use the loss that torch has for this, one pass for softmax and loss: F.cross_entropy takes logits",
        "loss = F.cross_entropy(logits, target)", untried=_OWN_CODE,
    ),
    Remedy(
        "library-normalization",
        "Use torch's normalization (F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm), one kernel forward and one or two backward: "
        "written out, each operation reads and writes the whole tensor",
        "y = F.rms_norm(x, x.shape[-1:], weight, eps)  # or F.layer_norm(x, x.shape[-1:], weight, bias, eps)",
        "It computes in float32 within, whatever x is.", untried=_OWN_CODE,
    ),
    Remedy(
        "library-activation",
        "Use torch's function (F.gelu, F.silu, F.mish, F.softplus), one kernel forward and one backward: written out, each operation reads "
        "and writes the whole tensor",
        'y = F.gelu(x, approximate="tanh")  # or F.gelu(x), F.silu(x)', untried=_OWN_CODE,
    ),
    Remedy(
        "library-softmax",
        "Use torch.softmax, one kernel forward and one backward, or F.scaled_dot_product_attention where it is attention's: written out, "
        "each operation reads and writes all scores",
        "weights = torch.softmax(scores, dim=-1)", untried=_OWN_CODE,
    ),
    Remedy(
        "distances-by-product",
        "Compute distances of all pairs by a product, without the tensor of all differences: torch.cdist",
        "distance = torch.cdist(a, b)", "Distances near 0 are less exact.", untried=_OWN_CODE,
    ),
    Remedy(
        "views-for-copies",
        "Leave the copies out: expand() or broadcasting makes views, scaled_dot_product_attention(enable_gqa=True) takes fewer key heads",
        "y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)", untried=_OWN_CODE,
    ),
    Remedy(
        "stacked-models",
        "Run these models as one: stack their parameters (torch.func.stack_module_state), vmap over them, one optimizer for the stack",
        "params, buffers = torch.func.stack_module_state(models)\n"
        "y = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(params, buffers)",
        "No model may depend on the output of another.", untried=_OWN_CODE,
    ),
    Remedy(
        "inputs-in-one-call",
        "Call it once for all of these inputs: none of the calls needs what another one makes. Put them in one batch (torch.cat or "
        "torch.stack), and split the result",
        "y = model(torch.cat(inputs)).split([len(x) for x in inputs])", "Inputs of one batch need one shape.", untried=_OWN_CODE,
    ),
    Remedy(
        "one-table", "Look all of these tables up at once: one table that holds the rows of all, with an offset for each column",
        "table = nn.Embedding(sum(sizes), dim)  # offsets: where each column begins\ny = table(columns + offsets).flatten(1)",
        "The tables must have one width.", untried=_OWN_CODE,
    ),
    Remedy(
        "layers-at-once",
        "Run these layers as one: a wider layer where they have one input, a batched product of stacked weights (torch.bmm) where each has "
        "its own", "y = torch.einsum('bki,kio->bko', x, weights)  # weights of all layers, stacked",
        "The layers must have one shape.", untried=_OWN_CODE,
    ),
    Remedy(
        "compile-function", "Fuse this function: torch.compile(model) does not reach what runs outside of the model",
        "@torch.compile\ndef loss_of(logits, target): ...", untried="which tensors it takes, the program says",
        for_anything=True,
    ),
    Remedy(
        "csr-once",
        "Put this sparse matrix in order once, before the loop, and keep it as CSR: each product with a COO matrix sorts its entries anew. "
        "The product in backward is with the transpose: keep that as CSR, too (a symmetric matrix is its own)",
        "adj = adj.coalesce().to_sparse_csr()  # once; an autograd.Function: forward adj @ x, backward adj_t @ grad", untried=_OWN_CODE,
    ),
    Remedy(
        "grown-in-place",
        "Make room for all rows once, write the new ones into it, and read a view of it: each torch.cat copies all rows before them",
        "room = new.new_empty(len(new), longest, *new.shape[2:])  # once\n"
        "room.narrow(1, whole.shape[1], new.shape[1]).copy_(new)\n"
        "whole = room.narrow(1, 0, whole.shape[1] + new.shape[1])  # not torch.cat([whole, new], 1)",
        "Begin with whole = room.narrow(1, 0, 0). No gradient may run through what is written.", untried=_OWN_CODE,
    ),
    Remedy(
        "zeroed-parameters",
        "Leave out what nobody wants of this step, and touch its parameters in place of its results: a wrapper of ranks wants a gradient "
        "for each parameter, which is zero either way",
        "idle = [p for name, head in heads.items() if name not in targets for p in head.parameters()]\n"
        "loss = loss + 0.0 * sum(p.sum() for p in idle)  # the other heads: not called at all",
        "Statistics that a head keeps of what it sees (batch norm) then count the samples of its own task alone.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-of-each-network",
        "Give each network, head or expert only the rows that are its own, by number: what the mask leaves out is computed for nothing",
        "rows = [(group == k).nonzero().squeeze(1) for k in range(len(nets))]  # once, while group stays the same\n"
        "for k, net in enumerate(nets):\n"
        "    part = net(x[rows[k]])\n"
        "    out = out.index_copy(0, rows[k], part.to(out.dtype))  # not torch.where(mask, net(x), out)",
        "Numbers of rows are read back: make them once where groups stay. Where they change, sort once in each step "
        "(group.argsort()). Batch norm in training then sees the rows of its own group alone.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-added-as-read",
        "Add the rows up as they are read (F.embedding_bag): written out, each row of padding is written, masked, read and added, too, and "
        "its gradient likewise",
        'sums = F.embedding_bag(ids, table, mode="sum", padding_idx=0)  # padding_idx: the number that the mask leaves out',
        "Histories as one flat tensor (F.embedding_bag(torch.cat(ids), table, offsets)) need no padding at all, and no copy of it.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "statistics-averaged",
        "Average the running statistics of batch norm along with the weights, and estimate them anew once, behind the training: update_bn "
        "runs a whole pass over the data, with gradients that nobody asks for",
        "swa = AveragedModel(model, use_buffers=True)  # update_bn(loader, swa) behind the training alone",
        "For a look at the averaged weights on the way: averaged statistics are close to theirs, not the same.", untried=_OWN_CODE,
    ),
    Remedy(
        "own-rows-ordered",
        "Put only what the beams wrote themselves in the new order, in place: the prompt before it is the same in all beams of one input, "
        "and so are the keys and values of an encoder",
        "own = slice(prompt, t + 1)  # what this search has written so far\n"
        "for cache in caches:  # room for all tokens, made once: [rows, heads, tokens, numbers]\n"
        "    cache[:, :, own] = cache[beam, :, own]  # not cache.index_select(0, beam)\n"
        "# keys and values of the encoder: no order at all",
        "beam must name rows of the same input: a row may not go to another one.", untried=_OWN_CODE,
    ),
    Remedy(
        "shared-rows-kept",
        "Leave these tensors in the order that they are in: nothing is written into them, and rows of one input are the same in all of its "
        "beams (keys and values of an encoder)",
        "for layer in own_caches:  # of the decoder's own tokens alone\n"
        "    layer.keys, layer.values = layer.keys[beam], layer.values[beam]",
        "beam must name rows of the same input: a row may not go to another one.", untried=_OWN_CODE,
    ),
    Remedy(
        "joined-at-end",
        "Keep the parts in a list and join them once, behind the loop: nothing reads what torch.cat makes on the way, and each copies all "
        "before it",
        "parts.append(new)  # in the loop, not torch.cat([whole, new], dim)\nwhole = torch.cat(parts, dim)  # once, behind the loop",
        "Begin with parts = [whole]. Nothing may read the whole before it is joined.", untried=_OWN_CODE,
    ),
    Remedy(
        "grown-with-gradients",
        "Write the new rows into room that is made once for each forward, by a function with a gradient of its own: each torch.cat copies "
        "all rows before them, and backward keeps each of these copies",
        "class Grown(torch.autograd.Function):  # rows that were written stay: backward reads them as they were\n"
        "    @staticmethod\n"
        "    def forward(ctx, whole, new, room, dim):\n"
        "        ctx.dim, ctx.parts, room = dim, [whole.shape[dim], new.shape[dim]], room.data\n"
        "        room.narrow(dim, *ctx.parts).copy_(new)\n"
        "        return room.narrow(dim, 0, sum(ctx.parts))\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return *grad.split(ctx.parts, ctx.dim), None, None\n"
        "room = new.new_empty(len(new), longest, *new.shape[2:])  # once for each forward\n"
        "whole = Grown.apply(whole, new, room, 1)  # not torch.cat([whole, new], 1)",
        "Begin with whole = room.narrow(1, 0, 0). The first rows are written in the same way. Each forward whose backward has not run "
        "needs room of its own, and nothing else may write into it.", untried=_OWN_CODE,
    ),
    Remedy(
        "written-in-place",
        "Write the part into the tensor itself: nothing reads what it was before, and each copy of all of it is made for that part alone",
        "whole.narrow(dim, n, new.shape[dim]).copy_(new)  # not whole = whole.clone(), slice_scatter(), index_copy(), scatter()",
        "Copy it once before the loop where something needs it as it is there. No gradient may run through it.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-computed-once",
        "Apply this layer to the new rows alone, and put their results behind those that are there: each row of its result is made of its "
        "own row, and those before are as they were",
        "keys = torch.cat([keys, self.key(new)], 1)  # not self.key(whole)",
        "Begin with the results for the rows that are there. The layer's weights stay as they are meanwhile.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-at-once",
        "Compute all rounds in one call under a causal mask where their inputs are known (teacher forcing). Where a round needs what the "
        "one before made, compute its new rows alone, and give attention the keys and values of the rows before: they keep their gradients",
        "out = model(inputs, mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]))  # all rounds: out[:, n] is that of n\n"
        "k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)  # or in each attention, of the new rows: not of all\n"
        "y = F.scaled_dot_product_attention(q, k, v)  # q of one new row; return k and v for the next round",
        "Rows may not depend on later ones: attention has a causal mask.", untried=_OWN_CODE,
    ),
    Remedy(
        "parts-joined-at-end",
        "Keep what each round makes in a list and join it once, behind the loop: for each write into a part of a tensor backward copies "
        "the gradient of all of it, and of a join it takes views",
        "parts.append(new)  # in the loop, not whole[n] = new\nwhole = torch.stack(parts)  # once, behind the loop",
        "Parts stand in the order of their rows (parts[::-1] for a loop from the end), and the join has their type.", untried=_OWN_CODE,
    ),
    Remedy(
        "taken-apart-once",
        "Take all pieces of the tensor at once, by unbind, split or chunk before the loop: for each piece that is taken alone backward "
        "fills zeros of the size of the whole and adds them up, and of pieces that are taken together it joins the gradients once",
        "parts = w.unbind(0)  # once, before the loop\nparts[n]  # in it, not w[n]",
        "Nothing may write into the pieces in place. Parameters of their own for them, or one product for all (torch.bmm), do as well.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "picked-once",
        "Pick the rows of all rounds at once, before the loop: for each piece that is picked alone backward fills zeros of the size of the "
        "whole and adds them up, and of rows that are picked together it adds the gradients into them once",
        "parts = x.index_select(0, torch.cat(numbers)).split([len(each) for each in numbers])  # once, before the loop\n"
        "parts[n]  # in it, not x[numbers[n]]",
        "numbers: those of the rows of each round (of a mask: mask.nonzero().flatten()), which are known before the loop. The rows "
        "that are picked take memory of their own.", untried=_OWN_CODE,
    ),
    Remedy(
        "ring-of-rows",
        "Keep as many rows as are kept in one tensor, and write the new ones over the oldest: torch.cat copies all that stay each time",
        "at = (n + torch.arange(len(new), device=kept.device)) % len(kept)  # kept: made once, as long as it gets\n"
        "kept[at] = new; n += len(new)  # not kept = torch.cat([kept, new])[-longest:]",
        "Rows then stand in another order: what reads them may not depend on it, as samples drawn at random do not.", untried=_OWN_CODE,
    ),
    Remedy(
        "static-cache",
        "Let generate() keep keys and values in room that is made once: its usual cache is put together anew for each token and layer",
        'out = model.generate(ids, max_new_tokens=n, cache_implementation="static")',
        "Attention then reads the whole room for each token, and the first call compiles the model.", untried=_OWN_CODE,
    ),
    Remedy(
        "less-of-an-operator", "Make this operator cheaper here: it takes far longer than its sizes need",
        untried=_OWN_CODE,
    ),
    Remedy(
        "one-pass",
        "Call it once, with gradients, on the whole batch or on as large pieces as fit, and let the backward of the loss run through it",
        "outputs = net(batch)  # in place of both passes; or torch.cat([net(piece) for piece in pieces]), with gradients\n"
        "loss_of(outputs).backward()",
        "The activations of the whole batch must fit; what normalizes over a batch sees it whole.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "cut-behind-feature",
        "Cut the network off behind the last layer that something reads: a hook, or one of hidden_states, needs the layers before it alone",
        "teacher.layers = teacher.layers[:12]  # once, behind loading\n"
        "teacher.head = torch.nn.Identity()",
        "Cut a copy where something else, such as an evaluation, needs the whole network. transformers: the last of hidden_states is "
        "behind the final norm, so this goes, too, where an inner one is meant.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "trimmed-to-layer",
        "Leave out before each layer the nodes and edges that can no longer reach the seeds (torch_geometric.utils.trim_to_layer; in DGL "
        "the loader's blocks instead of one subgraph)",
        "x, edge_index, _ = trim_to_layer(i, nodes_per_hop, edges_per_hop, x, edge_index)  # i: the layer's number\n"
        "x = conv(x, edge_index)",
        "Hand batch.num_sampled_nodes and batch.num_sampled_edges of the loader into forward as nodes_per_hop and edges_per_hop; weights "
        "of edges are trimmed with them. Batch norm then counts fewer nodes.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "pooled-in-turn",
        "Pool along one dimension after the other: windows that overlap are read whole for each number of the result, and need not be",
        "y = F.max_pool2d(F.max_pool2d(x, (1, k), stride=(1, s), padding=(0, k // 2)), (k, 1), stride=(s, 1), padding=(k // 2, 0))",
        untried=_OWN_CODE,
    ),
)  # fmt: skip
