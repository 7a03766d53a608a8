"""Random topologies over random options give what a plain fold over their rows gives, and all readers of a state agree.

A case that fails is shrunk and printed as it would be written: `check(Case(...), stores)` runs it again. The numbers of cases
and their seed are said at the end of the run; `RANDOM_TOPOLOGIES_SEED` sets it.
"""

import datetime as dt
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from states.cassandra import CassandraState
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import start
from tests.run import random_oracle
from tests.run.random_cases import KEYS, TAPS, UNTYPED, UNTYPED_KEYS, Case, Life, Row, cases
from tests.run.random_declarations import Declared, declare, respelled
from tests.run.random_oracle import Content, Expected, expected, form, form_of, may_conflict
from trident import TridentTopology, open_state
from trident.errors import BatchFailedError, TridentError
from trident.plan import make_plan, planner
from trident.plan.plan import misplaced_states
from trident.read import state_partitions
from trident.run.running import RunningTopology
from trident.state import StateSpec, map_state
from trident.state.encoding import equal_keys
from trident.state.encoding.codec import decode, decode_keys
from trident.state.encoding.equal_keys import canonical
from trident.steps import key_columns
from trident.web.running_pages import TridentPages

_SOME = 3  # what is asked one by one takes a call of the store each


@dataclass
class Stores:
    """Where states are kept: a folder, and the ports of the servers that run."""

    folder: Path
    redis: int = 0
    postgres: int = 0
    cassandra: int = 0
    memcached: int = 0
    spark: Any = None
    _memory: dict[str, StateSpec] = field(default_factory=dict)

    def new_state(self, case: Case) -> Callable[[str, str], StateSpec]:
        """Return what makes the states of a case; made again, a state in memory is the same one."""
        return lambda name, kind: self._make(case, name, kind.replace("-", "_"))

    def _make(self, case: Case, name: str, kind: str) -> Any:
        if case.store == "memory":
            return self._memory.setdefault(name, getattr(MemoryMapState, kind)())
        if case.store == "apart":
            entries: dict[int, dict[str, tuple[Row, Any]]] = defaultdict(dict)
            spec = map_state(lambda conf, partition, count: ByText(entries[partition]), kind.replace("_", "-"))
            return self._memory.setdefault(name, spec)
        if case.store.startswith("delta"):
            bound = {"max_keys_in_memory": 2} if "beyond" in case.store else {}
            return getattr(DeltaState, kind)(str(self.path(name)), fsync=False, **bound)
        shared = {"keyspace": "random", "replication": 1, "table": "random", "buckets": 8}
        servers: dict[str, tuple[Any, str, dict[str, Any]]] = {
            "redis": (RedisState, f"redis://127.0.0.1:{self.redis}/0", {"prefix": name}),
            "postgres": (PostgresState, self.postgres_url, {"table": name}),
            "cassandra": (CassandraState, "127.0.0.1", {**shared, "port": self.cassandra}),
            "memcached": (MemcachedState, f"127.0.0.1:{self.memcached}", {"prefix": name}),
        }
        made, place, options = servers[case.store]
        return getattr(made, kind)(place, cache=case.cache, **options)

    def path(self, name: str) -> Path:
        return self.folder / "delta" / name

    @property
    def postgres_url(self) -> str:
        return f"postgresql://trident@127.0.0.1:{self.postgres}/postgres"

    def forget(self, cases: Sequence[Case]) -> None:
        self._memory.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.redis and any("redis" in case.store for case in cases):
            with redis.Redis(port=self.redis) as client:
                client.flushall()
        if self.postgres and any(case.store == "postgres" for case in cases):
            with psycopg.connect(self.postgres_url) as connection:
                for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'random%'"):
                    connection.execute(f'DROP TABLE "{table}"')


