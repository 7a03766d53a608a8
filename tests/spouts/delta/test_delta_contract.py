"""DeltaSpout keeps the contract of spouts, in both modes."""

from __future__ import annotations

import pytest

from tests.spouts.file_sources import DeltaChangesSource, DeltaSource
from trident.testing import SpoutContract

pytestmark = pytest.mark.slow


class TestAppended(SpoutContract):
    source = DeltaSource

    @pytest.mark.long
    def test_random_failures_end_exact(self) -> None:
        super().test_random_failures_end_exact()


@pytest.mark.soak
class TestChanges(SpoutContract):
    source = DeltaChangesSource
