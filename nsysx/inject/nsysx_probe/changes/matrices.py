"""Products and factorizations of matrices in another form. None of it can be tried: what the line makes is the program's own code."""

from __future__ import annotations

from . import Change, Remedy

_OWN_CODE = "what the line makes is the program's own code"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "own-jacobians",
        "Differentiate the sum over all samples, once for each output: samples that are computed by themselves have no gradients of each "
        "other, and vmap(jacrev(f)) gives the same blocks",
        "x.requires_grad_()\n"
        "y = net(x)  # [samples, outputs]\n"
        "J = torch.stack([torch.autograd.grad(y[:, k].sum(), x, create_graph=True)[0] for k in range(y.shape[1])], 1)"
        "  # [samples, outputs, inputs]: no diagonal is taken of it",
        "Samples must not meet in the network, as in batch norm.", untried=_OWN_CODE,
    ),
    Remedy(
        "shorter-side",
        "Transpose a tall matrix first (x.T), and back at the end: the products then have its shorter side's size, as in torch.optim.Muon",
        "tall = x.size(0) > x.size(1)\nx = x.T if tall else x   # before the rounds\nx = x.T if tall else x   # after them",
        "The result must be the same for the transpose, as in Newton-Schulz iterations.", untried=_OWN_CODE,
    ),
    Remedy(
        "list-for-rounds",
        "Search pairs with some room in every fourth round alone, and keep of that list what is near: points that moved by less than half "
        "of the room give the same pairs",
        "if k % 4 == 0:  # k counts the rounds; r: the distance, room: e.g. r / 4\n"
        "    with torch.no_grad():\n"
        "        first, second = (torch.cdist(pos, pos) < r + room).nonzero(as_tuple=True)\n"
        "near = (pos[first] - pos[second]).detach().square().sum(-1) < r * r\n"
        "src, dst = first[near], second[near]  # or weigh messages by near: no wait",
        "No point may move by more than half of the room until the next search: choose the rounds by that.", untried=_OWN_CODE,
    ),
    Remedy(
        "nearest-without-gradients",
        "Search the nearest points without gradients, and take the gradient of the distances to these alone: all others are zero, and "
        "backward makes it for each of them",
        "with torch.no_grad():\n"
        "    d = torch.cdist(a, b)\n"
        "    i, j = d.argmin(-1), d.argmin(-2)\n"
        "near = lambda points, k: points.gather(-2, k[..., None].expand(*k.shape, points.size(-1)))\n"
        "to_b = (a - near(b, i)).norm(dim=-1)  # in place of d.min(-1).values\n"
        "to_a = (near(a, j) - b).norm(dim=-1)  # in place of d.min(-2).values",
        "The same loss and gradient, but where two points are as near. pytorch3d.ops.knn_points writes no distances at all.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "edges-as-product",
        "Multiply the graph's sparse matrix by the nodes instead of writing a message for each edge: each row is added as it is read, "
        "forward and backward",
        "out = torch.sparse.mm(graph, x)  # graph: CSR of dst, src and w, made once; backward multiplies by the other one, of src and dst",
        "One number for each edge at most, which nothing trains. Make both matrices once, or in the loader's workers where each step has "
        "another graph: built in the step they sort all edges. Sums are made in another order.", untried=_OWN_CODE,
    ),
    Remedy(
        "points-by-kernel",
        "Sample the farthest points by one kernel that goes through all rounds (pytorch3d.ops.sample_farthest_points, torch_cluster.fps), "
        "or in the loader's workers: the positions are data",
        "centroids = pytorch3d.ops.sample_farthest_points(xyz, K=npoint)[1]  # in place of the whole loop",
        "The kernel begins with another point, unless random_start_point=True, and may break ties otherwise.", untried=_OWN_CODE,
    ),
    Remedy(
        "positives-as-list",
        "List the positives of each anchor, and compare their distances with those of all: rows of few numbers in place of a cube. A "
        "sampler of classes deals as many of each",
        "same = y[:, None] == y[None]\n"
        "pairs = same & ~torch.eye(len(y), dtype=torch.bool, device=y.device)\n"
        "order = pairs.int().argsort(dim=1, descending=True, stable=True)\n"
        "count, positives = pairs.sum(1), order[:, :k]  # k: samples of a class, less one\n"
        "counts = torch.arange(k, device=y.device) < count[:, None]\n"
        "t = F.relu(d.gather(1, positives)[:, :, None] - d[:, None, :] + margin)  # [n, k, n]\n"
        "t = torch.where(counts[:, :, None] & ~same[:, None, :], t, 0)\n"
        "loss = t.sum() / ((t > 1e-16).sum() + 1e-16)",
        "k must hold the largest class of a batch, less one. Of gathered samples each rank needs its own anchors alone.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "counts-by-histogram",
        "Add each score to the cell between two thresholds, and the cells up: counts at all thresholds, without a comparison with each",
        "cell = torch.bucketize(scores, grid, right=True)  # thresholds that lie at or below a score; of [batch]\n"
        "counts = torch.zeros(len(grid) + 1, device=scores.device).scatter_add_(0, cell, weights)\n"
        "above = counts.flip(0).cumsum(0).flip(0)[1:]  # not ((scores[:, None] >= grid) * weights[:, None]).sum(0)\n"
        "below = counts.cumsum(0)[:-1]",
        "The grid ascends, and no score is NaN. Sums are made in another order, on a GPU in another one each time.", untried=_OWN_CODE,
    ),
    Remedy(
        "norms-folded",
        "Fold each normalization by constants into the convolution in front of it, once, after the weights are loaded",
        "from torch.nn.utils.fusion import fuse_conv_bn_weights\n"
        "def folded(conv, norm):  # for each pair: conv = folded(conv, norm), norm = nn.Identity()\n"
        "    conv.weight, conv.bias = fuse_conv_bn_weights(\n"
        "        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)\n"
        "    conv.bias.requires_grad_(False)\n"
        "    return conv",
        "Where the convolution is trained its folded weight takes other steps for the same learning rate: fold frozen stages alone, and "
        "elsewhere keep factor and bias as buffers of the activation's type (torch.addcmul(bias, x, scale)).", untried=_OWN_CODE,
    ),
    Remedy(
        "labels-made-smaller",
        "Compare the auxiliary logits at their own size with labels that are made smaller: what is enlarged is computed, and "
        "differentiated, for each class",
        "small = F.interpolate(labels[:, None].float(), size=logits.shape[2:])[:, 0].long()  # one label of each block\n"
        "loss = loss + weight * F.cross_entropy(logits, small)  # not F.cross_entropy(F.interpolate(logits, size=...), labels)",
        "The loss of the auxiliary outputs then counts one label of each block: nearly the same, not equal. The last one stays as it is.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "rows-that-count",
        "Take the positions whose labels count before the head, by numbers that are made on the CPU: nothing waits for them. Logits, loss "
        "and gradients of the others are made for nothing",
        "keep = (labels != -100).flatten().nonzero().squeeze(1)  # labels as the loader gives them, on the CPU\n"
        "given = [t.pin_memory().to(device, non_blocking=True) for t in (keep, labels.flatten()[keep])]\n"
        "logits = head(hidden.flatten(0, -2).index_select(0, given[0]))  # in the model\n"
        "loss = F.cross_entropy(logits.float(), given[1])",
        "Sizes then change from step to step, and where the host limits the step, less is saved.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "rows-as-numbers",
        "Make one number of each row before unique(): numbers are sorted by their digits, rows by a comparison that walks along each",
        "size = rows.amax(0) + 1  # no value may be negative; better known numbers, as those of a grid\n"
        "place = size.flip(0).cumprod(0).flip(0) // size  # what one step in each column is worth\n"
        "key, inverse = torch.unique((rows * place).sum(-1), return_inverse=True)\n"
        "rows = key[:, None] // place % size",
        "The product of the sizes must stay below 2**63; the order of the rows stays the same.", untried=_OWN_CODE,
    ),
    Remedy(
        "best-before-suppression",
        "Keep the best boxes above the threshold first (topk), and suppress among these alone: suppression compares all pairs",
        "s, i = scores.topk(min(1000, scores.numel()))\n"
        "i = i[s > threshold]\n"
        "keep = i[torchvision.ops.batched_nms(boxes[i], scores[i], classes[i], 0.6)][:100]",
        "Boxes below the threshold, or behind the best 1000, must not count later; so many are the usual limit of detectors.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "symmetric-eigenvalues",
        "Take the eigenvalues of a symmetric matrix (eigvalsh): those of S1 @ S2, both symmetric, are those of A @ S2 @ A with A * A = S1, "
        "and the root of a reference is made once",
        "values, vectors = torch.linalg.eigh(S1.double())  # of the reference: once, before training\n"
        "A = vectors * values.clamp(min=0).sqrt() @ vectors.T\n"
        "trace_of_root = torch.linalg.eigvalsh(A @ S2.double() @ A).clamp(min=0).sqrt().sum()",
        "Both matrices must be symmetric and have no negative eigenvalues, as covariances are.", untried=_OWN_CODE,
    ),
    Remedy(
        "product-by-formula",
        "Write this product by its formula: (diag(s) - u v^T) g equals s * g - u * (v * g).sum(), with no matrix for each row",
        "y = s * g - u * (v * g).sum(-1, keepdim=True)  # not torch.bmm(torch.diag_embed(s) - u[:, :, None] * v[:, None], g[:, :, None])",
        "The matrix must be a sum of a diagonal and of outer products, as the Jacobian of a softmax or a sparsemax is.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "other-order",
        "Multiply in the other order: (A @ B) @ C and A @ (B @ C) are equal, and here the second needs no large matrix in between",
        "y = q @ (k.transpose(-2, -1) @ v)  # not (q @ k.transpose(-2, -1)) @ v",
        "Nothing but factors of whole rows or columns may stand between the two products; the sum of a row of A @ B is A @ B.sum(-1).",
        untried=_OWN_CODE,
    ),
    Remedy(
        "added-behind-products",
        "Multiply by the frozen weight and by the small factors apart: x @ (W + B @ A) equals x @ W + (x @ B) @ A, and makes no gradient "
        "of a whole weight",
        "y, low = F.linear(x, base), F.linear(x, A) * scale\n"
        "y = torch.addmm(y.flatten(0, -2), low.flatten(0, -2), B.t()).view(y.shape)",
        "x: the layer's input; a bias goes into the first product. Put the weight together for inference only, once, behind training.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "layer-before-neighbours",
        "Multiply by the layer's weights first, then sum over neighbours: A @ (x @ W) equals (A @ x) @ W, and sums shorter rows",
        "y = torch.sparse.mm(adjacency, layer(x))  # not layer(torch.sparse.mm(adjacency, x))",
        "Only factors of whole rows (a degree, edge weights) may stand between; a bias of the layer is added behind the sum.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "neighbours-before-layer",
        "Sum over neighbours first, then multiply by the layer's weights: (A @ x) @ W equals A @ (x @ W), and sums shorter rows",
        "y = layer(torch.sparse.mm(adjacency, x))  # not torch.sparse.mm(adjacency, layer(x))",
        "Only factors of whole rows (a degree, edge weights) may stand between.", untried=_OWN_CODE,
    ),
    Remedy(
        "cache-cropped",
        "Keep the cache of what was accepted, and compute the tokens behind it alone: cut the rejected ones off, rather than begin anew",
        "cache = [tuple(each[:, :, :kept] for each in layer) for layer in cache]  # transformers: cache.crop(kept)\n"
        "logits, cache = model(ids[:, kept:], cache)  # not model(ids, None)",
        "kept: of the tokens in the cache those that stand in ids, too, less one where the last one's logits are needed. Positions and "
        "the mask of the new tokens count from kept on.", untried=_OWN_CODE,
    ),
    Remedy(
        "prompts-once",
        "Compute each sample once, and copy what comes of it: the keys and values, and the logits of the last token",
        "logits, cache = model(prompts)\n"
        "logits = logits[:, -1].repeat_interleave(n, dim=0)\n"
        "cache = [tuple(each.repeat_interleave(n, dim=0) for each in layer) for layer in cache]",
        "prompts: without copies. Dropout, and what else is drawn, would be the same for all copies of a sample.", untried=_OWN_CODE,
    ),
    Remedy(
        "rows-before-copies",
        "Do this work on the rows before they are copied: f(x)[index] is the same as f(x[index]), and there are fewer rows than copies",
        "y = f(x).index_select(0, index)  # not f(x.index_select(0, index))",
        "It must treat each row by itself: dropout would drop the same in all copies, and a batch norm counts each copy.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "einsum-order",
        "Multiply in the order with the least work, two tensors at a time: torch.einsum goes from left to right where opt_einsum is not "
        "installed",
        'm = torch.einsum("eui,eik->euk", x, torch.einsum("ej,ijk->eik", y, C))  # small ones first; or: pip install opt_einsum',
        "Sums come in another order, which rounds otherwise.", untried=_OWN_CODE,
    ),
    Remedy(
        "layer-of-parts",
        "Give each part of the joined rows its part of the layer, and add up: W [a, b] is W_a a + W_b b, and rows that were copied are "
        "computed once",
        "w0, w1 = fc.weight.split([a.shape[-1], b.shape[-1]], 1)\n"
        "h = F.linear(a[:, :, None], w0, fc.bias) + F.linear(b[:, None], w1)  # not fc(torch.cat([a_of_all, b_of_all], -1))",
        "The layer's own call goes: hooks and adapters on it no longer run, and it may not be gathered for itself (FSDP). In 16 bits the "
        "summands are rounded before they are added.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "factorized-once",
        "Factorize this matrix once: solutions, inverse and log-determinant all come from one factor",
        "L = torch.linalg.cholesky(K)\nx = torch.cholesky_solve(y, L)  # not torch.linalg.inv(K) @ y: y has columns\n"
        "logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # not torch.logdet(K)",
        "The matrix must be positive definite, as a covariance is; for others torch.linalg.lu_factor once, then lu_solve.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "solved-for-inverse",
        "Solve instead of inverting: torch.linalg.solve(A, B) gives inv(A) @ B, in fewer and shorter kernels",
        "x = torch.linalg.solve(a, b)  # not torch.linalg.inv(a) @ b",
        "For pinv the matrices must be of full rank, as with a multiple of the unit matrix added; cholesky_solve for positive ones.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "blocks-at-once",
        "Multiply the blocks by themselves, as a batch (torch.bmm): a matrix with blocks on its diagonal is mostly zeros",
        "y = torch.bmm(x.view(rows, blocks, size).transpose(0, 1), weights).transpose(0, 1)  # not x @ torch.block_diag(*weights)",
        "The blocks are of one size, or of few.", untried=_OWN_CODE,
    ),
    Remedy(
        "factors-in-turn",
        "Multiply by the factors of the Kronecker product in turn: (A kron B) x is the same as B X A.T with x as a matrix",
        "y = (a @ x.view(batch, p, q) @ b.T).flatten(1)  # not x @ torch.kron(a, b).T", untried=_OWN_CODE,
    ),
)  # fmt: skip
