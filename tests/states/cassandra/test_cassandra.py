"""A state in Cassandra: its options; what is stored, read, listed, removed and refused, on a real server."""

import logging
import multiprocessing
import os
import ssl
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from states.cassandra import CassandraOptions, CassandraState
from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.map import BATCH_BYTES, CassandraBackingMap
from states.cassandra.options import table_name
from states.cassandra.schema import _create_keyspace, check_consistency
from tests.harness.store_commits import values
from tests.states.cassandra.cassandra_states import EPOCH, Home, Log, claim, commit, names
from trident.errors import BackendError, CommitOrderError, ConfigError, StateError, StateMismatchError, StoreAwayError
from trident.state import CodecSerializer, StateConf, StateType


def test_json_is_readable_by_other_programs(home: Home, cql: CassandraConnection) -> None:
    conf = home.conf()
    commit(home.state(conf, serializer="json"), Log(), 1, {"cow": 5})
    rows = cql.execute(f"SELECT value FROM tests.states WHERE trident_state = '{conf.prefix}' ALLOW FILTERING", "look")
    assert (b"[1,%d,null,5]" % EPOCH,) in rows


def test_as_many_values_are_put_as_keys(home: Home) -> None:
    with pytest.raises(ValueError, match="write 1 keys with 2 values"):
        home.map(home.conf()).multi_put([("a",)], [b"1", b"2"])


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 24, 25, 100])
def test_sizes_around_the_windows(home: Home, size: int) -> None:
    backing = home.map(home.conf(), table="two", buckets=2, rows_per_batch=2, rows_per_read=3, max_concurrency=2)
    keys = [(f"{n}",) for n in range(size)]
    claim(backing, 1)
    backing.multi_put(keys, [b"%d" % n for n in range(size)])
    assert backing.multi_get(keys) == [b"%d" % n for n in range(size)]


