"""Counts the runs of the crash matrix and says the count at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.lives import DriverServer, Outcome

_outcomes = pytest.StashKey[list[Outcome]]()


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    """Every run of a pairing that must be exact; tests add theirs."""
    return request.config.stash.setdefault(_outcomes, [])


@pytest.fixture(scope="session")
def server() -> Iterator[DriverServer]:
    server = DriverServer()
    yield server
    server.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes = terminalreporter.config.stash.get(_outcomes, [])
    if outcomes:
        exact = sum(outcome.is_exact and not outcome.torn for outcome in outcomes)
        terminalreporter.write_line(f"crash matrix: {len(outcomes)} runs, {exact} exact")
