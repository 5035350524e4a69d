"""Orders of batches that depend on the rank by the seed of what shuffles them, and what has the rank in its seed by right."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest
from nsysx_probe.rank_orders import rank_orders
from nsysx_probe.sources import Sources

#: A word of each kind, so that no text is left out before it is parsed.
WORDS = "# rank seed shuffle\n"
BY_RANK = {
    "a function returns the generator": """
        class Batches:
            def generator(self, epoch):
                return random.Random(self.seed + epoch * self.world + self.rank)  # seed
            def epoch(self, epoch):
                order = list(range(len(self.batches)))
                self.generator(epoch).shuffle(order)  # order
                for i in order:
                    yield self.batches[i]
    """,
    "the generator of another method": """
        class Sampler:
            def __init__(self, rank):
                self.gen = torch.Generator()
                self.gen.manual_seed(40 + rank)  # seed
            def __iter__(self):
                return iter(torch.randperm(self.n, generator=self.gen).tolist())  # order
    """,
    "a seed with a name": """
        def main():
            seed = args.seed + dist.get_rank()
            rng = np.random.default_rng(seed)  # seed
            order = rng.permutation(len(data))  # order
            for start in range(0, len(order), 8):
                step(data[order[start:start + 8]])
    """,
    "the library's own generator": """
        random.seed(args.seed + int(os.environ["RANK"]))  # seed
        def batches():
            order = sorted(lengths)
            random.shuffle(order)  # order
            yield from order
    """,
    "given to a loader": """
        def main():
            rng = random.Random(seed + rank)  # seed
            order = [b for b in buckets_of(rank)]; rng.shuffle(order)  # order
            loader = DataLoader(data, batch_sampler=order, num_workers=8)
            for batch in loader:
                step(batch)
    """,
    "at once": """
        for epoch in range(3):
            for i in np.random.RandomState(epoch + args.rank).permutation(n):  # seed order
                step(batches[i])
    """,
}
#: Sizes that each rank draws for itself: each step has one of them.
DRAWN = {
    "of the library's own generator": """
        random.seed(args.seed + rank)  # seed
        def main():
            for x in loader:
                size = random.choice(SIZES)  # order
                step(F.interpolate(x, size))
    """,
    "of a generator of the class": """
        class Batches:
            def __init__(self, rank):
                self.rng = np.random.default_rng([seed, rank])  # seed
            def __iter__(self):
                while True:
                    seq_len = self.lengths[self.rng.integers(len(self.lengths))]  # order
                    yield self.draw(seq_len)
    """,
    "of a generator of torch": """
        gen = torch.Generator().manual_seed(seed + dist.get_rank())  # seed
        for i in range(steps):
            h, w = SHAPES[torch.randint(len(SHAPES), (1,), generator=gen).item()]  # order
            step(images(h, w))
    """,
    "by a helper that seeds every library": """
        class Trainer:
            def __init__(self, rank):
                init_seeds(hyp["seed"] + 1 + rank)  # seed
            def preprocess(self, imgs):
                sz = random.randrange(320, 960 + gs) // gs * gs  # order
                return F.interpolate(imgs, size=(sz, sz))
    """,
}
BY_NOBODY = {
    "a size that all ranks draw alike": """
        noise = random.Random(seed + rank)
        sizes = random.Random(seed)
        for x in loader:
            size = sizes.choice(SIZES)
            step(F.interpolate(x, size) + noise.random())
    """,
    "a size of each sample": """
        class Data:
            def __init__(self, rank):
                self.rng = random.Random(seed + rank)
            def __getitem__(self, i):
                size = self.rng.choice(CROPS)
                return crop(self.images[i], size)
    """,
    "a number of each sample that is no size": """
        def step(x, rank):
            gen = torch.Generator().manual_seed(seed + rank)
            t = torch.randint(0, 1000, (len(x),), generator=gen)
            return add_noise(x, t)
    """,
    "an order that a loader does not get": """
        def main():
            rng = random.Random(seed + rank)
            names = list(files)
            rng.shuffle(names)
            loader = DataLoader(data, batch_sampler=order, collate_fn=named(names))
    """,
    "noise": """
        def step(x, rank):
            gen = torch.Generator().manual_seed(seed + rank)
            return x + torch.randn(x.shape, generator=gen)
    """,
    "noise beside an order that all ranks share": """
        class Batches:
            def __init__(self, rank):
                self.noise = random.Random(self.seed + rank)
                self.rng = random.Random(self.seed)
            def epoch(self):
                order = list(range(len(self.batches)))
                self.rng.shuffle(order)
                for i in order:
                    yield self.batches[i] + self.noise.random()
    """,
    "augmentations in a random order": """
        class Augmented:
            def __init__(self, rank):
                self.rng = random.Random(seed + rank)
            def augment(self, x):
                operations = list(self.operations)
                self.rng.shuffle(operations)
                for operation in operations:
                    x = operation(x)
                return x
    """,
    "of each sample": """
        class Data:
            def __init__(self, rank):
                self.rng = random.Random(seed + rank)
            def __getitem__(self, i):
                frames = list(range(16))
                self.rng.shuffle(frames)
                return [self.video[i][f] for f in frames]
    """,
    "a batch that is mixed with itself": """
        def main(rank):
            gen = torch.Generator().manual_seed(seed + rank)
            for x in loader:
                mixed = torch.randperm(len(x), generator=gen)
                step(x + x[mixed])
    """,
    "a share by the rank": """
        def batches(rank):
            order = list(range(n))
            random.Random(seed + epoch).shuffle(order)
            yield from order[rank::world]
    """,
    "another thing's rank": """
        class Layers:
            def __init__(self, ranking, seed):
                self.rng = random.Random(seed + ranking)
            def batches(self):
                order = list(range(9))
                self.rng.shuffle(order)
                yield from order
    """,
    "dropout's seed, and a generator of the sampler's own": """
        torch.manual_seed(seed + rank)
        def batches():
            yield from torch.randperm(n, generator=shared).tolist()
    """,
    "a class of the same names": """
        class Noise:
            def __init__(self, rank):
                self.gen = self.generator(rank)
            def generator(self, rank):
                return torch.Generator().manual_seed(seed + rank)
        class Sampler:
            def __init__(self):
                self.gen = self.generator()
            def generator(self):
                return torch.Generator().manual_seed(seed)
            def __iter__(self):
                return iter(torch.randperm(self.n, generator=self.gen).tolist())
    """,
    "seeded anew for the order": """
        random.seed(seed + rank)
        def batches(epoch):
            random.seed(epoch)
            order = list(range(n))
            random.shuffle(order)
            yield from order
    """,
    "nested too deep": "order = rank.shuffle(seed" + " + (1" * 5_000 + ")" * 5_001,
    "of many terms": "order = rank.shuffle(seed" + " + 1" * 1_500 + ")",
    "no program": "order = rank.shuffle(seed",
    "a helper that seeds every library alike": """
        init_seeds(hyp["seed"] + 1)
        def train(rank):
            sz = random.randrange(320, 960)
            step(rank, sz)
    """,
    "a helper for workers": """
        def work(rank):
            seed_worker(rank)
            sz = random.randrange(320, 960)
    """,
}


@pytest.mark.parametrize("text", [*BY_RANK.values(), *DRAWN.values()], ids=[*BY_RANK, *DRAWN])
def test_the_rank_in_the_seed_of_an_order(text: str) -> None:
    drawn = text in DRAWN.values()
    text = textwrap.dedent(text)
    found = rank_orders(text)
    lines = text.split("\n")
    assert [each.drawn for each in found] == [drawn]
    assert lines[found[0].seed - 1].partition("#")[2].split()[0] == "seed"
    assert lines[found[0].order - 1].partition("#")[2].split()[-1] == "order"
    assert found[0].first <= found[0].order <= found[0].last


@pytest.mark.parametrize("text", BY_NOBODY.values(), ids=BY_NOBODY)
def test_what_has_the_rank_in_its_seed_by_right(text: str) -> None:
    assert rank_orders(WORDS + textwrap.dedent(text)) == []


def test_orders_of_the_users_files_are_noted_with_whether_their_function_runs(tmp_path: Path) -> None:
    text = textwrap.dedent(BY_RANK["a function returns the generator"])
    runs, silent, package = (tmp_path / name for name in ("runs.py", "silent.py", "package.py"))
    for each in (runs, silent, package):
        each.write_text(text)
    sources = Sources(None, {})
    sources._began = time.time() + 60
    sources.seen(str(runs), 1, package=False)
    assert [row["runs"] for row in sources.orders_of_ranks()] == [False]
    sources.seen(str(runs), 9, package=False)
    sources.seen(str(package), 9, package=True)
    seed = "return random.Random(self.seed + epoch * self.world + self.rank)"
    row = {"file": str(runs), "seed": 4, "order": 7, "drawn": False, "runs": True, "text": seed}
    assert sources.orders_of_ranks() == [row]
    sources.seen(str(silent), 4, package=False)
    assert sources.orders_of_ranks() == [row, {**row, "file": str(silent), "runs": False}]
    assert Sources(None, {"NSYSX_NO_SOURCE": "1"}).orders_of_ranks() == []
