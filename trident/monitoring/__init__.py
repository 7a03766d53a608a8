"""What happens to a topology, for those who watch it: events, listeners, log records as JSON, metrics.

Begin with `events.py` and `batch_committed.py`. `monitoring.py` passes events on: to the log (`event_log.py`), to the metrics
(`open_metrics.py`, served by `metrics_server.py`), to each listener (`listener.py`) through a queue (`delivery.py`).
"""

from trident.monitoring.batch_committed import BatchCommitted, Phases, Placement, Read
from trident.monitoring.event_log import JsonFormatter
from trident.monitoring.events import AttemptFailed, TopologyEvent, TopologyStarted, TopologyTerminated
from trident.monitoring.listener import TopologyListener
from trident.state.key_counts import KeyCounts

__all__ = [
    "AttemptFailed",
    "BatchCommitted",
    "JsonFormatter",
    "KeyCounts",
    "Phases",
    "Placement",
    "Read",
    "TopologyEvent",
    "TopologyListener",
    "TopologyStarted",
    "TopologyTerminated",
]
