"""The Redis state on a cluster: of three nodes, while slots are moved, and while replicas take the place of nodes."""

import dataclasses
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

import pytest
import redis

from states.redis import RedisBackingMap, RedisOptions, RedisState
from tests.harness.crashing_stores import tuples_at
from tests.states.redis.redis_cluster import SLOTS, Cluster, Move, wait_for
from tests.states.redis.redis_states import CONF, count
from tests.states.redis.redis_states import KEYS as FEW
from tests.stores.test_order_of_sentinels import answer_each_case
from trident.errors import BackendError, ConfigError, FencedError, SecondRunError, StateLossDetected
from trident.state import OpaqueMap
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key, StateConf
from trident.state.txid import Sentinel, Txid
from trident.testing.backend.schedules import Add, Log
from trident.testing.backend.store_under_test import Store

pytestmark = pytest.mark.server

KEYS: list[Key] = [(f"word {number}",) for number in range(500)]
SENTINEL = Sentinel("inc", 1, 5)


def map_at(cluster: Cluster, topology: str = "words", partition: int = 0, **options: Any) -> RedisBackingMap:
    given = {"backoff_s": 0.01, **options}
    return RedisBackingMap(RedisOptions(cluster.url, **given), StateConf(topology, "counts"), partition)


@pytest.mark.parametrize("options", [{}, {"ttl_s": 90_000}, {"max_keys_per_call": 2}])
def test_keys_are_spread_over_the_nodes_and_found_again(cluster: Cluster, options: dict[str, Any]) -> None:
    backing = map_at(cluster, **options)
    backing.move_sentinel(SENTINEL)
    values = [b"%d" % number for number in range(len(KEYS))]
    backing.multi_put(KEYS, values)
    assert backing.multi_get([*reversed(KEYS), ("absent",)]) == [*reversed(values), None]
    assert min(cluster.sizes()) > 10
    listed = [key for page in backing.key_pages() for key in page]
    assert sorted(listed) == sorted(KEYS)
    backing.multi_delete(KEYS[1:])
    assert backing.multi_get(KEYS) == [values[0]] + [None] * (len(KEYS) - 1)
    backing.reset()
    assert cluster.sizes() == [0, 0, 0]
    backing.close()


def test_names_carry_the_tag_of_their_bucket(cluster: Cluster) -> None:
    backing = map_at(cluster, "a}b%", cluster_buckets=1)
    backing.move_sentinel(SENTINEL)
    backing.multi_put([("the",)], [b"one"])
    names = {name for client in cluster.clients for name in client.scan_iter()}
    assert names == {b"{a%7Db%2525/counts:0}:sentinels", b"{a%7Db%2525/counts:0}:\x01\x91\xa3the"}
    backing.close()


def test_states_with_like_names_do_not_meet(cluster: Cluster) -> None:
    for topology in ("a", "a*", "a}", "ab"):
        map_at(cluster, topology).multi_put([("k",)], [topology.encode()])
    map_at(cluster, "a*").reset()
    found = [map_at(cluster, topology).multi_get([("k",)])[0] for topology in ("a", "a*", "a}", "ab")]
    assert found == [b"a", None, b"a}", b"ab"]


def test_another_number_of_buckets_is_refused_by_writers_and_readers(cluster: Cluster) -> None:
    backing = map_at(cluster)
    backing.move_sentinel(SENTINEL)
    other = map_at(cluster, cluster_buckets=32)
    for call in (
        lambda: other.multi_get(KEYS),
        other.read_sentinel,
        lambda: other.move_sentinel(SENTINEL._replace(txid=2)),
    ):
        with pytest.raises(ConfigError, match="spread over 64 buckets, and cluster_buckets is 32"):
            call()
    assert backing.read_sentinel() == SENTINEL
    backing.close()


def test_a_run_that_died_while_it_laid_its_sentinel_is_found_by_the_next(cluster: Cluster) -> None:
    before = map_at(cluster)
    before.move_sentinel(SENTINEL)
    commit = Txid(2, 5, incarnation="inc", expected=SENTINEL)
    first, second = OpaqueMap(map_at(cluster), "words/counts"), OpaqueMap(map_at(cluster), "words/counts")
    first.read_sentinel()
    fence: Any = first.backing
    laid = fence._fence._run

    def die_after_the_first_bucket(doing: str, calls: Any) -> None:
        if doing == "move the sentinel" and len(calls) > 1:
            raise KeyboardInterrupt
        laid(doing, calls)

    fence._fence._run = die_after_the_first_bucket
    with pytest.raises(KeyboardInterrupt):
        first.begin_commit(commit.of_run("first"))
    assert second.read_sentinel() == SENTINEL  # the copies in the other buckets
    with pytest.raises(SecondRunError):
        second.begin_commit(commit.of_run("second"))
    second.begin_commit(Txid(2, 6, incarnation="inc", expected=SENTINEL, run="third"))
    for each in (before, first, second):
        each.close()


