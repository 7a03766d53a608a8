"""Partitioned spouts: a source in partitions, each read by one task, whose metadata is what the reading returned.

A partition is a name. Its *metadata* says what one batch read of it and where that ended, as an offset: plain data (None, bool,
int, float, str, bytes, list, dict with texts as keys), and small. Partitions may appear, vanish and come back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trident.fields import Fields
from trident.roles import Role
from trident.spout.interfaces import Lag, SpoutType, TransactionAttempt

if TYPE_CHECKING:
    import pyarrow as pa


class PartitionCollector(Protocol):
    """Takes what an emitter reads, in order.

    Attributes
    ----------
    share
        How much of its usual limit the emitter may read, 0 < share <= 1: less than 1 while the states cannot keep up.
    """

    share: float

    def emit(self, values: Sequence[Any]) -> None:
        """Emit a row: a value for each field, in order."""

    def emit_arrow(self, data: pa.Table | pa.RecordBatch) -> None:
        """Emit many rows at once: columns named as the fields, in order."""


class PartitionedCoordinator(Role, ABC):
    """The driver's side of a partitioned spout. Called from one thread. One method is needed, the others are optional."""

    @abstractmethod
    def get_partitions_for_batch(self) -> Sequence[str]:
        """Return the names of the partitions that are there now, in any fixed order. Asked for each batch."""

    def is_ready(self, txid: int) -> bool:
        """Whether batch `txid` may be read now; False says that there is nothing, so that nothing is read."""
        return True

    def success(self, txid: int, metadata: Mapping[str, Any]) -> None:
        """Batch `txid` is committed, and with it everything up to these metadata, by partition."""

    def lag(self, metadata: Mapping[str, Any]) -> Lag | None:
        """Say how much was there beyond these metadata, by partition, when the source was last asked; None: not known."""
        return None


@runtime_checkable
class OpaquePartitionedEmitter(Protocol):
    """The worker's side of a partitioned spout. Pickled to the worker; opens what it needs there."""

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: PartitionCollector, partition: str, last_metadata: Any | None
    ) -> Any:
        """Emit what follows in a partition, a bounded amount, and return its metadata.

        It never waits for rows: if there are none, it emits nothing and returns `last_metadata`, and is asked again
        later. The topology then makes no batch.

        Parameters
        ----------
        attempt
            The batch. `attempt.attempt` is 0 where the driver looks whether there is anything.
        last_metadata
            What the last call for this partition returned, in the batches before; None if it was never read.
        """


@runtime_checkable
class PartitionedEmitter(OpaquePartitionedEmitter, Protocol):
    """The worker's side of a transactional partitioned spout, which can emit a batch again."""

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: PartitionCollector, partition: str, metadata: Any
    ) -> None:
        """Emit again exactly what `emit_partition_batch_new` emitted when it returned `metadata`.

        The number of rows and their checksum are compared with the first read.
        """


class PartitionedSpout(ABC):
    """What both partitioned spouts have."""

    spout_type: SpoutType

    @abstractmethod
    def get_output_fields(self) -> Fields:
        """Return the fields with their types."""

    @abstractmethod
    def get_coordinator(self, conf: Mapping[str, Any]) -> Any:
        """Open the driver's side, a `PartitionedCoordinator` or an object with its methods.

        `conf` holds the settings of the topology.
        """

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any]) -> OpaquePartitionedEmitter:
        """Return the worker's side."""


class IPartitionedTridentSpout(PartitionedSpout):
    """A transactional source in partitions: a replay of a batch has the same rows. Subclass it.

    Different from Storm: a partition is its name; the metadata of all partitions is logged in one record, so that a crash
    cannot leave some with and some without; a reading that returned nothing new makes no batch.
    """

    spout_type = SpoutType.TRANSACTIONAL

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any]) -> PartitionedEmitter:
        """Return the worker's side, which can emit a batch again."""


class IOpaquePartitionedTridentSpout(PartitionedSpout):
    """An opaque source in partitions: a replay may have other rows, and goes on with the partitions that are there.

    Subclass it. Every row is in exactly one batch that is committed.
    """

    spout_type = SpoutType.OPAQUE
