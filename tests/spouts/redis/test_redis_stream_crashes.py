"""Drivers that are killed with SIGKILL: a queue counts exactly with the ids in an opaque state, and only so."""

import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from states.redis import RedisState
from tests.harness.forked import die, exit_code_of
from tests.harness.servers import Server
from tests.spouts.redis.streams import client_of, url_of
from trident import Config, open_state
from trident.operations import Count
from trident.run import running
from trident.spout import TransactionAttempt

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORDS = [f"w{number % 7}" for number in range(400)]


def run(server: Server, log_dir: Path, point: str, batches: int) -> int:
    code = exit_code_of(count_until, url_of(server), str(log_dir), point, batches)
    assert code in (0, -signal.SIGKILL)
    return code


def fill(client: Any) -> None:
    client.flushall()
    with client.pipeline() as all_at_once:
        for word in WORDS:
            all_at_once.xadd("words", {"word": word})
        all_at_once.execute()


def counted(server: Server, log_dir: Path) -> dict[str, dict[str, int]]:
    """Return the counts of the page's program, and those without the ids."""
    names = recipe(url_of(server))
    found = {}
    for name in ("counts", "plain"):
        with open_state(names["topology"], names[name].state_name, log_dir=log_dir) as state:
            found[name] = dict(zip(sorted(set(WORDS)), state.multi_get(sorted(set(WORDS))), strict=True))
    return found


@pytest.mark.long
@pytest.mark.parametrize("point", ["committed", "recorded"])
def test_a_queue_driver_killed_before_the_ack_counts_exactly_by_ids_in_a_state(
    redis_server: Server, tmp_path: Path, point: str
) -> None:
    with client_of(redis_server) as client:
        fill(client)
        for _ in range(2):
            assert run(redis_server, tmp_path / "log", point, batches=2) == -signal.SIGKILL
            assert client.xpending("words", "count")["pending"] > 0
        assert run(redis_server, tmp_path / "log", point, batches=0) == 0
        assert client.xpending("words", "count")["pending"] == 0
    found = counted(redis_server, tmp_path / "log")
    assert found["counts"] == Counter(WORDS)
    # Between commit and record an opaque state alone is enough; behind the record the same entries are another batch.
    again = sum(found["plain"].values()) - len(WORDS)
    assert (again > 0) == (point == "recorded")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_queue_whose_driver_is_killed_anywhere_counts_exactly(redis_server: Server, tmp_path: Path) -> None:
    draw, kills = random.Random(12), 0
    with client_of(redis_server) as client:
        fill(client)
    for _ in range(20):
        point = draw.choice(["defined", "processed", "committing", "committed", "recorded", "recorded"])
        kills += run(redis_server, tmp_path / "log", point, draw.randint(1, 3)) != 0
    assert run(redis_server, tmp_path / "log", "", 0) == 0
    found = counted(redis_server, tmp_path / "log")
    again = sum(found["plain"].values()) - len(WORDS)
    print(f"{kills} kills; {again} of {len(WORDS)} entries were delivered again after their batch")  # noqa: T201
    assert found["counts"] == Counter(WORDS)
    assert kills >= 10


PAGE = Path(__file__).parents[3] / "docs" / "spouts" / "redis-streams.md"


def recipe(url: str) -> dict[str, Any]:
    """Run the program of the page against another server, and count beside it without the ids."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (program,) = (block for block in blocks if "new_values_stream" in block)
    program = program.replace("redis://localhost:6379/0", url)
    program = program.replace('group="count"', 'group="count", max_pending=10')
    names: dict[str, Any] = {}
    exec(program, names)
    plain = names["stream"].group_by("word").persistent_aggregate(RedisState.opaque(url), Count(), "plain")
    return {**names, "plain": plain}


def count_until(url: str, log_dir: str, point: str, left: int) -> None:
    """Run until all is committed; with `left`, until this process kills itself at `point` of its so-many-th batch."""
    names = recipe(url)

    def observe(reached: str, attempt: TransactionAttempt) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                die()

    config = Config(engine="in_process", log_dir=log_dir, allow_inexact=True, poll_interval_ms=1)
    with running.start(names["topology"].graph(), config, None, observe) as topology:
        topology.process_all_available()