@pytest.mark.long
def test_large_values_go_alone_and_no_batch_exceeds_the_limit(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[list[int]] = []
    backing = home.map(home.conf(), buckets=128)
    rows: Any = backing._rows
    whole = rows._batch

    def noted(bucket: Any, some: list[Any], at: bytes) -> Any:
        sent.append([len(key) + len(value) for key, value in some])
        return whole(bucket, some, at)

    monkeypatch.setattr(rows, "_batch", noted)
    sizes = [1 << 20, 60_000, *[9_000] * 800, *[10] * 20_000]
    keys = [(n,) for n in range(len(sizes))]
    claim(backing, 1)
    with caplog.at_level(logging.WARNING):
        backing.multi_put(keys, [b"v" * size for size in sizes])
    assert caplog.messages == []
    assert sum(map(len, sent)) == len(keys)
    assert max(map(len, sent)) == 100
    assert all(sum(batch) <= BATCH_BYTES for batch in sent if len(batch) > 1)
    assert sum(1 for batch in sent if sum(batch) > 50_000) == 2  # a row above the limit has its write for itself
    assert [len(value or b"") for value in backing.multi_get(keys[:100])] == sizes[:100]


def test_a_value_that_the_server_refuses_is_an_error_with_the_place(home: Home) -> None:
    backing = home.map(home.conf())
    claim(backing, 1)
    said = r"cannot write 1 keys of state 'topology/state\d+' in \"tests\"\.\"states\""
    with pytest.raises(BackendError, match=said):
        backing.multi_put([("huge",)], [b"v" * (5 << 20)])
    assert backing.multi_get([("huge",)]) == [None]


def test_a_ttl_goes_with_every_row_and_not_with_the_sentinel(home: Home, cql: CassandraConnection) -> None:
    conf = home.conf()
    commit(home.state(conf, ttl_s=100_000), Log(), 1, {"cow": 5})
    select = (
        f"SELECT trident_bucket, TTL(value) FROM tests.states WHERE trident_state = '{conf.prefix}' ALLOW FILTERING"
    )
    left = dict(cql.execute(select, "look"))
    assert [ttl for bucket, ttl in left.items() if bucket < 0] == [None, None]
    assert [99_000 < ttl <= 100_000 for bucket, ttl in left.items() if bucket >= 0] == [True]


def test_a_large_bucket_is_read_page_by_page(home: Home) -> None:
    backing = home.map(home.conf(), table="few", buckets=1)
    keys = [(n,) for n in range(2_500)]
    claim(backing, 1)
    backing.multi_put(keys, [b"x"] * len(keys))
    assert sorted(key for page in backing.key_pages() for key in page) == keys


def test_what_is_written_after_a_reset_stays(home: Home) -> None:
    conf = home.conf()
    old = home.map(conf)
    claim(old, 900, attempt=7 * EPOCH)  # versions far above those of the next log
    old.multi_put([("kept",), ("gone",)], [b"zzz", b"zzz"])
    new = home.map(conf)
    new.reset()
    assert new.read_sentinel() is None
    assert new.multi_get([("kept",), ("gone",)]) == [None, None]
    claim(new, 1, incarnation="new log")
    new.multi_put([("kept",)], [b"aaa"])
    assert home.map(conf).multi_get([("kept",), ("gone",)]) == [b"aaa", None]


def test_another_number_of_buckets_is_refused(home: Home) -> None:
    home.map(home.conf(), table="sixteen", buckets=16)
    with pytest.raises(StateError, match=r'table "tests"."sixteen" was made with 16 buckets, and buckets=32 is asked'):
        home.map(home.conf(), table="sixteen", buckets=32)


def test_a_foreign_table_is_refused(home: Home, cql: CassandraConnection) -> None:
    cql.define("CREATE TABLE IF NOT EXISTS tests.foreign_one (id int PRIMARY KEY, note text)")
    with pytest.raises(StateError, match=r"is not a table of a state: its columns are id int, note text"):
        home.map(home.conf(), table="foreign_one")


def test_an_owner_may_add_columns_to_a_table_of_bytes_too(home: Home, cql: CassandraConnection) -> None:
    conf = home.conf()
    home.map(conf, table="added").multi_put([("a",)], [b"1"])
    cql.define("ALTER TABLE tests.added ADD note text")
    home.map(conf, table="added").multi_put([("b",)], [b"2"])
    assert home.map(conf, table="added").multi_get([("a",), ("b",)]) == [b"1", b"2"]


def test_a_table_whose_rows_expire_by_default_is_refused(home: Home, cql: CassandraConnection) -> None:
    home.map(home.conf(), table="expiring")
    cql.define("ALTER TABLE tests.expiring WITH default_time_to_live = 100000")
    with pytest.raises(StateError, match="default_time_to_live = 100000, so its records of commits would expire"):
        home.map(home.conf(), table="expiring")


def test_nothing_is_made_where_that_is_not_allowed(home: Home) -> None:
    with pytest.raises(StateError, match=r"there is no table .*absent.*Make it with: CREATE TABLE"):
        home.map(home.conf(), table="absent", create_table=False)
    with pytest.raises(StateError, match=r"there is no table .*absent.*Start the topology first"):
        home.map(home.conf(read_only=True), table="absent")
    with pytest.raises(ConfigError, match=r"there is no keyspace 'nowhere'.*replication="):
        home.map(home.conf(), keyspace="nowhere", replication=None)


def test_weak_consistency_and_missing_copies_are_told_apart(home: Home) -> None:
    three: dict[str, Any] = {"keyspace": "three_copies", "replication": 3}
    with pytest.raises(ConfigError, match=r"reads at ONE \(1 of 3 copies\) and writes at ONE \(1 of 3\)"):
        home.map(home.conf(), read_consistency="ONE", write_consistency="ONE", **three)
    home.map(home.conf(), read_consistency="ONE", write_consistency="ONE", allow_weak_consistency=True, **three)
    alone = home.map(home.conf(), **three)  # one node cannot hold three copies
    with pytest.raises(BackendError, match="Unavailable") as failure:
        alone.multi_get([("k",)])
    assert failure.value.retryable


def test_a_wiped_table_is_found_before_anything_is_written(home: Home, cql: CassandraConnection) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf, table="wiped")
    commit(state, log, 1, {"cow": 1})
    cql.define("TRUNCATE tests.wiped")
    with pytest.raises(StateMismatchError, match="the store has no commit at all"):
        state.begin_commit(log.txid(2))
    cql.define("DROP TABLE tests.wiped")
    state = home.state(conf, table="wiped")
    with pytest.raises(StateMismatchError, match="the store has no commit at all"):
        state.begin_commit(log.txid(2))
    assert values(state, "cow") == [None]


