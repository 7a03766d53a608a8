"""What a topology says about itself: events, listeners, log records, statistics, pages and metrics, as functions of values.

Begin with `events.py` and `batch_committed.py`. `monitoring.py` passes events on: to the log, to the metrics
(`open_metrics.py`), to each listener through a queue. What components did in windows (`time_series.py`) is in
`component_statistics.py`; `topology_status.py` makes pages of it, and `health.py` judges it.
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
