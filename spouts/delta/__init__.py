"""Delta tables as streams: appended rows, or every change, version by version; begin with `spout.py`."""

from spouts.delta.spout import DeltaSpout

__all__ = ["DeltaSpout"]
