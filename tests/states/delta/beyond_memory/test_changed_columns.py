"""A declaration that changes over a state beyond memory: its files are read in any form, and a merge gives all the new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.delta.beyond_memory import bucketed_base
from states.delta.beyond_memory.bucketed_base import BucketLimits
from states.delta.beyond_memory.merging import Merging
from tests.harness.topology_runs import start
from trident import TridentError, TridentTopology, open_state, verify_state
from trident.errors import TopologyError
from trident.operations import Count, Max, Min, Sum
from trident.run.loop import BatchLoop

pytestmark = pytest.mark.slow

KEYS = [f"w{number:02}" for number in range(30)]
AGGREGATES: dict[str, Any] = {"sum": Sum("n"), "rows": Count(), "most": Max("n"), "least": Min("n")}
FIRST = [(key, at) for at, key in enumerate(KEYS)]
LATER = [("w07", 100), ("new", 5)]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("states.delta.beyond_memory.bucketed_base.BucketLimits", lambda: BucketLimits(8))


class Died(TridentError):
    """The driver ends here."""

    can_heal = False


class Declared:
    """A topology over a state beyond memory at `folder`, with aggregates by their names."""

    def __init__(self, folder: Path, aggregates: Mapping[str, Any] | Any, key: str = "k", type_: str = "int") -> None:
        self.path = folder / "state"
        self._conf: dict[str, Any] = {"log_dir": str(folder / "log"), "history": "7d"}
        self._aggregates, self._key, self._type = aggregates, key, type_

    def topology(self, rows: list[tuple[str, Any]], rename: Mapping[str, str] | None = None) -> TridentTopology:
        topology = TridentTopology("t", rename=rename)
        spout = FixedBatchSpout(f"{self._key}: string, n: {self._type}", 10, *map(list, rows))
        stream = topology.new_stream("s", spout).group_by(self._key)
        spec = DeltaState.opaque(self.path, max_keys_in_memory=5, fsync=False, background_maintenance=False)
        if isinstance(self._aggregates, Mapping):
            stream.persistent_aggregate(spec, self._aggregates, "total")
        else:
            stream.persistent_aggregate(spec, "n", self._aggregates, "total")
        return topology

    def run(self, rows: list[tuple[str, Any]], **rename: str) -> None:
        """Take all rows, of which the log knows the first ones."""
        with start(self.topology(rows, rename), "in_process", **self._conf) as running:
            running.process_all_available()

    def found(self, at: int | None = None, **rename: str) -> dict[str, Any]:
        topology = self.topology(FIRST, rename)
        with open_state(topology, "total", log_dir=self._conf["log_dir"]) as reader:
            return dict((reader if at is None else reader.at(at)).get_tuples())

    def verified(self, rows: list[tuple[str, Any]]) -> bool:
        done = verify_state(self.topology(rows), "total", log_dir=self._conf["log_dir"])
        return [(list(one.wrong), one.refused) for one in done] == [([], "")]


def of(*names: str) -> dict[str, Any]:
    return {name: AGGREGATES[name] for name in names}


def expected(rows: list[tuple[str, int]], /, **since: int) -> dict[str, dict[str, Any]]:
    """What the aggregates give, each from a row on."""
    kernels: dict[str, Callable[[list[int]], int]] = {"sum": sum, "rows": len, "most": max, "least": min}
    wanted: dict[str, dict[str, Any]] = {key: {} for key, _ in rows}
    for key, values in wanted.items():
        for name, first in since.items():
            ns = [n for one, n in rows[first:] if one == key]
            values[name] = kernels[name](ns) if ns else None
    return wanted


def forms(path: Path) -> set[pa.DataType]:
    """The types that the value has in the files of the table at the path, and in the table."""
    table = DeltaTable(path)
    assert table.transaction_version("trident/merged") is not None
    schemas = [pq.read_schema(path / add["path"]) for add in pa.table(table.get_add_actions()).to_pylist()]
    assert len(schemas) > 3
    assert {schema.names[-1] for schema in schemas} == {"_trident_attempt"}
    return {schema.field(2).type for schema in schemas} | {pa.schema(table.schema().to_arrow()).field(1).type}


def no_merges(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Merging, "_start", lambda *_: None)


def dies_before_its_first_record(declared: Declared, rows: list[tuple[str, int]], **rename: str) -> None:
    def record(*_: Any) -> None:
        raise Died("in a test")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BatchLoop, "_record", record)
        with pytest.raises(TridentError, match="in a test"):
            declared.run(rows, **rename)


def test_a_merge_gives_all_files_and_the_table_the_new_columns(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, of("rows", "sum"))
    former.run(FIRST)
    assert forms(former.path) == {pa.struct([("sum", pa.int64()), ("most", pa.int32())])}
    new.run([*FIRST, *LATER])
    (form,) = forms(new.path)
    assert {field.name for field in form} == {"sum", "rows", "most"}  # which the former declaration would need
    wanted = expected([*FIRST, *LATER], rows=30, sum=0)
    assert new.found() == wanted
    assert new.found(at=3) == {key: {"rows": None, "sum": n} for key, n in FIRST}
    assert new.verified([*FIRST, *LATER])
    table = DeltaTable(new.path)
    people = {row["k"]: row["total"] for row in table.to_pyarrow_table().to_pylist()}
    assert {key: (value["sum"], value["rows"]) for key, value in people.items()} == {
        key: (value["sum"], value["rows"]) for key, value in wanted.items()
    }
    sql = "select sum(t.total['sum']) as s, sum(t.total['rows']) as r from t"
    assert pa.table(QueryBuilder().register("t", table).execute(sql).read_all()).to_pylist() == [{"s": 540, "r": 2}]


def test_files_of_the_former_columns_are_read_until_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = Declared(tmp_path, of("sum", "most"))
    former.run(FIRST)
    before = forms(former.path)
    new = Declared(tmp_path, {"biggest": Max("n"), "least": Min("n")})
    early = {key: {"biggest": n, "least": None} for key, n in FIRST}
    assert new.found(most="biggest") == early  # before it has run
    with monkeypatch.context() as patched:
        no_merges(patched)
        new.run([*FIRST, *LATER], most="biggest")
        assert forms(new.path) == before
        late = early | {"w07": {"biggest": 100, "least": 100}, "new": {"biggest": 5, "least": 5}}
        assert new.found() == late
        newer = Declared(tmp_path, {"biggest": Max("n"), "sum": Sum("n")})  # under a name that another one had
        newer.run([*FIRST, *LATER, ("w08", 3)])
        assert forms(new.path) == before
        wanted = {key: {"biggest": value["biggest"], "sum": None} for key, value in late.items()}
        assert newer.found() == wanted | {"w08": {"biggest": 8, "sum": 3}}
    newer.run([*FIRST, *LATER, ("w08", 3), ("w09", 1)])
    assert forms(new.path) != before
    assert newer.found() == wanted | {"w08": {"biggest": 8, "sum": 3}, "w09": {"biggest": 9, "sum": 1}}
    assert newer.found(at=3) == {key: {"biggest": n, "sum": None} for key, n in FIRST}


def test_the_former_code_comes_back_after_the_new_code_has_merged(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, of("most", "rows"), type_="bigint")
    with pytest.MonkeyPatch.context() as patched:
        no_merges(patched)
        former.run(FIRST)
    dies_before_its_first_record(new, [*FIRST, *LATER])
    (form,) = forms(former.path)
    assert {field.name for field in form} == {"sum", "rows", "most"}
    assert form.field("most").type == pa.int64()
    assert former.found() == expected(FIRST, sum=0, most=0)
    rows: list[tuple[str, int]] = [*FIRST, *LATER]
    former.run(rows)
    assert forms(former.path) == {pa.struct([("sum", pa.int64()), ("most", pa.int32())])}
    assert former.found() == expected(rows, sum=0, most=0)
    assert former.verified(rows)
    rows += [("w07", 1), ("new", 2**40)]
    new.run(rows)
    assert new.found() == expected(rows, most=0, rows=32)
    assert new.verified(rows)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("old", "new", "some", "more"),
    [
        ("int", "bigint", 7, 2**40),
        ("float", "double", 0.5, 1e300),
        ("decimal(4,1)", "decimal(20,2)", "1.5", "1234567.25"),
    ],
)
def test_a_single_value_gets_a_wider_type(tmp_path: Path, old: str, new: str, some: Any, more: Any) -> None:
    some, more = (Decimal(one) if isinstance(one, str) else one for one in (some, more))
    first: list[tuple[str, Any]] = [(key, some) for key in KEYS]
    narrow, wide = Declared(tmp_path, Max("n"), type_=old), Declared(tmp_path, Max("n"), type_=new)
    narrow.run(first)
    before = forms(narrow.path)
    dies_before_its_first_record(wide, [*first, ("w07", some)])
    assert narrow.found() == dict(first)
    wide.run([*first, ("w07", more), ("w08", some)])
    assert wide.found() == {**dict(first), "w07": more}
    assert len(forms(wide.path)) == 1
    assert forms(wide.path) != before
    people = {row["k"]: row["total"] for row in DeltaTable(wide.path).to_pyarrow_table().to_pylist()}
    assert people == {**dict(first), "w07": more}


def test_a_field_of_the_key_keeps_its_name_in_the_table(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, Sum("n")), Declared(tmp_path, Sum("n"), key="word")
    former.run(FIRST)
    new.run([*FIRST, *LATER], k="word")
    assert new.found() == {**dict(FIRST), "w07": 107, "new": 5}
    assert DeltaTable(new.path).to_pyarrow_table().column_names == ["k", "total"]


def test_files_that_do_not_say_who_wrote_a_value_are_of_the_first_declaration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = bucketed_base.write_bucket

    def without_attempts(rows: pa.Table, *more: Any) -> Any:
        return write(rows.drop_columns(["_trident_attempt"]), *more)

    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, {"biggest": Max("n"), "sum": Sum("n")})
    with monkeypatch.context() as patched:
        patched.setattr(bucketed_base, "write_bucket", without_attempts)
        former.run(FIRST)
    new.run([*FIRST, *LATER], most="biggest")
    wanted = {
        key: {"biggest": value["most"], "sum": value["sum"]}
        for key, value in expected([*FIRST, *LATER], sum=0, most=0).items()
    }
    assert new.found() == wanted
    again = Declared(tmp_path, {"largest": Max("n"), "sum": Sum("n")})
    again.run([*FIRST, *LATER, ("w08", 200)], biggest="largest")
    values = expected([*FIRST, *LATER, ("w08", 200)], sum=0, most=0)
    assert again.found() == {key: {"largest": one["most"], "sum": one["sum"]} for key, one in values.items()}


def test_a_state_whose_declaration_has_changed_grows_beyond_memory(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, of("sum", "rows"))
    former.run(FIRST[:3])
    new.run(FIRST)
    assert forms(new.path)
    assert new.found() == expected(FIRST, sum=0, rows=3)
    assert new.verified(FIRST)


def test_a_name_whose_column_cannot_hold_what_had_it_before_is_refused(tmp_path: Path) -> None:
    rows = [(key, 2**31 - 1) for key in [*KEYS, *KEYS]]
    Declared(tmp_path, of("sum", "rows")).run(rows)
    Declared(tmp_path, of("rows")).run([*rows, *LATER])
    changes = DeltaTable(tmp_path / "state" / "_trident" / "changes")
    before = changes.version()
    narrow = Declared(tmp_path, {"rows": Count(), "sum": Max("n")})
    with pytest.raises(
        TopologyError, match=r"'sum' of state 'total' is of type int, and what had this name before is of type "
    ):
        narrow.run([*rows, *LATER, *LATER])
    changes.update_incremental()
    assert changes.version() == before