def test_a_replaced_writer_is_fenced_in_every_bucket(cluster: Cluster) -> None:
    old, new = map_at(cluster), map_at(cluster)
    old.move_sentinel(SENTINEL)
    new.move_sentinel(SENTINEL._replace(attempt=6))
    for key in KEYS:
        with pytest.raises(FencedError, match="attempt 6"):
            old.multi_put([key], [b"old"])
    assert new.multi_get(KEYS) == [None] * len(KEYS)
    with pytest.raises(FencedError):
        old.move_sentinel(SENTINEL)
    for each in (old, new):
        each.close()


def test_a_broken_move_shows_the_old_sentinel_and_the_next_one_completes_it(cluster: Cluster) -> None:
    backing = map_at(cluster)
    backing.move_sentinel(SENTINEL)
    moved = SENTINEL._replace(txid=2)
    one = redis.RedisCluster("127.0.0.1", cluster.nodes[0].port)
    one.hset("{words/counts:0}:sentinels", "0", '["inc",2,5,0,true,"",""]')
    assert backing.read_sentinel() == SENTINEL
    backing.move_sentinel(moved)
    assert backing.read_sentinel() == moved
    one.close()
    backing.close()


def test_what_a_node_lost_is_found(cluster: Cluster) -> None:
    backing = map_at(cluster)
    backing.move_sentinel(SENTINEL)
    backing.multi_put(KEYS, [b"one"] * len(KEYS))
    cluster.clients[1].flushall()
    assert backing.read_sentinel() is None
    with pytest.raises(StateLossDetected, match="is gone"):
        backing.multi_put(KEYS, [b"two"] * len(KEYS))
    backing.close()


