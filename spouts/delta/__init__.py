"""Delta tables as streams: appended rows, or every change, version by version.

Begin with `spout.py` (`DeltaSpout`), then `version_batches.py` (which files make up a batch, and which of a
version have rows) and `version_rows.py` (the emitter). The table's log is read here, file by file; delta-rs says what the table
is at a version.
"""

from spouts.delta.spout import DeltaSpout

__all__ = ["DeltaSpout"]
