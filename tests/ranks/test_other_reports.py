"""The step of a rank once the reports of the others say how long its collectives take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.ranks import other_reports


@pytest.mark.parametrize("played", [None, SimpleNamespace(op=np.array([-1, -1], np.int64))])
def test_without_a_replay_or_a_collective_in_it_no_step_is_replayed(played: Any) -> None:
    assert other_reports._replayed(played, np.array([7], np.int64)) is None
