"""Sessions of both kinds of cluster state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.harness.cluster_states import Opened, Opening
from trident.cluster.state.cluster_address import open_cluster_state


@pytest.fixture
def opening(address: str) -> Iterator[Opening]:
    """Open the state, any number of times; each is another session, which the test's end closes."""
    with contextlib.ExitStack() as stack:

        def open_one(session_timeout_s: float = 10.0) -> Opened:
            state = open_cluster_state(address, session_timeout_s)
            stack.callback(state.close)
            return Opened(state)

        yield open_one


@pytest.fixture
def opened(opening: Opening) -> Opened:
    """One session."""
    return opening()
