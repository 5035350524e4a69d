"""Sample reports, unpacked with what the probe wrote beside them."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "sample_reports"


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        path = tmp_path / f"{name}.sqlite"
        path.write_bytes(lzma.decompress((SAMPLES / f"{name}.sqlite.xz").read_bytes()))
        run = SAMPLES / f"{name}.run.json"
        if run.is_file():
            shutil.copy(run, tmp_path)
        return path

    return unpack
