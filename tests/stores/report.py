"""All stores under all campaigns in full size, and one table: `python -m tests.stores.report [--store redis] [--small]`.

Exit code 1 if a promise is broken; the first thing that went wrong is printed below the table.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.stores.campaigns import CAMPAIGNS, examine, size_of
from tests.stores.catalog import STORES, Home, Store
from trident.testing import Promise, Report
from trident.testing.suite import promise_table, text_table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the campaigns and print what they withstand.")
    parser.add_argument("--store", action="append", choices=sorted(STORES), help="only this one; may be repeated")
    parser.add_argument("--campaign", action="append", choices=sorted(CAMPAIGNS), help="only this one; may be repeated")
    parser.add_argument("--small", action="store_true", help="the sizes of the default tests")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    run = _Run(options.campaign or list(CAMPAIGNS), options.small, options.seed)
    for store in options.store or STORES:
        run.examine(STORES[store])
    sys.stdout.write(run.table())
    return 1 if run.broken else 0


class _Run:
    """The cells of both tables, and what went wrong."""

    def __init__(self, campaigns: list[str], small: bool, seed: int) -> None:
        self._campaigns, self._small, self._seed = campaigns, small, seed
        self._rows: list[list[str]] = []
        self._contracts: dict[str, Report] = {}
        self.broken: list[str] = []

    def examine(self, store: Store) -> None:
        row = [store.name]
        with tempfile.TemporaryDirectory(prefix="trident-stores-") as work:
            home = Home(store, Path(work))
            try:
                for campaign in self._campaigns:
                    size = size_of(campaign, store, not self._small)
                    row.append(self._cell(home, campaign, size) if size else "–")
            finally:
                home.close()
        self._rows.append(row)

    def table(self) -> str:
        """Return stores by campaigns, promises by stores, and what is broken."""
        tables = [text_table([["store", *self._campaigns], *self._rows])]
        if self._contracts:
            tables.append(promise_table(Promise, self._contracts))
        return "\n".join([*tables, *(f"BROKEN {text}\n" for text in self.broken)])

    def _cell(self, home: Home, campaign: str, size: int) -> str:
        began = time.monotonic()
        try:
            if campaign == "contract":
                report = self._contracts[home.store.name] = examine(home, size, self._seed)
                report.raise_if_violated()
                told = f"{len(report.findings)} checks, {report.schedules} schedules"
            else:
                told = _told(CAMPAIGNS[campaign].run(home, size, self._seed))
        except Exception as error:  # noqa: BLE001  what breaks is told in the table, and the other campaigns run
            self.broken.append(f"{home.store.name} {campaign}: {type(error).__name__}: {error}")
            return "BROKEN"
        cell = f"{told} ({time.monotonic() - began:.0f} s)"
        sys.stderr.write(f"{home.store.name} {campaign}: {cell}\n")  # it takes long: say how far it is
        return cell


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counts.items())


if __name__ == "__main__":
    sys.exit(main())
