"""Runs notebooks from their first cell and stores what they show: `python -m tests.notebook_outputs [NOTEBOOK …]`.

Without an argument these are the notebooks of examples/. An error in a cell ends it with that error.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run(path: Path) -> None:
    """Run the cells of a notebook in a kernel, which works in a folder of its own, and store their outputs."""
    notebook = nbformat.read(path, 4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=100, resources={"metadata": {"path": folder}}, record_timing=False
        )
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.connection_file = "ipc", f"{folder}/kernel.json"  # no port, which others could reach
        client.execute()
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else NOTEBOOKS:
        run(path)
