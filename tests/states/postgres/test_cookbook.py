"""The cookbook's table for a web page: a plain client reads what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from tests.states.postgres.postgres_states import Home

_PAGE = Path(__file__).parents[3] / "docs" / "cookbook.md"


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
