"""Ranges of Redis Streams as a source: which entries are in which batch, lost writes, and answers that do not come."""

import logging
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from spouts import TransactionalRedisStreamSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.servers import Server, free_ports, start_redis
from tests.harness.topology_runs import start
from tests.harness.withheld import HOW, How, Withheld
from tests.spouts.reading import Life, is_plain
from tests.spouts.redis.streams import FIELDS, Batches, client_of, fill, numbers, url_of
from trident import TridentTopology
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.operations import Count
from trident.spout import SpoutType

pytestmark = pytest.mark.server


def spout_of(server: Any, streams: Any = "s", fields: str = FIELDS, **options: Any) -> TransactionalRedisStreamSpout:
    return TransactionalRedisStreamSpout(url_of(server), streams, fields, **options)


def test_batches_are_bounded_in_order_and_complete_and_have_typed_fields_and_ids(client: Any) -> None:
    fill(client, range(1, 8))
    client.xadd("s", {"word": "no n", "other": "x"}, id="8-3")
    spout = spout_of(client, max_entries=3)
    assert (spout.spout_type, str(spout.get_output_fields())) == (
        SpoutType.TRANSACTIONAL,
        "word: string, n: bigint, id: string",
    )
    batches = Batches(spout)
    rows = batches.run()
    assert numbers(rows) == [[1, 2, 3], [4, 5, 6], [7, None]]
    assert (rows[0][0], rows[2][1]) == (("w1", 1, "1-0"), ("no n", None, "8-3"))
    assert is_plain(batches.previous)


def test_a_replay_has_the_same_entries_whatever_was_added_and_however_it_is_cut(client: Any) -> None:
    fill(client, range(1, 4_501))
    batches = Batches(spout_of(client, max_entries=4_000))
    first = batches.define()
    fill(client, range(4_501, 4_600))
    for parallelism in (1, 2, 3, 16):
        again = Batches(spout_of(client), None)  # another driver, on the logged definition
        assert [row[1] for row in again.rows(first, parallelism)] == list(range(1, 4_001))
        assert len(again.coordinator.parts((1, 0), first, parallelism)) == {1: 1, 2: 2, 3: 2, 16: 4}[parallelism]
        again.close()
    batches.commit(first)
    assert [row[1] for batch in batches.run() for row in batch] == list(range(4_001, 4_600))


def test_several_streams_share_a_batch_and_rows_say_of_which_they_are(client: Any) -> None:
    fill(client, range(1, 4), "a")
    fill(client, range(1, 3), "b")
    batches = Batches(spout_of(client, ["a", "b"], max_entries=4))
    assert [[(row[3], row[1]) for row in batch] for batch in batches.run()] == [
        [("a", 1), ("a", 2), ("b", 1), ("b", 2)],
        [("a", 3)],
    ]


@pytest.mark.parametrize(("first", "expected"), [("0", [1, 2, 3, 4]), ("2-0", [3, 4]), ("2", [3, 4]), ("$", [4])])
def test_the_first_batch_begins_where_it_is_told(client: Any, first: str, expected: list[int]) -> None:
    fill(client, [1, 2, 3])
    batches = Batches(spout_of(client, first=first))
    found = batches.run()
    batches.close()
    fill(client, [4])  # while no driver runs
    again = Batches(batches.spout, batches.previous, batches.txid)
    assert [row[1] for batch in found + again.run() for row in batch] == expected


def test_a_stream_that_is_not_there_yet_loses_nothing_with_only_new_entries(client: Any) -> None:
    batches = Batches(spout_of(client, first="$"))
    assert batches.run() == [[]]
    batches.close()
    fill(client, [1, 2])
    again = Batches(batches.spout, batches.previous, batches.txid)
    assert numbers(again.run()) == [[1, 2]]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_stream_added_for_new_entries_begins_there_however_quiet_the_others(client: Any, is_there: bool) -> None:
    fill(client, range(1, 4), "a")
    batches = Batches(spout_of(client, ["a"], with_stream=True))
    batches.run()
    batches.close()
    if is_there:
        fill(client, range(1, 4), "b")
    for entries, found in ((range(4, 14), []), (range(14, 24), [*range(4, 14)]), ((), [*range(14, 24)])):
        batches = Batches(spout_of(client, ["a", "b"], first="$"), batches.previous, batches.txid)
        assert numbers(batches.run()) == [found]  # an empty batch keeps the place
        assert batches.define() is None
        batches.close()
        fill(client, entries, "b")  # while no driver runs


