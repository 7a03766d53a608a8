"""`trident verify` and `trident why` as their users run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.commands import trident, write_module

pytestmark = pytest.mark.slow

MODULE = """
    from spouts import TextFileSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count, Split

    topology = TridentTopology("words")
    words = topology.new_stream("lines", TextFileSpout("books")).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(DeltaState.opaque("table"), Count(), "count")
    words.persistent_aggregate(DeltaState.opaque("total"), Count(), "total")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "words", MODULE)
    (tmp_path / "books").mkdir()
    for name, text in {"a.txt": "the cow\nthe moon\n", "b.txt": "the cow\n"}.items():
        (tmp_path / "books" / name).write_text(text)
        settings = ("--conf", "engine=in_process", "--conf", "history=7d")
        done = trident("run", "words:topology", "--once", *settings, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_equal_states_are_a_line_each_and_a_changed_file_is_an_error(folder: Path) -> None:
    done = trident("verify", "words:topology", cwd=folder)
    assert done.stdout == "count: equal: 3 keys, after batch 2\ntotal: equal: 1 key, after batch 2\n", done.stderr
    assert done.returncode == 0
    done = trident("verify", "words:topology", "count", "--key", "the", "--json", cwd=folder)
    assert json.loads(done.stdout) == {
        "state": "count", "txid": 2, "equal": 1, "wrong": [], "refused": "", "notes": []
    }  # fmt: skip
    (folder / "books" / "a.txt").write_text("the cat\nthe moon\n")
    done = trident("verify", "words:topology", cwd=folder)
    assert done.returncode == 1
    assert "batch 1 of topology 'words' cannot be processed again, at step 'lines': " in done.stderr


def test_the_batches_that_made_a_word_are_a_line_each(folder: Path) -> None:
    done = trident("why", "words:topology", "count", "the", "--rows", "1", cwd=folder)
    first, row, second, _ = done.stdout.splitlines()
    assert first.startswith("1  ")
    assert "– -> 2 (2 rows: 2)" in first
    assert "lines: " in first
    assert json.loads(row) == {"line": "the cow", "word": "the"}
    assert "2 -> 3 (1 row: 1)" in second
    done = trident("why", "words:topology", "total", "--last", "1", "--json", cwd=folder)
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["txid"], line["count"], line["before"], line["after"]) == (2, 2, 4, 6)
    assert trident("why", "words:topology", "count", "nobody", cwd=folder).stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "words:topology", "--share", "2"), "2: more than 0, and at most 1"),
        (("verify", "words:topology", "--key", "the"), "name the state that the keys are of"),
    ],
)
def test_wrong_usage_is_said(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = trident(*words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
