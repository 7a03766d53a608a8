"""Definitions that are completed by processing, for sources whose end is known only after reading.

The coordinator defines a batch that is *incomplete*: where reading begins. The emitter gives a `PartitionRead` for each
partition between its tables: where reading ended. When the attempt is processed, the coordinator completes the
definition with all of them at once. Nothing of an attempt is committed before its definition is complete and, if the
spout is transactional, logged. So an attempt that fails earlier is simply read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from trident.ability import Ability

__all__ = ["CompletedByProcessing", "PartitionRead"]


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


@runtime_checkable
class CompletedByProcessing(Ability, Protocol):
    """A coordinator whose definitions are completed by processing.

    The next batch of such a spout is defined when the one before is complete, which may still be committing then.
    """

    def is_complete(self, definition: Any) -> bool:
        """Whether the definition says all; only such a definition is logged."""

    def complete(self, definition: Any, read: Mapping[str, PartitionRead]) -> Any | None:
        """Return the complete definition, given what its emitters returned, by partition.

        None means that nothing was read and nothing has changed: no batch is made, and the spout is asked again later.
        """
