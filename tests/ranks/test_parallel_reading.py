"""Work spread over processes: the same results in the same order, whatever happens to a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nsysx.errors import NsysxError
from nsysx.ranks import parallel_reading


def size(path: Path) -> int:
    return path.stat().st_size


def fails(path: Path) -> int:
    raise NsysxError(f"{path.name}: no", slug="no", hint="do not", exit_code=4)


def note(path: Path) -> None:
    with path.with_suffix(".by").open("a") as file:
        print(os.getpid(), file=file)


def dies_once(path: Path) -> int:
    """Kill this very process the first time."""
    note(path)
    flag = path.with_suffix(".died")
    if path.name == "b" and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.stat().st_size


def dies_always(path: Path) -> int:
    """Kill this very process."""
    note(path)
    if path.name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.stat().st_size


def fails_and_notes(path: Path) -> int:
    note(path)
    return fails(path)


def by(path: Path) -> list[int]:
    """Return the processes that worked on a file."""
    return [int(line) for line in path.with_suffix(".by").read_text().split()]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    files = [tmp_path / name for name in "abc"]
    for i, file in enumerate(files):
        file.write_bytes(b"x" * i)
    return files


@pytest.mark.parametrize("workers", [1, 2])
def test_results_keep_their_order(paths: list[Path], workers: int) -> None:
    told: list[str] = []
    assert parallel_reading.run(size, paths, workers=workers, progress=told.append) == [0, 1, 2]
    assert len(told) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_of_a_worker_arrives_whole(paths: list[Path], workers: int) -> None:
    with pytest.raises(NsysxError) as caught:
        parallel_reading.run(fails, paths, workers=workers)
    assert (caught.value.slug, caught.value.hint, caught.value.exit_code) == ("no", "do not", 4)


def test_a_killed_worker_loses_nothing(paths: list[Path]) -> None:
    told: list[str] = []
    assert parallel_reading.run(dies_once, paths, workers=2, progress=told.append) == [0, 1, 2]
    assert paths[1].with_suffix(".died").exists()
    assert len(by(paths[1])) == 2
    assert os.getpid() not in {pid for path in paths for pid in by(path)}, "other workers do what is left"
    assert sorted(line.split()[0] for line in told) == ["a", "b", "c"], "each is told once"


#: What asks for files of which one kills whoever reads it, and says what it got.
_ASKS = """
import sys
from pathlib import Path
from nsysx.errors import NsysxError
from nsysx.ranks import parallel_reading
from tests.ranks.test_parallel_reading import dies_always, dies_once
if __name__ == "__main__":
    try:
        print(parallel_reading.run(WORK, [Path(p) for p in sys.argv[1:]], workers=2, cluster=CLUSTER))
    except NsysxError as error:
        print(error.slug, error.exit_code)
"""


def asked(folder: Path, work: str, cluster: str | None, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    script = folder / "asks.py"
    script.write_text(_ASKS.replace("WORK", work).replace("CLUSTER", repr(cluster)))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, script, *paths], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_file_that_kills_every_worker_is_no_end(paths: list[Path], tmp_path: Path) -> None:
    """It never reaches the process that asks: what kills a worker would kill that too. Here that is one of its own."""
    done = asked(tmp_path, "dies_always", None, paths)
    assert (done.returncode, done.stdout) == (0, "worker-died 3\n"), done.stderr
    assert len(by(paths[1])) == 3, "it was tried three times, the last time alone"


def test_a_killed_worker_of_a_cluster_loses_nothing(paths: list[Path], tmp_path: Path) -> None:
    """Nor do its end, and that a busy machine takes seconds to end the others, fill the terminal."""
    pytest.importorskip("distributed")
    done = asked(tmp_path, "dies_once", "local", paths)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2]\n", "")


def test_a_file_that_kills_every_worker_of_a_cluster_is_named(paths: list[Path]) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(NsysxError) as caught:
        parallel_reading.run(dies_always, paths, cluster="local", workers=2)
    assert caught.value.slug == "worker-died" and caught.value.message.startswith("b:")
    assert os.getpid() not in by(paths[1])


def test_a_cluster_hands_an_error_on_at_once(paths: list[Path]) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(NsysxError) as caught:
        parallel_reading.run(fails_and_notes, paths[:1], cluster="local", workers=1)
    assert (caught.value.slug, caught.value.hint, caught.value.exit_code) == ("no", "do not", 4)
    assert len(by(paths[0])) == 1, "a report that cannot be read is not read again"


def test_the_environment_is_left_as_it_was(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    parallel_reading.run(size, paths, workers=2)
    assert "POLARS_MAX_THREADS" not in os.environ


def test_a_local_cluster_beside_another_one(paths: list[Path]) -> None:
    pytest.importorskip("distributed")
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # a cluster has it already: as good
            taken.bind(("", 8787))
            taken.listen()
        assert parallel_reading.run(size, paths, cluster="local", workers=1) == [size(p) for p in paths]


def after_limiting(then: str, **given: str) -> str:
    """Return what a new process prints that has limited its threads; ``given`` is set in its environment."""
    environment = {k: v for k, v in os.environ.items() if k not in {"POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"}}
    code = f"import os, sys, types\nfrom nsysx.ranks import parallel_reading as jobs\n{then}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment | given)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("given", "cores", "threads"), [({}, 64, 4), ({}, 2, 2), ({"POLARS_MAX_THREADS": "3"}, 64, 3)])
def test_polars_gets_few_threads(given: dict[str, str], cores: int, threads: int) -> None:
    said = after_limiting(
        f"jobs.cores = lambda: {cores}\njobs.limit_threads()\nimport polars\n"
        "print(polars.thread_pool_size(), *(os.environ.get(f'{n}_THREADS') for n in ('POLARS_MAX', 'OPENBLAS_NUM')))",
        **given,
    )
    assert said == f"{threads} {given.get('POLARS_MAX_THREADS')} None\n", "a program that is run next inherits nothing"


def test_numpy_gets_no_threads() -> None:
    said = after_limiting(
        "sys.modules['polars'] = types.SimpleNamespace(thread_pool_size=int)\njobs.limit_threads()\n"
        "print('numpy' in sys.modules, len(os.listdir('/proc/self/task')))"
    )
    assert said == "True 1\n", said


def test_a_cluster_that_is_not_there(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_reading, "CLUSTER_ANSWER_S", 0.5)
    with pytest.raises(NsysxError) as caught:
        parallel_reading.run(size, paths, cluster="tcp://127.0.0.1:9")
    assert caught.value.slug in {"cluster-unreachable", "cluster-missing"}
