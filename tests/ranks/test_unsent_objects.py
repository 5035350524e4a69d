"""What stages of a pipeline save without what lines send: they are no peers, and are replayed together all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsysx.ranks import job_compared
from nsysx.ranks.collective_costs import Among
from nsysx.ranks.job_compared import JobCompared

CHANGE = "job.py:116 sends nothing"


def job(ranks: int, *, handed: bool, changes: tuple[str, ...]) -> JobCompared:
    """Ranks that reduce together, and hand messages to the next one where they are stages."""
    among = [Among(tuple(range(ranks)), True, False, 2)]
    among += [Among((r, r + 1), False, True, 8) for r in range(ranks - 1) if handed]
    costs = [SimpleNamespace(among=[a for a in among if r in a.ranks]) for r in range(ranks)]
    members = [SimpleNamespace(played=SimpleNamespace(changes=changes)) for _ in range(ranks)]
    return cast(JobCompared, SimpleNamespace(aligned=None, costs=costs, ranks=members))


def saved(compared: JobCompared, monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, int]]:
    def changed_ns(asked: Any = lambda _: True) -> dict[str, float]:
        return {name: 4.4 for name in ("no-sync", CHANGE) if asked(name)}

    monkeypatch.setattr(job_compared, "own_times", lambda *_: SimpleNamespace(changed_ns=changed_ns))
    return job_compared.changed(compared)


@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_are_replayed_without_what_lines_send_alone(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = job(ranks, handed=True, changes=("no-sync", CHANGE))
    assert saved(stages, monkeypatch) == {key: {CHANGE: 4} for key in range(ranks)}
    assert not saved(job(ranks, handed=True, changes=("no-sync",)), monkeypatch)
    peers = job(ranks, handed=False, changes=("no-sync", CHANGE))
    assert saved(peers, monkeypatch) == {key: {"no-sync": 4, CHANGE: 4} for key in range(ranks)}
