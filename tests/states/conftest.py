"""Fixtures of the tests of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from states._cassandra_session import Connection, borrow, give_back
from tests.servers import Server
from tests.states.cassandra_support import Home


@pytest.fixture(scope="module")
def connected(cassandra_server: Server) -> Iterator[Home]:
    home = Home(cassandra_server)
    home.map(home.conf())  # holds the connection, so that no test has to make it again
    yield home
    home.close()


@pytest.fixture
def home(connected: Home) -> Iterator[Home]:
    own = Home(connected.server)
    yield own
    own.close()


@pytest.fixture
def cql(connected: Home) -> Iterator[Connection]:
    connection = borrow(connected.options)
    yield connection
    give_back(connection)
