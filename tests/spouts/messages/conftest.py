"""What the tests of spouts of messages may use: the queues, one after the other."""

from __future__ import annotations

import pytest

from tests.spouts.messages.places import KafkaPlace, Place, RabbitPlace, RedisPlace

_SERVERS = {"redis": "redis_server", "kafka": "kafka_topics", "classic": "rabbitmq_server", "quorum": "rabbitmq_server"}


_LONG = {"quorum": [pytest.mark.long]}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.server, *_LONG.get(name, ())]) for name in _SERVERS])
def place(request: pytest.FixtureRequest) -> Place:
    """An empty queue: of Redis, of Kafka, and of RabbitMQ a classic and a quorum queue."""
    kind: str = request.param
    server = request.getfixturevalue(_SERVERS[kind])
    if kind == "redis":
        return RedisPlace(server.port)
    return KafkaPlace(server) if kind == "kafka" else RabbitPlace(server.url, kind)
