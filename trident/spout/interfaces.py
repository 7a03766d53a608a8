"""What a spout is. The coordinator runs in the driver and fixes what a batch is; the emitter runs in workers and reads it.

A *definition* says what one batch contains (byte ranges of files, offset ranges of partitions, row numbers). It is plain
data (None, bool, int, float, str, bytes, list, dict), small, and written to the transaction log. An attempt's definition
never changes; another definition is another attempt. A definition is cut into *parts*, one or more per Spark task; a part
is any picklable object and may carry rows when the source is in the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from trident.errors import TopologyError
from trident.fields import Fields
from trident.roles import Role, adapt, has, lacking
from trident.tuples import TridentCollector

if TYPE_CHECKING:
    import pyarrow as pa

Definition = Any


class SpoutType(Enum):
    """What a spout promises about the replay of a batch; see the guarantee matrix."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class TransactionAttempt(NamedTuple):
    """One try at a batch. The numbers of attempts keep growing, across restarts."""

    txid: int
    attempt: int

    @property
    def in_words(self) -> str:
        """Which try it is, in words: how often the topology was started before it, and its retries since."""
        start, retry = divmod(self.attempt, 1 << 20)
        return f"start {start}, retry {retry}" if retry else f"start {start}"

    def __str__(self) -> str:
        return f"{self.txid} ({self.in_words})"


class Lag(NamedTuple):
    """How much of a source is still to be read: an amount, at least 0, and what is counted, in the plural: `"records"`."""

    amount: int
    unit: str


REST = "the rest of "
"""How the name of something begins that a source waits for although nothing is wrong: what is there is not whole yet."""


class Away(NamedTuple):
    """A source that does not answer: its kind and address, and since when, in milliseconds since 1970."""

    what: str
    since_ms: int
    is_fault: bool = True
    """False: it answers, and waits for `REST` of something."""


class PartitionRead(NamedTuple):
    """What reading one partition returned. An emitter gives it in the run that gives the rows, so both belong together.

    It completes a definition that says only where reading begins: once the attempt is processed, with those of all partitions.
    Nothing of an attempt is committed before its definition is complete and, if the spout is transactional, logged. So an
    attempt that fails earlier is simply read again.

    Attributes
    ----------
    metadata
        Where reading ended: plain data.
    size
        The bytes of the rows.
    crc
        The checksum of the rows, if a replay is to be compared with it.
    """

    partition: str
    metadata: Any
    rows: int = 0
    size: int = 0
    crc: int | None = None


class BatchTraits(NamedTuple):
    """What a definition is besides what the batch contains.

    Attributes
    ----------
    is_complete
        Whether it says everything; only such a definition is logged. See `PartitionRead`. Else the next batch is defined when
        this one is complete.
    is_guess
        Whether the batch may still change until it is committed. It is logged only if a state needs identical replays, once
        complete. Otherwise the spout is asked again for each attempt, and the next batch is defined when this one is recorded.
    is_start_position
        Whether it says, without rows, where reading begins, and would say something else later. It is durable in the log
        before anything else happens, and the definition of every later attempt, whatever the spout promises about replays.
    """

    is_complete: bool = True
    is_guess: bool = False
    is_start_position: bool = False


class SourceLife(Role):
    """What any source may have besides, all of it optional. Called from one thread, but for `refresh` and `away`."""

    def refresh(self) -> None:
        """Note that someone waits for all that the source has at this moment. For any thread."""

    def may_have_more(self) -> bool:
        """Whether something of what the source had at the last `refresh` may still come, although it gives nothing now.

        For one that makes batches ready in a thread of its own, or whose source did not answer: it gives nothing at once, and
        does not hold up the other streams. Without it nothing says that the source is at its end.
        """
        return False

    def unavailable(self) -> Away | None:
        """Return what does not answer at the moment and is asked again by itself; None if it answers. For any thread."""
        return None

    def activate(self) -> None:
        """From now on it is asked for something."""

    def deactivate(self) -> None:
        """From now on it is not."""


