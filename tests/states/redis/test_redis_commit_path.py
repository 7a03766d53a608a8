"""The files between the loop and the socket of a Redis commit are those of docs/internals/architecture.md, nine at most."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

from spouts import FixedBatchSpout
from states.redis import RedisState
from tests.harness.servers import Server
from trident import TridentTopology
from trident.operations import Count, Split
from trident.testing import TopologyTestDriver

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[3]
LOOP = "trident/run/loop.py"
COMMITTING = "trident/run/execution.py"  # called by the loop, in its own thread or in another


def listed() -> set[str]:
    page = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    section = page.partition("## How a Redis state commits")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([\w/]+\.py)`", section, re.MULTILINE))


def files_between(frame: FrameType | None, first: str) -> set[str]:
    """The product's files whose functions are under way between the file `first` and `frame`; none outside of a commit."""
    found: set[str] = set()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and ".venv" not in path.parts:
            found.add(path.relative_to(ROOT).as_posix())
        if first in found:
            return found
        frame = frame.f_back
    return set()


def test_a_commit_goes_through_the_files_that_the_architecture_lists(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()

    def spied(name: str) -> None:
        real = getattr(redis.Connection, name)

        def spy(self: redis.Connection, *args: Any, **options: Any) -> Any:
            seen.update(files_between(sys._getframe(1), COMMITTING))
            return real(self, *args, **options)

        monkeypatch.setattr(redis.Connection, name, spy)

    topology = TridentTopology("path")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 1, ("the",)))
    words = lines.each("line", Split(), "word").group_by("word")
    words.persistent_aggregate(RedisState.opaque(f"redis://{redis_server.address}"), Count(), "count")
    with TopologyTestDriver(topology) as driver:
        for name in ("send_packed_command", "read_response"):
            spied(name)
        for txid in (1, 2):
            driver.feed("lines", "the cow the")
            driver.step()
            assert driver.state("count").multi_get(["the", "cow"]) == [2 * txid, txid]
    assert {LOOP, *seen} == listed()
    assert len(listed()) <= 10
