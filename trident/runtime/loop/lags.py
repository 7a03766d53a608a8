"""How far each source of a topology is ahead of what is committed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from trident.errors import describe
from trident.runtime.spouts.batch_spouts import SpoutHandle
from trident.spout.interfaces import Definition, Lag

__all__ = ["Lags"]

logger = logging.getLogger(__name__)


class Lags:
    """Asks the spouts that know their lag, and keeps what they said last.

    Attributes
    ----------
    known
        By spout; None if a spout does not know it, or has not been asked yet.
    """

    def __init__(self, spouts: Mapping[str, SpoutHandle]) -> None:
        self.known: dict[str, Lag | None] = dict.fromkeys(spouts)
        coordinators = {name: spout.coordinator for name, spout in spouts.items()}
        self._lag_of = {name: each.lag for name, each in coordinators.items() if each.offers("lag")}

    def ask(self, spout: str, definition: Definition) -> None:
        """Ask one spout, if it can say, for its lag behind a batch that was just committed."""
        if spout not in self._lag_of:
            return
        try:
            self.known[spout] = self._lag_of[spout](definition)
        except Exception as error:  # noqa: BLE001  a figure for display is no reason to end a topology
            logger.warning("spout %s: its lag is not known any more: %s", spout, describe(error))
            self.known[spout] = None
            del self._lag_of[spout]
