"""A worker of a loader is followed for one batch: what it counts is what the program does, and the program does not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nsysx.inject import nsysx_probe
from tests.light_torch import WITHOUT_DYNAMO

PROGRAM = f"""{WITHOUT_DYNAMO}import hashlib, itertools, sys, torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

def decode(n):
    x = torch.full((4,), float(n))
    return x

class Tiles(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        yield from itertools.islice(map(decode, range(1000)), worker.id, None, worker.num_workers)

if __name__ == "__main__":
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    drawn = hashlib.sha256()
    for step, x in enumerate(DataLoader(Tiles(), 8, num_workers=2, multiprocessing_context=sys.argv[1])):
        optimizer.zero_grad(); net(x).mean().backward(); optimizer.step()
        drawn.update(x.numpy().tobytes())
        if step == 12:
            break
    for p in net.parameters():
        drawn.update(p.detach().numpy().tobytes())
    print(drawn.hexdigest(), torch.rand(1).item())
"""


def ran(folder: Path, start: str, *, probed: bool) -> str:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if probed:
        inject = str(Path(nsysx_probe.__file__).parents[1])
        environ |= {"PYTHONPATH": inject, "NSYSX_FORCE": "1", "NSYSX_PROBE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(program), start], env=environ, capture_output=True, text=True, timeout=600, check=True
    )
    return done.stdout


def test_one_batch_of_the_first_worker_is_counted_and_nothing_changes(tmp_path: Path) -> None:
    """However the workers are started; what the program draws does not depend on that."""
    bare = ran(tmp_path, "fork", probed=False)
    for start in ("fork", "spawn", "forkserver"):
        (tmp_path / start).mkdir()
        assert ran(tmp_path / start, start, probed=True) == bare, start
        counted(tmp_path / start)


def counted(tmp_path: Path) -> None:
    """Hold what the probe wrote into a folder against the program."""
    records = [json.loads(file.read_text()) for file in tmp_path.glob("probe-*.json")]
    assert not any(each["errors"] for each in records)
    (record,) = (each for each in records if each.get("worker"))
    batch, program = record["worker"], str(tmp_path / "train.py")
    assert (batch["batch"], batch["samples"], batch["stopped"]) == (1, 8, None)
    assert batch["calls"] == [[program, 5, "decode", 16]], "of 16 tiles a worker of two keeps every other one"
    assert {(line, runs) for file, line, _, runs, _ in batch["lines"]} == {(6, 16), (7, 16)}
    assert sum(ns for *_, ns in batch["lines"]) <= batch["wall_ns"]
    assert record["source"][program]["6"] == "    x = torch.full((4,), float(n))", "with its indent"


COMPOSED = f"""{WITHOUT_DYNAMO}import sys, torch
sys.path.insert(0, sys.argv[1])
import augment
from torch.utils.data import DataLoader, Dataset

class Doubled:
    def __call__(self, x):
        return 2 * x

class Tiles(Dataset):
    def __init__(self):
        self.transform = augment.Compose([
            augment.Flip(),
            Doubled(),
            augment.RandomCrop(),
        ])
    def __len__(self):
        return 800
    def __getitem__(self, i):
        return self.transform(torch.full((4,), float(i)))

if __name__ == "__main__":
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for step, x in enumerate(DataLoader(Tiles(), 8, num_workers=2)):
        optimizer.zero_grad(); net(x).mean().backward(); optimizer.step()
        if step == 12:
            break
"""
LIBRARY = """import time, torch
class Compose:
    def __init__(self, transforms):
        self.transforms = transforms
    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x
class Flip(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return x.flip(0)
class RandomCrop(torch.nn.Module):
    def forward(self, x):
        return x[:2]
"""


def test_what_a_composition_of_a_library_applies_is_told_in_its_order(tmp_path: Path) -> None:
    program, library = tmp_path / "train.py", tmp_path / "site-packages" / "augment.py"
    library.parent.mkdir()
    library.write_text(LIBRARY)
    program.write_text(COMPOSED)
    inject = str(Path(nsysx_probe.__file__).parents[1])
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    environ |= {"PYTHONPATH": inject, "NSYSX_FORCE": "1", "NSYSX_PROBE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, str(program), str(library.parent)], env=environ, timeout=600, check=True)
    records = [json.loads(file.read_text()) for file in tmp_path.glob("probe-*.json")]
    assert not any(each["errors"] for each in records)
    (batch,) = (each["worker"] for each in records if each.get("worker"))
    lines = COMPOSED.splitlines()
    first = next(i for i, text in enumerate(lines, 1) if "augment.Flip()" in text)
    told = [(part, name, often, file, line) for part, name, often, _, file, line in batch["transforms"]]
    assert told == [
        (0, name, 8, str(program), first + i) for i, name in enumerate(("Flip", "Doubled", "RandomCrop"))
    ], "those of the program itself stand between those of the library"
    flip, doubled, crop = (ns for _, _, _, ns, *_ in batch["transforms"])
    assert flip >= 8 * 2_000_000 > doubled + crop > 0
