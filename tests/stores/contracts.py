"""The suite that users run on their own back-ends (`trident.testing`), on each store with what it claims."""

from __future__ import annotations

import io
from collections import Counter

from tests.stores.catalog import Home
from trident.testing import Report, backend_suite

__all__ = ["examine", "keep_contract"]


def examine(home: Home, seconds: float, seed: int) -> Report:
    """Run the suite; return its findings."""
    outage = home.outage if home.store.server is not None else None
    return backend_suite(
        home.empty(), limits=home.store.limits, seconds=seconds, seed=seed, outage=outage, out=io.StringIO()
    )


def keep_contract(home: Home, seconds: int, seed: int) -> Counter[str]:
    """Run the suite; raise if a promise is broken."""
    report = examine(home, seconds, seed)
    report.raise_if_violated()
    return Counter({"checks": len(report.findings), "schedules": report.schedules})
