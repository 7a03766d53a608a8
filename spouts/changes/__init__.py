"""The changes of another topology's state, as a source: `StateChangesSpout`."""

from spouts.changes.spout import StateChangesSpout

__all__ = ["StateChangesSpout"]
