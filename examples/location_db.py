"""A state of your own: users' locations, updated and looked up in bulk.

The example of Trident's documentation. `moves` keeps where each user is (`partition_persist`); `visits` looks users up
(`state_query`) and counts visits per location::

    python examples/location_db.py
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.operations import BaseQueryFunction, BaseStateUpdater, Count
from trident.state import StateConf


class LocationDB:
    """Where each user is. Setting the same location twice changes nothing, so a replay does no harm."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS locations (user INTEGER PRIMARY KEY, location TEXT)")

    def begin_commit(self, txid: int) -> None:
        """Drop what a failed attempt left behind."""
        self._db.rollback()

    def commit(self, txid: int) -> None:
        """Make the updates of the batch durable."""
        self._db.commit()

    def set_locations_bulk(self, users: Sequence[int | None], locations: Sequence[str | None]) -> None:
        """Write where users are."""
        rows = zip(users, locations, strict=True)
        self._db.executemany("INSERT OR REPLACE INTO locations VALUES (?, ?)", rows)

    def bulk_get_locations(self, users: Sequence[int | None]) -> list[str | None]:
        """Return where users are, in the order asked; None where unknown."""
        marks = ", ".join("?" * len(users))
        found = dict(self._db.execute(f"SELECT user, location FROM locations WHERE user IN ({marks})", list(users)))
        return [found.get(user) for user in users]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class LocationDBFactory:
    """Pickled to where the state is used; `make_state` connects."""

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> LocationDB:
        """Open the database."""
        return LocationDB("locations.db")


class LocationUpdater(BaseStateUpdater[LocationDB]):
    """Writes all moves of a batch at once."""

    def update_state(self, state: LocationDB, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        """Write the last location of each user, in the order of the tuples."""
        state.set_locations_bulk([t.get_long(0) for t in tuples], [t.get_string(1) for t in tuples])


class QueryLocation(BaseQueryFunction[LocationDB, str | None]):
    """Looks all users of a batch up at once."""

    output_types = ("string",)

    def batch_retrieve(self, state: LocationDB, args: Sequence[TridentTuple]) -> Sequence[str | None]:
        """Return a location for each tuple."""
        return state.bulk_get_locations([t.get_long(0) for t in args])

    def execute(self, tuple: TridentTuple, result: str | None, collector: TridentCollector) -> None:
        """Append the location to the tuple."""
        collector.emit([result])


def record_moves(*moves: tuple[int, str]) -> None:
    """Keep where users went."""
    topology = TridentTopology("moves")
    spout = FixedBatchSpout("user: bigint, location: string", 2, *moves)
    topology.new_stream("moves", spout).partition_persist(LocationDBFactory(), ["user", "location"], LocationUpdater())
    with topology.start(engine="in_process") as running:
        running.process_all_available()


def count_visits(users: Sequence[int], locations: Sequence[str | None]) -> list[Any]:
    """Look up where the users are; return how many are at each of the locations."""
    topology = TridentTopology("visits")
    spout = FixedBatchSpout("user: bigint", 10, *[(user,) for user in users])
    per_location = (
        topology.new_stream("visits", spout)
        .state_query(topology.new_static_state(LocationDBFactory()), "user", QueryLocation(), "location")
        .group_by("location")
        .persistent_aggregate(MemoryMapState(), Count(), "count")
    )
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        return list(running.state(per_location).multi_get(locations))


def main() -> None:
    """Three moves, then four visits, one by a user of whom nothing is known."""
    record_moves((1, "Graz"), (2, "Linz"), (1, "Wien"))
    places = ["Wien", "Linz", "Graz", None]
    for place, visits in zip(places, count_visits([1, 2, 1, 3], places), strict=True):
        print(f"{place or 'unknown'}: {visits or 0}")


if __name__ == "__main__":
    main()
