"""The notebook that comes with the samples runs from its first cell to the last, and its answers are those of the report."""

from __future__ import annotations

from typing import Any

import nbclient
import nbformat

from tests.samples import SAMPLES


def text(cell: Any) -> str:
    """Return what a cell printed or showed."""
    return "".join(o.get("text") or o["data"]["text/plain"] for o in cell.outputs)


def test_the_notebook_runs() -> None:
    notebook = nbformat.read(SAMPLES / "notebook.ipynb", 4)
    assert not any(c.get("outputs") for c in notebook.cells), "outputs are not kept: they would hold who ran it"
    here = {"metadata": {"path": str(SAMPLES)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=here).execute()
    answer, modules, gone, waits, better = (c for c in notebook.cells if c.cell_type == "code")
    assert "MaskedLoss" in answer.outputs[0]["data"]["text/html"]
    assert "MaskedLoss" in text(modules)
    assert "ms a step, give or take" in text(gone)
    assert "cudaStreamSynchronize" in text(waits)
    assert "ms a step faster" in text(better)
