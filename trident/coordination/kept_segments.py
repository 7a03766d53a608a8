"""Which old segments a writer keeps for the history of its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trident.coordination.lock import SegmentName
from trident.coordination.log_reader import header_state
from trident.coordination.log_state import LogState
from trident.errors import LogError
from trident.retention import Retention

logger = logging.getLogger(__name__)

AT_ONCE = 10
"""So many segments are looked at when one begins, however many there are: a start must not take longer with them."""


def first_kept(
    old: Sequence[SegmentName],
    keep: SegmentName,
    retention: Retention | None,
    state: LogState,
    header_of: Callable[[SegmentName], bytes | None],
) -> SegmentName:
    """Return the first segment that stays; `old` are the oldest ones, ascending, `keep` is one that stays in any case.

    A segment may go when the header of the one behind it says that all before is old enough. One that cannot be read is passed
    over: what is behind it decides.
    """
    if retention is None or not state.history:
        return keep if retention is None else min([*old, keep])
    first, last = min([*old, keep]), state.history[-1]
    for name in [*(each for each in old if each < keep), keep][1 : AT_ONCE + 1]:
        try:
            payload = header_of(name)
            header = None if payload is None else header_state(payload, name, "")
        except LogError as error:
            logger.warning("transaction log of topology %r: an old segment is of no use: %s", state.topology, error)
            continue
        if header is None:
            continue
        at_ms = header.history[-1].at_ms if header.history else 0
        if not retention.lets_go(header.txid, at_ms, state.txid, last.at_ms):
            break
        first = name
    return first
