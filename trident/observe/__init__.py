"""What a topology says about itself: events, listeners, log records, statistics, pages and metrics, as functions of values.

Begin with `events.py` and `batch_committed.py`; `monitoring.py` passes events on.
"""

from trident.counts import KeyCounts
from trident.observe.batch_committed import BatchCommitted, Phases, Placement, Read
from trident.observe.events import (
    AttemptFailed,
    JsonFormatter,
    ReplayDiffered,
    TopologyEvent,
    TopologyListener,
    TopologyStarted,
    TopologyTerminated,
)

__all__ = [
    "AttemptFailed", "BatchCommitted", "JsonFormatter", "KeyCounts", "Phases", "Placement", "Read", "ReplayDiffered",
    "TopologyEvent", "TopologyListener", "TopologyStarted", "TopologyTerminated",
]  # fmt: skip