@pytest.mark.parametrize("layout", ["binary", "columns"])
def test_a_table_of_the_first_version_is_refused_by_its_number(
    home: Home, cql: CassandraConnection, layout: str
) -> None:
    cql.define("DROP TABLE IF EXISTS tests.early")
    early = {
        "binary": "(state text, bucket int, key blob, value blob, PRIMARY KEY ((state, bucket), key)) WITH comment = 'trident "
        "state table, layout 1, 128 buckets'",
        "columns": "(word text PRIMARY KEY, count bigint) WITH comment = 'trident columns table, layout 1'",
    }
    cql.define(f"CREATE TABLE tests.early {early[layout]}")
    conf = StateConf("topology", "early", (("word", "string"),), "bigint", value_field="count")
    said = "has layout 1; this version knows 2. Nothing was written. Give the state another"
    with pytest.raises(StateError, match=said):
        home.state(conf, table="early", layout=layout)


def test_connecting_warns_of_nothing(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        state = home.state(home.conf(), timeout_s=15.5)  # other options, so another connection
        commit(state, Log(), 1, {str(n): n for n in range(500)})
    assert [record.getMessage() for record in caplog.records] == []


def test_partitions_share_a_connection_which_is_closed_with_the_last(home: Home) -> None:
    before = set(threading.enumerate())
    maps = [home.map(home.conf(), n, timeout_s=15.25) for n in range(3)]
    first, second, third = (backing._connection for backing in maps)
    assert first is second is third
    started = set(threading.enumerate()) - before
    assert started
    for backing in maps[:2]:
        backing.close()
        backing.close()
    assert maps[2].multi_get([("k",)]) == [None]
    maps[2].close()
    # The driver's own loop serves all connections of a process.
    assert [thread.name for thread in started if thread.is_alive() and thread.name != "event_loop"] == []
    with pytest.raises(StateError, match="this instance was closed"):
        maps[2].multi_get([("k",)])


def test_a_forked_child_connects_again(home: Home) -> None:
    backing = home.map(home.conf())
    claim(backing, 1)
    backing.multi_put([("k",)], [b"of the parent"])
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            read = backing.multi_get([("k",)])[0] or b"nothing"
            try:
                backing.multi_put([("k",)], [b"of the child"])
            except CommitOrderError:
                read += b", refused"
            os.write(writable, read)
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as answer:
        assert answer.read() == b"of the parent, refused"
    assert os.waitpid(child, 0)[1] == 0
    assert backing.multi_get([("k",)]) == [b"of the parent"]


def test_processes_that_start_at_once_in_a_new_keyspace_share_its_tables(home: Home) -> None:
    """A table that one of them makes is in the schema a moment before the others can prepare a statement of it."""
    forked = multiprocessing.get_context("fork")
    for keyspace in (f"atonce{next(names)}" for _ in range(4)):
        together, said = forked.Barrier(3), forked.Queue()
        starting = [
            forked.Process(target=_open_one, args=(replace(home.options, keyspace=keyspace), at, together, said))
            for at in range(3)
        ]
        for process in starting:
            process.start()
        assert [said.get(timeout=60) for _ in starting] == ["opened"] * 3
        for process in starting:
            process.join()


def _open_one(options: CassandraOptions, at: int, together: Any, said: Any) -> None:
    together.wait(60)
    try:
        CassandraState.opaque(options).factory.make_state(StateConf("topology", f"state{at}"), 0, 1).close()
        said.put("opened")
    except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
        said.put(str(error))


def test_a_contact_point_without_an_address_is_named() -> None:
    with pytest.raises(StoreAwayError, match="cannot find a node .* no name of contact_points has an address"):
        CassandraBackingMap(CassandraOptions(contact_points=("nowhere.invalid",)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"contact_points": ()}, "give the host name or address of a node"),
        ({"contact_points": ("a,b",)}, "give host names or addresses in a list"),
        ({"contact_points": ("cassandra://a",)}, "and the port as port="),
        ({"contact_points": "a:9042"}, "and the port as port="),
        ({"keyspace": "no-such"}, "keyspace='no-such' of a Cassandra state: the server takes 1 to 48 letters"),
        ({"table": "x" * 49}, "the server takes 1 to 48 letters"),
        ({"port": 0}, "port=0 of a Cassandra state: give a whole number from 1 to 65535"),
        ({"buckets": 0}, "buckets=0 of a Cassandra state: give a whole number from 1"),
        ({"rows_per_batch": 101}, "rows_per_batch=101 of a Cassandra state: give a whole number from 1 to 100"),
        ({"rows_per_read": 0}, "rows_per_read=0"),
        ({"max_concurrency": 1.5}, "max_concurrency=1.5 of a Cassandra state: give a whole number"),
        ({"replication": 0}, "replication=0 of a Cassandra state: give at least one copy"),
        ({"replication": {"dc": 0}}, "give at least one copy"),
        ({"replication": {}}, "give at least one copy"),
        ({"read_consistency": "quorum"}, "read_consistency='quorum' of a Cassandra state: give 'ONE', 'TWO'"),
        ({"read_consistency": "EACH_QUORUM"}, "read_consistency='EACH_QUORUM' of a Cassandra state: give 'ONE'"),
        ({"write_consistency": "ANY"}, "write_consistency='ANY' of a Cassandra state: give 'ONE'"),
        ({"user": "me"}, "user and password belong together"),
        ({"ttl_s": 10**9}, "ttl_s=1000000000 of a Cassandra state: give None .never. or at most 630720000"),
        ({"protocol_version": 2}, "protocol_version=2"),
        ({"serializer": CodecSerializer(StateType.TRANSACTIONAL)}, "was given to a state that is opaque"),
    ],
)
def test_impossible_options_are_refused_where_they_are_given(options: dict[str, Any], text: str) -> None:
    points = options.pop("contact_points", ("localhost",))
    with pytest.raises(ConfigError, match=text):
        CassandraState.opaque(points, **options)


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("Topology/state", "topology_state"),
        ("a.b/c-d", "a_b_c_d"),
        ("é/ü", "___"),
        ("t" * 40 + "/" + "s" * 40, "t" * 39 + "_65724187"),
    ],
)
def test_a_table_is_named_after_the_prefix(prefix: str, name: str) -> None:
    assert table_name(prefix) == name


