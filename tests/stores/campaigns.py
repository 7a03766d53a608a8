"""The campaigns by name, and their sizes."""

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.stores.catalog import Home, Store
from tests.stores.kills import kill
from tests.stores.reads import read_during_commits
from tests.stores.zombies import harms, take_over
from trident.testing import Report, backend_suite


@dataclass(frozen=True)
class Campaign:
    """What is done to a store.

    Attributes
    ----------
    run
        `run(home, size, seed)`: raises AssertionError if a promise is broken, returns what happened.
    small, full
        The sizes in the default tests, if the row of a store says no other, and in the report.
    """

    run: Callable[[Home, int, int], Counter[str]]
    small: int
    full: int


def examine(home: Home, seconds: float, seed: int) -> Report:
    """Run the suite that users run on their own back-ends; return its findings."""
    outage = home.outage if home.store.server is not None else None
    return backend_suite(
        home.empty(), limits=home.store.limits, seconds=seconds, seed=seed, outage=outage, out=io.StringIO()
    )


def _keep_contract(home: Home, seconds: int, seed: int) -> Counter[str]:
    """Run the suite; raise if a promise is broken."""
    report = examine(home, seconds, seed)
    report.raise_if_violated()
    return Counter({"checks": len(report.findings), "schedules": report.schedules})


def _take_over(home: Home, takeovers: int, seed: int) -> Counter[str]:
    """Of a store that cannot fence the harm must show, or the campaign would be blind."""
    if home.store.fences:
        return take_over(home, takeovers, seed)
    harm = harms(home, takeovers, seed)
    assert harm > 0, f"{home.store.name} cannot fence, and {takeovers} replaced writers did no harm"
    return Counter({"takeovers": takeovers, "harmed or not told, as documented": harm})


CAMPAIGNS = {
    "contract": Campaign(_keep_contract, 1, 30),
    "kills": Campaign(kill, 3, 10),
    "takeovers": Campaign(_take_over, 5, 25),
    "reads": Campaign(read_during_commits, 1000, 100_000),
}


def size_of(campaign: str, store: Store, full: bool) -> int:
    """Return the size of a campaign on a store; 0: it is not run. One in memory goes with its process: there is no kill."""
    if campaign == "kills" and not store.process:
        return 0
    return CAMPAIGNS[campaign].full if full else store.small.get(campaign, CAMPAIGNS[campaign].small)
