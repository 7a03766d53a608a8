"""Aggregates that come, go, move, get other names and types, whatever dies in between: compared with plain Python."""

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.delta.publishing import Publishing
from states.memcached import MemcachedState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.server_states import postgres_url, state_on
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import run_all
from trident import TridentError, TridentTopology, migrate_state, open_state, verify_state
from trident.errors import RewindError, StateError, TopologyChangedError, TopologyError
from trident.operations import ArgMax, Avg, Collect, Count, Last, Max, Min, Sum, TopN
from trident.run.loop import BatchLoop
from trident.state import StateSpec

pytestmark = pytest.mark.slow

Rows = Sequence[tuple[str, int]]
Of = Callable[[Sequence[int]], Any]
AGGREGATES: dict[str, tuple[Any, Of]] = {
    "sum": (Sum("n"), sum),
    "rows": (Count(), len),
    "most": (Max("n"), max),
    "least": (Min("n"), min),
    "mean": (Avg("n"), lambda ns: sum(ns) / len(ns)),
    "last": (("n", Last()), lambda ns: ns[-1]),
    "top": (TopN(2, "n"), lambda ns: sorted(ns, reverse=True)[:2]),
    "who": (ArgMax("k", by="n"), lambda ns: ...),
    "all": (Collect("n"), list),
}
NUMBERS = ("sum", "rows", "most", "least", "mean")  # which also pass as arrays


class Died(TridentError):
    """The driver ends here."""

    can_heal = False


@dataclass
class Job:
    """A declaration and what its state must have.

    `members`: by the name of each aggregate which one it is; `since`: the rows before it.
    """

    spec: StateSpec
    log: str
    members: dict[str, str]
    since: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[str, int]] = field(default_factory=list)
    type: str = "int"
    conf: dict[str, Any] = field(default_factory=dict)
    widens: bool = True
    name: str = "total"

    def declared(self, rename: Mapping[str, str] | None = None) -> TridentTopology:
        topology = TridentTopology("t", rename=rename)
        spout = FixedBatchSpout(f"k: string, n: {self.type}", 3, *map(list, self.rows or [("a", 0)]))
        aggregates = {name: AGGREGATES[kind][0] for name, kind in self.members.items()}
        topology.new_stream("s", spout).group_by("k").persistent_aggregate(self.spec, aggregates, self.name)
        return topology

    def expected(self) -> dict[str, dict[str, Any]]:
        wanted: dict[str, dict[str, Any]] = {}
        for key in {k for k, _ in self.rows}:
            wanted[key] = {}
            for name, kind in self.members.items():
                ns = [n for k, n in self.rows[self.since.get(name, 0) :] if k == key]
                wanted[key][name] = None if not ns else key if kind == "who" else AGGREGATES[kind][1](ns)
        return wanted

    def found(self, **rename: str) -> dict[str, dict[str, Any]]:
        if self.spec.facts.in_memory:
            conf = {"engine": "in_process", "log_dir": self.log, "history": "7d"}
            with self.declared(rename).start(conf, active=False) as running:
                rows = dict(running.state(self.name).get_tuples())
        else:
            with open_state(self.declared(rename), self.name, log_dir=self.log) as reader:
                found = zip("abcd", reader.multi_get(list("abcd")), strict=True)
                rows = {key: value for key, value in found if value is not None}
        return {key: {name: value[name] for name in self.members} for key, value in rows.items()}


