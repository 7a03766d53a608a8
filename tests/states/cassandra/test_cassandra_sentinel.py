"""The sentinel in Cassandra: replaced only if it is what was read, laid open when a commit begins, sealed when it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from states.cassandra.fence import CODEC
from states.cassandra.map import CassandraBackingMap
from tests.harness.servers import start_cassandra
from tests.harness.store_commits import update
from tests.states.cassandra.cassandra_states import EPOCH, Home, Log, commit
from trident.errors import FencedError, StateLossDetected, StateMismatchError
from trident.state import Sentinel, Snapshot
from trident.state.encoding.codec import encode


def empty(how: str, backing: CassandraBackingMap, other: CassandraBackingMap) -> None:
    if how == "reset":
        other.reset()
    else:
        backing._connection.define("TRUNCATE tests.emptied")


@pytest.mark.parametrize("how", ["reset", "truncate"])
def test_a_store_that_was_emptied_in_a_commit_is_not_sealed(home: Home, how: str) -> None:
    conf = home.conf()
    backing, other = home.map(conf, table="emptied"), home.map(conf, table="emptied")
    backing.move_sentinel(Sentinel("log", 1, EPOCH, conf.prefix, False))
    empty(how, backing, other)
    with pytest.raises(StateLossDetected, match=r"its sentinel \(batch 1 .*\) is gone"):
        backing.move_sentinel(Sentinel("log", 1, EPOCH, conf.prefix, True))
    assert other.read_sentinel() is None


def test_what_is_written_after_the_seal_is_later_than_what_came_before_it(home: Home) -> None:
    backing, begun = home.map(home.conf()), Sentinel("log", 1, EPOCH, "", False)
    backing.move_sentinel(begun)
    backing.multi_put([("k",)], [b"zzz"])
    backing.move_sentinel(begun._replace(sealed=True))
    backing.multi_put([("k",)], [b"aaa"])
    assert backing.multi_get([("k",)]) == [b"aaa"]


def test_one_run_of_an_attempt_does_not_seal_what_another_one_began(home: Home) -> None:
    conf, begun = home.conf(), Sentinel("log", 1, EPOCH, "", False)
    first, second = home.map(conf), home.map(conf)
    first.move_sentinel(begun)
    second.move_sentinel(begun)
    with pytest.raises(FencedError, match="another run of it"):
        first.move_sentinel(begun._replace(sealed=True))
    sentinel = second.read_sentinel()
    assert sentinel is not None
    assert not sentinel.sealed


def test_the_record_of_a_sentinel_is_its_fields(home: Home) -> None:
    fields = ["log", 3, EPOCH, 10, bytes(range(8)), "words/count", False, "4f1c"]
    found = CODEC.decode(encode(fields), "state p")
    assert (tuple(found.sentinel), found.notes) == (
        ("log", 3, EPOCH, "words/count", False, "4f1c"),
        (10, bytes(range(8))),
    )
    assert CODEC.encode(found) == encode(fields)


@pytest.mark.long
@pytest.mark.server
def test_a_server_that_lost_the_end_of_a_commit_is_not_taken_for_whole(tmp_path: Path) -> None:
    """With a periodic commit log SIGKILL takes the writes of the last 0.1 s, nine times in ten a part of a commit."""
    server = start_cassandra(tmp_path, durable=False)
    words = {f"w{n}": 1 for n in range(3000)}
    keys = [(word,) for word in words]
    try:
        home = Home(server)
        opened = [(home.state(conf), conf, Log()) for conf in (home.conf("within"), home.conf("after"))]
        for state, _, log in opened:
            commit(state, log, 1, words)
        opened[0][0].begin_commit(opened[0][2].txid(2))
        update(opened[0][0], words)  # killed within this commit,
        for number in (2, 3):
            commit(opened[1][0], opened[1][2], number, words)  # and just after this one
        server.kill()
        home.close()
        server.start()
        home = Home(server)
        for (_, conf, log), count in zip(opened, (1, 3), strict=True):
            again = home.state(conf)
            whole = again.multi_get_at(keys, Snapshot(count, log.winners)) == [count] * len(keys)
            try:
                again.begin_commit(log.txid(count + 1, attempt=1))
            except StateMismatchError:
                continue
            assert whole
        home.close()
    finally:
        server.kill()
