"""Delta tables as streams: appended rows, or every change, version by version.

Begin with `spout.py` (`DeltaSpout`, and its emitter), then `version_batches.py` (which files make up a batch, and which of a
version have rows). The table's log is read here, file by file; delta-rs says what the table is at a version.
"""

from spouts.delta.spout import DeltaSpout

__all__ = ["DeltaSpout"]
