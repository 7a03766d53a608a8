"""The states of each test on a server that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.servers import Server
from tests.states.postgres.postgres_states import Home


@pytest.fixture
def home(postgres_server: Server) -> Iterator[Home]:
    home = Home(postgres_server)
    yield home
    home.close()
