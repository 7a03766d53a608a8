"""Drivers are killed, stores are set back to any moment, and the rewinding is killed as well: all ends exact."""

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import trident
from tests.crash.case import ScriptedSpout, rows_of
from tests.crash.fuse import Fuse
from tests.harness.topology_runs import start
from tests.replay.set_back import Killed, Stores
from trident import TridentTopology
from trident.operations import Count, MapGet, Sum, TumblingCountWindow
from trident.state import SENTINEL_KEY

pytestmark = pytest.mark.slow

ROWS = 90
UNREAD = ("weights", "total", "seen", "earlier", "windows")
STATES = ("counts", "kept", *UNREAD)


def declared(seed: int, life: int, kind: str, stores: Stores) -> TridentTopology:
    """Declare aggregates, and what is behind another state's new values, a query of it, and a window."""
    rng = random.Random(f"hints {seed}")
    topology = TridentTopology("rewound")
    rows = topology.new_stream("rows", ScriptedSpout(kind, seed, life, Fuse(), ROWS, 5))
    new = stores.state
    counts = rows.group_by("word").persistent_aggregate(new(), Count(), "n", state_name="counts")
    counts.parallelism_hint(rng.randint(1, 8))
    unread = stores.state(kind="transactional" if kind == "transactional" else "opaque")
    weights = rows.group_by("shelf").persistent_aggregate(unread, "weight", Sum(), "w", state_name="weights")
    weights.parallelism_hint(rng.randint(1, 8))
    rows.persistent_aggregate(new(), "weight", Sum(), "w", state_name="total")
    reached = counts.new_values_stream().group_by("n")
    reached.persistent_aggregate(new(), Count(), "seen", state_name="seen").parallelism_hint(rng.randint(1, 3))
    known = rows.state_query(counts, "word", MapGet(), "before").group_by("before")
    known.persistent_aggregate(new(), Count(), "earlier", state_name="earlier")
    windows = rows.window(TumblingCountWindow.of(7), new(), "weight", Sum(), "w", state_name="kept")
    windows.persistent_aggregate(new(), "w", Sum(), "windows", state_name="windows")
    return topology


def live(topology: TridentTopology, folder: Path, recovery: str = "rewind") -> bool:
    """Run until all is committed; False if the driver was killed before."""
    settings: dict[str, Any] = {
        "log_dir": str(folder / "log"),
        "history": "7d",
        "state_recovery": recovery,
        "max_spout_pending": 2,
    }
    with suppress(Killed), start(topology, "in_process", **settings) as running:
        running.process_all_available()
        return True
    return False


def set_back_some(stores: Stores, rng: random.Random) -> None:
    """Set back some states whole, or one partition of each, or, where nobody reads it, some keys and the sentinel."""
    for state in rng.sample(STATES, rng.randint(1, len(STATES))):
        way = rng.choice(("whole", "whole", "partition", "keys", "emptied"))
        if way == "partition" and state in UNREAD:
            stores.set_back(stores.copied, state, partitions=[rng.randrange(4)])
        elif way == "keys" and state in UNREAD:
            for place, entries in stores.entries.items():
                older = stores.copied.get(place, {})
                for key in list(entries) if place[0] == state else ():
                    if key[0] == SENTINEL_KEY or rng.random() < 0.5:
                        entries.pop(key)
                        entries.update({key: older[key]} if key in older else {})
        else:
            stores.set_back({} if way == "emptied" else stores.copied, state)


def judge(seed: int, kind: str, folder: Path) -> int:
    """Run one world to its end and judge it; return how many keys were compared."""
    rng, stores, lives = random.Random(f"{kind} {seed}"), Stores(), 0
    stores.copy_in = rng.randint(5, 200)
    for number in range(rng.randint(1, 3)):
        stores.kill_in = rng.randint(20, 150)
        if number and rng.random() < 0.3:  # a state begins again, and may be set back to before
            stores.set_back({}, "weights")
            live(declared(seed, lives := lives + 1, kind, stores), folder, "discard_totals")
        live(declared(seed, lives := lives + 1, kind, stores), folder)
    stores.kill_in = None
    if stores.copied:
        set_back_some(stores, rng)
    for _ in range(rng.randint(0, 4)):
        stores.kill_in = rng.randint(0, 60)
        live(declared(seed, lives := lives + 1, kind, stores), folder)
    stores.kill_in = None
    topology = declared(seed, lives + 1, kind, stores)
    assert live(topology, folder)
    verified = trident.verify_state(topology, log_dir=str(folder / "log"))
    assert not any(one.wrong for one in verified), f"seed {seed}, {kind}: {verified}"
    rows = rows_of(seed, ROWS)
    with trident.open_state(topology, "counts", log_dir=str(folder / "log")) as counts:
        assert dict(counts.get_tuples()) == Counter(row.word for row in rows), f"seed {seed}, {kind}"
    with trident.open_state(topology, "total", log_dir=str(folder / "log")) as total:
        assert total.get() == sum(row.weight for row in rows), f"seed {seed}, {kind}"
    return sum(one.equal for one in verified)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["transactional", "changing"])
def test_random_rewinds_end_exact(kind: str, tmp_path: Path) -> None:
    assert judge(101, kind, tmp_path) > 40


def test_a_store_of_two_methods_copied_in_a_commit_is_not_the_batch_before(tmp_path: Path) -> None:
    """Its sentinel says batch 1, half of its values are of batch 2, and another state is computed again from batch 1 on."""
    assert judge(357, "changing", tmp_path) > 40


@pytest.mark.parametrize("seed", [206, 254], ids=["killed while emptying", "another"])
def test_a_store_whose_emptying_has_not_ended_is_emptied_and_replayed(seed: int, tmp_path: Path) -> None:
    assert judge(seed, "transactional", tmp_path) > 40


def test_a_failed_attempt_from_before_a_state_was_emptied_is_no_later_one(tmp_path: Path) -> None:
    """The sentinel says the batch after which the state was emptied, plus one; its attempt is of an earlier driver."""
    assert judge(287, "transactional", tmp_path) > 40


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(200, 400, 50))
def test_many_random_rewinds_end_exact(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        for kind in ("transactional", "changing"):
            (folder := tmp_path / f"{seed}-{kind}").mkdir()
            assert judge(seed, kind, folder) > 30
