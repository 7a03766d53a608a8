"""Fixtures of the tests of Delta states."""

from collections.abc import Iterator

import pytest

from tests.states.delta.delta_bucket import Bucket
from tests.states.delta.delta_states import OPENED


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the states of a test, so that none publishes while the next one runs."""
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()
