"""Statistics as Storm counts them, over ten minutes, three hours, a day and all time.

A worker's executors keep totals (`trident/storm/execution/counts.py`). `worker_snapshots.py` reads them once a second,
`collected_totals.py` adds up the totals of all workers, and `topology_monitor.py` makes statuses, log lines and metrics of
them (`trident/observe/topology_status.py`).
"""

from trident.storm.statistics.topology_monitor import TopologyMonitor
from trident.storm.statistics.worker_snapshots import WorkerSnapshot, WorkerSnapshots

__all__ = ["TopologyMonitor", "WorkerSnapshot", "WorkerSnapshots"]
