"""The tables of docs/operations.md and docs/storm/bolts.md say what the code says and gives, on both engines."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import trident
import trident.operations
import trident.storm
from states.memory import MemoryMapState
from tests.harness.connect_servers import ConnectServer
from tests.harness.topology_runs import RowsSpout, keep, run_all
from tests.test_docs import DOCS, blocks, environment, lookup, rows, text_of
from trident import Fields, GroupedStream, Stream, TridentState, TridentTopology
from trident.storm import StormTopology
from trident.storm.storm_topology import GroupingKind

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
_NOT_OPERATIONS = {
    "fields", "get_name", "get_output_fields", "get_group_fields", "state_name", "new_stream", "new_drpc_stream", "start",
    "explain", "graph", "placement", "foreach_batch", "config", "settings",
    "describe", "to_mermaid", "set_memory_load", "node_id",
}  # fmt: skip
_INTERFACES = {
    "Aggregator", "ArrowFilter", "ArrowFunction", "Assembly", "Counter", "Expression",
    "BaseAggregator", "BaseFilter", "BaseFunction", "BaseMultiReducer", "BaseOperation",
    "BaseQueryFunction", "BaseStateUpdater", "CombinerAggregator", "Consumer", "Filter", "FlatMapFunction", "Function",
    "GroupedMultiReducer", "MapFunction", "MultiReducer", "Operation", "ReducerAggregator", "TridentOperationContext",
    "WindowConfig", "KeyedProcess", "Timers",
}  # fmt: skip


@dataclass
class Table:
    """Fields, and the rows of each batch."""

    fields: Fields
    batches: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One operation of the page."""

    title: str
    code: str
    inputs: dict[str, Table]
    results: dict[str, Table]


def cases(page: str) -> Iterator[Case]:
    """Read the sections that have code of the language `py`."""
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        (code,) = re.findall(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL) or [""]
        assert code, f"no code: {title}"
        streams = streams_of(section)
        made = {name for names in re.findall(r"^([\w, ]+) = ", code, re.MULTILINE) for name in names.split(", ")}
        results = {name: table for name, table in streams.items() if name in made}
        assert results, f"nothing comes out: {title}"
        yield Case(title, code, {name: table for name, table in streams.items() if name not in made}, results)


def streams_of(section: str) -> dict[str, Table]:
    """Read the table whose first column is the batch."""
    header, _, *batches = (
        cells(line) for line in re.findall(r"^\| batch .*\n(?:\|.*\n)+", section, re.MULTILINE)[0].splitlines()
    )
    tables = []
    for column, head in enumerate(header[1:], 1):
        name, fields = re.fullmatch(r"`(\w+)` (.*)", head).groups()  # type: ignore[union-attr]
        table = Table(Fields(fields))
        for batch in batches:
            rows = [row for row in batch[column].split(" · ") if row]
            if rows:
                table.batches[int(batch[0])] = [tuple(values_of(row, table.fields)) for row in rows]
        tables.append((name, table))
    return dict(tables)


def values_of(row: str, fields: Fields) -> Iterator[Any]:
    values = parts(row)
    return (value_of(value, type_) for value, type_ in zip(values, fields.types, strict=True))


def parts(row: str) -> list[str]:
    """Split at commas that are in no brackets."""
    found, depth = [""], 0
    for letter in row:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [value.strip() for value in found]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def value_of(cell: str, type_: str | None) -> Any:
    if cell == "null":
        return None
    return cell if type_ == "string" else ast.literal_eval(cell)


