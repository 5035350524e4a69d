"""DataLoaders with workers or pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..probe_bounds import PREFETCHED_BATCHES
from . import Change, Remedy, Watch
from ._wrapping import with_arguments


def _workers(number: int) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = "no DataLoader was made"

        def change(named: dict[str, Any]) -> None:
            before = named.get("num_workers") or 0
            if isinstance(named.get("dataset"), torch.utils.data.IterableDataset):
                watch.why_not = "an IterableDataset would give its data once per worker"
            elif before >= number:
                watch.why_not = f"it has {before} workers already"
            else:
                named.update(num_workers=number, persistent_workers=True)
                watch.took()

        with_arguments(torch.utils.data.DataLoader, change)

    return arm


def _prefetch(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader with workers was made"

    def change(named: dict[str, Any]) -> None:
        if not named.get("num_workers"):
            return
        before = named.get("prefetch_factor") or 2
        if before >= PREFETCHED_BATCHES:
            watch.why_not = f"prefetch_factor={before} is set already"
            return
        named["prefetch_factor"] = PREFETCHED_BATCHES
        watch.took()

    with_arguments(torch.utils.data.DataLoader, change)


def _pinned(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader was made"

    def change(named: dict[str, Any]) -> None:
        if named.get("pin_memory"):
            watch.why_not = "it pins its memory already"
            return
        named["pin_memory"] = True
        watch.took()

    with_arguments(torch.utils.data.DataLoader, change)


def _persistent(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader with workers was made"

    def change(named: dict[str, Any]) -> None:
        if not named.get("num_workers"):
            return
        if named.get("persistent_workers"):
            watch.why_not = "it keeps its workers already"
            return
        named["persistent_workers"] = True
        watch.took()

    with_arguments(torch.utils.data.DataLoader, change)


def _loader(number: int, name: str) -> Change:
    return Change(
        name, f"num_workers={number} for the DataLoader",
        f"num_workers={number}, persistent_workers=True,  # two more arguments of the DataLoader", _workers(number),
        alters="numerics", group="workers",
        beware="random numbers that the dataset draws are others",
        advice=f"Use more workers: DataLoader(num_workers={number}, pin_memory=True, persistent_workers=True)",
        example=f"loader = DataLoader(data, num_workers={number},\n    pin_memory=True, persistent_workers=True)",
        condition="The machine must have that many idle cores, and the storage must keep up.",
    )  # fmt: skip


CHANGES = (
    _loader(4, "loader-workers"),
    _loader(8, "loader-workers-8"),
    Change(
        "loader-prefetch", f"prefetch_factor={PREFETCHED_BATCHES} for the DataLoader",
        f"prefetch_factor={PREFETCHED_BATCHES},  # one more argument of the DataLoader", _prefetch,
        alters="memory", beware="workers keep more batches",
    ),
    Change(
        "pin-memory", "pin_memory=True for the DataLoader", "pin_memory=True,  # one more argument of the DataLoader", _pinned,
        alters="memory", needs="cuda", beware="batches stay in host memory that cannot be swapped out",
        advice="Pin the memory (pin_memory=True)", example="loader = DataLoader(data, pin_memory=True)",
    ),
    Change(
        "persistent-workers", "persistent_workers=True for the DataLoader",
        "persistent_workers=True,  # one more argument of the DataLoader", _persistent,
        alters="numerics", beware="random numbers that the dataset draws are others",
        advice="Keep the workers of the loader",
        example="loader = DataLoader(data, num_workers=8, persistent_workers=True)",
    ),
)  # fmt: skip
UNTRIED = (
    Remedy(
        "batched-samples", "Fetch whole batches: give the dataset __getitems__, or index it by a batch of rows",
        "sampler = BatchSampler(RandomSampler(data), size, True)\nloader = DataLoader(data, sampler=sampler, batch_size=None)",
        untried="how rows are indexed is the program's own code",
    ),
    Remedy(
        "loader-once", "Make the loader once, before the loop over epochs, and keep its workers (persistent_workers=True)",
        "loader = DataLoader(data, sampler=sampler, num_workers=8, persistent_workers=True)  # before the loop\n"
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)\n    for batch in loader: ...",
        "Data that change from one epoch to the next have to be made by the sampler: workers keep the dataset that they were given.",
        untried="where the loader is made is the program's own code",
    ),
    Remedy(
        "cheaper-samples", "Make samples cheaper: do less in Dataset.__getitem__, or do it once and keep the result",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "own-samples-first", "Let each worker of each rank skip what is not its own before it makes samples of it, not behind",
        "own, of = rank * info.num_workers + info.id, world_size * info.num_workers  # info = get_worker_info()\n"
        "for text in itertools.islice(stream, own, None, of):\n"
        "    yield tokenize(text)  # what was made for each text",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "loaded-by-parts", "Let each rank of the group load its part of every batch, and gather the whole on the GPUs",
        "class OwnPart(BatchSampler):  # all ranks of the group draw alike: each takes its part of every batch\n"
        "    def __iter__(self):\n"
        "        rank, ranks = dist.get_rank(group), dist.get_world_size(group)  # group: mesh['tp'].get_group()\n"
        "        for batch in super().__iter__():\n"
        "            yield batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks]\n"
        "loader = DataLoader(data, batch_sampler=OwnPart(sampler, batch_size, drop_last=True), num_workers=4, pin_memory=True)\n"
        "own = x.cuda(non_blocking=True)  # in the loop, for each tensor of the batch, as its loader made it (uint8 for images)\n"
        "x = own.new_empty(len(own) * dist.get_world_size(group), *own.shape[1:])\n"
        "dist.all_gather_into_tensor(x, own, group=group)",
        "The ranks must draw alike, and batch_size be a multiple of them. Not DistributedSampler by the rank among all: ranks that share a "
        "network need the same samples. Samples of unlike lengths have to be padded to one length first.",
        untried="what ranks load is a matter of all ranks",
    ),
    Remedy(
        "loaded-once", "Let one rank of the group load each batch, with the workers of all of them, and send its tensors to the others",
        "x = next(batches).cuda() if dist.get_rank(group) == 0 else torch.empty(shape, dtype=dtype, device='cuda')  # workers for all\n"
        "dist.broadcast(x, group_src=0, group=group)  # tensors, not Python objects",
        "The shape must be known to all ranks. Not DistributedSampler by the rank among all: ranks that share a network need the same "
        "samples.",
        untried="what ranks load is a matter of all ranks",
    ),
    Remedy(
        "cropped-first", "Crop first: what comes before the crop works on all that it throws away",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "row-first", "Take the row first, then its column: the column is made as a whole, for one row of it",
        'row = data[i]\nids = row["input_ids"]',
        "data[i] must be one row of all columns, as of a Dataset of the library datasets.",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "part-read", "Read only the part that is used, and work on that: choose where it begins before the file is read",
        "wav, rate = torchaudio.load(path, frame_offset=first, num_frames=long)",
        "Resampling, filters and codecs need a little more than the part: read that much on both sides, and cut it off.",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "decoded-smaller", "Decode the picture at about the size that is used, or keep a copy of the data of that size",
        'image = Image.open(path)\nimage.draft("RGB", (512, 512))  # of a JPEG: decodes a half, a quarter or an eighth of each side\n'
        'image = image.convert("RGB")',
        "A crop of a small part of the picture becomes coarser: the size has to fit the smallest crop.",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "made-from-few",
        "Hand over what this is made of (numbers of documents, lengths, classes), and make it on the GPU for the whole batch, or let "
        "attention and loss take it as it is: what is large is made, handed over and copied for few numbers",
        "same = (doc[:, :, None] == doc[:, None, :]).tril()[:, None]  # on the GPU, of doc alone; flex_attention, or "
        "flash_attn_varlen_func,\n# takes the borders of documents and computes no masked block",
        untried="what makes a batch is the program's own code",
    ),
    Remedy(
        "more-shards", "Cut the stream into as many shards as ranks have workers together",
        'data = data.to_iterable_dataset(num_shards=64)  # of a Dataset; a stream of files: as many files',
        "Samples come in another order.", untried="how the data are stored is the program's own",
    ),
    Remedy(
        "samples-on-cpu",
        "Let the dataset return tensors of the CPU, from workers, and do on the GPU what it does there once for the whole batch, in the "
        "loop (workers cannot use the GPU as it is)",
        "loader = DataLoader(data, num_workers=8, pin_memory=True)\nbatch = transform(batch.to(device, non_blocking=True))  # in the loop",
        "What is taken over a sample (mean, maximum, length) must be taken over its dimensions of the batch.",
        untried="what makes a sample is the program's own code",
    ),
    Remedy(
        "late-samples",
        "Let the steps go on while one sample is slow: a longer queue, batches in the order in which they are ready, and a bound on what "
        "a sample may take (skip it, or prepare such samples once)",
        "loader = DataLoader(data, num_workers=8, prefetch_factor=8, in_order=False)",
        "Batches come in another order from run to run with in_order=False, and a longer queue takes memory of the host.",
        untried="which samples are slow is the program's own",
    ),
    Remedy(
        "fields-at-once",
        "Put each field of all samples into one tensor in collate_fn, with the number of rows of each, copy these few, and split them on "
        "the GPU: parts of a tensor are views and launch nothing",
        'counts = [len(each["boxes"]) for each in targets]  # in collate_fn, which returns both\n'
        "fields = {name: torch.cat([each[name] for each in targets]) for name in names}\n"
        "fields = {name: each.to(device, non_blocking=True).split(counts) for name, each in fields.items()}  # in the loop",
        "Each field needs counts of its own where it has other numbers of rows (one for each sample: torch.stack).",
        untried="what makes a batch is the program's own code",
    ),
)  # fmt: skip
