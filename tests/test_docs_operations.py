"""The tables of docs/operations.md are true, on both engines: the code makes of the rows on the left those on the right.

A row of a table is a batch. A column is a stream, with its fields; one that the code assigns is a result, any other goes in.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import trident
import trident.operations
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, keep, run_all
from trident import Fields, GroupedStream, Stream, TridentState, TridentTopology

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
_NOT_OPERATIONS = {
    "fields", "get_name", "get_output_fields", "get_group_fields", "state_name", "new_stream", "new_drpc_stream", "start",
    "explain", "graph", "placement", "foreach_batch", "config", "settings",
    "describe", "to_dot", "to_mermaid", "set_memory_load", "node_id",
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
