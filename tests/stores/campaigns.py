"""The campaigns by name, and their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.stores.catalog import Home, Store
from tests.stores.contracts import keep_contract
from tests.stores.kills import kill
from tests.stores.reads import read_during_commits
from tests.stores.removals import remove
from tests.stores.zombies import harms, take_over


@dataclass(frozen=True)
class Campaign:
    """What is done to a store.

    Attributes
    ----------
    run
        `run(home, size, seed)`: raises AssertionError if a promise is broken, returns what happened.
    small, full
        The sizes in the default tests and in the report.
    slow
        Stores for which the default tests take another size; 0: they leave it out.
    """

    run: Callable[[Home, int, int], Counter[str]]
    small: int
    full: int
    slow: tuple[tuple[str, int], ...] = ()

    def size(self, store: Store, full: bool) -> int:
        """Return the size for a store."""
        return self.full if full else dict(self.slow).get(store.name, self.small)


def _take_over(home: Home, takeovers: int, seed: int) -> Counter[str]:
    """Of a store that cannot fence the harm must show, or the campaign would be blind."""
    if home.store.fences:
        return take_over(home, takeovers, seed)
    harm = harms(home, takeovers, seed)
    assert harm > 0, f"{home.store.name} cannot fence, and {takeovers} replaced writers did no harm"
    return Counter({"takeovers": takeovers, "harmed or not told, as documented": harm})


# The contracts are among these stores' own tests; the suite adds random schedules, which the full size has.
_OWN_CONTRACT_TESTS = tuple(
    (name, 0)
    for name in (
        "delta",
        "redis",
        "redis-volatile",
        "memcached",
        "cassandra",
        "cassandra-columns",
        "postgres",
    )
)
_COLUMNS = ("cassandra-columns", 0)  # commits as "cassandra" does; the full size has it
CAMPAIGNS = {
    "contract": Campaign(keep_contract, 1, 30, _OWN_CONTRACT_TESTS),
    "kills": Campaign(kill, 3, 10, (("delta", 2), ("cassandra", 0), _COLUMNS)),
    "takeovers": Campaign(_take_over, 5, 25, (("cassandra", 2), ("cassandra-columns", 1))),
    "reads": Campaign(read_during_commits, 1000, 100_000, (("delta", 200), ("cassandra", 300), _COLUMNS)),
    "removals": Campaign(remove, 15, 300, (("delta", 5), ("cassandra", 4), _COLUMNS)),
}


def applies(campaign: str, store: Store, full: bool) -> bool:
    """Whether a campaign is run on a store. One in memory goes with its process, so nobody is killed."""
    return CAMPAIGNS[campaign].size(store, full) > 0 and (campaign != "kills" or store.process)
