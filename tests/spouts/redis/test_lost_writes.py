"""Redis Streams on a server that lost its last writes, and whose clock is behind: new entries are not taken for old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spouts import TransactionalRedisStreamSpout
from tests.harness.servers import Server, start_redis
from tests.spouts.redis.streams import FIELDS, Batches, client_of, fill, numbers, url_of
from trident.errors import ReplayMismatchError, SpoutError

pytestmark = pytest.mark.server


def spout_of(server: Server, **options: Any) -> TransactionalRedisStreamSpout:
    return TransactionalRedisStreamSpout(url_of(server), "s", FIELDS, **options)


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
    batches.close()


@pytest.mark.parametrize("gone", ["deleted", "trimmed", "trimmed whole", "deleted one by one", "nothing"])
def test_what_was_read_may_be_deleted_or_trimmed(redis_server: Server, client: Any, gone: str) -> None:
    fill(client, range(1, 11))
    batches = Batches(spout_of(redis_server))
    batches.run()
    if gone == "deleted":
        client.xdel("s", "10-0")
    elif gone == "deleted one by one":
        client.xdel("s", *(f"{number}-0" for number in range(1, 11)))
    elif gone != "nothing":
        client.xtrim("s", maxlen=0 if gone == "trimmed whole" else 1, approximate=False)
    fill(client, range(11, 14))
    assert numbers(batches.run()) == [[11, 12, 13]]
    batches.close()


def test_a_position_that_no_entry_has_is_no_loss(redis_server: Server, client: Any) -> None:
    fill(client, [1, 3])
    batches = Batches(spout_of(redis_server, first="2-0", max_entries=1))
    assert numbers(batches.run()) == [[3]]
    batches.close()
    client.xdel("s", "3-0")
    newest = Batches(spout_of(redis_server, first="$"))
    assert newest.run() == [[]]
    fill(client, [4])
    assert numbers(newest.run()) == [[4]]
    newest.close()


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
    batches.close()


@pytest.mark.parametrize("read_before", [True, False])
def test_an_entry_deleted_by_its_id_is_missed_only_where_none_read_is_left(
    redis_server: Server, client: Any, read_before: bool
) -> None:
    fill(client, range(1, 6))
    batches = Batches(spout_of(redis_server, max_entries=2))
    batches.commit(batches.define())
    client.xdel("s", "4-0", *(() if read_before else ("1-0", "2-0")))
    if read_before:
        assert numbers(batches.run()) == [[3, 5]]
    else:
        with pytest.raises(
            SpoutError, match="1 entries of the stream 's'.* were trimmed or deleted before a batch had"
        ):
            batches.run()
    batches.close()