@pytest.mark.parametrize("which", ["of a key that was listed", "to a node that was listed"])
def test_a_slot_that_moves_during_a_listing_is_listed_once(cluster: Cluster, which: str) -> None:
    backing = map_at(cluster)
    backing.multi_put(KEYS, [b"one"] * len(KEYS))
    pages = backing.key_pages()
    listed = list(next(pages))  # of the node that has the lowest slots
    if which == "of a key that was listed":
        bucket = crc32(encode_keys(listed[:1])[0]) % 64
        move = Move(cluster, redis.crc.key_slot(b"{words/counts:%d}" % bucket))
    else:
        last = next(slot for slot in map(redis.crc.key_slot, backing._layout.stems) if slot > SLOTS * 2 // 3)
        move = Move(cluster, last, cluster.owner(0))
    move.whole()
    try:
        assert sorted([*listed, *(key for page in pages for key in page)]) == sorted(KEYS)
    finally:
        backing.reset()
        assert cluster.sizes() == [0, 0, 0]
        move.back()
    backing.close()


def test_a_slot_that_is_being_moved_is_asked_for_at_its_target(cluster: Cluster) -> None:
    backing = map_at(cluster)
    backing._wire._patience_s = 0.1
    backing.move_sentinel(SENTINEL)
    move = Move(cluster, redis.crc.key_slot(b"{words/counts:0}"))
    move.open()
    move.carry_all()
    try:
        assert backing.read_sentinel() == SENTINEL
        # Redis itself answers no call for several keys of a slot under way unless all are on one side.
        with pytest.raises(BackendError, match="TRYAGAIN") as caught:
            backing.multi_get(KEYS)
        assert caught.value.retryable
    finally:
        move.close()
        backing.reset()
        move.back()
    backing.close()


def test_a_cluster_without_the_option_is_named(cluster: Cluster) -> None:
    for node in cluster.nodes:
        options = RedisOptions(f"redis://{node.address}", retries=0)
        with pytest.raises(BackendError, match=r"redis\+cluster://|CROSSSLOT"):
            RedisBackingMap(options).multi_get(KEYS)


def test_a_dead_node_fails_the_commit_and_its_return_empty_is_found(cluster: Cluster) -> None:
    backing = map_at(cluster, retries=1, timeout_s=1.0)
    backing.move_sentinel(SENTINEL)
    node = cluster.nodes[2]
    node.kill()
    try:
        with pytest.raises(BackendError) as caught:
            backing.multi_put(KEYS, [b"one"] * len(KEYS))
        assert caught.value.retryable
    finally:
        node.start()
        cluster.wait()
    assert backing.read_sentinel() is None
    backing.close()


@pytest.mark.long
def test_changes_of_all_buckets_are_given_by_batch_and_trimmed_and_forgotten(cluster: Cluster) -> None:
    spec = RedisState.opaque(cluster.url, changes=10, max_keys_per_call=7, backoff_s=0.01)
    state, log, fold = spec.factory.make_state(StateConf("feed", "counts"), 0, 1), Log(), dict[Key, Any]()
    for number in range(66):
        some = KEYS[number % 25 :: 25]
        if number % 5 == 4:  # an attempt that fails after its puts
            state.begin_commit(log.next())
            state.multi_update(KEYS[::9], [Add(1000) for _ in KEYS[::9]])
            log.fail()
        state.begin_commit(txid := log.next())
        state.multi_update(some, [Add(number) for _ in some])
        state.commit(txid)
        log.record()
    changes = state.kept_changes
    gone = changes.last_gone()
    assert gone == 54  # as of batch 64
    for txid, pairs in changes.read(gone, 66):
        for key, value in pairs:
            if log.winners.won(txid, value.attempt):
                assert fold.get(key, value.prev) == value.prev
                fold[key] = value.curr
    assert len(fold) == 12 * 20
    assert list(fold.values()) == state.multi_get_at(list(fold), log.snapshot())
    changes.forget(KEYS[:1])
    assert (changes.last_gone(), list(changes.read(0, 66))) == (66, [])
    state.reset()
    assert cluster.sizes() == [0, 0, 0]
    state.close()


def test_the_copies_of_a_sentinel_keep_the_order(cluster: Cluster) -> None:
    answer_each_case(Store(RedisState.opaque(cluster.url)))


BUCKET = b"{words/counts:0}"
LAYOUTS = [{}, {"ttl_s": 90_000}, {"layout": "fields"}]
SOME = KEYS[:24]


class Batches:
    """Counts keys of a state, batch by batch, beside a plain counter.

    Attributes
    ----------
    failures
        How many attempts failed; each is followed by another one.
    """

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        given = {"retries": 0, "cluster_buckets": 4, **options}
        self._make = RedisState.opaque(cluster.url, **given).factory.make_state
        self._conf = StateConf("words", "counts", (("word", "string"),), "bigint")
        self.state: Any = self._make(self._conf, 0, 1)
        self.state.map_state.backing._wire._patience_s = 0.05
        self.log, self.expected, self.failures = Log(), Counter[Key](), 0

    def attempt(self, keys: list[Key]) -> bool:
        """Try to add 1 to each key; return whether it was committed."""
        txid = self.log.next()
        try:
            self.state.begin_commit(txid)
            values = self.state.multi_get(keys)
            self.state.multi_put(keys, [(value or 0) + 1 for value in values])
            self.state.commit(txid)
        except BackendError as error:
            if not error.retryable:
                raise
            self.log.fail()
            self.failures += 1
            return False
        self.log.record()
        self.expected.update(keys)
        return True

    def check(self) -> None:
        """Check what the writer and a new reader see."""
        keys = list(self.expected)
        expected = [self.expected[key] for key in keys]
        assert self.state.multi_get(keys) == expected
        reader = self._make(dataclasses.replace(self._conf, read_only=True), 0, 1)
        assert reader.multi_get_at(keys, self.log.snapshot()) == expected
        listed = sorted(tuples_at(reader, self.log.snapshot()))
        assert listed == sorted((*key, count) for key, count in self.expected.items())
        reader.close()

    def close(self) -> None:
        self.state.reset()
        self.state.close()


@pytest.fixture
def move(cluster: Cluster) -> Iterator[Move]:
    move = Move(cluster, redis.crc.key_slot(BUCKET))
    yield move
    move.back()


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", ["sentinel", "value"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_exact_through_every_step_of_a_move(
    cluster: Cluster, move: Move, layout: dict[str, Any], first: str
) -> None:
    batches = Batches(cluster, **layout)
    assert batches.attempt(SOME)

    def carry_one() -> None:
        move.carry([key for key in move.left() if key.endswith(b"sentinels") == (first == "sentinel")][:1])

    for number, step in enumerate((move.open, carry_one, move.carry_all, move.arrive, move.close)):
        step()
        batches.attempt([*SOME, (f"new {number}",)])
        batches.attempt(SOME)
    assert batches.attempt(SOME)
    assert batches.failures > 0
    batches.check()
    batches.close()


