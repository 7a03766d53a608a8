"""Counts the runs of the crash matrix; tests/conftest.py says the count at the end."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.crash.driver_runs import DriverServer, Outcome


@pytest.fixture
def outcomes(record_property: Callable[[str, object], None]) -> Iterator[list[Outcome]]:
    """The test's runs of pairings that must be exact; it adds them."""
    outcomes: list[Outcome] = []
    yield outcomes
    exact = sum(outcome.is_exact and not outcome.torn for outcome in outcomes)
    record_property("crash matrix", [len(outcomes), exact])


@pytest.fixture(scope="session")
def server() -> Iterator[DriverServer]:
    with closing(DriverServer()) as server:
        yield server