SIMPLE = "org.apache.cassandra.locator.SimpleStrategy"
NETWORK = "org.apache.cassandra.locator.NetworkTopologyStrategy"


@pytest.mark.parametrize(
    ("read", "write", "replication", "local_dc", "refused"),
    [
        ("QUORUM", "QUORUM", {"class": SIMPLE, "replication_factor": "3"}, None, ""),
        ("ONE", "ONE", {"class": SIMPLE, "replication_factor": "1"}, None, ""),
        ("ONE", "ALL", {"class": SIMPLE, "replication_factor": "3"}, None, ""),
        ("QUORUM", "QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, None, ""),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3"}, None, ""),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3", "b": "2"}, "a", ""),
        ("LOCAL_QUORUM", "EACH_QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, "b", ""),
        ("LOCAL_ONE", "ALL", {"class": NETWORK, "a": "3", "b": "3"}, "b", ""),
        ("TWO", "QUORUM", {"class": SIMPLE, "replication_factor": "3/1"}, None, ""),
        ("ONE", "QUORUM", {"class": SIMPLE, "replication_factor": "3"}, None, r"ONE \(1 of 3 copies\) .*\(2 of 3\)"),
        ("QUORUM", "ONE", {"class": NETWORK, "a": "2", "b": "2"}, None, r"QUORUM \(3 of 4 copies\) .*\(1 of 4\)"),
        ("LOCAL_ONE", "LOCAL_QUORUM", {"class": NETWORK, "a": "3"}, None, r"\(1 of 3 copies\)"),
        ("LOCAL_QUORUM", "QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, "a", r"QUORUM \(0 of 3\)"),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, None, "needs local_dc: .*'a', 'b'"),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, "c", "local_dc='c'"),
    ],
)
def test_only_levels_that_surely_meet_are_accepted(
    read: Any, write: Any, replication: dict[str, str], local_dc: str | None, refused: str
) -> None:
    options = CassandraOptions(read_consistency=read, write_consistency=write, local_dc=local_dc)
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        check_consistency(options, replication)


def test_a_keyspace_is_made_with_the_copies_asked_for() -> None:
    assert _create_keyspace(CassandraOptions(replication=3)).endswith(
        "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': '3'}"
    )
    assert _create_keyspace(CassandraOptions(replication={"eu": 3, "us'": 2})).endswith(
        "WITH replication = {'class': 'NetworkTopologyStrategy', 'eu': '3', 'us''': '2'}"
    )


def test_tls_checks_certificates_and_names_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert CassandraOptions().tls_context() is None
    context = CassandraOptions(tls=True).tls_context()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    relaxed = CassandraOptions(tls=True).tls_context(check_hostname=False)
    assert relaxed is not None
    assert (relaxed.check_hostname, relaxed.verify_mode) == (False, ssl.CERT_REQUIRED)
    none = str(tmp_path / "none.pem")
    for options in (CassandraOptions(tls=True, tls_ca_file=none), CassandraOptions(tls=True, tls_cert_file=none)):
        with pytest.raises(ConfigError, match=r"read the TLS files .*none\.pem.*No such file"):
            options.tls_context()
