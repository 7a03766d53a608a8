"""The spout keeps the contract of spouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from spouts import TransactionalRedisStreamSpout
from tests.harness.servers import Server
from tests.spouts.redis.streams import client_of, url_of
from trident.testing import SpoutContract, SpoutSource

pytestmark = pytest.mark.server

STREAMS = ["s0", "s1"]
FIELDS = "n: bigint"


class Streams(SpoutSource):
    """Two streams on a server, emptied for each check."""

    limit, partitions = 10, 2

    def __init__(self, server: Server) -> None:
        self._server = server
        with client_of(server) as client:
            client.flushall()

    def spout(self) -> Any:
        return TransactionalRedisStreamSpout(
            url_of(self._server), STREAMS, FIELDS, max_entries=10, timeout_s=0.5, retries=0
        )

    def fill(self, numbers: Sequence[int], partition: int) -> Sequence[tuple[Any, ...]]:
        stream = STREAMS[partition]
        with client_of(self._server) as client:
            return [(n, client.xadd(stream, {"n": n}).decode(), stream) for n in numbers]

    @contextmanager
    def outage(self) -> Iterator[None]:
        self._server.pause()
        try:
            yield
        finally:
            self._server.resume()

    def change(self) -> None:
        with client_of(self._server) as client:
            for stream in STREAMS:
                client.xtrim(stream, maxlen=0)


class TestRanges(SpoutContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: Server) -> None:
        self.source = lambda: Streams(redis_server)
