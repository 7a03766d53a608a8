"""SpoutContract: what every spout must do."""

from __future__ import annotations

from trident.spout.interfaces import SpoutType
from trident.testing.checks.expecting import promise
from trident.testing.spout.contract_batches import BatchChecks
from trident.testing.spout.contract_definitions import DefinitionChecks
from trident.testing.spout.contract_partitions import PartitionChecks
from trident.testing.spout.contract_surroundings import SurroundingChecks
from trident.testing.spout.spout_promises import SpoutPromise
from trident.testing.spout.spout_schedules import SpoutSchedule

__all__ = ["SpoutContract"]

_SCHEDULES = 6


class SpoutContract(BatchChecks, DefinitionChecks, PartitionChecks, SurroundingChecks):
    """What every spout must do. Subclass it, set `source`, and let pytest run it.

    A check of something that source and spout do not claim is skipped.
    """

    @promise(SpoutPromise.AT_LEAST_ONCE)
    def test_random_failures_lose_no_row(self) -> None:
        """A few schedules over a spout that may give rows again."""
        self.needs(self.kind is SpoutType.NON_TRANSACTIONAL, f"the spout is {self.kind.value}")
        self.needs(self.filled.source.at_least_once, "the source says nothing of failures")
        self.run_schedules()

    @promise(SpoutPromise.EXACTLY_ONCE)
    def test_random_failures_end_exact(self) -> None:
        """A few schedules; `spout_suite` runs more."""
        self.needs_replays()
        self.run_schedules()

    def run_schedules(self) -> None:
        """Run a few random schedules."""
        for number in range(_SCHEDULES):
            self.run_schedule(number)
            self.teardown_method()

    def run_schedule(self, number: int) -> None:
        """Run one random schedule over an empty source."""
        SpoutSchedule(self.filled, self.kind, f"{self.seed}/{number}").run()