def ran(case: Case, engine: str) -> dict[str, Table]:
    """Run the code over the rows, with two parts and partitions; return what came out of each stream of the results."""
    topology = TridentTopology("operations")
    names: dict[str, Any] = {name: getattr(trident, name) for name in trident.__all__}  # some are imported when used
    names |= {**vars(trident.operations), "MemoryMapState": MemoryMapState}
    names |= {"topology": topology, "timedelta": timedelta}
    for name, table in case.inputs.items():
        spout = RowsSpout(", ".join(table.fields.typed), table.batches)
        names[name] = topology.new_stream(name, spout)
    exec(compile(case.code, case.title, "exec"), names)
    kept = {name: keep(names[name], f"kept-{name}") for name in case.results}
    run_all(topology, engine, parallelism=2)
    return {
        name: Table(names[name].fields, {txid: batch for txid, batch in rows.batches.items() if batch})
        for name, rows in kept.items()
    }


def in_any_order(table: Table) -> dict[int, list[tuple[Any, ...]]]:
    return {batch: sorted(rows, key=repr) for batch, rows in table.batches.items()}


CASES = list(cases(PAGE.read_text(encoding="utf-8")))


@pytest.mark.sample(60)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_an_operation_gives_what_the_page_says(case: Case, engine: str) -> None:
    for name, found in ran(case, engine).items():
        assert found.fields.typed == case.results[name].fields.typed, name
        assert in_any_order(found) == in_any_order(case.results[name]), name


def test_every_operation_is_on_the_page() -> None:
    code = "".join(case.code for case in CASES)
    offered = {
        name
        for handle in (Stream, GroupedStream, TridentState, TridentTopology)
        for family in handle.__mro__
        if family.__module__.startswith("trident.")
        for name in vars(family)
        if not name.startswith("_")
    }
    assert [name for name in sorted(offered - _NOT_OPERATIONS) if f".{name}(" not in code] == []
    built_in = set(importlib.import_module("trident.operations").__all__) - _INTERFACES
    missing = [name for name in sorted(built_in) if not re.search(rf"\b{name}[.(]", code)]
    assert missing == [], "use it in a program of docs/operations.md, and show what it gives"


@pytest.mark.parametrize(
    "wrong", ["a: int |\n|---|---|---|\n| 1 | 4 | 5 |\n", "a: bigint |\n|---|---|---|\n| 1 | 4 | 4 |\n"]
)
def test_a_wrong_table_is_found(wrong: str) -> None:
    page = f"### x\n```py\nout = s.project('a')\n```\n| batch | `s` a: int | `out` {wrong}"
    (case,) = cases(page)
    with pytest.raises(AssertionError):
        test_an_operation_gives_what_the_page_says(case, "in_process")


BOLTS_PAGE = DOCS / "storm" / "bolts.md"
(PROGRAM,) = blocks(DOCS / "deploying.md", "py")
_NAME = re.compile(r"`([A-Z]\w*(?:\.\w+)?)`")


def test_every_name_of_the_table_of_names_is_there() -> None:
    table = rows(text_of(BOLTS_PAGE), "| Storm | streamparse | here |")
    assert len(table) > 20
    for *_, here in table:
        names = _NAME.findall(here)
        assert names or "trident.storm.testing" in here, here
        for name in names:
            assert lookup("trident.storm", name) is not None


def test_every_class_that_users_need_is_named() -> None:
    users = set(trident.storm.__all__) - {"WorkerLostError", "SpoutDeclarer", StormTopology.__name__}
    page = text_of(BOLTS_PAGE)
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


@pytest.mark.parametrize("row", rows(text_of(BOLTS_PAGE), "| error | what to do |"), ids=lambda row: row[0])
def test_every_error_that_is_explained_is_raised(row: list[str]) -> None:
    assert row[0].strip("`") in TEXTS


def test_every_grouping_is_explained() -> None:
    said = " ".join(row[0] for row in rows(text_of(BOLTS_PAGE), "| call | a tuple goes to |"))
    kinds: tuple[str, ...] = GroupingKind.__args__  # type: ignore[attr-defined]
    assert [kind for kind in kinds if f"`{kind}_grouping(" not in said] == []


def test_every_figure_is_explained() -> None:
    said = " ".join(row[0] for row in rows(text_of(BOLTS_PAGE), "| figure | |"))
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
