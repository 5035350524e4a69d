"""What to do about a line of Python that holds the CPU while the GPU waits: by what the line does. None of it can be tried yet.

To check one by hand: ``nsysx try --change bound-data`` or ``bound-reads`` tell what the step takes without the data or the reads.
"""

from __future__ import annotations

from . import Change, Remedy

_OWN_CODE = "what the line makes is the program's own code"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "arrays-once",
        "Make this data one array before the loop and index it there: lists are converted one number at a time",
        "array = np.asarray(rows, np.float32)  # once, before the loop\nx = torch.from_numpy(array[index])",
        "The rows must have one length.", untried=_OWN_CODE,
    ),
    Remedy(
        "converted-on-gpu",
        "Copy the numbers as they are (uint8) and convert them on the GPU: a quarter of the bytes, and no pass over them on the CPU",
        "x = torch.from_numpy(frames).to(device).float().div_(255)", untried=_OWN_CODE,
    ),
    Remedy(
        "weights-converted-once",
        "Convert the weights once, when the model is loaded, or multiply by a kernel that reads them as they are stored: here each "
        "call converts all of them",
        "weight = layer.weight.float().mul(layer.scale).to(torch.bfloat16)  # once, before the loop",
        "The converted weights must fit in memory.", untried=_OWN_CODE,
    ),
    Remedy(
        "constants-of-layers",
        "Compute once, before the loop, what each of these layers recomputes from unchanged tensors, and pass it in",
        "graph, weight = gcn_norm(graph, weight)  # once, before the loop\nlayer = GCNConv(dim, dim, normalize=False)",
        "Its inputs must not change between steps.", untried=_OWN_CODE,
    ),
    Remedy(
        "constants-once",
        "Create these constants once, before the loop, or use plain Python numbers",
        'gravity = torch.tensor(9.81, device="cuda")  # once, before the loop', untried=_OWN_CODE,
    ),
    Remedy(
        "no-kernel-built-in-a-step",
        "Keep the sizes of this call the same: a kernel is built and loaded for each new size, until each has been seen",
        untried=_OWN_CODE,
    ),
    Remedy(
        "sample-on-gpu",
        "Do this on the GPU: torch has the same for tensors there (multinomial, argmax, topk, searchsorted, cumsum), and copy the result "
        "back once, when it is needed",
        "ids = torch.multinomial(logits.softmax(-1), 1)[:, 0]", untried=_OWN_CODE,
    ),
    Remedy(
        "ranked-on-gpu", "Rank on the GPU (torch.topk), and copy only the values and indices that are kept",
        "values, best = scores.topk(k)  # scores stay on the GPU\nbest = best.cpu()", untried=_OWN_CODE,
    ),
    Remedy(
        "curve-on-gpu",
        "Compute this curve on the GPU, where the scores are: sort and sum there, and copy the one number",
        "negative, order = torch.sort(-score)                          # score, label: on the GPU, of all samples\n"
        "last = torch.searchsorted(negative, negative, right=True) - 1  # of those with an equal score\n"
        "hits = label[order].cumsum(0, dtype=torch.float64)[last]\n"
        "misses = 1 + last - hits\n"
        "hits, misses = (torch.nn.functional.pad(x, (1, 0)) for x in (hits, misses))\n"
        "area = torch.trapezoid(hits, misses) / (hits[-1] * misses[-1])  # of the ROC curve; area.item() where it is printed",
        untried=_OWN_CODE,
    ),
    Remedy(
        "result-kept",
        "Keep the result of the first call and use it again, detached where no gradient is needed",
        "out = net(x)\nloss = criterion(out, y)\naccuracy = (out.detach().argmax(1) == y).float().mean()",
        "Both calls must be in the same mode, with the same Python arguments.", untried=_OWN_CODE,
    ),
    Remedy(
        "result-handed-on",
        "Compute this once, before the layers that need it, and hand each of them the result",
        "neighbors = nearest(points, k)  # once\nfor block in self.blocks:\n    x = block(points, x, neighbors)",
        "What Python gives it (k, a dimension) must be the same for all of them.", untried=_OWN_CODE,
    ),
    Remedy(
        "left-out",
        "Leave out what nothing reads: outputs, heads, states and weights of attention that are computed and dropped",
        "y, _ = self.attention(x, x, x, need_weights=False)",
        "Nothing outside of torch may read it, such as a function that takes its memory.", untried=_OWN_CODE,
    ),
    Remedy(
        "processes-for-threads",
        "Move this into worker processes (DataLoader(num_workers=8), multiprocessing), not a thread: the GIL lets one thread of a process "
        "run Python at a time, and the thread that launches kernels waits for it",
        "loader = DataLoader(batches, batch_size=None, num_workers=8, prefetch_factor=4)  # batches[i] parses batch i",
        "What is sent to the workers and back must be picklable.", untried=_OWN_CODE,
    ),
    Remedy("no-sleep", "Remove this sleep, or wait in another thread", untried=_OWN_CODE),
    Remedy(
        "no-lock",
        "Do not wait here: let a thread or process fill a queue some steps ahead, and hold the lock for less", untried=_OWN_CODE,
    ),
    Remedy(
        "batch-as-it-is",
        "Take what is in the queue when the GPU is free, and do not wait for a full batch: fewer clients than its size never fill it",
        "while len(batch) < most and not inbox.empty(): batch.append(inbox.get_nowait())",
        "Batches are smaller where requests come slowly.", untried=_OWN_CODE,
    ),
    Remedy(
        "delivered-sooner",
        "Nothing is computed here: it waits for what another thread, process or machine delivers. Let that deliver sooner",
        condition="What comes by a clock, such as live sound, comes no sooner.", untried=_OWN_CODE,
    ),
    Remedy(
        "callbacks-rarely",
        "Let callbacks, loggers and the progress bar of the trainer run every n steps: they run in each step, while the GPU waits",
        "trainer = Trainer(..., log_every_n_steps=50, enable_progress_bar=False)",
        "What they write comes less often.", untried=_OWN_CODE,
    ),
    Remedy(
        "no-process-in-a-step", "Start this process before the loop, or every n steps in a thread of its own",
        "threading.Thread(target=watch, daemon=True).start()  # watch() starts it again and again, beside the loop", untried=_OWN_CODE,
    ),
    Remedy(
        "parsed-once", "Parse this once, before the loop, or in the workers of the loader",
        "loader = DataLoader(data, num_workers=8, persistent_workers=True)", untried=_OWN_CODE,
    ),
    Remedy(
        "decoded-in-workers", "Decode and augment in the workers of the loader, or on the GPU",
        "loader = DataLoader(data, num_workers=8, pin_memory=True, persistent_workers=True)", untried=_OWN_CODE,
    ),
    Remedy(
        "tokens-once", "Tokenize once, before the loop, or in the workers of the loader",
        "data = data.map(tokenize, batched=True)  # before the loop", untried=_OWN_CODE,
    ),
    Remedy(
        "features-on-gpu",
        "Extract these features once, before the loop, in the workers of the loader, or on the GPU (device='cuda' of the extractor, "
        "modules of torchaudio moved there)",
        'inputs = extractor(batch, return_tensors="pt", device="cuda")', untried=_OWN_CODE,
    ),
    Remedy(
        "saved-aside", "Save rarely, and from another thread: copy to pinned memory here and write there (async_save)",
        "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)", untried=_OWN_CODE,
    ),
    Remedy(
        "logged-rarely", "Log every n steps, and keep what is logged on the GPU until then",
        "if step % 100 == 0: log(step, loss.item())", untried=_OWN_CODE,
    ),
    Remedy(
        "histograms-rarely", "Count histograms on the GPU, for all tensors in one copy to the host, and every n-th step alone",
        "if step % 200 == 0:\n    counts = torch.stack([torch.histc(p.grad.float(), 64) for p in model.parameters()])\n"
        "    counts = counts.cpu()  # each from its least to its largest value", untried=_OWN_CODE,
    ),
    Remedy(
        "logged-apart",
        "Log the values of a step without sync_dist=True (those of rank 0), or once an epoch: with it each value is all-reduced, with a "
        "barrier that the CPU waits at, in each step",
        "self.log_dict(metrics, on_step=False, on_epoch=True, sync_dist=True)  # reduced once, at the end of the epoch",
        untried=_OWN_CODE,
    ),
    Remedy(
        "counted-apart",
        "Let each rank count on the GPU what the metric needs of its own samples (sums, a confusion matrix, a histogram of scores), and "
        "all_reduce these counts once at the end: predictions need not be gathered, and no rank scores what another one has",
        "matrix += torch.bincount(target * n + predicted, minlength=n * n)  # on the GPU, in each batch\n"
        "dist.all_reduce(matrix)  # once, behind the loop",
        "The metric must be made of counts or sums: a ranking of all scores needs a histogram in place of them.", untried=_OWN_CODE,
    ),
    Remedy(
        "collective-rarely", "Run this collective every n steps, with async_op=True, or not at all",
        "if step % 100 == 0: dist.all_reduce(total)", untried=_OWN_CODE,
    ),
    Remedy(
        "foreach-parameters", "Do this for all parameters in one call: torch._foreach_*, clip_grad_norm_(foreach=True), swa_utils",
        "torch._foreach_lerp_(averages, parameters, 1 - decay)  # lists of tensors", "The tensors must be on one device.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "weights-on-gpu",
        "Keep on the GPU what is kept of the weights (averages, copies, the optimizer's state), and update all of it in one call: here "
        "each tensor is copied between GPU and host, and the CPU works on it",
        "averages = [p.detach().clone() for p in model.parameters()]  # once, before the loop\n"
        "torch._foreach_lerp_(averages, [p.detach() for p in model.parameters()], 1 - decay)",
        "Each copy takes as much memory of the GPU as the weights.", untried=_OWN_CODE,
    ),
    Remedy(
        "compiled-for-all-calls",
        "Keep what changes from call to call in a tensor (register_buffer), or mark it dynamic: torch.compile takes a Python "
        "number for a constant and recompiles for each value, until its limit is reached",
        'self.register_buffer("calls", torch.zeros((), dtype=torch.int64))  # not self.calls = 0', untried=_OWN_CODE,
    ),
    Remedy(
        "batch-that-pins",
        "Give the class of the batch a method pin_memory() that pins its tensors, or return a tuple or a dict: pin_memory=True of the "
        "loader leaves all other types as they are", "def pin_memory(self):  # a method of the class of the batch\n"
        "    pinned = torch.utils.data._utils.pin_memory.pin_memory  # of tensors, and of lists and dicts of them\n"
        "    vars(self).update({name: pinned(value) for name, value in vars(self).items()})\n    return self", untried=_OWN_CODE,
    ),
    Remedy(
        "smaller-capacity",
        "Give each expert room for 1.25 times an even share of the tokens, or none to spare: sort the rows by expert and multiply each "
        "expert's rows alone (grouped products); the same holds for what is exchanged between ranks",
        "capacity = math.ceil(1.25 * tokens * top_k / experts)  # or: rows = x[choice.argsort()], torch._grouped_mm(rows, w, offsets)",
        "Tokens beyond an expert's room are left out: a loss that balances the experts keeps these few.", untried=_OWN_CODE,
    ),
    Remedy(
        "encoded-once",
        "Compute what the frozen networks make of each sample once, before the training, and load that with the sample; where it cannot be "
        "kept, let them run in bfloat16 under torch.inference_mode()",
        "with torch.inference_mode(), torch.autocast(\"cuda\", torch.bfloat16):\n"
        "    codes = torch.cat([encoder(x.cuda()).cpu() for x in loader])  # once; then train on codes",
        "Samples must come again as they are: no random augmentation before these networks.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "kept-with-batch",
        "Compute what the frozen network makes of a batch once, where the batch is made, and keep it with the batch: each pass over it "
        "gives the network the same",
        'with torch.no_grad():\n    batch["codes"] = frozen(batch["x"])  # where the batch is made; each pass then reads batch["codes"]',
        "Between the passes nothing may change the batch, its order or the network. What is kept stays in memory as long as the batch.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "computed-once",
        "Compute this once, after loading, and keep the result: nothing that goes into it changes from call to call",
        "stored = compute(stored)  # once, before the loop: only what never changes", untried=_OWN_CODE,
    ),
    Remedy(
        "weights-folded",
        "Fold weight normalization into the weights once, after loading: each call recomputes them, and nothing trains them",
        "model.remove_weight_norm()  # or torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')", untried=_OWN_CODE,
    ),
    Remedy(
        "frozen", "Freeze what no optimizer updates: backward computes and keeps gradients of these weights that nothing uses",
        'for p in model.parameters(): p.requires_grad_(any(p is q for g in opt.param_groups for q in g["params"]))', untried=_OWN_CODE,
    ),
    Remedy(
        "frozen-meanwhile",
        "Freeze the network that another one's loss goes back through, while it does: it computes gradients of its own weights that "
        "nothing reads",
        "critic.requires_grad_(False)  # before the other network's loss.backward(); True again before its own", untried=_OWN_CODE,
    ),
    Remedy(
        "iterator-once",
        "Make the loader and its iterator once, before the loop: each new one starts its workers again and refills their queues",
        "for batch in loader: ...  # not next(iter(loader)) in each step", untried=_OWN_CODE,
    ),
    Remedy("made-once", "Create this once, before the loop, not in each step", untried=_OWN_CODE),
    Remedy(
        "no-collect",
        "Leave gc.collect() and empty_cache() out of the loop: one scans all Python objects, the other frees memory that the "
        "next step allocates again", "gc.collect(); gc.freeze()  # once, before the loop: data that stay are not scanned again",
        untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-rarely", "Draw and write pictures every n steps or after the epoch, from a process of its own",
        "if step % 500 == 0: draw(step, sample.cpu())", untried=_OWN_CODE,
    ),
    Remedy(
        "pairs-at-once", "Copy the costs of all samples and layers to the host at once, match them in a pool: each copy is waited for",
        "costs = cost.cpu()  # all samples in one copy\npairs = list(pool.map(linear_sum_assignment, costs.split(sizes, -1)))",
        untried=_OWN_CODE,
    ),
    Remedy(
        "table-once", "Make the table one array or tensor before the loop and index that: pandas looks up each row by its label",
        "values = torch.from_numpy(table.to_numpy(np.float32))  # once, before the loop\nx = values[index]", untried=_OWN_CODE,
    ),
    Remedy(
        "metrics-rarely",
        "Compute this metric every n steps or once at the end, from tensors that stay on the GPU until then (torchmetrics, or counts that "
        "add up there)", "if step % 100 == 0: metric = f1_score(labels.cpu(), predicted.cpu())", untried=_OWN_CODE,
    ),
    Remedy(
        "statistics-rarely",
        "Compute this only in the steps that log it: elsewhere nothing reads it",
        "if step % log_every == 0: log(statistics(logits.detach()))",
        "What reads it goes into the same block; no list or average may need it from each step.", untried=_OWN_CODE,
    ),
    Remedy(
        "checked-rarely",
        "Check this every n steps, or gather the answers on the GPU and read one of them a step: each of these checks makes the CPU wait "
        "for the GPU", "bad |= ~torch.isfinite(output).all()  # stays on the GPU; if step % 100 == 0: assert not bad",
        untried=_OWN_CODE,
    ),
    Remedy(
        "scan-at-once",
        "Compute this recurrence for all elements in a few passes that double their reach, or compile the loop (torch.compile of its "
        "function) or capture it in a CUDA graph: here each element makes launches of its own",
        "for reach in (2**i for i in range(len(b).bit_length())):\n"
        "    b = torch.cat([b[:reach], b[reach:] + a[reach:] * b[:-reach]])  # at the end b is h\n"
        "    a = torch.cat([a[:reach], a[reach:] * a[:-reach]])",
        "h[t] = a[t] * h[t - 1] + b[t] from 0 on; for a loop from the last to the first flip a and b before it, and b behind it.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "segments-at-once",
        "Do this for all groups in one call (index_add_, scatter_reduce, segment_reduce): here each group has its own mask, and "
        "each mask waits for its size",
        "sums = x.new_zeros(groups, x.shape[1]).index_add_(0, group, x)  # all groups at once", untried=_OWN_CODE,
    ),
    Remedy(
        "filled-by-mask",
        "Fill all parts in one call, by a mask made of their bounds: here each part of each row is filled alone",
        "at = torch.arange(x.shape[1], device=x.device)\n"
        "mask = ((at >= first[..., None]) & (at < last[..., None])).any(1)  # [rows, parts]\n"
        "x.masked_fill_(mask[:, :, None], 0.0)  # x: [rows, length, width]",
        "The bounds are tensors on the GPU, drawn there or copied in one call; no size is read back.", untried=_OWN_CODE,
    ),
    Remedy(
        "evaluated-rarely",
        "Evaluate more rarely, on fewer samples, or faster (larger batches, autocast as in training, sums that stay on the GPU; of several "
        "ranks each a part): the loop waits for it",
        "if step % 500 == 0: validate(model)", untried=_OWN_CODE,
    ),
    Remedy(
        "evaluated-without-gradients",
        "Evaluate under torch.no_grad(): DDP's wrapper then sends the buffers in the first call alone, and nothing is kept for a backward",
        "net.eval()\nwith torch.no_grad():\n"
        "    out = net(x)  # or net.module(x), which sends none: each rank then evaluates with buffers of its own",
        "Buffers must not change from call to call, as in eval().", untried=_OWN_CODE,
    ),
    Remedy(
        "rollout-graphed",
        "Make the next batch faster, which is part of the loop: launch what each token or round runs as one CUDA graph with a cache of "
        "fixed size, sample more rows at once, or let more passes go over what was made",
        'decode = torch.compile(decode, mode="reduce-overhead")  # one token, with caches of fixed size; the first calls record it',
        "A graph needs the same shapes and addresses in each call.", untried=_OWN_CODE,
    ),
    Remedy(
        "rollout-compiled",
        "Launch the rollout's forwards as CUDA graphs (compile the policy), or step more environments in each round: the rollout is a part "
        "of the loop, and waits for launches",
        'policy = torch.compile(net, mode="reduce-overhead")  # once, before the loop; the first calls record it',
        "A graph needs the same shapes in each call, and its outputs live until the next one: copy what is kept.", untried=_OWN_CODE,
    ),
    Remedy(
        "policy-at-once",
        "Call the network for more inputs in each round (more environments at once), keep the loop on the GPU, or run a copy of a small "
        "network on the CPU: each round waits for the launches, the result and the next input",
        "action = policy(observations).argmax(-1)  # of all environments in one call; environments in torch need no read",
        "What the rounds make must stay what the training expects.", untried=_OWN_CODE,
    ),
    Remedy(
        "reduced-on-gpu",
        "Reduce on the GPU what is kept of each batch between the steps, before it is gathered or copied to the host: the argmax or sums, "
        "not all outputs",
        "correct += (model(x).argmax(-1) == y).sum()  # stays on the GPU; .item() once, at the end",
        "What is computed from it must not need the outputs themselves.", untried=_OWN_CODE,
    ),
    Remedy(
        "run-rarely",
        "Run this less often, in less time, or in another thread or process: it makes single steps far longer", untried=_OWN_CODE,
    ),
    Remedy(
        "beside-the-loop",
        "Do what runs between the steps less often, or concurrently: in its own thread or process, in the workers of the loader, "
        "or on the GPU", untried=_OWN_CODE,
    ),
    Remedy(
        "kept-keys", "Keep keys and values of all tokens before (use_cache=True): each call then computes its new token alone",
        "out = model(token, past_key_values=past, use_cache=True)\npast = out.past_key_values", untried=_OWN_CODE,
    ),
    Remedy("preallocated", "Write into a tensor made before the loop in place of torch.cat in it", untried=_OWN_CODE),
    Remedy(
        "numpy-on-gpu",
        "Do this once, before the loop, where it is the same for all batches; else with tensors on the GPU (most of numpy has the same in "
        "torch), or in the workers of the loader",
        untried=_OWN_CODE,
    ),
    Remedy("copied-in-place", "Copy into what exists (a.copy_(b)) in place of a deep copy, and rarely", untried=_OWN_CODE),
    Remedy(
        "vectorized",
        "Do this for all items at once: one call of numpy or torch over arrays instead of a loop of Python over single items",
        "sums[rows] = sums[2 * rows] + sums[2 * rows + 1]  # rows: one array with all items",
        "What one item does may not depend on what the one before has done.", untried=_OWN_CODE,
    ),
    Remedy(
        "threads-of-library",
        "Let the library use its threads: a setting holds this call to one",
        untried="the setting is the program's own",
    ),
    Remedy(
        "call-ahead",
        "Make this call ahead, for the next batch, in another thread or process or in the workers of a DataLoader, while the GPU works on "
        "this one",
        "ahead = pool.submit(prepare, batches[i + 1])  # ThreadPoolExecutor(1) if the call releases Python's lock",
        "It may need nothing that the step before it makes.", untried=_OWN_CODE,
    ),
    Remedy(
        "plain-tensors",
        "Hand plain tensors to the network, and keep beside them what the class adds; leave a mode before the network runs: each "
        "operator, and each look at a shape, passes through this function of Python",
        "x = x.as_subclass(torch.Tensor)  # before the network; wrap its result again where the class is needed",
        "The network may not need what the class adds.", untried=_OWN_CODE,
    ),
    Remedy(
        "forward-compiled",
        "Let less Python run in this forward: torch.compile of its module (operators of DTensor, hooks and subclasses pass through Python "
        "one by one), or fewer, larger operators in it",
        untried="which modules are compiled, the program says", for_anything=True,
    ),
    Remedy("out-of-the-loop", "Move this work out of the loop, into another process, or onto the GPU", untried=_OWN_CODE),
)  # fmt: skip
