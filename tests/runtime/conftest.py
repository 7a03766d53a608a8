"""What the tests of the runtime begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.topology_runs import GATES
from trident import TridentTopology


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Iterator[str]:
    """A gate of its own for the test; open at the end, so that nothing waits for ever."""
    name: str = request.node.name
    yield name
    GATES.open(name)
