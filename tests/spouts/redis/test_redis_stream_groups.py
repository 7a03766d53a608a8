"""RedisStreamSpout: what a consumer group delivers, when it is acknowledged, and what a crashed consumer leaves behind."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spouts import RedisStreamSpout, TransactionalRedisStreamSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.proxy import Proxy
from tests.harness.servers import Server, free_ports, start_redis
from tests.harness.topology_runs import start
from tests.spouts.reading import is_plain
from tests.spouts.redis.streams import FIELDS, Batches, client_of, fill, numbers, url_of
from trident import TridentTopology
from trident.errors import InexactPairingError, SpoutError
from trident.operations import Count
from trident.spout import SpoutType

pytestmark = pytest.mark.server


def spout_of(server: Server | int, streams: Any = "s", **options: Any) -> RedisStreamSpout:
    return RedisStreamSpout(url_of(server), streams, FIELDS, **{"group": "g", **options})


def pending(client: Any, stream: str = "s") -> int:
    count: int = client.xpending(stream, "g")["pending"]
    return count


def test_each_entry_comes_once_in_bounded_batches_and_is_acknowledged_when_its_batch_is_committed(
    redis_server: Server, client: Any
) -> None:
    fill(client, range(1, 8))
    spout = spout_of(redis_server, max_entries=3)
    assert (spout.spout_type, str(spout.get_output_fields())) == (
        SpoutType.NON_TRANSACTIONAL,
        "word: string, n: bigint, id: string",
    )
    batches = Batches(spout)
    first = batches.define()
    assert is_plain(first)
    assert batches.rows(first) == [(f"w{number}", number, f"{number}-0") for number in (1, 2, 3)]
    assert pending(client) == 3
    batches.commit(first)
    assert pending(client) == 0
    assert numbers(batches.run()) == [[4, 5, 6], [7]]
    assert batches.define() is None
    batches.close()


def test_an_ended_attempt_gives_its_entries_back_and_no_entry_is_in_two_live_batches(
    redis_server: Server, client: Any
) -> None:
    fill(client, range(1, 7))
    batches = Batches(spout_of(redis_server, max_entries=2))
    first = batches.define()
    second = batches.coordinator.initialize_transaction(2, first)
    third = batches.coordinator.initialize_transaction(3, second)
    assert [(batch or {})["last"]["s"] for batch in (first, second, third)] == ["2-0", "4-0", "6-0"]
    again = batches.coordinator.initialize_transaction(2, first)  # batch 2 failed, and 3 with it
    assert again == second
    batches.commit(first)
    assert numbers([batches.rows(again)]) == [[3, 4]]
    batches.commit(again)
    assert numbers(batches.run()) == [[5, 6]]
    batches.close()


def test_a_restart_gets_what_was_not_acknowledged_and_then_what_is_new(redis_server: Server, client: Any) -> None:
    fill(client, range(1, 6))
    crashed = Batches(spout_of(redis_server, max_entries=2))
    crashed.commit(crashed.define())
    crashed.define()
    crashed.coordinator.initialize_transaction(3, None)  # pending are 3 to 5
    fill(client, [6])
    again = Batches(crashed.spout, crashed.previous, crashed.txid)
    assert numbers(again.run()) == [[3, 4], [5, 6]]
    assert pending(client) == 0
    again.close()
    crashed.close()


def test_entries_of_another_consumer_are_taken_over_once_they_are_idle(redis_server: Server, client: Any) -> None:
    fill(client, range(1, 4))
    crashed = Batches(spout_of(redis_server, consumer="before"))
    crashed.define()
    patient = Batches(spout_of(redis_server, consumer="patient"))
    assert patient.define() is None
    heir = Batches(spout_of(redis_server, consumer="heir", claim_idle_s=0.01))
    until(lambda: (found := heir.define()) is not None and numbers([heir.rows(found)]) == [[1, 2, 3]], "it takes over")
    assert [each["pending"] for each in client.xinfo_consumers("s", "g") if each["name"] == b"heir"] == [3]
    for each in (crashed, patient, heir):
        each.close()


def test_its_own_entries_are_not_taken_over_from_itself_while_their_batch_is_under_way(
    redis_server: Server, client: Any
) -> None:
    fill(client, range(1, 4))
    batches = Batches(spout_of(redis_server, claim_idle_s=0.001))
    first = batches.define()
    waited = threading.Event()
    for _ in range(20):
        waited.wait(0.002)
        assert batches.coordinator.initialize_transaction(2, first) is None
    batches.commit(first)
    assert pending(client) == 0
    batches.close()


def test_several_streams_are_read_alike(redis_server: Server, client: Any) -> None:
    fill(client, range(1, 6), "a")
    fill(client, range(1, 3), "b")
    batches = Batches(spout_of(redis_server, ["a", "b"], max_entries=4))
    found = [[(row[3], row[1]) for row in batch] for batch in batches.run()]
    assert found == [[("a", 1), ("a", 2), ("b", 1), ("b", 2)], [("a", 3), ("a", 4)], [("a", 5)]]
    assert pending(client, "a") + pending(client, "b") == 0
    batches.close()


@pytest.mark.parametrize(("first", "expected"), [("0", [1, 2, 3, 4]), ("2-0", [3, 4]), ("$", [4])])
def test_a_new_group_begins_where_it_is_told_and_one_that_is_there_goes_on(
    redis_server: Server, client: Any, first: str, expected: list[int]
) -> None:
    fill(client, [1, 2, 3])
    batches = Batches(spout_of(redis_server, first=first))
    found = batches.run()
    batches.close()
    fill(client, [4])
    other = Batches(spout_of(redis_server, first="0"))
    assert [row[1] for batch in found + other.run() for row in batch] == expected
    other.close()


def test_a_stream_that_is_not_there_is_created_with_its_group(redis_server: Server, client: Any) -> None:
    batches = Batches(spout_of(redis_server, first="$"))
    assert batches.run() == [[]]
    fill(client, [1])
    assert numbers(batches.run()) == [[1]]
    batches.close()


def test_lag_counts_what_is_not_committed_and_throttled_batches_are_smaller(redis_server: Server, client: Any) -> None:
    fill(client, range(1, 11))
    batches = Batches(spout_of(redis_server, max_entries=4))
    first = batches.define()
    batches.coordinator.throttle(0.5)
    second = batches.coordinator.initialize_transaction(2, first)
    batches.commit(first)
    assert batches.coordinator.lag(first) == (6, "records")
    assert numbers([batches.rows(second)]) == [[5, 6]]
    batches.commit(second)
    assert batches.coordinator.lag(second) == (4, "records")
    assert batches.coordinator.size(second) == second["bytes"] > 0
    batches.close()


# ---- what is gone --------------------------------------------------------------------------------------------------------


def test_entries_that_were_trimmed_before_they_were_delivered_are_missed_and_skipped_only_on_demand(
    redis_server: Server, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, range(1, 11))
    batches = Batches(spout_of(redis_server, max_entries=4))
    batches.commit(batches.define())
    client.xtrim("s", minid="7-0", approximate=False)
    for _ in range(2):
        with pytest.raises(SpoutError, match="2 entries of the stream 's' on Redis .*, behind 4-0, were trimmed"):
            batches.define()
    batches.close()
    skipping = Batches(spout_of(redis_server, lost_entries="skip"), batches.previous, batches.txid)
    assert numbers(skipping.run()) == [[7, 8, 9, 10]]
    assert "2 entries" in caplog.text
    skipping.close()


def test_entries_that_were_trimmed_while_they_were_pending_are_missed(
    redis_server: Server, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, range(1, 5))
    crashed = Batches(spout_of(redis_server))
    crashed.define()
    client.xtrim("s", minid="3-0", approximate=False)
    again = Batches(spout_of(redis_server))
    for _ in range(2):
        with pytest.raises(SpoutError, match="2 entries that were pending .* 1-0 of the stream 's'"):
            again.define()
    skipping = Batches(spout_of(redis_server, lost_entries="skip"))
    assert numbers(skipping.run()) == [[3, 4]]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert pending(client) == 0
    for each in (crashed, again, skipping):
        each.close()


def test_entries_of_another_consumer_that_were_trimmed_are_missed_although_redis_says_so_only_once(
    redis_server: Server, client: Any
) -> None:
    fill(client, range(1, 5))
    crashed = Batches(spout_of(redis_server, consumer="before"))
    crashed.define()
    client.xtrim("s", minid="3-0", approximate=False)
    threading.Event().wait(0.01)  # for the entries to become idle
    heir = Batches(spout_of(redis_server, claim_idle_s=0.001))
    for _ in range(3):
        with pytest.raises(SpoutError, match="2 entries that were pending"):
            heir.define()
    crashed.close()
    heir.close()


@pytest.mark.parametrize(
    ("gone", "said"),
    [("group", "the group 'g' of the stream 's' is gone"), ("stream", "the stream 's', with the group 'g'")],
)
@pytest.mark.parametrize("restart", [False, True])
def test_a_group_or_stream_that_was_deleted_is_missed_and_recreated_only_on_demand(
    redis_server: Server, client: Any, gone: str, said: str, restart: bool
) -> None:
    fill(client, range(1, 5))
    batches = Batches(spout_of(redis_server, max_entries=2))
    batches.commit(batches.define())
    if gone == "group":
        client.xgroup_destroy("s", "g")
    else:
        client.delete("s")
    if restart:
        batches.close()
        batches = Batches(batches.spout, batches.previous, batches.txid)
    for _ in range(2):
        with pytest.raises(SpoutError, match=f'{said}.*lost_group="recreate"'):
            batches.define()
    batches.close()
    fill(client, [5])
    again = Batches(spout_of(redis_server, lost_group="recreate"), batches.previous, batches.txid)
    assert numbers(again.run()) == ([[3, 4, 5]] if gone == "group" else [[5]])
    again.close()


@pytest.mark.parametrize("gone", ["group", "stream"])
@pytest.mark.parametrize("lost_group", ["refuse", "recreate"])
def test_a_group_of_new_entries_that_is_gone_before_any_came_is_missed_and_recreated_where_it_was(
    redis_server: Server, client: Any, gone: str, lost_group: str
) -> None:
    fill(client, range(1, 5))
    batches = Batches(spout_of(redis_server, first="$", lost_group=lost_group))
    batches.run()
    batches.close()
    if gone == "group":
        client.xgroup_destroy("s", "g")
    else:
        client.delete("s")
    fill(client, range(5, 8))  # while no driver runs
    again = Batches(batches.spout, batches.previous, batches.txid)
    if lost_group == "refuse":
        with pytest.raises(SpoutError, match=r"'g' of the stream 's' is gone .*\(entries up to 4-0 were read\)"):
            again.define()
    else:
        assert numbers(again.run()) == [[5, 6, 7]]
    again.close()


@pytest.mark.parametrize("back", [[], [1, 2], [1, 2, 110]], ids=["not there", "shorter", "longer"])
def test_a_group_is_recreated_before_all_entries_where_the_stream_was_made_again_by_a_clock_that_was_behind(
    redis_server: Server, client: Any, back: list[int]
) -> None:
    fill(client, range(100, 105))
    batches = Batches(spout_of(redis_server, lost_group="recreate"))
    batches.run()
    batches.close()
    client.delete("s")
    fill(client, back)
    again = Batches(batches.spout, batches.previous, batches.txid)
    found = again.run()
    new = [max(back, default=0) + 1, max(back, default=0) + 2]
    fill(client, new)
    found += again.run()
    assert [row[1] for batch in found for row in batch] == back + new
    again.close()


# ---- a server that is away ------------------------------------------------------------------------------------------------


def test_an_answer_that_is_lost_with_the_connection_loses_no_entry(redis_server: Server, client: Any) -> None:
    proxy = Proxy(redis_server.port)
    try:
        fill(client, range(1, 5))
        batches = Batches(spout_of(proxy.port, max_entries=2))
        batches.commit(batches.define())
        read, lost = batches.coordinator._group.read, list[int]()

        def lose_the_reply(count: int) -> Any:
            if not lost:
                proxy.arm("reply", lambda: lost.append(pending(client)))
            return read(count)

        batches.coordinator._group.read = lose_the_reply
        assert batches.define() is None
        assert lost == [2]  # delivered, and never received
        until(
            lambda: (found := batches.define()) is not None and numbers([batches.rows(found)]) == [[3, 4]], "they come"
        )
        batches.close()
    finally:
        proxy.close()


def test_a_server_that_became_a_replica_is_waited_for(
    redis_server: Server, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, [1, 2])
    batches = Batches(spout_of(redis_server, max_entries=1))
    batches.commit(batches.define())
    client.replicaof("127.0.0.1", 1)
    try:
        assert batches.define() is None
        assert "READONLY" in caplog.text.upper().replace(" ", "")
        assert batches.coordinator.is_preparing()
    finally:
        client.replicaof("NO", "ONE")
    until(lambda: batches.define() is not None, "it is the primary again")
    batches.close()


def test_what_is_committed_while_the_server_is_away_is_acknowledged_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    try:
        with client_of(server) as client:
            fill(client, range(1, 4))
        batches = Batches(spout_of(server))
        first = batches.define()
        server.kill()
        batches.commit(first)
        assert batches.define() is None
        assert batches.coordinator.is_preparing()
        assert "it is tried again until the server answers" in caplog.text
        server.start()
        with client_of(server) as client:
            fill(client, [4])
            until(lambda: batches.define() is not None, "the server is found again")
            assert pending(client) == 1  # entry 4; the committed ones are acknowledged, and do not come again
        assert not batches.coordinator.is_preparing()
        batches.close()
    finally:
        server.stop()


# ---- in a topology --------------------------------------------------------------------------------------------------------


def test_a_queue_is_no_exact_source_and_the_matrix_says_so(redis_server: Server, client: Any) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", spout_of(redis_server)).group_by("word")
    words.persistent_aggregate(MemoryMapState(), Count(), "count")
    with pytest.raises(InexactPairingError, match="words"):
        topology.start(engine="in_process")


def test_a_topology_counts_what_is_there_and_what_comes(redis_server: Server, client: Any) -> None:
    fill(client, range(1, 2_501))
    topology = TridentTopology("t")
    words = topology.new_stream("words", spout_of(redis_server, max_entries=1_500))
    counts = words.each("n", lambda n: n % 7, "seventh: int").group_by("seventh")
    state = counts.persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, "in_process", allow_inexact=True) as running:
        running.process_all_available()
        fill(client, range(2_501, 3_001))
        running.process_all_available()
        assert running.state(state).multi_get(range(7)) == [
            Counter(n % 7 for n in range(1, 3_001))[k] for k in range(7)
        ]
        assert running.status["sources"][0]["lag"] == {"amount": 0, "unit": "records"}
        assert pending(client) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": ""}, "must have names"),
        ({"claim_idle_s": 0}, "claim_idle_s is 0"),
        ({"lost_group": "x"}, "it must be 'refuse' or 'recreate'"),
        ({"pasword": "x"}, "pasword"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        RedisStreamSpout("redis://x", "s", FIELDS, **{"group": "g", **options})


def test_a_password_is_needed_named_and_never_shown(redis_server: Server, client: Any) -> None:
    server = redis_server
    client.config_set("requirepass", "geheim")
    try:
        with pytest.raises(SpoutError, match="the server asks for a password|check user and password"):
            spout_of(server).get_coordinator({})
        with pytest.raises(SpoutError, match="check user and password") as wrong:
            spout_of(server, password="falsch").get_coordinator({})
        assert "falsch" not in str(wrong.value)
        right = spout_of(server, password="geheim")
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
