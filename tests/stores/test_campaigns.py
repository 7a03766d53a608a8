"""Every store under every campaign: small ones always, the full ones as soak tests. `report.py` prints the table."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.stores.campaigns import CAMPAIGNS, size_of
from tests.stores.catalog import STORES, Home

SEED = 7


def pairs(full: bool) -> list[Any]:
    return [
        pytest.param(name, campaign, marks=pytest.mark.server if store.server else pytest.mark.slow)
        for name, store in STORES.items()
        for campaign in CAMPAIGNS
        if size_of(campaign, store, full)
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("store", "campaign"), pairs(full=False))
def test_a_store_passes_a_campaign(store: str, campaign: str, home_of: Callable[[str], Home]) -> None:
    home = home_of(store)
    CAMPAIGNS[campaign].run(home, size_of(campaign, home.store, full=False), SEED)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("store", "campaign"), pairs(full=True))
def test_a_store_passes_a_full_campaign(store: str, campaign: str, seed: int, home_of: Callable[[str], Home]) -> None:
    CAMPAIGNS[campaign].run(home_of(store), CAMPAIGNS[campaign].full, seed)
