"""What the tests of spouts of messages may use: the queues, one after the other."""

from collections.abc import Iterator

import pytest

from spouts import messages
from tests.spouts.driving import OPENED
from tests.spouts.places import KafkaPlace, Place, RedisPlace

_SERVERS = {"redis": "redis_server", "kafka": "kafka_topics"}


@pytest.fixture(autouse=True)
def _closes_what_was_opened() -> Iterator[None]:
    yield
    while OPENED:
        OPENED[-1].close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_START_S", 0.2)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.server) for name in _SERVERS])
def place(request: pytest.FixtureRequest) -> Place:
    """An empty queue: of Redis, and of Kafka."""
    kind: str = request.param
    server = request.getfixturevalue(_SERVERS[kind])
    return RedisPlace(server.port) if kind == "redis" else KafkaPlace(server)
