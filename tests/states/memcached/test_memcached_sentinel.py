"""The sentinel in Memcached: replaced only if it is what was read, laid open when a commit begins, sealed when it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pymemcache.client.base import Client

from states.memcached import MemcachedMap, MemcachedOptions
from states.memcached.fence import BaselineCodec
from tests.harness.proxy import Proxy
from tests.harness.servers import Server, start_memcached
from tests.states.memcached.test_memcached import new_conf
from tests.states.memcached.test_memcached_losses import HEALTH, flush, restart
from trident.errors import BackendError, FencedError, StateLossDetected
from trident.state import Sentinel, StateConf
from trident.storekit import SentinelRecord

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of its own, which may forget."""
    started = start_memcached(tmp_path)
    yield started
    started.kill()


def map_on(address: str, conf: StateConf) -> MemcachedMap:
    return MemcachedMap(MemcachedOptions(servers=(address,), backoff_s=0.001, retries=1), conf)


def delete(server: Server, conf: StateConf) -> None:
    client = Client(server.address, default_noreply=False)
    assert client.delete(f"tests/{conf.state}!sentinel-0")
    client.close()


def insist(writer: MemcachedMap, sentinel: Sentinel, force: bool = False) -> None:
    """Move the sentinel, and again if the connection had ended with the server."""
    try:
        writer.move_sentinel(sentinel, force)
    except BackendError:
        writer.move_sentinel(sentinel, force)


EMPTIED: dict[str, Callable[[Server, StateConf], None]] = {
    "restart": lambda server, conf: restart(server),
    "flush": lambda server, conf: flush(server),
    "delete": delete,
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("how", EMPTIED)
def test_a_store_that_was_emptied_since_the_read_gets_no_sentinel(server: Server, how: str, force: bool) -> None:
    conf = new_conf()
    map_on(server.address, conf).move_sentinel(Sentinel("log", 1, 5))
    late = map_on(server.address, conf)
    assert late.read_sentinel() == Sentinel("log", 1, 5)
    EMPTIED[how](server, conf)
    with pytest.raises(StateLossDetected, match="was restarted|flush_all|its sentinel .*is gone"):
        insist(late, Sentinel("log", 2, 5), force)
    assert map_on(server.address, conf).read_sentinel() is None


@pytest.mark.parametrize("how", EMPTIED)
def test_a_store_that_was_emptied_in_a_commit_is_not_sealed(server: Server, how: str) -> None:
    conf = new_conf()
    writer = map_on(server.address, conf)
    writer.move_sentinel(Sentinel("log", 1, 5, "tests/a", False))
    EMPTIED[how](server, conf)
    with pytest.raises(StateLossDetected, match="was restarted|flush_all|its sentinel .*is gone"):
        insist(writer, Sentinel("log", 1, 5, "tests/a", True))
    assert map_on(server.address, conf).read_sentinel() is None


@pytest.mark.parametrize("taken", [False, True])
def test_a_move_without_an_answer_finds_its_own_record_or_nothing(memcached_server: Server, taken: bool) -> None:
    conf, proxy = new_conf(), Proxy(memcached_server.port)
    writer = map_on(f"127.0.0.1:{proxy.port}", conf)
    writer.move_sentinel(Sentinel("log", 1, 5))
    writer.read_sentinel()
    proxy.arm("reply", lambda: None)
    with pytest.raises(BackendError, match="cannot write 1 names"):
        writer.move_sentinel(Sentinel("log", 2, 5))
    if taken:
        other = map_on(memcached_server.address, conf)
        other.read_sentinel()
        other.move_sentinel(Sentinel("log", 2, 6))
        with pytest.raises(FencedError, match="batch 2 attempt 6"):
            writer.move_sentinel(Sentinel("log", 2, 5))
    else:
        writer.move_sentinel(Sentinel("log", 2, 5))
        writer.multi_put([("a",)], [b"1"])
    assert writer.read_sentinel() == Sentinel("log", 2, 6 if taken else 5)
    proxy.close()


def test_the_record_of_a_sentinel_is_json() -> None:
    data = b'{"sentinel":["log",3,1048576,"words/count",false,"4f1c"],"servers":{"a:1":[65536,10,1000,2,5,70]}}'
    record = SentinelRecord(
        Sentinel("log", 3, 1 << 20, "words/count", False, "4f1c"), {"a:1": HEALTH._replace(sent=70)}
    )
    assert BaselineCodec().encode(record) == data
    assert tuple(BaselineCodec().decode(data, "state p").sentinel) == tuple(record.sentinel)
    assert BaselineCodec().decode(data, "state p").notes == record.notes