class ByText:
    """The simplest back-end: keys are the same only if their texts are."""

    def __init__(self, entries: dict[str, tuple[Row, Any]]) -> None:
        self.entries = entries

    def multi_get(self, keys: Sequence[Row]) -> list[Any]:
        return [self.entries.get(repr(key), (key, None))[1] for key in keys]

    def multi_put(self, keys: Sequence[Row], values: Sequence[Any]) -> None:
        self.entries.update((repr(key), (key, value)) for key, value in zip(keys, values, strict=True))

    def multi_delete(self, keys: Sequence[Row]) -> None:
        for key in keys:
            self.entries.pop(repr(key), None)

    def key_pages(self) -> Iterator[list[Row]]:
        yield [key for key, _ in self.entries.values()]


def check(case: Case, stores: Stores) -> None:
    """Run a case, life by life, and compare all readers with the fold after each."""
    check_group([case], stores)


def check_group(cases: Sequence[Case], stores: Stores) -> None:
    """Run cases beside each other in one topology; the first one's lives say how."""
    try:
        _Run(cases, stores, f"random{uuid4().hex[:8]}").live()  # a server may have those of an earlier run
    except Exception as error:
        if any(map(may_conflict, cases)) and isinstance(error, BatchFailedError) and "KeyConflictError" in str(error):
            return
        for case in cases:  # the numbers in the names of states count them, from 0
            error.add_note(repr(case))
        raise
    finally:
        stores.forget(cases)


class _Run:
    """One or several cases, as one topology."""

    def __init__(self, cases: Sequence[Case], stores: Stores, name: str) -> None:
        self.cases, self.stores, self.name = cases, stores, name
        self.expected = [expected(case) for case in cases]
        self.asked = [_asked_keys(case) for case in cases]
        self.log = str(stores.folder / "log")

    def live(self) -> None:
        until = 0
        for number, life in enumerate(self.cases[0].lives):
            begun, until = until, until + life.batches
            topology = TridentTopology(self.name)
            parts = [
                declare(
                    topology, case, case.lives[number], until, self.stores.new_state(case), f"{self.name}-{at}-",
                    asked if case.key != (UNTYPED,) else (),
                )
                for at, (case, asked) in enumerate(zip(self.cases, self.asked, strict=True))
            ]  # fmt: skip
            self._place(topology, parts, life)
            self._live_once(topology, parts, life, begun, until)

    def _place(self, topology: TridentTopology, parts: Sequence[Declared], life: Life) -> None:
        if life.placement != "executors":
            return
        wanted = {
            state.state_name: state
            for part in parts
            for name, state in part.states.items()
            if name != "total" or _may_be_in_executors(part.case)
            if part.case.store != "memory"
        }
        wrong = misplaced_states(make_plan(topology.graph()), wanted.keys())
        for name in wanted.keys() - wrong.keys():
            wanted[name].placement("executors")

    def _live_once(
        self, topology: TridentTopology, parts: Sequence[Declared], life: Life, begun: int, until: int
    ) -> None:
        conf: dict[str, Any] = {"max_spout_pending": life.pending, "parallelism": life.parallelism, "log_dir": self.log}
        if life.engine == "auto":
            conf["auto_bytes"] = 300
        with start(topology, life.engine, allow_inexact=True, max_batch_attempts=1, **conf) as running:
            running.process_all_available()
            assert running.status["txid"] == until
            pages = TridentPages(running)
            for part, found, asked in zip(parts, self.expected, self.asked, strict=True):
                _check_questions(part, found, begun, until)
                self._check_running(running, pages, part, found, asked, until)
                self._check_requests(running, part, found.after["total"][until], asked)
        for part, found, asked in zip(parts, self.expected, self.asked, strict=True):
            self._check_stopped(topology, part, found, asked, until)

    def _check_running(
        self,
        running: RunningTopology,
        pages: TridentPages,
        part: Declared,
        found: Expected,
        asked: Sequence[Row],
        until: int,
    ) -> None:
        for name, state in part.states.items():
            view = running.state(state)
            says = _Says(
                part, name, found.after[name][until], asked, f"running.state({state.state_name!r}) after batch {until}"
            )
            says.check_map(view)
            says.check_page(pages, state.state_name)
            if part.case.store != "memcached":
                says.check_rows("rows_at_once", view.rows_at_once())
                parts = range(running.partitions[state.state_name])
                says.check_rows("pages_of", [row for part in parts for page in view.pages_of(part) for row in page])
            if self.stores.spark is not None and part.case.store != "memcached" and says.declared:
                rows = view.to_dataframe(self.stores.spark).collect()
                says.check_rows("to_dataframe", [_collected(row, part.case.key) for row in rows])

    def _check_requests(self, running: RunningTopology, part: Declared, content: Content, asked: Sequence[Row]) -> None:
        """Ask by DRPC, where batches ask too."""
        for at, key in enumerate(asked[:_SOME] if part.asked else []):
            answer = running.drpc(f"{part.prefix}drpc").execute(str(at))
            wanted = content.get(form_of(part.case, key) if part.case.grouped else ())
            assert answer == [[wanted]], f"{part.prefix}: DRPC said {answer} of {key}, not {wanted}"

    def _check_stopped(
        self, topology: TridentTopology, part: Declared, found: Expected, asked: Sequence[Row], until: int
    ) -> None:
        if part.case.store == "memory":
            return
        for name, state in part.states.items():
            says = _Says(
                part, name, found.after[name][until], asked, f"open_state({state.state_name!r}) after batch {until}"
            )
            with open_state(topology, state, log_dir=self.log) as reader:
                says.check_map(reader)
                if part.case.store.startswith("delta") and until > 1:
                    who = f"open_state({state.state_name!r}).at({until - 1}),"
                    _Says(part, name, found.after[name][until - 1], asked, who).check_map(reader.at(until - 1))
            if part.case.store.startswith("delta"):
                says.check_rows("the table", _delta_rows(self.stores.path(state.state_name), says))
            if part.case.store == "postgres":
                says.check_rows(
                    "the table", _postgres_rows(self.stores.postgres_url, state.state_name, part.case, says)
                )


