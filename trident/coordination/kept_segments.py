"""Which old segments a writer keeps for the history of its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from trident.coordination.lock import SegmentName
from trident.coordination.log_reader import header_state
from trident.coordination.log_state import LogState
from trident.errors import LogError

logger = logging.getLogger(__name__)

AT_ONCE = 10
"""So many segments are looked at when one begins, however many there are: a start must not take longer with them."""


def first_kept(
    names: Sequence[SegmentName], state: LogState, read: Callable[[SegmentName], Iterator[bytes]]
) -> SegmentName:
    """Return the first segment that stays of the old ones, ascending, the last of which stays in any case.

    A segment may go when the header of the one behind it says that all before is old enough. One that cannot be read is passed
    over: what is behind it decides.
    """
    retention = state.retention
    if retention is None or not state.history:
        return names[-1 if retention is None else 0]
    first, last = names[0], state.history[-1]
    for name in names[1 : AT_ONCE + 1]:
        try:
            payload = next(read(name), None)
            header = None if payload is None else header_state(payload, name, name.file)
        except LogError as error:
            logger.warning("transaction log of topology %r: its history is damaged: %s", state.topology, error)
            continue
        if header is None:
            continue
        at_ms = header.history[-1].at_ms if header.history else 0
        if not retention.lets_go(header.txid, at_ms, state.txid, last.at_ms):
            break
        first = name
    return first
