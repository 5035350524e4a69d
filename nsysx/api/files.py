"""The files that the library's functions take, and pages in a notebook."""

from __future__ import annotations

import html
import os

#: A report: the path of a .sqlite, .sqlite.xz, .gz, .zst, .nsys-rep, or of a folder of the ranks of one job.
File = str | os.PathLike[str]

#: Pixels of a page in a notebook.
_HEIGHT = 560


def framed(page: str, title: str) -> str:
    """Return a page in a frame of its own, so that neither it nor the notebook touches the other."""
    frame = 'width="100%" height="{}" style="border:0" sandbox="allow-scripts" title="{}" srcdoc="{}"'
    return f"<iframe {frame.format(_HEIGHT, title, html.escape(page, quote=True))}></iframe>"
