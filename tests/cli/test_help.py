"""The help of the commands, and the page of the documentation that must not fall behind it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command_list import PAGE, with_tables
from tests.harness.commands import trident
from trident import __version__
from trident.cli.app import app

COMMANDS = (
    "run", "ui", "get", "drpc", "log", "dead-letters", "state", "explain", "demo", "crashtest", "up", "nimbus", "supervisor",
    "submit", "upgrade", "doctor", "list", "show", "activate", "deactivate", "kill", "rebalance", "errors", "logs",
)  # fmt: skip


def help_of(*words: str) -> str:
    """Return the help of a command; of one that has commands of its own theirs as well."""
    own = [_shown(*words)]
    below = {"dead-letters": ("list", "show", "replay"), "state": ("move", "migrate")}
    own += [_shown(*words, name) for name in below.get(" ".join(words), ())]
    return "".join(own)


@cache
def _shown(*words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = trident("--version", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"trident {__version__} (PySpark ")


def test_the_help_names_every_command() -> None:
    assert all(re.search(rf"^│ {name} ", help_of(), re.MULTILINE) for name in COMMANDS)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    assert re.search(rf"Example: trident {name}\b", help_of(name))


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--state-dir", "s3://bucket/demo"],
        ["log", "dbfs:/log"],
        ["run", "nowhere:topology", "--log-dir", "dbfs:/log"],
        ["get", "nowhere:topology", "count", "--log-dir", "dbfs:/log"],
    ],
)
def test_an_address_is_no_folder(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words, env={"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 2
    assert "must be a folder on a local disk" in result.output
    assert not list(tmp_path.iterdir())


def test_the_help_says_how_a_run_ends() -> None:
    assert "130 ended by Ctrl-C, 143 ended by SIGTERM" in " ".join(help_of("run").split())


def test_the_page_has_the_options_of_the_help() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), "python -m tests.command_list writes the tables of docs/command-line.md"


def test_without_a_command_the_help_is_shown() -> None:
    assert "Usage: trident" in CliRunner().invoke(app, [], prog_name="trident").output
