"""`trident verify` and `trident why` as their users run them."""

import io
import json
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import trident
from tests.harness.commands import write_module
from tests.harness.topology_runs import run_all
from trident.cli.app import app
from trident.cli.state_commands import _MoveLines
from trident.targets import load_topology

pytestmark = pytest.mark.slow

TEXT = "the cow\nthe moon\n"
TARGET = "proof_words:topology"
MODULE = """
    from spouts import TextFileSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count, Split

    topology = TridentTopology("words")
    words = topology.new_stream("lines", TextFileSpout("books")).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(DeltaState.opaque("table"), Count(), "count")
    words.persistent_aggregate(DeltaState.opaque("total"), Count(), "total")

    new = TridentTopology("words")
    fewer = new.new_stream("lines", TextFileSpout("books")).each("line", Split(), "word").where("word != 'cow'")
    fewer.group_by("word").persistent_aggregate(DeltaState.opaque("table"), Count(), "count")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, where two batches were committed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "proof_words", raising=False)  # that of the test before
    write_module(tmp_path, "proof_words", MODULE)
    (tmp_path / "books").mkdir()
    for name, text in {"a.txt": TEXT, "b.txt": "the cow\n"}.items():
        (tmp_path / "books" / name).write_text(text)
        run_all(load_topology(TARGET), "in_process", history="7d")
    return tmp_path


def command(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "400", "NO_COLOR": "1"})


def test_equal_states_are_a_line_each_and_a_changed_file_is_an_error(folder: Path) -> None:
    done = command("verify", TARGET)
    assert done.stdout == "count: equal: 3 keys, after batch 2\ntotal: equal: 1 key, after batch 2\n", done.output
    assert done.exit_code == 0
    done = command("verify", TARGET, "count", "--key", "the", "--json")
    expected = {"state": "count", "txid": 2, "equal": 1, "wrong": [], "refused": "", "notes": []}
    assert json.loads(done.stdout) == expected
    (folder / "books" / "a.txt").write_text("the cat\nthe moon\n")
    done = command("verify", TARGET)
    assert done.exit_code == 1
    assert "batch 1 of topology 'words' cannot be processed again, at step 'lines': " in done.stderr


@pytest.mark.long
def test_wrong_keys_are_a_table_and_an_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trident.replay.verifying as verifying

    monkeypatch.setattr(verifying, "is_same", lambda found, expected: found == 3)  # Delta is not written by hand
    done = command("verify", TARGET, "count")
    assert done.exit_code == 4
    head, columns, *rows = done.stdout.splitlines()
    assert head == "count: 2 of 3 keys wrong, after batch 2"
    assert columns.split() == ["key", "found", "expected", "wrong"]
    assert sorted(row.split() for row in rows)[0] == ["cow", "2", "2", "since", "a", "batch", "before", "2"]
    done = command("verify", TARGET, "count", "--json")
    assert {one["key"][0] for one in json.loads(done.stdout)["wrong"]} == {"cow", "moon"}


def test_the_batches_that_made_a_word_are_a_line_each(folder: Path) -> None:
    done = command("why", TARGET, "count", "the", "--rows", "1")
    first, row, second, _ = done.stdout.splitlines()
    assert first.startswith("1  ")
    assert "– -> 2 (2 rows: 2)" in first
    assert "lines: " in first
    assert json.loads(row) == {"line": "the cow", "word": "the"}
    assert "2 -> 3 (1 row: 1)" in second
    done = command("why", TARGET, "total", "--last", "1", "--json")
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["txid"], line["count"], line["before"], line["after"]) == (2, 2, 4, 6)
    done = command("why", TARGET, "count", "nobody")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "count: no batch has written nobody" in done.stderr


def test_totals_that_new_code_would_change_are_a_table_and_an_exit_code(folder: Path) -> None:
    done = command("rehearse", TARGET, "--to", "proof_words:new", "--last", "1")
    gone, count, columns, row, total = done.stdout.splitlines()
    assert gone == "gone: state 'total' stays as it is, and gets no further batch"
    assert count == "count: 1 of 2 keys would be another, by batches 2 to 2"
    assert (columns.split(), row.split()) == (["key", "now", "former", "code", "new", "code"], ["cow", "2", "3", "2"])
    assert total == "total: not compared: the new code does not write it"
    assert done.exit_code == 4
    done = command("rehearse", TARGET, "--to", TARGET, "--json")
    first, _ = map(json.loads, done.stdout.splitlines())
    assert (first["state"], first["first"], first["equal"], first["changed"]) == ("count", 1, 3, [])
    assert done.exit_code == 0


def test_new_code_that_would_be_refused_is_no_success(folder: Path) -> None:
    text = textwrap.dedent(MODULE).partition("new = ")[0].replace('group_by("word")', 'group_by("line")')
    write_module(folder, "refused_words", text)
    done = command("rehearse", TARGET, "--to", "refused_words:topology", "--last", "1")
    assert done.stdout.startswith("refused: state 'count': key ")
    assert done.exit_code == 4


@pytest.mark.long
def test_new_code_of_another_folder_has_its_own_modules_of_the_same_names(folder: Path) -> None:
    for name, condition in {"former": "word != ''", "new": "word != 'cow'"}.items():
        (folder / name).mkdir()
        write_module(folder / name, "proof_condition", f'WANTED = "{condition}"')
        text = textwrap.dedent(MODULE).partition("new = ")[0].replace(', "word")\n', ', "word").where(WANTED)\n')
        write_module(folder / name, "proof_words", f"from proof_condition import WANTED\n{text}")
    former, new = (f"{folder}/{name}/proof_words.py:topology" for name in ("former", "new"))
    done = command("rehearse", former, "--to", new, "--last", "1")
    means, count_line = done.stdout.splitlines()[:2]
    assert means == "the totals go on: no state or stream is declared differently"
    assert count_line == "count: 1 of 2 keys would be another, by batches 2 to 2", done.output
    count, total = trident.rehearse_upgrade(former, new, 1)
    assert list(count.changed) == [(("cow",), 2, 3, 2)]
    assert list(total.changed) == [((), 6, 8, 7)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", TARGET, "--share", "2"), "2: more than 0, and at most 1"),
        (("verify", TARGET, "--key", "the"), "name the state that the keys belong to"),
    ],
)
def test_wrong_usage_is_said(words: tuple[str, ...], said: str) -> None:
    done = command(*words)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.quick
@pytest.mark.parametrize(("is_terminal", "end"), [(True, "\x1b[2K"), (False, "s left\n")])
def test_how_far_a_move_is_leaves_nothing_on_a_terminal(is_terminal: bool, end: str) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=60)
    with _MoveLines(console, "count", every_s=0.0) as lines:
        lines.note("copied", 5, 10)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("count: copied, 5 of 10 rows" in shown, shown.endswith(end)) == (True, True), shown