class BatchCoordinator(SourceLife, Role, ABC):
    """The driver's side of a spout. Two methods say what a batch is; the others are optional."""

    runs_spark_jobs = False
    """Whether it reads its source with Spark jobs of its own, which need cores that no task keeps."""

    @abstractmethod
    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix what batch `txid` contains, given the definition of the batch before (None: the first batch ever).

        Returns None if there is nothing (more) to emit now; it is asked again later, for the same batch unless another
        spout has something for it. A definition without parts is an empty batch, and the next one is asked for then.
        Of a transactional spout the definition is logged before anything reads the source, and a replay uses the logged
        one; an opaque spout is asked again for every attempt.
        """

    @abstractmethod
    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        """Cut a definition into picklable parts for about `parallelism` tasks; one definition always gives the same rows."""

    def success(self, txid: int, definition: Definition) -> None:
        """Batch `txid` is committed; nothing before it is ever asked for again."""

    def size(self, definition: Definition) -> int | None:
        """Say about how many bytes the batch has, from its definition alone; None if that cannot be known.

        With it `engine="auto"` can run small batches without Spark.
        """
        return None

    def lag(self, definition: Definition) -> Lag | None:
        """Say how much was there beyond the batch with this definition when the source was last asked; None: not known.

        Called for each committed batch in the thread that leads the batches, so it asks no server.
        """
        return None

    def throttle(self, share: float) -> None:
        """Let the batches that are defined from now on hold at most `share` of the limits of the spout, 0 < share <= 1.

        A batch that could hold anything still holds something, so that the source never stands still.
        """

    def traits(self, definition: Definition) -> BatchTraits:
        """Say what a definition is: complete, a guess, or a choice of where reading begins."""
        return BatchTraits()

    def complete(self, definition: Definition, read: Mapping[str, PartitionRead]) -> Definition | None:
        """Return the complete definition, given what its emitters returned, by partition.

        None means that nothing was read and nothing has changed: no batch is made, and the spout is asked again later.
        """
        return definition

    def commit(self, attempt: TransactionAttempt, definition: Definition) -> None:
        """Commit an attempt in the source: the states have committed it, and its record is written next.

        If it raises, the attempt fails and the batch is tried again. After a crash before the record it is called for the
        same batch again, with another attempt: so it must have no further effect the second time.
        """


class ThrottledCoordinator(BatchCoordinator):
    """A coordinator whose batches have limits, of which `throttle` says how much may be used."""

    _share = 1.0

    def throttle(self, share: float) -> None:
        self._share = share

    def _most(self, limit: float) -> int:
        return max(1, int(limit * self._share))


def coordinator_of(given: Any, stream: str = "") -> BatchCoordinator:
    """Return the coordinator that an object is; a class of a user need not inherit from `BatchCoordinator`."""
    if lacks := ", ".join(lacking(BatchCoordinator, given)):
        raise TopologyError(
            f"stream {stream!r}: its spout's coordinator, a {type(given).__name__}, lacks {lacks} (BatchCoordinator)"
        )
    coordinator: BatchCoordinator = adapt(BatchCoordinator, given)
    former = [name for name in ("is_start_position", "is_complete", "is_guess") if has(given, name)]
    if former and not coordinator.offers("traits"):
        raise TopologyError(
            f"stream {stream!r}: its spout's coordinator, a {type(given).__name__}, has {', '.join(former)}, which nothing "
            f"asks any more: let traits(definition) return BatchTraits({former[0]}=…)"
        )
    if callable(coordinator.runs_spark_jobs):
        raise TopologyError(
            f"stream {stream!r}: runs_spark_jobs of its spout's coordinator, a {type(given).__name__}, is a method: make it an "
            "attribute, True or False"
        )
    return coordinator


class BadRow(NamedTuple):
    """What an emitter gives in place of a row that cannot be read: `error` fails the batch, or the row is a dead letter.

    `row` is what the source has: a table of one row, whose columns need not be the fields. `error` says where it is.
    """

    row: pa.Table
    error: Exception


class Emitter(Protocol):
    """The worker's side of a spout. Pickled to the worker; opens what it needs there."""

    def emit(self, part: Any) -> Iterable[pa.RecordBatch | pa.Table | PartitionRead | BadRow]:
        """Read one part: Arrow data whose columns are the output fields, in order.

        Where processing completes the definitions (`BatchCoordinator.complete`), it also gives what the reading returned.
        Raise `SpoutError` (what was tried, what was found) if the source cannot be read, and `ReplayMismatchError` if
        it can be read but is no longer what the definition says.
        """