def test_lag_size_and_throttle(client: Any) -> None:
    fill(client, range(1, 11))
    batches = Batches(spout_of(client, max_entries=4))
    batches.coordinator.throttle(0.5)
    first = batches.define()
    assert [row[1] for row in batches.rows(first)] == [1, 2]
    assert batches.coordinator.size(first) == 2 * (len("1-0") + len("word") + len("w1") + len("n") + len("1"))
    batches.coordinator.throttle(1.0)
    second = batches.coordinator.initialize_transaction(2, first)
    batches.commit(first)
    assert batches.coordinator.lag(first) == (8, "records")
    batches.commit(second)
    assert batches.coordinator.lag(second) == (4, "records")


def test_entries_that_are_trimmed_before_their_batch_is_read_end_it(client: Any) -> None:
    fill(client, range(1, 11))
    batches = Batches(spout_of(client))
    definition = batches.define()
    client.xtrim("s", minid="4-0", approximate=False)
    with pytest.raises(ReplayMismatchError, match=r"has 10 entries of the stream 's'.* has 7 of them now"):
        batches.rows(definition)


def trimmed_behind(client: Any, batches: Batches) -> None:
    """Read entries 1 to 4, and trim 5 and 6, which no batch had."""
    fill(client, range(1, 11))
    first = batches.define()
    batches.commit(first)
    client.xtrim("s", minid="7-0", approximate=False)


def test_entries_that_were_never_read_are_missed_and_skipped_only_on_demand(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches(spout_of(client, max_entries=4))
    trimmed_behind(client, batches)
    for _ in range(2):  # also when it is tried again
        with pytest.raises(SpoutError, match="2 entries of the stream 's' on Redis .*, behind 4-0, were trimmed"):
            batches.define()
    batches.close()
    caplog.clear()  # before the stream was there, that was a warning
    skipping = Batches(spout_of(client, max_entries=4, lost_entries="skip"), batches.previous, batches.txid)
    assert numbers(skipping.run()) == [[7, 8, 9, 10]]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "they are skipped" in caplog.text


def test_a_stream_that_is_trimmed_whole_before_it_was_read_is_missed(client: Any) -> None:
    batches = Batches(spout_of(client, max_entries=4))
    fill(client, range(1, 11))
    batches.commit(batches.define())
    client.xtrim("s", maxlen=0)
    with pytest.raises(SpoutError, match="6 entries of the stream 's'"):
        batches.define()


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ([], "the stream 's' is gone from Redis .*it was read up to entry 4-0"),
        (range(1, 3), r"was read up to entry 4-0, and is another stream now \(its last entry is 2-0\)"),
        (range(11, 13), r"was read up to entry 4-0, and is another stream now \(its last entry is 12-0\)"),
    ],
)
def test_a_stream_that_was_deleted_or_made_again_is_found(client: Any, new: Any, said: str) -> None:
    batches = Batches(spout_of(client, max_entries=4))
    fill(client, range(1, 5))
    batches.commit(batches.define())
    client.delete("s")
    fill(client, new)
    with pytest.raises(SpoutError, match=said):
        batches.define()


def test_a_stream_that_was_read_under_another_key_is_not_counted_again(client: Any) -> None:
    fill(client, range(1, 5))
    fill(client, range(11, 15), "other")
    before = Batches(spout_of(client, with_stream=False))
    assert numbers(before.run()) == [[1, 2, 3, 4]]
    fill(client, [5])
    client.rename("s", "renamed")
    with pytest.raises(SpoutError, match=r"'renamed' .* was read as 's' up to entry 4-0.* Give it that key again"):
        Batches(spout_of(client, "renamed", with_stream=False), before.previous, before.txid).define()
    other = Batches(spout_of(client, "other", with_stream=False), before.previous, before.txid)
    assert numbers(other.run()) == [[11, 12, 13, 14]]
    client.rename("renamed", "s")
    assert numbers(Batches(spout_of(client, with_stream=False), other.previous, other.txid).run()) == [[5]]


def test_a_value_of_another_type_is_named_with_its_entry(client: Any) -> None:
    fill(client, [1, 2])
    client.xadd("s", {"word": "x", "n": "seven"}, id="3-0")
    batches = Batches(spout_of(client))
    said = "entry 3-0 of the stream 's': the value b'seven' of field 'n' is not int64. Declare the field as 'n: binary'"
    with pytest.raises(SpoutError, match=said):
        batches.rows(batches.define())


