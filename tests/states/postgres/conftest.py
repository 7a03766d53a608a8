"""The states of each test on a server that all tests share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.states.postgres.postgres_states import Home


@pytest.fixture
def home(postgres_server: Server) -> Iterator[Home]:
    home = Home(postgres_server)
    yield home
    home.close()


@pytest.fixture(params=["columns", "bytes"])
def either(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[Home]:
    """With columns, and then without."""
    declared: dict[str, Any] = {"key_fields": (("word", "string"),), "value_type": "bigint"}
    home = Home(postgres_server, **(declared if request.param == "columns" else {}))
    yield home
    home.close()


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(postgres_server.port)
    yield proxy
    proxy.close()