@runtime_checkable
class ITridentSpout(Protocol):
    """A source of batches. The object itself is only a description: picklable, no connection."""

    @property
    def spout_type(self) -> SpoutType:
        """What is promised about replays."""

    def get_output_fields(self) -> Fields:
        """Return the fields with their types."""

    def get_coordinator(self, conf: Mapping[str, Any]) -> Any:
        """Open the driver's side, a `BatchCoordinator` or an object with its methods.

        `conf` holds the settings of the topology, and the names of `topology` and `stream`.
        """

    def get_emitter(self, conf: Mapping[str, Any]) -> Emitter:
        """Return the worker's side."""


class ICommitterTridentSpout(ITridentSpout, Protocol):
    """A spout that takes part in the commit of its batches: its coordinator has `commit`.

    Different from Storm: there an emitter's task commits beside the states of the batch, and any of them may be first;
    here the coordinator commits in the driver when all states have.
    """


@runtime_checkable
class IBatchSpout(Protocol):
    """The simplest source, in the driver: emits a batch's rows to a collector; called again with the same id on replay.

    Non-transactional unless it has a `spout_type` attribute that says otherwise.
    """

    def open(self, conf: Mapping[str, Any]) -> None:
        """Called once before the first batch."""

    def emit_batch(self, batch_id: int, collector: TridentCollector) -> bool | None:
        """Emit the rows of a batch.

        Returns True to say that this is the batch, with or without rows, and that the next one is to be asked for, as
        Storm always does. Where False is returned and nothing was emitted, there is nothing now, and the same batch is
        asked for again. The same holds, with a warning, where nothing is returned.
        """

    def ack(self, batch_id: int) -> None:
        """The batch is committed."""

    def close(self) -> None:
        """Release everything."""

    def get_output_fields(self) -> Fields:
        """Return the fields with their types."""


@runtime_checkable
class DeclaresSpoutType(Protocol):
    """A spout that says what it promises about replays; one that says nothing is non-transactional."""

    @property
    def spout_type(self) -> SpoutType | str:
        """The `SpoutType`, or its name."""


OnNewLog = Literal["start", "behind", "checkpoint", "elsewhere"]


@runtime_checkable
class SaysWhereItBegins(Protocol):
    """A spout that says where it begins when the log of its topology is new; one that says nothing begins at its start."""

    @property
    def on_new_log(self) -> OnNewLog:
        """Where it begins.

        `"start"`: where it began the first time. `"behind"`: after all that was committed, which its source has noted or
        forgotten. `"checkpoint"`: with a new checkpoint at its start, and with another one not at all. `"elsewhere"`: where its
        source is at the moment.
        """


@runtime_checkable
class NamesItsSources(Protocol):
    """A spout that can say which topics, folders or keys it reads."""

    @property
    def source_names(self) -> Sequence[str]:
        """Their names; of a part `"whole/part"`. What another stream has read under such a name is not read again."""


@runtime_checkable
class Quick(Protocol):
    """An emitter that says whether it reads without waiting."""

    @property
    def is_quick(self) -> bool:
        """Whether it does: then the thread that leads the batches may read small ones itself."""
