"""Programs of the documentation that need PostgreSQL: they print, and a plain client reads, what their pages show."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.states.postgres.postgres_states import Home

_DOCS = Path(__file__).parents[3] / "docs"
_PAGE = _DOCS / "cookbook.md"


def test_a_web_page_reads_the_table(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = _PAGE.read_text(encoding="utf-8").partition("## A table in PostgreSQL for a web page")[2]
    program, query, shown = re.findall(r"```py\n(.*?)```\n\n    (SELECT.*?);\n(.*?)\n\n", text, re.DOTALL)[0]
    exec(compile(program, "cookbook", "exec"), {"url": home.url})
    with psycopg.connect(home.url) as db:
        rows = db.execute(query).fetchall()
    assert [[str(value) for value in row] for row in rows] == [
        [cell.strip() for cell in line.split("|")] for line in shown.splitlines()
    ]


def test_a_feed_of_changes_is_printed_and_followed_as_its_pages_show(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (_DOCS / "reading-states.md").read_text(encoding="utf-8").partition("## What each batch changed")[2]
    program, shown = re.findall(r"```py\n(.*?)```\n\n((?:    [^\n]*\n)+)", text, re.DOTALL)[0]
    names: dict[str, Any] = {"url": home.url}
    exec(compile(program, "reading-states", "exec"), names)
    assert capsys.readouterr().out == textwrap.dedent(shown)
    text = (_DOCS / "spouts.md").read_text(encoding="utf-8").partition("## The changes of a state")[2]
    exec(compile(re.findall(r"```py\n(.*?)```", text, re.DOTALL)[0], "spouts", "exec"), names)
    with names["follower"].start(engine="in_process") as running:
        running.process_all_available()
        assert dict(running.state("more").get_tuples()) == {"oslo": 5, "bergen": 5}
