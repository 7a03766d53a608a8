"""Drivers that read partitioned sources are killed with SIGKILL; every row counts once in the end."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.driver_runs import DriverServer
from tests.crash.partition_driver import config_of, topology_of
from tests.spout.folder_source import noted, numbers_in, write
from trident.runtime.running import start

PAIRINGS = [("transactional", "transactional"), ("transactional", "opaque"), ("opaque", "opaque")]


@pytest.fixture(scope="module")
def drivers() -> Iterator[DriverServer]:
    drivers = DriverServer("tests.crash.partition_driver")
    yield drivers
    drivers.close()


def life_of(folder: Path, spout: str, state: str, pending: int, **more: Any) -> dict[str, Any]:
    (folder / "source").mkdir(exist_ok=True)
    known = {"folder": str(folder), "spout": spout, "state": state, "pending": pending, "point": "", "txid": 0}
    return {**known, "partition": "part-b", **more}


def counted(life: dict[str, Any]) -> tuple[dict[Any, int], dict[str, int]]:
    """Return, from the states, how often each row counts, and the sum of each partition."""
    source = Path(life["folder"], "source")
    rows = [(path.name, int(line)) for path in sorted(source.glob("part-*")) for line in path.read_bytes().split()]
    names = list(numbers_in(source))
    with start(topology_of(life).graph(), config_of(life)) as running:
        counts, sums = (
            running.state("rows").multi_get(rows),
            running.state("sums").multi_get([(name,) for name in names]),
        )
    return dict(zip(rows, counts, strict=True)), dict(zip(names, sums, strict=True))


def assert_exact(life: dict[str, Any]) -> None:
    counts, sums = counted(life)
    assert {row: count for row, count in counts.items() if count != 1} == {}
    assert sums == numbers_in(Path(life["folder"], "source"))


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("point", ["reading", "logged", "committed", "recorded"])
@pytest.mark.parametrize(("spout", "state"), PAIRINGS)
def test_a_killed_driver_leaves_every_row_counted_once(
    spout: str, state: str, point: str, pending: int, drivers: DriverServer, tmp_path: Path
) -> None:
    life = life_of(tmp_path, spout, state, pending, point=point, txid=5)
    source = tmp_path / "source"
    for partition, size in (("a", 17), ("b", 20), ("c", 5)):
        write(source, partition, range(size))
    assert drivers.wait(drivers.start(life)) == {"ended": -signal.SIGKILL}
    assert not (tmp_path / "done").exists()
    write(source, "a", range(100, 109))  # a replay must not see them, a batch that is read again may
    write(source, "d", range(6))
    assert drivers.wait(drivers.start({**life, "point": ""})) == {"ended": 0}
    replayed = noted(source, "again-5-part-a"), noted(source, "again-5-part-b")
    is_replayed = spout == "transactional" and point in ("logged", "committed")
    assert replayed == ((1, 1) if is_replayed else (0, 0))
    assert_exact(life)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("spout", "state"), PAIRINGS)
def test_drivers_that_are_killed_at_random_count_every_row_once(
    spout: str, state: str, seed: int, drivers: DriverServer, tmp_path: Path
) -> None:
    rng = random.Random(f"{spout} {state} {seed}")
    life, source = life_of(tmp_path, spout, state, rng.choice([1, 3])), tmp_path / "source"
    kills, ended, more = 0, False, 60
    while not ended or more:
        if more:
            more -= 1
            write(source, rng.choice("abcdef"), [rng.getrandbits(40) for _ in range(rng.randrange(1, 60))])
        wait = {"kill_after_s": rng.uniform(0.05, 0.4)} if more else {}
        end = drivers.wait(drivers.start({**life, **wait}))
        ended = end == {"ended": 0}
        kills += end == {"ended": -signal.SIGKILL}
    assert kills > 10
    assert_exact(life)
