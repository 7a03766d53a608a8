"""Definitions that are completed by processing, for sources whose end is known only after reading.

The coordinator defines a batch that is *incomplete*: where reading begins. The emitter gives a `PartitionRead` for each
partition between its tables: where reading ended. When the attempt is processed, the coordinator completes the
definition with all of them at once. Nothing of an attempt is committed before its definition is complete and, if the
spout is transactional, logged. So an attempt that fails earlier is simply read again.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PartitionRead(NamedTuple):
    """What reading one partition returned. An emitter gives it in the run that gives the rows, so both belong together.

    Attributes
    ----------
    partition
        The name of the partition.
    metadata
        Where reading ended: plain data.
    rows, size
        How many rows were read, and their bytes.
    crc
        The checksum of the rows, if a replay is to be compared with it.
    """

    partition: str
    metadata: Any
    rows: int = 0
    size: int = 0
    crc: int | None = None
