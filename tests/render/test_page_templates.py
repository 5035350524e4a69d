"""The templates are compiled once, where Python keeps its own code, and a spoiled or forbidden cache costs time only."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from jinja2 import Environment

from nsysx.render import page_templates

PAGE = "compare.html.j2"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    page_templates.template(PAGE)
    return tmp_path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_template_is_compiled_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [path.suffix for path in files(kept)] == [".pyc"]

    def compile_again(*_: object, **__: object) -> None:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(Environment, "compile", compile_again)
    assert page_templates.template(PAGE).root_render_func


@pytest.mark.parametrize("spoiled", [b"", b"j2", b"\x00" * 2000])
def test_code_that_is_spoiled_is_made_again(kept: Path, spoiled: bytes) -> None:
    (file,) = files(kept)
    good = file.read_bytes()
    file.write_bytes(spoiled)
    assert page_templates.template(PAGE).root_render_func
    assert file.read_bytes() == good


def test_code_of_another_text_is_made_again(kept: Path) -> None:
    """An update of the program brings another template: its checksum differs."""
    (file,) = files(kept)
    good = file.read_bytes()
    checksum = hashlib.sha1(page_templates.text(PAGE).encode()).hexdigest()
    assert checksum.encode() in good
    file.write_bytes(good.replace(checksum.encode(), b"0" * len(checksum)))
    page_templates.template(PAGE)
    assert file.read_bytes() == good


def test_nothing_is_written_where_python_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    page_templates.template(PAGE)
    assert not files(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert page_templates.template(PAGE)