def _may_be_in_executors(case: Case) -> bool:
    """Whether the main state of a case may be committed in executors; others are refused at the start."""
    if case.store.startswith("delta") and "query this batch" in case.taps:
        return False  # the table shows a batch when the driver has published it
    # What an updater may not write twice is found before anything is written, by the driver.
    return not case.is_updated or case.kind == "opaque" or all(life.hint == 1 for life in case.lives)


def _asked_keys(case: Case) -> list[Row]:
    """Return the keys that readers are asked for: those of the rows, in their spellings, and a few that may be absent."""
    if UNTYPED in case.key:
        return [(key,) for key in UNTYPED_KEYS]
    given = [row[:-1] for rows in case.batches for row in rows]
    also = [tuple(KEYS[type_][at % len(KEYS[type_])] for type_ in case.key) for at in range(4)]
    spelled = [tuple(respelled(part, 1) for part in key) for key in given]
    return list({repr(key): key for key in [*given, *also, *spelled]}.values())


def _check_questions(part: Declared, found: Expected, begun: int, until: int) -> None:
    for sees, asked in part.asked.items():
        for txid in range(begun + 1, until + 1):
            after = found.after["total"][txid - (sees == "batch_before")]
            for *key, value in asked.of(txid):
                wanted = after.get(form_of(part.case, tuple(key)) if part.case.grouped else ())
                assert value == wanted, (
                    f"{part.prefix}: state_query({sees!r}) of {key} in batch {txid} said {value}, not {wanted}"
                )


