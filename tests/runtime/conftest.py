"""What the tests of the runtime begin with."""

from __future__ import annotations

import pytest

from trident import TridentTopology


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")
