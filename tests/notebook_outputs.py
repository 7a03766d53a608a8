"""Writes the outputs of the notebooks of examples/, run from their first cell: `python -m tests.notebook_outputs`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

__all__ = ["NOTEBOOKS", "executed"]

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return a notebook after all of its cells ran, in a kernel that works in a folder; an error in a cell is raised."""
    os.environ["PYTHONPATH"] = str(ROOT)
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=str(folder / "kernel.json"))
    where = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, kernel, timeout=100, resources=where, record_timing=False).execute()


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            done = executed(nbformat.read(path, 4), Path(folder))
        nbformat.write(done, path)
