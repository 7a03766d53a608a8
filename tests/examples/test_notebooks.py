"""The notebooks of examples/ say what their kernels say; a topology is redefined in a kernel, in process and on Spark."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebook_outputs import NOTEBOOKS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_VARIES = re.compile(r"[\d.,]+ a second")


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return a notebook after its cells ran, in a process beside this one: the client leaves sockets to the collector."""
    nbformat.write(notebook, path := folder / "notebook.ipynb")
    command = [sys.executable, "-m", "tests.notebook_outputs", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    read: NotebookNode = nbformat.read(path, 4)
    return read


def shown(notebook: NotebookNode) -> list[list[dict[str, str]]]:
    """Return of each cell with code what it shows, without what depends on the run and on the version of a library."""
    return [
        [_texts(output) for output in cell.outputs if output.output_type != "error"]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _texts(output: NotebookNode) -> dict[str, str]:
    found = {"text/plain": output.text} if output.output_type == "stream" else output.data
    kept = {kind: text for kind, text in found.items() if kind != "text/html" or text.startswith("<pre")}
    return {kind: _VARIES.sub("… a second", text) for kind, text in kept.items()}


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, 4)
    expected = shown(stored)
    assert any("text/html" in output for cell in expected for output in cell)
    assert shown(executed(stored, tmp_path)) == expected, "python -m tests.notebook_outputs stores what they show now"


DECLARE = """
    import tempfile
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import BaseFunction, Count

    folder = tempfile.mkdtemp()
    settings = dict({engine}, log_dir=folder + "/log")

    def declare(rows):
        topology = TridentTopology("marks")
        stream = topology.new_stream("in", FixedBatchSpout("w: string", 2, *([w] for w in rows)))
        marked = stream.map(mark, "w: string").each("w", Repeat(), "v")
        marked.group_by("v").persistent_aggregate(DeltaState.opaque(folder + "/count"), Count(), "count")
        return topology
"""
STEPS = """
    SIGN = "{sign}"

    def mark(row):
        return [row["w"] + SIGN]

    class Repeat(BaseFunction):
        output_types = ("string",)

        def execute(self, tuple, collector):
            collector.emit([tuple[0] * {times}])

    topology = declare("{rows}")
    running = topology.start(settings)
    running.show_progress(until_caught_up=True)
    print(sorted(running.state("count").get_tuples()))
"""
STOP = "running.stop()"


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", ['engine="in_process"', pytest.param('master="local[2]"', marks=[pytest.mark.spark, pytest.mark.long])]
)
def test_steps_are_redefined_in_a_kernel_that_goes_on(engine: str, tmp_path: Path) -> None:
    first, second = STEPS.format(sign="!", times=1, rows="aba"), STEPS.format(sign="?", times=2, rows="abab")
    cells = [DECLARE.format(engine=engine), first, STOP, second, STOP, second.replace("abab", "ababc"), STOP]
    notebook = new_notebook(cells=[new_code_cell(textwrap.dedent(cell)) for cell in cells])
    done = executed(notebook, tmp_path)
    printed = [output.text.strip() for cell in done.cells for output in cell.outputs if output.get("name") == "stdout"]
    before = "('a!', 2), "
    assert printed == [
        "[('a!', 2), ('b!', 1)]",
        f"[{before}('b!', 1), ('b?b?', 1)]",
        f"[{before}('b!', 1), ('b?b?', 1), ('c?c?', 1)]",
    ]
    displays = [[output for output in cell.outputs if output.output_type == "display_data"] for cell in done.cells]
    assert [len(each) for each in displays] == [0, 1, 0, 1, 0, 1, 0]
    assert "running" in displays[1][0].data["text/html"]
