"""One pure function over many reports: in this process, in a pool, or on a cluster, with the same results.

A pool is spawned, never forked (polars holds threads), and each worker runs polars on one thread: with several reports at once
the cores are busy anyway. A worker that dies loses nothing: others redo what it had not finished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.ranks.rank_bounds import CLUSTER_ANSWER_S, MOST_READING_THREADS, POOL_BYTES

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


#: dask's nanny makes glibc return memory at every free, which costs a fifth of the CPU time here. Both thresholds are needed:
#: setting only one keeps glibc from adapting the other.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": 268435456, "MALLOC_MMAP_THRESHOLD_": 33554432, "OMP_NUM_THREADS": 1}


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads() -> None:
    """Import polars and numpy with few threads; the environment, which a profiled program inherits, stays as it is.

    A report is a thousand short queries, and waking a thread per core for each costs more than it saves. Measured on 64
    cores with all threads: 2,000 kernels took 1.23 s instead of 0.66, and 300,000 took 4.1 s instead of 3.2. numpy would start
    a thread per core for products of large matrices, of which a report has none: on two cores that takes 0.05 s.
    """
    polars_threads = os.environ.get("POLARS_MAX_THREADS", str(min(cores(), MOST_READING_THREADS)))
    with _environment(POLARS_MAX_THREADS=polars_threads, OPENBLAS_NUM_THREADS="1"):
        import numpy  # noqa: F401 - it starts its threads when it is imported
        import polars

        polars.thread_pool_size()  # starts them


def run(
    work: Callable[[Path], T],
    paths: Sequence[Path],
    *,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Callable[[str], None] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[T]:
    """Return ``work(path)`` of each path, in order. ``work`` must be picklable; its exceptions are raised here.

    ``workers`` is the number of processes (1: this one only), by default one per core if there is enough to read.
    ``cluster`` is "local" or the address of a dask scheduler whose workers see the same paths. ``meanwhile`` is called once, in
    this process: while the workers work, or after all else if there are none. Raises NsysxError if workers keep dying, or if
    the cluster cannot be used.
    """
    todo = [meanwhile]

    def here() -> None:
        while todo:
            todo.pop()()

    def done(n: int, path: Path) -> None:
        if progress:
            progress(f"{path.name} ({n} of {len(paths)})")

    if cluster is not None:
        return _on_cluster(work, paths, cluster, workers, done, here)
    if workers is None:
        size = sum(p.stat().st_size for p in paths if p.is_file())
        workers = min(cores(), len(paths)) if size >= POOL_BYTES else 1
    results: dict[int, T] = {}
    if workers > 1 and len(paths) > 1:
        # The last round has one worker: workers mostly die because memory is too small for several.
        for count in (workers, workers, 1):
            if len(results) < len(paths):
                _in_pool(work, paths, count, results, done, here)
        if lost := [path.name for i, path in enumerate(paths) if i not in results]:
            raise _died(lost[0])
    else:
        for i, path in enumerate(paths):
            results[i] = work(path)
            done(len(results), path)
        here()
    return [results[i] for i in range(len(paths))]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for processes and threads that are started inside."""
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _died(name: str) -> NsysxError:
    hint = "Memory may have run out: give each worker more, or read fewer reports at once (--jobs 1)"
    return NsysxError(f"{name}: every process that read it died", slug="worker-died", hint=hint)


def _in_pool(
    work: Callable[[Path], T],
    paths: Sequence[Path],
    workers: int,
    results: dict[int, T],
    done: Callable[[int, Path], None],
    here: Callable[[], None],
) -> None:
    """Add index -> result for the missing paths; what a broken pool did not finish stays missing."""
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    one_thread = _environment(POLARS_MAX_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with one_thread, ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            futures: dict[Future[T], int] = {
                pool.submit(work, path): i for i, path in enumerate(paths) if i not in results
            }
            here()
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                done(len(results), paths[futures[future]])
        except BrokenExecutor:
            pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _on_cluster(
    work: Callable[[Path], T],
    paths: Sequence[Path],
    cluster: str,
    workers: int | None,
    done: Callable[[int, Path], None],
    here: Callable[[], None],
) -> list[T]:
    import logging

    try:
        import dask
        import distributed
    except ImportError:
        message = f"--cluster {cluster}: dask.distributed is not installed"
        hint = "Run: pip install 'nsysx[cluster]'"
        raise NsysxError(message, slug="cluster-missing", hint=hint, exit_code=EXIT_USAGE) from None
    count = min(workers or cores(), len(paths))
    settings: dict[str, Any] = {"distributed.nanny.pre-spawn-environ": {**_MALLOC, "POLARS_MAX_THREADS": 1}}
    with dask.config.set(settings):
        try:
            if cluster == "local":
                # No memory limit, as in a pool: by default a worker dies when it exceeds its share of the machine.
                # Any free port: dask opens one for its dashboard even without it, and warns if the usual one is taken.
                # It also warns of a worker that died, whose reports others read, and of those that a busy machine ends slowly.
                client = distributed.Client(
                    n_workers=count,
                    threads_per_worker=1,
                    dashboard_address=":0",
                    scheduler_kwargs={"dashboard": False},
                    memory_limit=0,
                    silence_logs=logging.ERROR,
                )
            else:
                client = distributed.Client(cluster, timeout=CLUSTER_ANSWER_S)
        except (OSError, ValueError, RuntimeError) as error:  # a TimeoutError is an OSError
            message = f"--cluster {cluster}: {error}"
            raise NsysxError(message, slug="cluster-unreachable", exit_code=EXIT_USAGE) from None
        with client:
            absolute = [p.resolve() for p in paths]
            # Not pure: otherwise the scheduler may return the result for an older file of the same name.
            futures = client.map(work, absolute, pure=False)
            here()
            position = {f.key: i for i, f in enumerate(futures)}
            results: dict[int, T] = {}
            try:
                for future in distributed.as_completed(futures):
                    path = paths[position[future.key]]
                    results[position[future.key]] = future.result()
                    done(len(results), path)
                    future.release()
            except distributed.KilledWorker:
                raise _died(path.name) from None
            except (ImportError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "deserializ" not in str(error):
                    raise
                message = f"--cluster {cluster}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                hint = "The workers need the same Python, nsysx and dask as this machine"
                raise NsysxError(message, slug="cluster-differs", hint=hint, exit_code=EXIT_USAGE) from None
            return [results[i] for i in range(len(paths))]
