"""What the tests of spouts of messages may use: the queues, one after the other."""

from __future__ import annotations

import pytest

from tests.spouts.places import KafkaPlace, Place, RedisPlace

_SERVERS = {"redis": "redis_server", "kafka": "kafka_topics"}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.server) for name in _SERVERS])
def place(request: pytest.FixtureRequest) -> Place:
    """An empty queue: of Redis, and of Kafka."""
    kind: str = request.param
    server = request.getfixturevalue(_SERVERS[kind])
    return RedisPlace(server.port) if kind == "redis" else KafkaPlace(server)
