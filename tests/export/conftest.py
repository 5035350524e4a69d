"""Sample reports, unpacked with what the probe wrote beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.samples import unpack


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: unpack(name, tmp_path)
