"""The tables of docs/storm/bolts.md say what the code says; the program for Spark Connect of docs/deploying.md runs."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trident
import trident.storm
from tests.harness.connect_servers import ConnectServer
from tests.test_docs import DOCS, blocks, environment, lookup, rows, text_of
from trident.storm import StormTopology
from trident.storm.storm_topology import GroupingKind

PAGE = DOCS / "storm" / "bolts.md"
(PROGRAM,) = blocks(DOCS / "deploying.md", "py")
_NAME = re.compile(r"`([A-Z]\w*(?:\.\w+)?)`")


def test_every_name_of_the_table_of_names_is_there() -> None:
    table = rows(text_of(PAGE), "| Storm | streamparse | here |")
    assert len(table) > 20
    for *_, here in table:
        names = _NAME.findall(here)
        assert names or "trident.storm.testing" in here, here
        for name in names:
            assert lookup("trident.storm", name) is not None


def test_every_class_that_users_need_is_named() -> None:
    users = set(trident.storm.__all__) - {"WorkerLostError", "SpoutDeclarer", StormTopology.__name__}
    page = text_of(PAGE)
    assert [name for name in sorted(users) if name not in page] == []


def _texts() -> str:
    """All texts of the code: those that are split over lines are one, and a value is `…`."""
    found = []
    package = Path(trident.__file__).parent
    for path in sorted(path for room in ("storm", "observe") for path in (package / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%\.?\d*[a-z]", "…", node.value))
    return "\n".join(found)


TEXTS = _texts()


@pytest.mark.parametrize("row", rows(text_of(PAGE), "| error | what to do |"), ids=lambda row: row[0])
def test_every_error_that_is_explained_is_raised(row: list[str]) -> None:
    assert row[0].strip("`") in TEXTS


def test_every_grouping_is_explained() -> None:
    said = " ".join(row[0] for row in rows(text_of(PAGE), "| call | a tuple goes to |"))
    kinds: tuple[str, ...] = GroupingKind.__args__  # type: ignore[attr-defined]
    assert [kind for kind in kinds if f"`{kind}_grouping(" not in said] == []


def test_every_figure_is_explained() -> None:
    said = " ".join(row[0] for row in rows(text_of(PAGE), "| figure | |"))
    said += text_of(DOCS / "monitoring.md")
    figures = lookup("trident.observe.component_statistics", "Figures")
    assert [field.name for field in dataclasses.fields(figures) if f"`{field.name}`" not in said] == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_program_for_spark_connect_runs(connect_server: ConnectServer, tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books/moon.txt").write_text("the cow jumped over the moon\n", encoding="utf-8")
    here = PROGRAM.replace('"/data', f'"{tmp_path}').replace("sc://localhost:15002", connect_server.url)
    assert "/data" not in here
    (tmp_path / "program.py").write_text(here, encoding="utf-8")
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, env=environment(), timeout=200, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        if "failed to connect back" not in done.stderr:  # ten seconds were too few for the server's process
            break
    else:
        raise AssertionError("the server is overloaded")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", PROGRAM, re.MULTILINE)
