"""Redis Streams whose server leaves any one request without its answer: no entry is skipped, whatever the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from spouts import TransactionalRedisStreamSpout
from tests.harness.commands import until
from tests.harness.servers import Server
from tests.harness.withheld import HOW, How, Withheld
from tests.spouts.reading import Life
from tests.spouts.redis.streams import FIELDS, fill, url_of
from trident.errors import SourceAwayError

pytestmark = pytest.mark.server

QUICK: dict[str, Any] = {"timeout_s": 0.15, "connect_timeout_s": 2.0, "retries": 0, "max_entries": 4}
AWAY = b"-LOADING Redis is loading the dataset in memory\r\n"


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Withheld]:
    proxy = Withheld(redis_server.port, AWAY)
    yield proxy
    proxy.close()


def spout_of(port: int, first: str) -> Any:
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
    life = lived(client, spout_of(proxy.port, first))
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