@pytest.mark.parametrize(("type_", "raw"), [("tinyint", "0xFF"), ("double", "1e400"), ("float", "1e-50")])
def test_a_number_is_not_bent(client: Any, type_: str, raw: str) -> None:
    client.xadd("s", {"n": raw}, id="1-0")
    batches = Batches(spout_of(client, fields=f"n: {type_}"))
    with pytest.raises(SpoutError, match=f"the value b'{raw}' of field 'n' is not "):
        batches.rows(batches.define())


@pytest.mark.parametrize(
    ("type_", "raw", "value"),
    [
        ("string", "ü".encode(), "ü"),
        ("binary", b"\xff\x00", b"\xff\x00"),
        ("int", b"-7", -7),
        ("double", b"1.5e3", 1500.0),
        ("boolean", b"true", True),
        ("date", b"2026-01-31", date(2026, 1, 31)),
    ],
)
def test_values_get_the_types_of_their_fields(client: Any, type_: str, raw: bytes, value: Any) -> None:
    client.xadd("s", {"x": raw}, id="1-0")
    batches = Batches(spout_of(client, fields=f"x: {type_}"))
    assert batches.run() == [[(value, "1-0")]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://x"}, "starts with 'http'"),
        ({"streams": []}, "give the name of a stream"),
        ({"fields": "word"}, "the field 'word' has no type"),
        ({"fields": "id: string"}, "the field 'id' is the spout's own"),
        ({"fields": "x: array<string>"}, "values in Redis are bytes"),
        ({"first": "now"}, "first='now': give"),
        ({"first": "1-0\n"}, "first='1-0.n': give"),
        ({"first": "٣"}, "first='٣': give"),
        ({"first": f"0-{1 << 64}"}, "first='0-18446744073709551616': give"),
        ({"max_entries": float("inf")}, "max_entries=inf of .*Spout: give a whole number of at least 1"),
        ({"max_entries": 0}, "max_entries=0 of .*Spout: give a whole number of at least 1"),
        ({"lost_entries": "ignore"}, "lost_entries='ignore' of .*Spout: give 'refuse' or 'skip'"),
        ({"tls_ca_file": "ca.pem"}, "TLS options and no TLS"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TransactionalRedisStreamSpout(**{"url": "redis://x", "streams": "s", "fields": FIELDS, **given})


def test_a_stream_that_is_not_there_yet_is_named_in_a_warning(
    redis_server: Server, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://{redis_server.address}"
    TransactionalRedisStreamSpout(url, "to come", FIELDS).get_coordinator({}).close()
    client.xadd("to come", {"n": 1})
    TransactionalRedisStreamSpout(url, "to come", FIELDS).get_coordinator({}).close()
    assert [record.getMessage() for record in caplog.records if "to come" in record.getMessage()] == [
        f"there is no stream 'to come' on Redis {redis_server.address}; waiting for its first entry"
    ]


def test_a_key_that_is_no_stream_and_an_absent_server_are_named_at_the_start(client: Any) -> None:
    client.set("s", 1)
    with pytest.raises(SpoutError, match="the key 's' on Redis 127.0.0.1:.* is a string and not a stream"):
        spout_of(client).get_coordinator({})
    with pytest.raises(
        SpoutError, match=r"looking for the stream 's' on Redis 127.0.0.1:1: .*is the server up"
    ) as found:
        TransactionalRedisStreamSpout("redis://user:secret@127.0.0.1:1", "s", FIELDS).get_coordinator({})
    assert "secret" not in str(found.value)


def test_a_password_is_needed_named_and_never_shown(client: Any) -> None:
    client.config_set("requirepass", "geheim")
    try:
        with pytest.raises(SpoutError, match="the server asks for a password|check user and password"):
            spout_of(client).get_coordinator({})
        with pytest.raises(SpoutError, match="check user and password") as wrong:
            spout_of(client, password="falsch").get_coordinator({})
        assert "falsch" not in str(wrong.value)
        right = spout_of(client, password="geheim")
        right.get_coordinator({}).close()
        assert "geheim" not in repr(right._options)
    finally:
        client.config_set("requirepass", "")


def test_tls_is_used_and_verified(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    openssl = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}"
    subprocess.run([*openssl.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    (port,) = free_ports(1)
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    server = start_redis(tmp_path, "--tls-port", port, *files, "--tls-auth-clients", "no")
    try:
        with client_of(server) as client:
            fill(client, [1])
        batches = Batches(
            TransactionalRedisStreamSpout(f"rediss://127.0.0.1:{port}", "s", FIELDS, tls_ca_file=str(cert))
        )
        assert batches.run() == [[("w1", 1, "1-0")]]  # driver and workers
        batches.close()
        with pytest.raises(SpoutError, match="certificate verify failed"):
            TransactionalRedisStreamSpout(f"redis://127.0.0.1:{port}", "s", FIELDS, tls=True).get_coordinator({})
    finally:
        server.stop()


def test_a_server_that_is_killed_and_comes_back_with_its_data_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    try:
        with client_of(server) as client:
            fill(client, range(1, 5))
        topology = TridentTopology("t")
        stream = topology.new_stream("s", spout_of(server, max_entries=2))
        counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
        with start(topology, "in_process") as running:
            running.process_all_available()
            server.kill()
            until(lambda: "does not answer" in caplog.text or "tried again until" in caplog.text, "it is missed")
            waiter = threading.Thread(target=running.process_all_available)
            waiter.start()
            server.start()
            with client_of(server) as client:
                fill(client, range(5, 8))
            waiter.join(30)
            assert not waiter.is_alive()
            running.process_all_available()
            assert running.state(counts).multi_get([f"w{number}" for number in range(1, 8)]) == [1] * 7
            assert running.status["failures"] == 0
        assert "answers again" in caplog.text
    finally:
        server.stop()


def test_a_topology_counts_each_entry_once_with_the_workers_reading(client: Any, engine: str) -> None:
    fill(client, range(1, 2_501))
    topology = TridentTopology("t")
    words = topology.new_stream("words", spout_of(client, max_entries=2_000)).parallelism_hint(2)
    state = words.group_by("n").persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, engine) as running:
        running.process_all_available()
        assert running.state(state).multi_get(range(1, 2_502)) == [1] * 2_500 + [None]
        assert running.status["sources"][0]["lag"] == {"amount": 0, "unit": "records"}
        assert running.txid == 2


@pytest.fixture
def saved(tmp_path: Any) -> Iterator[tuple[Server, Callable[[], None]]]:
    """A server whose data is as old as its last SAVE once it was killed and started, and the function that does that."""
    server = start_redis(tmp_path)

    def crash() -> None:
        server.kill()
        server.start()

    yield server, crash
    server.stop()


def read_in_part(server: Server, client: Any, read: int, saved: int) -> Batches:
    """Have entries 1 to `read` read, and only those up to `saved` kept by a crash."""
    batches = Batches(spout_of(server))
    fill(client, range(1, saved + 1))
    client.save()
    fill(client, range(saved + 1, read + 1))
    batches.run()
    return batches


ANOTHER = r"the stream 's' on Redis .* was read up to entry 20-0, and is another stream now"


@pytest.mark.parametrize(
    "ids",
    [
        [*(f"6-{number}" for number in range(1, 15)), *(f"{number}-0" for number in range(21, 27))],
        [*(f"{number}-0" for number in range(7, 27))],
        [*(f"{number}-0" for number in range(7, 9)), *(f"{number}-0" for number in range(21, 27))],
        [*(f"6-{number}" for number in range(1, 30)), "21-0"],
    ],
    ids=["as many as were lost", "under the same ids", "fewer", "more"],
)
@pytest.mark.parametrize("restart", [False, True])
def test_new_entries_of_a_server_that_lost_its_last_writes_are_not_skipped(
    saved: tuple[Server, Callable[[], None]], ids: list[str], restart: bool
) -> None:
    server, crash = saved
    with client_of(server) as client:
        batches = read_in_part(server, client, read=20, saved=6)
    crash()
    with client_of(server) as client:
        for id_ in ids:  # of a clock that is behind: most of them are before what was read
            client.xadd("s", {"word": "new", "n": 100}, id=id_)
    batches.close()
    if restart:
        batches = Batches(batches.spout, batches.previous, batches.txid)
    with pytest.raises(SpoutError, match=ANOTHER):
        batches.define()


@pytest.mark.parametrize("gone", ["deleted", "trimmed", "trimmed whole", "deleted one by one", "nothing"])
def test_what_was_read_may_be_deleted_or_trimmed(client: Any, gone: str) -> None:
    fill(client, range(1, 11))
    batches = Batches(spout_of(client))
    batches.run()
    if gone == "deleted":
        client.xdel("s", "10-0")
    elif gone == "deleted one by one":
        client.xdel("s", *(f"{number}-0" for number in range(1, 11)))
    elif gone != "nothing":
        client.xtrim("s", maxlen=0 if gone == "trimmed whole" else 1, approximate=False)
    fill(client, range(11, 14))
    assert numbers(batches.run()) == [[11, 12, 13]]


def test_a_position_that_no_entry_has_is_no_loss(client: Any) -> None:
    fill(client, [1, 3])
    batches = Batches(spout_of(client, first="2-0", max_entries=1))
    assert numbers(batches.run()) == [[3]]
    batches.close()
    client.xdel("s", "3-0")
    newest = Batches(spout_of(client, first="$"))
    assert newest.run() == [[]]
    fill(client, [4])
    assert numbers(newest.run()) == [[4]]


def test_a_replay_that_finds_as_many_other_entries_is_refused(saved: tuple[Server, Callable[[], None]]) -> None:
    server, crash = saved
    with client_of(server) as client:
        fill(client, range(1, 7))
        client.save()
        fill(client, range(7, 21))
    batches = Batches(spout_of(server))
    definition = batches.define()
    crash()
    with client_of(server) as client:
        for number in range(1, 15):
            client.xadd("s", {"word": "new", "n": 100}, id=f"6-{number}")
    with pytest.raises(ReplayMismatchError, match="the batch has 20 entries of the stream 's', behind 0-0 up to 20-0"):
        batches.rows(definition)


@pytest.mark.parametrize("read_before", [True, False])
def test_an_entry_deleted_by_its_id_is_missed_only_where_none_read_is_left(client: Any, read_before: bool) -> None:
    fill(client, range(1, 6))
    batches = Batches(spout_of(client, max_entries=2))
    batches.commit(batches.define())
    client.xdel("s", "4-0", *(() if read_before else ("1-0", "2-0")))
    if read_before:
        assert numbers(batches.run()) == [[3, 5]]
    else:
        with pytest.raises(SpoutError, match="1 entries of the stream 's'.*were trimmed or deleted before a batch had"):
            batches.run()


QUICK: dict[str, Any] = {"timeout_s": 0.15, "connect_timeout_s": 2.0, "retries": 0, "max_entries": 4}
AWAY = b"-LOADING Redis is loading the dataset in memory\r\n"


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Withheld]:
    with closing(Withheld(redis_server.port, AWAY)) as proxy:
        yield proxy


def withheld_spout(port: int, first: str) -> Any:
    return TransactionalRedisStreamSpout(url_of(port), ["s", "t"], FIELDS, first=first, with_stream=False, **QUICK)


def lived(client: Any, spout: Any) -> Life:
    """Look for the first time, read, be idle, read, and start again: with entries added before each of these."""
    client.flushall()
    fill(client, (1, 2), "s")
    life = Life(spout)
    until(lambda: life.committed or not life.step(), "it has begun")  # what is new from here on must come
    for added, stream in (((11, 12, 13, 14, 15), "s"), ((21, 22), "t")):
        fill(client, added, stream)
        life.run()
    life.restart()
    fill(client, (31, 32), "t")
    life.run()
    life.restart()
    return life


NEW = [11, 12, 13, 14, 15, 21, 22, 31, 32]


def check(proxy: Withheld, client: Any, first: str, number: int, how: How) -> None:
    proxy.withhold(number, how)
    life = lived(client, withheld_spout(proxy.port, first))
    found = Counter(row[1] for row in life.rows)
    expected = NEW if first == "$" else [1, 2, *NEW]
    assert found == Counter(expected), f"{how}: the answer to request {number}"
    assert all(isinstance(error, SourceAwayError) or life.coordinator is None for error in life.errors)


@pytest.mark.parametrize(
    "how", [pytest.param(None, marks=pytest.mark.long), *(pytest.param(how, marks=pytest.mark.soak) for how in HOW)]
)
@pytest.mark.parametrize("first", ["0", "$"])
@pytest.mark.timeout(900)
def test_no_entry_is_skipped_if_an_answer_is_withheld(
    proxy: Withheld, client: Any, first: str, how: How | None
) -> None:
    """Whichever it is; without `how` those of the first look and some of what follows, each in another way."""
    check(proxy, client, first, 0, how or "never")
    some = (*range(1, 12), *range(12, proxy.requests + 1, 9))
    for number in some if how is None else range(1, proxy.requests + 1):
        check(proxy, client, first, number, how or HOW[number % len(HOW)])
