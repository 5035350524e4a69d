"""The package as people get it: a wheel that holds all that is needed and runs without the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (ROOT / "nsysx" / "docs" / "settings.md").read_text(encoding="utf-8")

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: What installing takes; what it needs is far larger. X-ray, settings and remedies took a tenth more,
#: and so did the roofline, the ledger of jobs, the server and the skill for agents. What launches of Triton
#: move, how ranks meet under any launcher, and causes seen from inside (gradients, saves, settings of jobs) took 2 %.
#: Rules that read which operator made what, and their remedies and settings, took 3 % more.
#: Every tuned number under a name with its unit and reason, what a network is called with, waits of bare steps, and causes of jobs: 2 %.
#: Operators larger than their results need, limits of what comes instead, settings of attention, Python of other threads: 2 %.
#: Work done twice, in each step anew or for nobody, forms of products, operators far from their limit: 2 %.
#: What a late rank does more of, what runs between steps, causes of host lines, and gradients that nobody reads: 3 %.
#: Work that is converted, reduced, factorized or summed again or in a wider order, causes in the headline, limits by counters: 3 %.
#: MPI and UCX, a process that draws, where settings are made, and draws and exchanges of objects: 2 %.
#: Lines that enter long steps, workers' lines, shares of ranks, hooks and schedules with their places: 2 %.
#: What ranks compute that others compute as well: 1 %.
#: Stages, split layers, sharded models and exchanges of jobs: 2 %.
#: Tables, late gradients and waits of jobs: half a percent.
#: Repeated updates, shared optimizers, summed gathers and ranks that are late at times: 2 %.
#: Samples that ranks augment each for itself, autocast by decorators and threads, and what grows under autograd: 2 %.
#: Pieces taken one by one, evaluations that all ranks make, passes over a batch, unlike stages, heads of all ranks: 3 %.
#: What ranks send that they need not, gathers where nothing is trained, rounds that read a value, checkpoints within others: 3 %.
#: Neighbour searches, auxiliary logits, levels, borders and modes that are sent, tensors that layers hand on: 1 %.
#: Caches in another order, rows added as read, heads for zeros, blocks of shared weights, gradients of each micro-batch: 2 %.
#: Adapters, copied samples, calls of a sharded network in turn, scales and masks: 1 %.
#: What a loop makes again, local steps, layers that ranks leave out, values that an optimizer reads: 1 %.
#: Layers of joined parts, orders of einsum, gradients asked for only for their norms: 1 %.
#: Backwards of one graph, gathers of micro-steps, bases of optimizers, shares of texts: 2 %.
#: Inputs of all ranks, rows kept by masks, owners by cost, labels that are ignored, unlike steps: 1 %.
#: Options of sharded networks and of ZeRO, graphs and passes whose gradients are reduced late or too often: 1 %.
#: What takes the place of loops over rows, cubes and edges, late hosts by their lines, stages in turn, weights that nothing trains: 6 %.
#: Scans by helpers, padded transforms, pairs and metrics of ranks, picks in two lines, each in the program's own lines: 1 %.
#: Helpers around backward, norms by hand, tables that are handed over, splits among workers, wrapped checkpoints, loops over parts: 1 %.
#: Objects sent in each step, labels that count, sums for logs, heads of split layers, hand-overs that are detached: 3 %.
#: Sorts, draws by weights, loops that call a network and metrics of the host, each in the program's own lines: 1 %.
ROOM_BYTES = 3_150_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("nsysx-*.whl")
    return found


def test_the_wheel_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "nsysx"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    for file in tracked or [str(p.relative_to(ROOT)) for p in (ROOT / "nsysx").rglob("*.py")]:
        assert file in names, file
    for file in ("py.typed", "__init__.pyi", "docs/definitions.md", "docs/many-ranks.md"):
        assert f"nsysx/{file}" in names
    assert {n.split("/")[0] for n in names} == {"nsysx", f"nsysx-{wheel.name.split('-')[1]}.dist-info"}
    assert wheel.stat().st_size < ROOM_BYTES


def test_it_runs_where_nothing_of_the_repository_is(wheel: Path, tmp_path: Path) -> None:
    """Installed alone, next to the packages that it needs, it starts, explains itself, and draws a page."""
    place = tmp_path / "installed"
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(place),
        str(wheel),
    ]
    assert subprocess.run(words, capture_output=True, timeout=300).returncode == 0
    from tests.reports import training

    training(4).write(tmp_path / "r.sqlite")
    code = (
        "import nsysx, sys; from pathlib import Path; assert Path(nsysx.__file__).is_relative_to(sys.argv[1]), nsysx.__file__\n"
        "s = nsysx.report('r.sqlite'); assert s.kernels.height and '<main' in s.to_html()\n"
        "print(nsysx.__version__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        [sys.executable, "-m", "nsysx", "explain", "many-ranks"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert told.stdout.startswith("# Reports of many ranks")


def test_every_dependency_stands_with_its_reason() -> None:
    section = SETTINGS[SETTINGS.index("## What it needs") :]
    for requirement in PROJECT["dependencies"]:
        name = re.match(r"[\w-]+", requirement)
        assert name is not None
        assert f"`{name[0]}`" in section, requirement
