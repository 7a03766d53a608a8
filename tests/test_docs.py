"""The documentation is true: its programs run, its commands parse, its tables say what the code says."""

import dataclasses
import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from spouts import FixedBatchSpout
from spouts.messages import MessageSpout
from states.memory import MemoryMapState
from tests import settings_tables
from tests.crash.fuse import POINTS
from tests.harness.forked import run_python
from tests.module_list import module_list
from trident import TridentTopology
from trident.cli.app import app
from trident.errors import InexactPairingError
from trident.operations import Count
from trident.setting_types import Settings
from trident.spout import SpoutType, TransactionAttempt
from trident.state import StateType

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PACKAGES = ("trident", "states", "spouts")
_TIMEOUT_S = 110.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in _BLOCK.findall(text_of(page)) if language in languages]


def rows(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose header line begins so."""
    lines = text[text.index(f"\n{header}") + 1 :].splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in itertools.islice(table, 2, None)]


# These start Spark or a server, or work for a second or more.
_LONG = (
    "2-a-topology.md-1", "changing-a-job.md-2", "changing-a-job.md-3", "internals/delta-beyond-memory.md-1",
    "keep-your-query.md-1", "keep-your-query.md-2", "keep-your-query.md-3", "monitoring.md-1", "reading-states.md-2",
    "spouts/kafka.md-1", "states/cassandra.md-1", "states/delta.md-1", "storm/bolts.md-1", "testing.md-3",
    "writing-a-spout.md-2", "writing-a-state.md-3",
)  # fmt: skip
PROGRAMS = [
    pytest.param(
        code,
        1 + (number == 1),  # who has tried the first one of a page tries it again
        id=(name := f"{name_of(page)}-{number}"),
        marks=[pytest.mark.long] if name.endswith(_LONG) else [],
    )
    for page in PAGES
    if page.name != "README.md"
    for number, code in enumerate(blocks(page, "python"), 1)
]


def environment() -> dict[str, str]:
    """Return an environment in which `trident` is found, Spark uses two cores and warnings are errors of a program."""
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error::UserWarning",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell",
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("code", "times"), PROGRAMS)
def test_a_program_runs(code: str, times: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    told = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    for again in range(times):
        done = run_python("program.py", cwd=tmp_path, variables=environment(), timeout_s=_TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        lines = done.stdout.splitlines()
        assert (
            lines[-1 if again else 0 :] == told[-1 if again else 0 :]
        )  # it goes on: what is printed first may be more


def commands(page: Path) -> Iterator[str]:
    """Iterate over what a page tells its readers to type: in blocks, and inside of sentences."""
    for block in blocks(page, "sh", ""):
        yield from (line for line in block.splitlines() if re.match(r"(\S*/)?(trident|make) ", line))
    prose = _BLOCK.sub("", text_of(page))
    yield from re.findall(r"`((?:[\w./]*/)?(?:trident|make) [^`]+)`", prose)


COMMANDS = sorted({(name_of(page), command) for page in PAGES for command in commands(page)})


# Typer has a click of its own, or that of the environment, as its version will have it.
_UsageError: type[BaseException] = typer.BadParameter.__mro__[1]


@cache
def command_line() -> object:
    return typer.main.get_command(app)


def parse(command: str) -> None:
    """Let the command line read the words as if it ran them; `_UsageError` if it cannot.

    A command that is named only, without arguments, need not be complete.
    """
    group: Any = command_line()
    words = shlex.split(command, comments=True)[1:]
    with group.make_context("trident", list(words)) as context:
        name, found, rest = group.resolve_command(context, words)
        found.make_context(name, rest, resilient_parsing=not rest)


def test_a_command_is_understood() -> None:
    for page, command in COMMANDS:
        try:
            if "make " not in command:
                parse(command)
        except _UsageError as error:
            raise AssertionError(f"{page}: {command}") from error


@pytest.mark.parametrize(
    "command", ["trident rum a:b", "trident run a:b --one", "trident log --json", "trident log d --last x"]
)
def test_a_command_that_is_not_understood_is_found(command: str) -> None:
    with pytest.raises(_UsageError):
        parse(command)


def test_every_target_of_make_is_there() -> None:
    targets = {
        name for line in re.findall(r"^([a-z].*?):", text_of(ROOT / "Makefile"), re.MULTILINE) for name in line.split()
    }
    named = {shlex.split(command, comments=True)[1] for _, command in COMMANDS if command.startswith("make ")}
    assert {"demo", "test"} <= named <= targets


def test_the_tests_that_make_compat_runs_are_there() -> None:
    named = subprocess.check_output(["make", "-s", "--eval=p:;@echo $(COMPAT_TESTS)", "p"], cwd=ROOT, text=True).split()
    assert [name for name in named if (ROOT / name).exists()] == named != []


@pytest.mark.parametrize("page", [*settings_tables.PAGES, settings_tables.README])
def test_the_tables_of_settings_are_those_that_are_declared(page: str) -> None:
    assert text_of(DOCS / page) == settings_tables.written(page), "write it again: python -m tests.settings_tables"


@pytest.mark.parametrize("declared", settings_tables.PAGES.values())
def test_every_setting_is_described_once(declared: type[Settings]) -> None:
    for each in declared.__mro__:
        own = [name for names, _ in settings_tables.entries(each) for name in names] if is_dataclass(each) else []
        assert sorted(set(own)) == sorted(own), each
    described = [each for each in declared.__mro__ if is_dataclass(each)]
    told = {name for names, _ in settings_tables.entries(*described) for name in names}
    assert told == {field.name for field in dataclasses.fields(declared)}


def test_advice_names_the_defaults_that_are_declared() -> None:
    checked = 0
    for page, declared in settings_tables.PAGES.items():
        known = {field.name: field.default for field in dataclasses.fields(declared)}
        for name, told in settings_tables.advice(text_of(DOCS / page)).items():
            if isinstance(known.get(name), (bool, int, float, str)):
                shown = [part.replace(",", "").strip('`"') for part in re.split(r"[;,] ", told)]
                assert f"{known[name]:g}" if isinstance(known[name], float) else str(known[name]) in shown, (page, name)
                checked += 1
    assert checked > 15


_NAME_HEADERS = (
    "| of | the same name | where |",
    "| Storm | here | where |",
    "| setting of Storm | here | where |",
    "| use | here | where |",
    "| class of Storm | here | where |",
)
NAMES = [row for header in _NAME_HEADERS for row in rows(text_of(DOCS / "storm" / "coming-from-storm.md"), header)]
BUILT = [row for row in NAMES if row[2].startswith("`")]


def lookup(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def is_there(module: str, name: str) -> bool:
    try:
        lookup(module, name)
    except AttributeError:
        return False
    return True


def test_a_name_that_is_built_is_there() -> None:
    for row in BUILT:
        names, (module,) = _NAME.findall(row[1]), _NAME.findall(row[2])
        assert names, row
        assert [name for name in names if not is_there(module, name)] == [], row


def test_every_row_of_the_names_says_where() -> None:
    assert [row for row in NAMES if len(row) != 3 or not (row in BUILT or row[2].startswith("–"))] == []
    assert len(BUILT) > 50


def test_every_operation_of_ours_is_among_the_names() -> None:
    """What the fluent classes offer under Trident's names is in the table, so nothing is built in secret."""
    listed = {name for row in BUILT for name in _NAME.findall(row[1])}
    ours = {
        f"{cls.__name__}.{name}"
        for cls in (lookup("trident", n) for n in ("Stream", "GroupedStream", "TridentState", "TridentTopology"))
        for family in cls.__mro__
        if family.__module__.startswith("trident.")
        for name, value in vars(family).items()
        if callable(value) and not name.startswith("_")
    }
    assert ours - listed - {"TridentTopology.graph"} == set()
    operations = importlib.import_module("trident.operations").__all__
    assert set(operations) - listed == set()


MATRIX = "| | non-transactional state | transactional state | opaque state |"
PAIRS = list(itertools.product(SpoutType, StateType))


def matrix_of(page: Path) -> Mapping[tuple[str, str], bool]:
    header = [cell.strip().removesuffix(" state") for cell in MATRIX.strip("|").split("|")][1:]
    return {
        (spout.removesuffix(" spout"), state): cell == "**exact**"
        for spout, *cells in rows(text_of(page), MATRIX)
        for state, cell in zip(header, cells, strict=True)
    }


@pytest.mark.parametrize(("promise", "kind"), PAIRS, ids=lambda one: one.value)
def test_the_matrix_says_what_is_accepted(promise: SpoutType, kind: StateType) -> None:
    topology = TridentTopology("matrix")
    spout = FixedBatchSpout("word: string", 2, ("the",), ("the",), ("the",))
    spout.spout_type = promise
    counts = (
        topology.new_stream("words", spout)
        .group_by("word")
        .persistent_aggregate(MemoryMapState(kind=kind), Count(), "count")
    )
    try:
        with topology.start(engine="in_process") as running:
            running.process_all_available()
            accepted = running.state(counts).multi_get(["the"]) == [3]
    except InexactPairingError:
        accepted = False
    for page in ("README.md", "docs/guarantees.md"):
        assert matrix_of(ROOT / page)[promise.value, kind.value] is accepted, page


def test_the_table_of_spouts_has_the_promise_of_each() -> None:
    said = {
        name: promise
        for names, promise, *_ in rows(text_of(DOCS / "spouts.md"), "| spout | promise | a batch is |")
        for name in _NAME.findall(names)
    }
    spouts = importlib.import_module("spouts")
    all_spouts = {name for name in spouts.__all__ if name.endswith("Spout")}
    of_batches = {name for name in all_spouts if not issubclass(vars(spouts)[name], MessageSpout)}
    declared = {name: vars(spouts)[name].spout_type for name in of_batches}
    words = {SpoutType.NON_TRANSACTIONAL: "none"}
    assert said == {name: words.get(promise, promise.value) for name, promise in declared.items()}
    single = rows(text_of(DOCS / "storm" / "bolts.md"), "| spout | reads |")
    assert {name for cell, *_ in single for name in _NAME.findall(cell)} == all_spouts - of_batches


def test_the_points_of_death_are_those_that_are_tested() -> None:
    table = rows(text_of(DOCS / "guarantees.md"), "| point | the driver ends … | the next driver … |")
    assert {point: where for point, where, _ in table} == POINTS


def test_every_rule_that_the_code_names_is_explained() -> None:
    tables = {"guarantees.md": "| rule | |", "storm/coming-from-storm.md": "| defect | in Storm | here |"}
    explained = {row[0] for page, header in tables.items() for row in rows(text_of(DOCS / page), header)}
    named = {rule for path in modules() for rule in re.findall(r"\b[RH]\d{1,2}\b", text_of(ROOT / path))}
    assert named
    assert named - explained == set()


def modules() -> list[str]:
    """Return the paths of all modules; an `__init__` only names what the others hold."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(name_of(path) for path in found if path.name != "__init__.py")


def test_the_list_of_modules_is_that_of_their_first_lines() -> None:
    assert re.findall(r"^- `(.*?)`: .", module_list(), re.MULTILINE) == sorted(
        modules(), key=lambda path: path.rpartition("/")[::2]
    )


def test_every_path_that_is_named_is_there() -> None:
    for page in PAGES:
        named = re.findall(r"`((?:trident|states|spouts|tests|docs|examples)/[\w./]*)`", text_of(page))
        assert [path for path in named if not (ROOT / path).exists()] == [], page


def test_the_functions_in_the_life_of_a_batch_are_in_their_files() -> None:
    page = "\n".join(text_of(DOCS / "internals" / f"{name}.md") for name in ("architecture", "placement"))
    life = rows(page, "| step | file | functions |")
    header = "| file | function | what it does |"
    walks = [row for part in page.split("\n## ") if header in part for row in rows(part, header)]
    assert len(life) >= 5
    assert len(walks) >= 25
    for file, functions in [*((file, functions) for _, file, functions in life), *((one[0], one[1]) for one in walks)]:
        names = re.findall(r"`(\w+)`", functions)
        defined = re.findall(r"^ *(?:def|class) (\w+)", text_of(ROOT / file.strip("`")), re.MULTILINE)
        assert names
        assert set(names) <= set(defined), file


def test_the_architecture_is_read_in_an_hour() -> None:
    page = text_of(DOCS / "internals" / "architecture.md")
    assert len(page.splitlines()) <= 220
    assert len(rows(page, "| … | file |")) <= 60


@pytest.mark.parametrize("page", ["guarantees.md", "command-line.md"])
def test_an_attempt_is_written_as_it_is_shown(page: str) -> None:
    text = text_of(DOCS / page)
    assert f"`{TransactionAttempt(7, (2 << 20) + 1).in_words}`" in text
    assert "epoch.retry" not in text


def test_the_index_has_every_page() -> None:
    index = text_of(DOCS / "README.md") + text_of(DOCS / "spouts.md") + text_of(DOCS / "states.md")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page != DOCS / "README.md"]
    assert [page for page in pages if page not in index] == []