def run(
    job: Job, monkeypatch: pytest.MonkeyPatch, rename: Mapping[str, str] | None = None, dies_at: int | None = None
) -> None:
    """Run until all rows are counted, or until the driver dies when all states have committed its n-th batch."""
    done = BatchLoop._record
    left = dies_at

    def append(self: BatchLoop, *args: Any) -> None:
        nonlocal left
        if left == 0:
            raise Died("in a test")
        left = None if left is None else left - 1
        done(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(BatchLoop, "_record", append)
        try:
            conf = {"log_dir": job.log, "max_spout_pending": 1, "history": "7d", **job.conf}
            run_all(job.declared(rename), "in_process", **conf)
        except TridentError as error:
            if dies_at is None or "in a test" not in str(error):
                raise


def changed(job: Job, draw: random.Random, kinds: Sequence[str]) -> tuple[Job, dict[str, str]]:
    members, since, rename = dict(job.members), dict(job.since), dict[str, str]()
    for _ in range(draw.randint(1, 3)):
        match draw.choice(["add", "add", "remove", "rename", "order"]):
            case "add":
                kind = draw.choice(kinds)
                name = draw.choice([kind, f"{kind}_{draw.randint(2, 3)}"])
                gone = [job.members[one] for one in job.members if one not in members and one not in rename]
                if name not in members and name not in rename and name not in job.members and kind not in gone:
                    members[name], since[name] = kind, len(job.rows)
            case "remove":
                name = draw.choice(list(members))
                added = {members[one] for one in members if one not in job.members and one not in rename.values()}
                is_last = len([one for one in members if one in job.members]) == 1
                if not is_last and members[name] not in added and name in job.members:
                    del members[name]
            case "rename":
                name = draw.choice([one for one in members if one in job.members] or [""])
                new = f"{name}_as_{draw.randint(0, 99)}"
                if name and new not in members:
                    members = {new if one == name else one: kind for one, kind in members.items()}
                    since[new], rename[name] = since.get(name, 0), new
            case _:
                names = list(members)
                draw.shuffle(names)
                members = {name: members[name] for name in names}
    name = draw.choice([job.name, job.name, f"total_{len(job.rows)}"])
    rename |= {} if name == job.name else {job.name: name}
    type_ = "bigint" if job.widens and job.type == "int" and draw.random() < 0.3 else job.type
    return Job(job.spec, job.log, members, since, list(job.rows), type_, {}, job.widens, name), rename


def check_chain(
    spec: StateSpec,
    folder: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    kinds: Sequence[str],
    widens: bool = True,
    lists: bool = True,
    early: bool = True,
) -> None:
    draw = random.Random(seed)
    begin = draw.sample(kinds, 2)
    job = Job(spec, str(folder / f"log{seed}"), dict(zip(begin, begin, strict=True)), widens=widens)

    def more(job: Job) -> None:
        job.rows += [(draw.choice("abcd"), draw.randint(-50, 50)) for _ in range(draw.randint(1, 7))]

    more(job)
    run(job, monkeypatch)
    store = next((path for path in (folder / "state.db", folder / "state") if path.exists()), None)
    copy = folder / "copy"
    for _ in range(5):
        new, rename = changed(job, draw, kinds)
        if early and new.name == job.name:
            assert new.found(**rename) == new.expected(), (seed, "before it has run")
        more(new)
        if draw.random() < 0.5:  # it dies before its first batch is recorded, and the former code comes back
            run(new, monkeypatch, rename, 0)
            if draw.random() < 0.7:
                before = len(job.rows)
                job.rows = list(new.rows)
                run(job, monkeypatch)
                assert job.found() == job.expected(), (seed, "the former code came back")
                new.since.update({name: len(job.rows) for name, at in new.since.items() if at == before})
                more(new)
        if draw.random() < 0.3:
            run(new, monkeypatch, rename, 1)
        run(new, monkeypatch, rename)
        assert new.found() == new.expected(), (seed, new.members)
        if not spec.facts.in_memory:
            done = verify_state(new.declared(), new.name, log_dir=new.log)
            assert [(list(one.wrong), one.refused) for one in done] == [([], "")], (seed, "verified")
        if store is not None:
            if not copy.exists() or draw.random() < 0.3:
                set_to(copy, store)
            elif draw.random() < 0.7:
                set_to(store, copy)
                new.conf["state_recovery"] = "rewind"
                run(new, monkeypatch)
                assert new.found() == new.expected(), (seed, "set back")
        if draw.random() < 0.2 and lists and not spec.facts.in_memory:
            migrate_state(new.declared(), new.name, log_dir=new.log, history="7d")
            remove(copy)
            assert new.found() == new.expected(), (seed, "migrated")
        job = new


def set_to(path: Path, other: Path) -> None:
    """Let a file or folder be a copy of another one."""
    remove(path)
    (shutil.copytree if other.is_dir() else shutil.copy)(other, path)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


LOCAL: dict[str, Callable[[Path, str], StateSpec]] = {
    "SQLite": lambda folder, name: sqlite_state(str(folder / f"{name}.db")),
    "Delta": lambda folder, name: DeltaState.opaque(folder / name),
    "Delta beyond memory": lambda folder, name: DeltaState.opaque(folder / name, max_keys_in_memory=1),
    "memory": lambda folder, name: MemoryMapState.opaque(),
}


@pytest.mark.parametrize("kinds", [tuple(AGGREGATES), NUMBERS], ids=["all", "numbers"])
@pytest.mark.parametrize("store", LOCAL)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.sample(4)
def test_chains_of_declarations(
    store: str, kinds: Sequence[str], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges_now_and_then(seed, monkeypatch)
    check_chain(LOCAL[store](tmp_path, "state"), tmp_path, seed, monkeypatch, kinds)


def merges_now_and_then(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let half of the merges of a state beyond memory not take place, so that its files are of any earlier declaration."""
    draw, offer = random.Random(f"merges {seed}"), Publishing._offer

    def offer_or_not(self: Publishing, *args: Any) -> None:
        if draw.random() < 0.5:
            offer(self, *args)

    monkeypatch.setattr(Publishing, "_offer", offer_or_not)


SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "PostgreSQL": ("postgres", {}),
    "PostgreSQL with changes": ("postgres", {"changes": "7d"}),
    "PostgreSQL, binary": ("postgres", {"layout": "binary"}),
    "Redis": ("redis", {}),
    "Redis, fields": ("redis", {"layout": "fields"}),
    "Memcached": ("memcached", {}),
    "Cassandra": ("cassandra", {}),
    "Cassandra, columns": ("cassandra", {"layout": "columns"}),
}


@pytest.mark.server
@pytest.mark.parametrize("store", SERVERS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sample(5)
def test_chains_of_declarations_on_servers(
    store: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, options = SERVERS[store]
    if server == "cassandra" and seed:
        pytest.skip("one chain shows it, and a table takes Cassandra a second")
    name = f"evolving_{abs(hash(tmp_path.name)) % 10**8}_{seed}"
    spec = state_on(server, request.getfixturevalue(f"{server}_server"), name, **options)
    # Cassandra gives a column no other type, Memcached lists no keys, and only a driver makes columns.
    widens, lists = store != "Cassandra, columns", store != "Memcached"
    early = store not in ("PostgreSQL", "PostgreSQL with changes", "Cassandra, columns")
    check_chain(spec, tmp_path, seed, monkeypatch, tuple(AGGREGATES), widens, lists, early)


OF_ITS_NAME: dict[str, Callable[[Server], StateSpec]] = {
    "postgres": lambda at: PostgresState(postgres_url(at)),
    "redis": lambda at: RedisState(f"redis://{at.address}/0"),
    "memcached": lambda at: MemcachedState([at.address]),
}


@pytest.mark.server
@pytest.mark.parametrize("store", OF_ITS_NAME)
def test_a_state_whose_name_says_where_it_is_stays_there_under_another(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = OF_ITS_NAME[store](request.getfixturevalue(f"{store}_server"))
    job = Job(spec, str(tmp_path / "log"), {"sum": "sum", "rows": "rows"}, rows=[("a", 1), ("b", 2)], name="first")
    for before, name in (("first", "second"), ("second", "third"), ("third", "second"), ("second", "fourth")):
        run(job, monkeypatch)
        job.name, rename = name, {before: name}
        with pytest.raises(StateError, match=f"state '{name}' of topology 't' is called '{before}' in its log"):
            job.found(**rename)
        job.rows += [("a", 5), ("c", 1)]
        run(job, monkeypatch, rename if name != "second" or before == "first" else None)
        assert job.found() == job.expected()
    topology = job.declared()
    more = topology.new_stream("more", FixedBatchSpout("k: string", 1, ["a"]))
    more.group_by("k").persistent_aggregate(spec, Count(), "first")
    with pytest.raises(
        TopologyChangedError, match="'fourth', which used to have this name, is kept in its store under it"
    ):
        topology.start(engine="in_process", log_dir=job.log)
    assert job.found() == job.expected()


@pytest.mark.server
def test_a_column_of_another_type_is_refused_and_the_name_of_another_is_taken(
    postgres_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"reused_{abs(hash(tmp_path.name)) % 10**8}"
    spec = state_on("postgres", postgres_server, table)
    job = Job(spec, str(tmp_path / "log"), {"sum": "sum", "rows": "rows"}, rows=[("a", 1), ("b", 2)])
    run(job, monkeypatch)
    for members in ({"rows": "rows"}, {"rows": "rows", "sum": "all"}):
        job.members, job.rows = members, [*job.rows, ("a", 3)]
        if "sum" not in members:
            run(job, monkeypatch)
    with pytest.raises(
        TopologyError, match="column sum is bigint, .* and jsonb as it is declared now.* Give it another name"
    ):
        run(job, monkeypatch)
    with pytest.raises(TopologyError, match="it has columns, and what is declared now is kept as key and value"):
        run(replace(job, spec=state_on("postgres", postgres_server, table, layout="binary")), monkeypatch)
    job.members, job.since = {"rows": "rows", "sum_2": "all"}, {"sum_2": len(job.rows) - 1}
    run(job, monkeypatch)
    assert job.found() == job.expected()


def test_a_copy_from_before_a_rewriting_is_not_rewound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, copy = tmp_path / "state.db", tmp_path / "copy.db"
    job = Job(sqlite_state(str(state)), str(tmp_path / "log"), {"sum": "sum"}, rows=[("a", 1), ("b", 2)])
    run(job, monkeypatch)
    shutil.copy(state, copy)
    job.members, job.since, job.rows = {"sum": "sum", "most": "most"}, {"most": 2}, [*job.rows, ("a", 5), ("c", 1)]
    run(job, monkeypatch)
    migrate_state(job.declared(), "total", log_dir=job.log, history="7d")
    shutil.copy(copy, state)
    job.conf["state_recovery"] = "rewind"
    with pytest.raises(RewindError, match="after batch 2 its values were given another form"):
        run(job, monkeypatch)


def test_a_rewind_by_another_declaration_keeps_what_it_has_and_says_what_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = sqlite_state(str(tmp_path / "state.db"))
    job = Job(spec, str(tmp_path / "log"), {"sum": "sum", "rows": "rows"}, rows=[("a", 1), ("b", 2)])
    run(job, monkeypatch)
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    former = replace(job, since={"rows": 2}, rows=[*job.rows, ("a", 5), ("c", 1), ("a", 2)])
    job.members, job.since = {"most": "most", "whole": "sum"}, {"most": 2}
    job.rows, job.conf["state_recovery"] = former.rows[:4], "rewind"
    run(job, monkeypatch, {"sum": "whole"}, 0)
    run(former, monkeypatch, {"whole": "sum"})
    assert former.found() == former.expected()
    assert "'rows' is new" in caplog.text
