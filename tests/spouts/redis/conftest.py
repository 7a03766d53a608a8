"""What the tests of Redis Streams may use."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.servers import Server
from tests.spouts.redis.streams import client_of


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    with client_of(redis_server) as client:
        client.flushall()
        yield client