class _Says:
    """What a reader of one state must say."""

    def __init__(self, part: Declared, name: str, content: Content, asked: Sequence[Row], who: str) -> None:
        self.case, self.content, self.who = part.case, content, who
        self.grouped = self.case.grouped or name not in ("total", "new values")
        self.asked = asked if self.grouped else []
        self.declared = name != "total" or not self.case.is_updated  # a user's updater declares neither key nor value

    def check_map(self, view: Any) -> None:
        listed = self.case.store != "memcached"
        if not self.grouped:
            assert (found := view.get()) == self.content.get(()), (
                f"{self.who} get() said {found}, not {self.content.get(())}"
            )
            if listed:
                self.check_rows("get_tuples", list(view.get_tuples()))
            return
        wanted = [self.content.get(form_of(self.case, key)) for key in self.asked]
        together = view.multi_get(self.asked)
        for key, value, found in zip(self.asked, wanted, together, strict=True):
            assert found == value, f"{self.who} multi_get of all keys said {found} of {key}, not {value}"
        for key, value in list(zip(self.asked, wanted, strict=True))[:_SOME]:
            assert (alone := view.multi_get([key])) == [value], (
                f"{self.who} multi_get([{key}]) said {alone}, not {value}"
            )
        if listed:
            rows = list(view.get_tuples())
            self.check_rows("get_tuples", rows)
            assert len(list(view.get_tuples(limit=2))) == min(2, len(rows)), f"{self.who} get_tuples(limit=2)"
            for first in list({repr(key[0]): key[0] for key in self.asked}.values())[:_SOME]:
                of_first = [row for row in rows if self._form((row[0],)) == self._form((first,))]
                begin = list(view.get_tuples(prefix=(first,)))
                assert _sorted(begin) == _sorted(of_first), (
                    f"{self.who} get_tuples(prefix=({first!r},)) said {begin}, not {of_first}"
                )

    def check_page(self, pages: TridentPages, state: str) -> None:
        if not self.grouped:
            assert pages.lookup(state, [])["value"] == self.content.get(()), f"the page of {self.who}"
            return
        for key in self.asked if self.declared else []:
            texts = [_text(part) for part in key]
            if None not in texts:
                found = pages.lookup(state, texts)["value"]
                assert found == self.content.get(form_of(self.case, key)), f"the page of {self.who} at {texts}"

    def check_rows(self, what: str, rows: Iterable[Row]) -> None:
        """Compare a listing, which has no row for a key whose value is None."""
        found = list(rows)
        by_key = {self._form(row[:-1]) if self.grouped else (): row[-1] for row in found}
        assert len(by_key) == len(found), f"{what} of {self.who} has keys twice: {_sorted(found)}"
        wanted = {key: value for key, value in self.content.items() if value is not None}
        assert by_key == wanted, f"{what} of {self.who} said {by_key}, not {wanted}"

    def _form(self, key: Row) -> Row:
        return form_of(self.case, key)


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted((tuple(map(form, row)) for row in rows), key=repr)


def _collected(row: Row, types: Sequence[str]) -> Row:
    """Return a row of a DataFrame: PySpark gives a moment without its zone, in local time."""
    are_moments = [*(type_ == "timestamp" for type_ in types[: len(row) - 1]), False]
    return tuple(
        part.astimezone(dt.UTC) if is_moment and part else part
        for part, is_moment in zip(row, are_moments, strict=True)
    )


def _text(part: Any) -> str | None:
    """Return a value as one writes it on the page; None if it cannot be written there."""
    if part is None:
        return None
    if isinstance(part, bytes):
        return None if b"\xff" in part else part.decode()
    return part.isoformat() if hasattr(part, "isoformat") else str(part)


