"""What runs on every change runs in a checkout called nsysx, whatever the folder is called that it is started in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!/usr/bin/env bash
cd "$(dirname "$0")/.."
pwd; cat kept; realpath .venv-test .tools; ls -A; echo "$@"
exit 3
"""


@pytest.mark.parametrize("name", ["nsysx", "other name"])
def test_the_checkout_is_called_nsysx(tmp_path: Path, name: str) -> None:
    here = tmp_path / name
    for folder in (".ci", "scripts", ".venv-test/bin", ".tools/large", ".mypy_cache"):
        (here / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", here / ".ci" / "run")
    (here / "kept").write_text("not committed yet\n")
    for path, text in ((".venv-test/bin/python", "#!/bin/sh\n"), ("scripts/test", FAKE)):
        (here / path).write_text(text)
        (here / path).chmod(0o755)
    ran = subprocess.run([here / ".ci" / "run", "-k", "a b"], cwd=tmp_path, capture_output=True, text=True)
    folder, kept, venv, tools, *listed, words = ran.stdout.splitlines()
    assert (ran.returncode, kept, words) == (3, "not committed yet", "-k a b"), ran.stderr
    assert Path(folder).name == "nsysx" and (Path(folder) == here) == (name == "nsysx")
    assert (venv, tools) == (str(here / ".venv-test"), str(here / ".tools")), "what was installed is used, not copied"
    assert (".mypy_cache" in listed) == (name == "nsysx")
    assert Path(folder).exists() == (name == "nsysx"), "nothing is left"
