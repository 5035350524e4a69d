"""The templates of the pages, compiled once: the code that jinja2 makes of one is kept where Python keeps its own."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined, Template
from jinja2.bccache import Bucket

_TEMPLATES = files("nsysx.render") / "templates"


class _BesidePython(BytecodeCache):
    """Keeps a template's code in ``__pycache__``. Jinja compares it with the template and its own version before it runs it.

    A folder that cannot be written, or a Python that is told to write no bytecode, costs the time to compile again, no more.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket with the code that was kept, if there is any."""
        with suppress(OSError), _file_of(bucket).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code. Another process sees all of it or nothing."""
        if sys.dont_write_bytecode:
            return
        file = _file_of(bucket)
        part = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(bucket.bytecode_to_string())
            part.replace(file)


def _file_of(bucket: Bucket) -> Path:
    """Return where Python would keep the code of a module that stands beside this one and is named for the template."""
    return Path(importlib.util.cache_from_source(str(Path(__file__).with_name(f"template_{bucket.key}.py"))))


def template(name: str) -> Template:
    """Return a page's template, ready to be filled."""
    environment = Environment(
        loader=PackageLoader("nsysx.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_BesidePython(),
    )
    return environment.get_template(name)


def text(name: str) -> str:
    """Return a file that stands beside the templates."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def sha256(script: str) -> str:
    """Return the hash of an inline script in the form that a content security policy takes."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
