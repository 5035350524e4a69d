"""What to do about lines that draw random numbers or pick random items while the GPU waits. None of it can be tried yet."""

from __future__ import annotations

from . import Change, Remedy

_OWN_CODE = "what the line draws is the program's own code"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "picked-on-gpu",
        "Sample on the GPU with replacement (torch.randint), or shuffle once for many steps: without replacement all are shuffled, or each "
        "number is compared with those before it, in each step",
        'index = torch.randint(count, (picked,), device="cuda")', untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-by-weight",
        "Keep the weights in a tensor on the GPU and draw there, by a search in their running sum: numpy and Python's random prepare all "
        "weights on the CPU for each draw",
        "c = weights.cumsum(0)\nrows = torch.searchsorted(c, torch.rand(n, device=c.device) * c[-1])",
        "It draws with replacement; what changes the weights must write to that tensor.", untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-without-permutation",
        "Draw without putting all in random order: np.random.choice(replace=False) and permutation(n)[:k] do that for the few that are "
        "taken, numpy's newer generator does not; or draw with replacement",
        "rng = np.random.default_rng()  # once, before the loop\nindex = rng.choice(count, picked, replace=False, shuffle=False)",
        "The seed gives other numbers than before.", untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-one-by-one",
        "Draw these numbers by themselves (torch.randint): an order of all is made by sorting all",
        'index = torch.randint(n, (k,), device="cuda")  # not torch.randperm(n)[:k]',
        "A few numbers come twice: keep the order where none may.", untried=_OWN_CODE,
    ),
    Remedy(
        "arrays-for-objects",
        "Keep these items as one array for each of their fields, made before the loop, and index it by a vector of random rows: here each "
        "item is looked up by itself (a deque walks there from its nearest end), and what is picked is put together anew",
        "rows = rng.integers(len(memory), size=picked)\nbatch = [torch.from_numpy(field[rows]) for field in memory.fields]",
        "The fields must have one size for all items.", untried=_OWN_CODE,
    ),
    Remedy(
        "drawn-on-gpu",
        "Draw on the GPU (torch.randint, and torch.isin or searchsorted to leave some out): this takes its data to the CPU, works there "
        "with numpy or Python, and copies the result back", 'pairs = torch.randint(nodes, (2, count), device="cuda")', untried=_OWN_CODE,
    ),
    Remedy(
        "masked-in-workers",
        "Draw spans to mask and negatives in the loader's workers (collate_fn), by lengths that are on the CPU: here numpy draws them "
        "between two steps, and lengths read from the GPU wait for it",
        "def collate(samples):  # of the loader, with num_workers and pin_memory=True\n"
        "    batch = pad(samples)\n"
        "    frames = model._get_feat_extract_output_lengths(batch['attention_mask'].sum(-1))  # on the CPU\n"
        "    mask = _compute_mask_indices((len(samples), int(frames.max())), 0.65, 10)\n"
        "    negatives = _sample_negative_indices(mask.shape, 100, mask)\n"
        "    return {**batch, \"mask_time_indices\": torch.tensor(mask), \"sampled_negative_indices\": torch.tensor(negatives)}",
        "Each worker needs a seed of numpy of its own (worker_init_fn).", untried=_OWN_CODE,
    ),
    Remedy(
        "filters-once",
        "Make filters and windows once for each size and keep them on the GPU: they are the same in each call",
        "@functools.lru_cache(None)\n"
        "def filters(n_fft, n_mels, device):\n"
        "    mel = torch.from_numpy(mel_filterbank(rate, n_fft, n_mels)).float().to(device)\n"
        "    return mel, torch.hann_window(n_fft, device=device)",
        "Nothing may write into them.", untried=_OWN_CODE,
    ),
    Remedy(
        "independent-normal",
        "Use Independent(Normal(mean, std), 1) where dimensions do not depend on each other: MultivariateNormal factorizes a matrix for "
        "each sample, checks it, and solves with it", "policy = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)",
        "The covariance must be diagonal.", untried=_OWN_CODE,
    ),
)  # fmt: skip