def _delta_rows(path: Path, says: _Says) -> Iterator[Row]:
    """Return the rows of the published table, as another program reads it."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    if not DeltaTable.is_deltatable(str(path)):
        return
    table = pa.table(QueryBuilder().register("rows", DeltaTable(str(path))).execute("SELECT * FROM rows"))
    for row in table.to_pylist():
        *key, value = row.values()
        if says.declared:
            yield (*key, value)
        else:
            yield (*decode(*key), decode(value))


def _postgres_rows(url: str, table: str, case: Case, says: _Says) -> Iterator[Row]:
    """Return the rows of a table, as the documentation says how they are stored; each as of the last batch."""
    with psycopg.connect(url, options="-c TimeZone=UTC") as connection:
        if connection.execute("SELECT to_regclass(%s)", (f'"{table}"',)).fetchone() == (None,):
            return
        found = connection.execute(f'SELECT * FROM "{table}"')
        names = [column.name for column in found.description or ()]
        rows = found.fetchall()
    if names != ["key", "value"]:
        width = sum(not name.startswith("trident_") for name in names)
        yield from (row[:width] for row in rows if row[width - 1] is not None)  # a removed key stays a while
        return
    for key, data in rows:
        if key < b" ":
            stored = decode(data)
            value = stored if case.kind == "non-transactional" else stored[-1]
            if value is not None:
                yield (*decode_keys([key])[0], value)


SOAK_BLOCK = 500
_FIXED = 20
_SEED = int(os.environ.get("RANDOM_TOPOLOGIES_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)
"""Of the soak; the default suite has a fixed one, so that it is not red by chance."""


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path / "states")


@pytest.fixture
def servers(stores: Stores, redis_server: Server, postgres_server: Server, memcached_server: Server) -> Stores:
    """Those and the servers that start at once."""
    stores.redis, stores.postgres, stores.memcached = redis_server.port, postgres_server.port, memcached_server.port
    return stores


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Callable[[int, int], None]:
    """Count what a test runs; tests/conftest.py says the count at the end."""
    return lambda count, of_seed: record_property("random topologies", [count, of_seed])


def run(
    strategy: st.SearchStrategy[Case], count: int, of_seed: int, stores: Stores, phases: Sequence[Phase] = tuple(Phase)
) -> int:
    """Run random cases; the first that fails is shrunk. Returns how many were run."""
    ran = 0

    @seed(of_seed)
    @settings(max_examples=count, database=None, phases=phases, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(case: Case) -> None:
        nonlocal ran
        ran += 1
        check(case, stores)

    one()
    return ran


def drawn(strategy: st.SearchStrategy[Case], count: int, of_seed: int) -> list[Case]:
    """Return about so many random cases."""
    found: list[Case] = []

    @seed(of_seed)
    @settings(max_examples=5 * count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(case: Case) -> None:
        found.append(case)

    one()
    return found[-1 : -5 * count : -5]  # the first ones are the plainest, and neighbours are much alike


def beside(chosen: list[Case]) -> list[Case]:
    """Return six of them that do not end the topology, which is that of all."""
    return [case for case in chosen if not may_conflict(case)][:6]


COUNTS = {"memory": 70, "apart": 60, "delta": 12, "delta beyond memory": 6}


@pytest.mark.slow
@pytest.mark.parametrize("kept_in", ["memory", "apart"])
def test_some_random_topologies_give_what_a_fold_gives(kept_in: str, stores: Stores) -> None:
    for case in drawn(cases((kept_in,)), 8, _FIXED):
        check(case, stores)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize(("kept_in", "count"), COUNTS.items())
def test_a_random_topology_gives_what_a_fold_gives(kept_in: str, count: int, stores: Stores, counted: Any) -> None:
    counted(run(cases((kept_in,)), count, _FIXED, stores), _FIXED)


@pytest.mark.long
@pytest.mark.parametrize(("kept_in", "count"), [("redis", 10), ("memcached", 10), ("postgres", 6)])
def test_a_random_topology_on_a_server_is_a_fold(kept_in: str, count: int, servers: Stores, counted: Any) -> None:
    counted(run(cases((kept_in,)), count, _FIXED, servers), _FIXED)


SPARK_LIVES = (
    Life(batches=2, engine="spark", placement="executors", pending=2, parallelism=2),
    Life(batches=1, engine="auto", placement="driver"),
    Life(batches=1, engine="spark", placement="executors"),
)


@pytest.mark.long
def test_random_topologies_on_spark_give_what_a_fold_gives(servers: Stores, spark: Any, counted: Any) -> None:
    servers.spark = spark
    chosen = beside(drawn(cases(("memory", "delta", "redis", "postgres"), SPARK_LIVES[:2]), 20, _FIXED))
    check_group(chosen, servers)
    counted(len(chosen), _FIXED)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cases_of_every_run_have_all_options() -> None:
    chosen = drawn(cases(("memory", "redis")), 200, _FIXED)
    assert {type_ for case in chosen for type_ in case.key} >= set(KEYS)
    assert {tap for case in chosen for tap in case.taps} == set(TAPS)
    assert {life.hint for case in chosen for life in case.lives} == set(range(1, 9))
    assert {len(case.lives) for case in chosen} == {1, 2, 3}


def test_a_wrong_answer_names_the_case_as_it_is_written(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(batches=((("a", 1),), (("a", 2),)), lives=(Life(batches=2, hint=3),))
    monkeypatch.setitem(random_oracle._FOLDS, "sum", lambda before, values: 7)
    with pytest.raises(AssertionError, match="said 1, not 7") as raised:
        check(case, stores)
    assert raised.value.__notes__ == ["Case(batches=((('a', 1),), (('a', 2),)), lives=(Life(batches=2, hint=3),))"]
    assert eval(raised.value.__notes__[0]) == case


_FORMS = [(equal_keys, "canonical"), (key_columns, "canonical")]


def _without_nan(part: Any) -> Any:
    return part if part != part else canonical(part)


OLD_MISTAKES: dict[str, tuple[str, dict[tuple[ModuleType, str], Any]]] = {
    "partition_persist spreads tuples by all their fields": ("memory", {(planner, "kept_by"): lambda *_: 0}),
    "keys have no one form": ("apart", dict.fromkeys(_FORMS, lambda part: part)),
    "no NaN equals another": ("apart", dict.fromkeys(_FORMS, _without_nan)),
    "a total is read in the first partition": ("apart", {(state_partitions, "partition_of_total"): lambda count: 0}),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", OLD_MISTAKES)
def test_an_old_mistake_is_found_by_random_cases(mistake: str, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_in, wrong = OLD_MISTAKES[mistake]
    for (module, name), value in wrong.items():
        monkeypatch.setattr(module, name, value)
    with pytest.raises((AssertionError, TridentError)) as raised:
        run(cases((kept_in,)), COUNTS[kept_in], _FIXED, stores, phases=[Phase.generate])
    assert any(note.startswith("Case(") for note in raised.value.__notes__)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(160))
def test_many_random_topologies_in_memory_give_what_a_fold_gives(block: int, stores: Stores, counted: Any) -> None:
    counted(run(cases(("memory", "apart")), SOAK_BLOCK, _SEED + block, stores), _SEED)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_many_random_topologies_in_stores_give_what_a_fold_gives(
    block: int, servers: Stores, cassandra_server: Server, counted: Any
) -> None:
    servers.cassandra = cassandra_server.port
    durable = ("delta", "delta beyond memory", "redis", "postgres", "cassandra", "memcached")
    counted(run(cases(durable), SOAK_BLOCK, _SEED + block, servers), _SEED)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(50))
def test_many_random_topologies_on_spark_give_what_a_fold_gives(
    block: int, servers: Stores, cassandra_server: Server, spark: Any, counted: Any
) -> None:
    servers.spark, servers.cassandra = spark, cassandra_server.port
    durable = ("memory", "delta", "delta beyond memory", "redis", "postgres", "cassandra")
    lives = random.Random(_SEED + block).sample(SPARK_LIVES, 2)
    chosen = beside(drawn(cases(durable, tuple(lives)), 20, _SEED + block))
    check_group(chosen, servers)
    counted(len(chosen), _SEED)
