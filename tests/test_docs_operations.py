"""The tables of docs/operations.md are true, on both engines: each block of code makes of the rows before it those after it.

A table's first header is a stream that goes in, or `out`; its first column is the batch.
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
    "describe", "to_dot", "to_mermaid", "to_svg", "set_cpu_load", "set_memory_load", "node_id",
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
    out: Table


def cases(page: str) -> Iterator[Case]:
    """Read the sections that have code of the language `py`."""
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        (code,) = re.findall(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL) or [""]
        tables = dict(tables_of(section))
        assert code, f"no code: {title}"
        assert "out" in tables, f"no table of what comes out: {title}"
        yield Case(title, code, {name: table for name, table in tables.items() if name != "out"}, tables["out"])


def tables_of(section: str) -> Iterator[tuple[str, Table]]:
    for lines in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        header, _, *rest = (cells(line) for line in lines.splitlines())
        table = Table(Fields(header[1:]))
        for batch, *row in rest:
            values = (value_of(cell, type_) for cell, type_ in zip(row, table.fields.types, strict=True))
            table.batches.setdefault(int(batch), []).append(tuple(values))
        yield header[0].strip("`"), table


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def value_of(cell: str, type_: str | None) -> Any:
    if cell == "null":
        return None
    return cell if type_ == "string" else ast.literal_eval(cell)


def ran(case: Case, engine: str) -> Table:
    """Run the code over the rows, with two parts and partitions; return what came out of the stream `out`."""
    topology = TridentTopology("operations")
    names: dict[str, Any] = {name: getattr(trident, name) for name in trident.__all__}  # some are imported when used
    names |= {**vars(trident.operations), "MemoryMapState": MemoryMapState}
    names |= {"topology": topology, "timedelta": timedelta}
    for name, table in case.inputs.items():
        spout = RowsSpout(", ".join(typed(table.fields)), table.batches)
        names[name] = topology.new_stream(name, spout)
    exec(compile(case.code, case.title, "exec"), names)
    out = names["out"]
    rows = keep(out)
    run_all(topology, engine, parallelism=2)
    return Table(out.fields, {txid: batch for txid, batch in rows.batches.items() if batch})


def typed(fields: Fields) -> list[str]:
    return [f"{name}: {type_}" for name, type_ in zip(fields.names, fields.types, strict=True)]


def in_any_order(table: Table) -> dict[int, list[tuple[Any, ...]]]:
    return {batch: sorted(rows, key=repr) for batch, rows in table.batches.items()}


CASES = list(cases(PAGE.read_text(encoding="utf-8")))


@pytest.mark.sample(60)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_an_operation_gives_what_the_page_says(case: Case, engine: str) -> None:
    found = ran(case, engine)
    assert typed(found.fields) == typed(case.out.fields)
    assert in_any_order(found) == in_any_order(case.out)


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
    assert [name for name in sorted(built_in) if not re.search(rf"\b{name}[.(]", code)] == []


@pytest.mark.parametrize(
    "wrong", ["| out | a: int |\n|---|---|\n| 1 | 5 |\n", "| out | a: bigint |\n|---|---|\n| 1 | 4 |\n"]
)
def test_a_wrong_table_is_found(wrong: str) -> None:
    page = f"### x\n| s | a: int |\n|---|---|\n| 1 | 4 |\n\n```py\nout = s.project('a')\n```\n\n{wrong}"
    (case,) = cases(page)
    with pytest.raises(AssertionError):
        test_an_operation_gives_what_the_page_says(case, "in_process")
