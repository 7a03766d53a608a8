"""TopologyListener: what a user's program is told of a topology."""

from __future__ import annotations

from trident.observe.batch_committed import BatchCommitted
from trident.observe.events import AttemptFailed, TopologyStarted, TopologyTerminated

__all__ = ["TopologyListener"]


class TopologyListener:
    """Is told what happens to a topology. Override what you need; each method does nothing by default.

    Each listener has a thread of its own, which calls it with one event after the other, in order. So it may take its time,
    and whatever it does, the topology goes on: an exception is logged (the first of each listener) and counted, and while
    1,000 events wait for a slow listener, the oldest are dropped, which is logged once and counted. `status["listeners"]`
    has the figures. When the topology ends, it waits up to five seconds for its listeners.

    Examples
    --------
    >>> from spouts import FixedBatchSpout
    >>> from states.memory import MemoryMapState
    >>> from trident import TridentTopology
    >>> from trident.observe import BatchCommitted, TopologyListener
    >>> from trident.operations import Count
    >>> class Totals(TopologyListener):
    ...     tuples = 0
    ...
    ...     def on_batch_committed(self, event: BatchCommitted) -> None:
    ...         self.tuples += event.tuples
    >>> topology, totals = TridentTopology("listened"), Totals()
    >>> words = topology.new_stream("words", FixedBatchSpout("word", 2, ["the"], ["cow"], ["the"]))
    >>> counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    >>> with topology.start(engine="in_process", listeners=[totals]) as running:
    ...     running.process_all_available()
    >>> totals.tuples
    3
    """

    def on_topology_started(self, event: TopologyStarted) -> None:
        """The topology runs; told only to listeners that were given to `start`."""

    def on_batch_committed(self, event: BatchCommitted) -> None:
        """A batch is committed: what it counted is durable, and readers see it."""

    def on_attempt_failed(self, event: AttemptFailed) -> None:
        """An attempt at a batch failed; `event.will_retry` says whether another follows."""

    def on_topology_terminated(self, event: TopologyTerminated) -> None:
        """The topology ended, by `stop` or by an error; the last event."""
