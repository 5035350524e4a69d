"""The skill for agents: small, whole, and every command in it runs as it stands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsysx.cli.skill import SKILL_FILES, text_of
from tests.samples import Samples

pytestmark = pytest.mark.traced  # its commands are processes of their own
ROOT = Path(__file__).parents[1]


def commands() -> list[str]:
    """Return the commands of the skill, in their order."""
    blocks = [block for name in SKILL_FILES for block in re.findall(r"```sh\n(.*?)```", text_of(name), re.DOTALL)]
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def folder(recorded: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's folder with its reports before and after a change, and ``nsysx`` on the path."""
    path = tmp_path_factory.mktemp("skill")
    sides = {
        "train": "masked_nonzero",
        "train2": "masked_lines",
        "after": "masked_ignore_index",
        "after2": "masked_ignore_index",
    }
    for name, sample in sides.items():
        shutil.copy(recorded.report(sample), path / f"{name}.sqlite")
        shutil.copy(recorded.report(sample).with_suffix(".run.json"), path / f"{name}.run.json")
    (path / "train.py").write_text("print('never run by a test of the skill')\n")
    nsysx = path / "bin" / "nsysx"
    nsysx.parent.mkdir()
    nsysx.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nsysx "$@"\n')
    nsysx.chmod(0o755)
    (path / "bin" / "python").symlink_to(sys.executable)  # a system may have python3 only
    nsys = path / "bin" / "nsys"
    nsys.write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0'\n")
    nsys.chmod(0o755)
    (path / "new").mkdir()
    shutil.copy(path / "train.py", path / "new")
    return path


def test_the_skill_is_small_and_has_what_clients_look_for() -> None:
    assert sum(len(text_of(name).encode()) for name in SKILL_FILES) < 6000
    head = text_of("SKILL.md").split("---")[1]
    assert re.search(r"^name: nsysx$", head, re.MULTILINE) and len(re.search(r"description: (.*)", head)[1]) < 1024
    for name in re.findall(r"references/\w+\.md", text_of("SKILL.md")):
        assert name in SKILL_FILES


def test_the_skill_has_the_whole_way() -> None:
    steps = (" run ", "--brief", "--insight", " try ", " compare ", " check ", "--table", " whatif ", " explain ")
    assert not [word for word in steps if not any(word in command for command in commands())]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_skill_runs(command: str, folder: Path) -> None:
    """As it stands, in the folder of the program; what records, or runs the program, says what it would do."""
    recorded_yet = not command.startswith("nsysx run ")
    for words in ("nsysx run ", "nsysx try "):
        command = command.replace(words, f"{words}--dry-run ")
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder if recorded_yet else folder / "new",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or ">" in command


def test_what_was_compared_is_in_the_log_and_the_verdict_is_the_last_line(folder: Path, tmp_path: Path) -> None:
    for file in ("train.sqlite", "train.run.json", "after.sqlite", "after.run.json"):
        shutil.copy(folder / file, tmp_path)
    words = ["compare", "train.sqlite", "after.sqlite", "--change", "channels-last"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "nsysx", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "Verdict: faster (channels-last)"
    (entry,) = map(json.loads, (tmp_path / "train.log.jsonl").read_text().splitlines())
    assert (entry["by"], entry["change"], entry["verdict"], entry["decided"]) == (
        "compare", "channels-last", "faster", "keep it",
    )  # fmt: skip
    assert entry["low_ns"] <= entry["then_ns"] <= entry["high_ns"] < entry["now_ns"]


def test_the_skill_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def write(*options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "nsysx", "skill", "--write", str(tmp_path / "my skills"), *options]
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    assert write().returncode == 0
    for name in SKILL_FILES:
        assert (tmp_path / "my skills" / "nsysx" / name).read_text(encoding="utf-8") == text_of(name)
    again = write()
    assert again.returncode == 2 and "exists already" in again.stderr
    assert write("--force").returncode == 0