def test_a_commit_waits_for_a_slot_that_is_on_its_way(cluster: Cluster, move: Move) -> None:
    batches = Batches(cluster)
    batches.state.map_state.backing._wire._patience_s = 10
    assert batches.attempt(SOME)
    source = cluster.clients[move.source]
    source.config_resetstat()
    move.open()
    move.carry([key for key in move.left() if not key.endswith(b":sentinels")][:1])

    def finish() -> None:
        wait_for(lambda: "errorstat_TRYAGAIN" in source.info("errorstats"))
        move.carry_all()
        move.close()

    with ThreadPoolExecutor(1) as another:
        finished = another.submit(finish)
        assert batches.attempt(SOME)  # though `retries` is 0
        finished.result()
    batches.check()
    batches.close()


PRIMARY, SPARE, REPLICA = range(3)


@pytest.fixture
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One primary, a node without slots, and a replica of the first."""
    cluster = Cluster(lambda: tmp_path_factory.mktemp("node"))
    try:
        cluster.join(0, SLOTS)
        cluster.join()
        cluster.replicate(PRIMARY)
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()


def state_at(cluster: Cluster, **options: Any) -> Any:
    spec = RedisState.opaque(cluster.url, cluster_buckets=4, backoff_s=0.01, **options)
    return spec.factory.make_state(CONF, 0, 1)


def wait_for_replica(cluster: Cluster) -> None:
    """Wait until the replica has everything."""
    offset = cluster.clients[PRIMARY].info("replication")["master_repl_offset"]
    wait_for(lambda: cluster.clients[REPLICA].info("replication")["slave_repl_offset"] >= offset)


def promote(cluster: Cluster) -> None:
    """Make the replica the primary once it has everything, and wait until all know."""
    wait_for_replica(cluster)
    cluster.clients[REPLICA].execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
    wait_for(lambda: all(cluster.owner(0, node) == REPLICA for node in range(3)))


def cut_off(cluster: Cluster) -> None:
    """Keep the replica as it is now, whatever is written from now on."""
    wait_for_replica(cluster)
    # The replica knows no password, and those who are connected need none. So it cannot come back.
    cluster.clients[PRIMARY].config_set("requirepass", "hush")
    cluster.clients[PRIMARY].client_kill_filter(_type="replica")


def crash(cluster: Cluster) -> None:
    """End the primary; the replica takes its place."""
    cluster.nodes[PRIMARY].kill()
    cluster.clients[REPLICA].execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
    wait_for(lambda: cluster.owner(0, SPARE) == REPLICA)


def replay(state: Any, log: Log) -> None:
    """Have the second batch, which failed, count after all."""
    log.fail()
    count(state, log)
    assert state.multi_get(FEW) == [2] * len(FEW)
    state.close()


def test_a_replica_that_is_up_to_date_takes_over_within_a_topology_s_life(replicated: Cluster) -> None:
    state, log = state_at(replicated), Log()
    count(state, log)
    promote(replicated)
    count(state, log)
    assert state.multi_get(FEW) == [2] * len(FEW)
    state.close()


def test_keys_that_left_a_node_which_was_then_replaced_are_not_taken_for_absent(replicated: Cluster) -> None:
    state, log = state_at(replicated), Log()
    count(state, log)
    backing = state.map_state.backing
    backing._wire._patience_s = 0.05
    move = Move(replicated, redis.crc.key_slot(b"{words/counts:0}"), SPARE)
    move.open()
    values = [key for key in move.left() if not key.endswith(b":sentinels")]
    move.carry(values)
    assert values
    promote(replicated)  # the replica knows nothing of the move
    for act in (lambda: state.multi_get(FEW), lambda: count(state, log)):
        with pytest.raises(BackendError, match="redis-cli --cluster fix") as caught:
            act()
        assert caught.value.retryable
    fix = ["redis-cli", "--cluster", "fix", replicated.nodes[SPARE].address]
    subprocess.run(fix, check=True, stdout=subprocess.DEVNULL)
    replay(state, log)


def test_a_node_replaced_by_an_older_copy_in_a_commit_is_a_loss_not_a_takeover(replicated: Cluster) -> None:
    state, log = state_at(replicated, retries=5), Log()
    count(state, log)
    cut_off(replicated)
    txid = log.next()
    state.begin_commit(txid)
    crash(replicated)
    with pytest.raises(StateLossDetected, match="rolled back from batch 2 .* to batch 1"):
        state.multi_put(FEW, [2] * len(FEW))
    replay(state, log)


def test_writes_of_a_commit_that_a_replica_never_got_are_written_again(replicated: Cluster) -> None:
    state, log = state_at(replicated, retries=5), Log()
    count(state, log)
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(FEW[:10], [2] * 10)
    cut_off(replicated)
    state.multi_put(FEW[10:], [2] * 30)
    crash(replicated)
    with pytest.raises(BackendError, match="lost writes of this very commit") as caught:
        state.commit(txid)
    assert caught.value.retryable
    replay(state, log)
