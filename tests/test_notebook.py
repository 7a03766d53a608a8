"""The display of a running topology: one place in a notebook, lines elsewhere; its end, and Ctrl-C."""

import sys
from types import ModuleType
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import start
from trident import TridentTopology
from trident.errors import TridentError
from trident.notebook import LONGEST, RunningGlance, show, table
from trident.operations import Count

STATUS = {"txid": 0, "tuples": 0, "sources": [], "failures": 0, "leftOut": 0, "deadLetters": 0}


def counting(*values: str, cycle: bool = False) -> TridentTopology:
    topology = TridentTopology("t")
    spout = FixedBatchSpout("k: string", 2, *([value] for value in values), cycle=cycle)
    topology.new_stream("s", spout).group_by("k").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


class Handle:
    """What `display(display_id=True)` returns; `shown` has all that it was given."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def update(self, shown: Any) -> None:
        self.shown.append(shown)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """Stand-ins for the parts of IPython that a notebook has loaded; returns the displays that were made."""
    handles: list[Handle] = []

    def display(shown: Any, display_id: bool) -> Handle:
        assert display_id is True
        handles.append(Handle())
        handles[-1].update(shown)
        return handles[-1]

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    shell = type("Shell", (), {"kernel": object()})()
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(module, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handles


def test_progress_is_printed_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with start(counting("a", "b", "a"), "in_process") as running:
        running.show_progress(until_caught_up=True, every_s=0.01)
    *_, last = lines = capsys.readouterr().out.splitlines()
    assert last.startswith("t: running, batch 2, 3 tuples, ")
    assert last.endswith(" a second, lag s 0 records")
    assert len(set(lines)) == len(lines)


def test_what_stays_as_it_is_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    looks = iter([False, False, True])
    glance = RunningGlance("t", {**STATUS, "message": "running"}, None, 0.0, {})
    show(lambda: glance, lambda: next(looks))
    assert capsys.readouterr().out == "t: running, batch 0, 0 tuples\n"


def test_a_notebook_has_one_display_that_is_brought_up_to_date(
    notebook: list[Handle], capsys: pytest.CaptureFixture[str]
) -> None:
    with start(counting("a", "b", "a"), "in_process") as running:
        running.show_progress(until_caught_up=True, every_s=0.01)
    (handle,) = notebook
    assert handle.shown[-1].status["txid"] == 2
    assert "<td" in handle.shown[-1]._repr_html_()
    assert capsys.readouterr().out == ""


def test_ipython_in_a_terminal_gets_lines(
    notebook: list[Handle], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", object)
    with start(counting("a"), "in_process") as running:
        running.show_progress(until_caught_up=True)
    assert (notebook, "batch 1" in capsys.readouterr().out) == ([], True)


def test_ctrl_c_ends_the_showing_and_not_the_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        lines: list[str] = []  # noqa: RUF012  of this test alone

        def write(self, line: str) -> None:
            self.lines.append(line)
            if len(self.lines) == 3:
                raise KeyboardInterrupt

        def flush(self) -> None: ...

    with start(counting("a", cycle=True), "in_process") as running:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Interrupted())
            try:
                running.show_progress(every_s=0.01)
            except KeyboardInterrupt:
                pytest.fail("Ctrl-C went through")
        assert running.is_active
    assert len(Interrupted.lines) in (3, 4)  # the last look may be the one before


def test_it_ends_with_the_topology(capsys: pytest.CaptureFixture[str]) -> None:
    with start(counting("a"), "in_process") as running:
        running.process_all_available()
    running.show_progress()
    assert capsys.readouterr().out.splitlines()[-1].startswith("t: stopped, batch 1, 1 tuple, ")


def test_it_ends_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    with start(counting("a", cycle=True), "in_process") as running:
        running.show_progress(timeout=0.05, every_s=60)
        assert running.is_active
    assert "t: running" in capsys.readouterr().out


def test_what_ended_the_topology_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("k: bigint", 2, [0]))
    stream.map(lambda row: [1 // row["k"]], "k: bigint").group_by("k").persistent_aggregate(
        MemoryMapState(), Count(), "count"
    )
    running = start(topology, "in_process", max_batch_attempts=1)
    with pytest.raises(TridentError, match="division"):
        running.show_progress()
    assert "t: failed: " in capsys.readouterr().out
    running.stop()
    assert "failures" in running._repr_html_()


def test_a_running_topology_is_a_table() -> None:
    with start(counting("a", "b", "a"), "in_process") as running:
        before = running._repr_html_()
        running.process_all_available()
        html = running._repr_html_()
    assert "last batch" in before
    for part in ("running", "2, 1 tuple in ", "(in process)", "3 tuples, ", "lag of s", "0 records", "state count"):
        assert part in html, part
    assert "1 key in the last batch, committed by the driver" in html
    assert "stopped" in running._repr_html_()


def test_values_are_escaped_and_cut_off() -> None:
    html = table(["<k>"], [["a & b"], [1], ["x" * 500]], caption="<3")
    assert [part in html for part in ("&lt;k&gt;", "a &amp; b", "&lt;3")] == [True] * 3
    assert f">{'x' * LONGEST}…<" in html
    assert 'right">1<' in html
