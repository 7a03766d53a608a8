"""Each store is started once for all campaigns, by the first that asks for it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.servers import Server
from tests.stores.catalog import STORES, Home, Store


def cases(which: Callable[[Store], bool]) -> Any:
    """Parametrize a test by the names of stores."""
    rows = [(store.name, [pytest.mark.server] if store.server else []) for store in STORES.values() if which(store)]
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in rows])


@pytest.fixture(scope="session")
def home_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Home]]:
    homes: dict[str, Home] = {}

    def home_of(name: str) -> Home:
        if name not in homes:
            store = STORES[name]
            server: Server | None = request.getfixturevalue(store.fixture) if store.fixture else None
            homes[name] = Home(store, tmp_path_factory.mktemp(name), server)
        return homes[name]

    yield home_of
    for home in homes.values():
        home.close()
