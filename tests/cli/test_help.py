"""The help of the commands, what they import, and the page of the documentation that must not fall behind it."""

import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command_list import PAGE, with_tables
from tests.harness.commands import trident
from trident import __version__
from trident.cli import main
from trident.cli.app import app
from trident.log.file_log import FileLog

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


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--version"], ["run", "--help"], ["doctor"]])
def test_output_that_finds_no_room_is_an_error_in_a_line(words: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "trident.cli", *words]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device: what the command writes is not complete. Make room\n"


@pytest.mark.quick
def test_ctrl_c_while_modules_are_loaded_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_the_help_names_every_command() -> None:
    assert all(re.search(rf"^│ {name} ", help_of(), re.MULTILINE) for name in COMMANDS)


def test_the_help_has_first_what_is_used_each_day() -> None:
    daily, _, clusters = help_of().partition("─ Clusters ─")
    parts = daily.partition("─ Commands ─")[2], clusters
    first = [re.findall(r"^│ ([a-z-]+) ", part, re.MULTILINE)[:4] for part in parts]
    assert first == [["run", "get", "log", "explain"], ["up", "submit", "list", "show"]]


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_usage_has_doubled_brackets(name: str) -> None:
    usages = re.findall(r"Usage: (.*)", help_of(name))
    assert usages
    assert not [usage for usage in usages if re.search(r"\[\[|\.\.\..?\.\.\.", usage)]


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("submit words.py:topology --timeout 5", "--timeout says nothing without --wait; add that"),
        ("upgrade words words.py:topology --timeout 5", "--timeout says nothing without --wait; add that"),
        ("run words.py:topology --ui-port 0", "--ui-port says nothing without --ui; add that"),
        ("run words.py:topology --drpc-host db", "--drpc-host says nothing without --drpc-port; add that"),
        ("changes words.py:topology count --follow --host db", "--host says nothing without --port; add that"),
        ("changes words.py:topology count --snapshot --since 5", "say --since, or --snapshot"),
        ("log words --history --last 5", "--last: is not for --history"),
        ("log words --since 2", "is for --history"),
        ("get shops:topology sales --by revenue", "is for --top"),
        ("get shops:topology sales --top 3 --all", "only one"),
    ],
)
def test_an_option_that_would_do_nothing_is_wrong_usage(words: str, said: str) -> None:
    result = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert (result.exit_code, said in result.output) == (2, True)


def test_the_help_says_how_a_run_ends() -> None:
    assert "130 ended by Ctrl-C, 143 ended by SIGTERM" in " ".join(help_of("run").split())


def test_the_page_has_the_options_of_the_help() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), "python -m tests.command_list writes the tables of docs/command-line.md"


def test_without_a_command_the_help_is_shown() -> None:
    assert "Usage: trident" in CliRunner().invoke(app, [], prog_name="trident").output


ENGINES = ("pyspark", "py4j", "pyarrow", "pandas", "numpy")

SERVERS = ("starlette", "uvicorn", "httpx", "psutil", "kazoo", "obstore", "redis", "psycopg", "confluent_kafka")

FRAMEWORK = ("trident.topology", "trident.stream", "trident.state", "trident.log", "trident.run")

PROGRAM = """
import sys
from trident.cli.app import app

heavy = sys.argv.pop(1).split(",")
try:
    app(prog_name="trident")
finally:
    sys.stderr.write(repr(sorted(name for name in heavy if name in sys.modules)))
"""


def loaded(heavy: tuple[str, ...], *words: str, cwd: Path) -> str:
    """Run a command in a new process; return which of the modules it has imported."""
    command = [sys.executable, "-c", PROGRAM, ",".join(heavy), *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "get --help", "dead-letters list --help", "crashtest --help", "--version"])
def test_help_imports_neither_an_engine_nor_the_framework(words: str, tmp_path: Path) -> None:
    assert loaded((*ENGINES, *SERVERS, *FRAMEWORK, "deltalake"), *words.split(), cwd=tmp_path) == "[]"


@pytest.mark.slow
def test_a_look_into_a_log_imports_neither_an_engine_nor_a_client_of_a_server(tmp_path: Path) -> None:
    FileLog.open(tmp_path / "log", "t").close()
    assert loaded((*ENGINES, *SERVERS, "trident.topology"), "log", "log", cwd=tmp_path) == "[]"
