"""The Redis state on a cluster whose nodes are replaced by their replicas."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from states.redis import RedisState
from tests.states.redis.redis_cluster import SLOTS, Cluster, Move, wait_for
from tests.states.redis.redis_states import CONF, KEYS, count
from trident.errors import BackendError, StateLossDetected
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server

PRIMARY, SPARE, REPLICA = range(3)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
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
    offset = cluster.clients[PRIMARY].info("replication")["master_repl_offset"]
    wait_for(lambda: cluster.clients[REPLICA].info("replication")["slave_repl_offset"] >= offset)


def replace(cluster: Cluster) -> None:
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


def test_a_replica_that_is_up_to_date_takes_over_within_a_topology_s_life(cluster: Cluster) -> None:
    state, log = state_at(cluster), Log()
    count(state, log)
    replace(cluster)
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()


def test_keys_that_left_a_node_which_was_then_replaced_are_not_taken_for_absent(cluster: Cluster) -> None:
    state, log = state_at(cluster), Log()
    count(state, log)
    backing = state.map_state.backing
    backing._wire._patience_s = 0.05
    move = Move(cluster, redis.crc.key_slot(b"{words/counts:0}"), SPARE)
    move.open()
    values = [key for key in move.left() if not key.endswith(b":sentinels")]
    move.carry(values)
    assert values
    replace(cluster)  # the replica knows nothing of the move
    for act in (lambda: state.multi_get(KEYS), lambda: count(state, log)):
        with pytest.raises(BackendError, match="redis-cli --cluster fix") as caught:
            act()
        assert caught.value.retryable
    log.fail()
    subprocess.run(
        ["redis-cli", "--cluster", "fix", cluster.nodes[SPARE].address], check=True, stdout=subprocess.DEVNULL
    )
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()


def test_a_node_replaced_by_an_older_copy_in_a_commit_is_a_loss_not_a_takeover(cluster: Cluster) -> None:
    state, log = state_at(cluster, retries=5), Log()
    count(state, log)
    cut_off(cluster)
    txid = log.next()
    state.begin_commit(txid)
    crash(cluster)
    with pytest.raises(StateLossDetected, match="rolled back from batch 2 .* to batch 1"):
        state.multi_put(KEYS, [2] * len(KEYS))
    log.fail()
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()


def test_writes_of_a_commit_that_a_replica_never_got_are_written_again(cluster: Cluster) -> None:
    state, log = state_at(cluster, retries=5), Log()
    count(state, log)
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS[:10], [2] * 10)
    cut_off(cluster)
    state.multi_put(KEYS[10:], [2] * 30)
    crash(cluster)
    with pytest.raises(BackendError, match="lost writes of this very commit") as caught:
        state.commit(txid)
    assert caught.value.retryable
    log.fail()
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()
