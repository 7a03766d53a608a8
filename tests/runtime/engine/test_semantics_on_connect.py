"""The lowering on a server of Spark Connect as a further engine: the semantic suite, with equal results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.runtime.random_topologies import check
from trident.runtime.start import engine_choice, placements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.runtime.test_semantics import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def engine(connect: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take Spark Connect where Spark is asked for."""
    for module in (engine_choice, placements):
        monkeypatch.setattr(module, "server_of", lambda master, conf: "")
    monkeypatch.setattr(engine_choice, "connect_session", lambda server, conf: (connect, False))
    return "spark"


def test_random_topologies_give_what_plain_python_gives(engine: str) -> None:
    assert sum(case.compare() for case in check(range(8), engine)) > 75
