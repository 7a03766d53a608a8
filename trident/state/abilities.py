"""What a state or its factory may offer in addition to its interface (`trident/state/interfaces.py`).

The properties of `StateSpec` ask a factory. docs/writing-a-state.md says what each ability is for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trident.ability import Ability

if TYPE_CHECKING:
    from trident.state.kinds import Key
    from trident.state.txid import Sentinel, Snapshot, Txid

__all__ = [
    "Closable",
    "ColumnarState",
    "DeclaresAttempts",
    "Expires",
    "Fencing",
    "Forgetting",
    "FreelyWritten",
    "ITupleCollection",
    "KeepsAttempts",
    "KeptInMemory",
    "KeptOnOneMachine",
    "MultiPuttable",
    "MultiUpdatable",
    "OnceUpdatable",
    "OverBackingMap",
    "Placed",
    "Publishing",
    "Resettable",
    "SentinelReadable",
    "SnapshotGettable",
    "SnapshotListable",
    "SnapshotReadable",
    "StagedCommits",
    "StagesInTasks",
    "TableState",
    "TimeTravelling",
    "Updatable",
    "place_of",
]

# ---- states and maps --------------------------------------------------------------------------------------------------


@runtime_checkable
class Closable(Ability, Protocol):
    """A state, a backing map or a cache with something to release."""

    def close(self) -> None:
        """Release it."""


@runtime_checkable
class KeepsAttempts(Ability, Protocol):
    """A state or backing map that knows whether its opaque values say which attempt wrote them."""

    def keeps_attempts(self) -> bool:
        """Whether they do. An `OpaqueMap` assumes it of a backing map that does not say."""


@runtime_checkable
class SentinelReadable(Ability, Protocol):
    """A state or backing map that shows the sentinel of its partition."""

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of this partition, None if there is none."""


@runtime_checkable
class Fencing(Ability, Protocol):
    """A state that says whether its store refuses a writer that was replaced (R9)."""

    @property
    def fences(self) -> bool:
        """Whether it does."""


@runtime_checkable
class StagedCommits(Ability, Protocol):
    """A state whose store commits a batch as one transaction: tasks of executors stage it, the driver publishes it.

    In a task `begin_commit` compares the sentinel and moves none; the driver's writer of the same partition moves it when it
    publishes. So a task that was replaced has no effect, whatever it still writes.
    """

    def stage(self, txid: int) -> bytes:
        """End a commit in a task, in place of `commit`: write what the store does not show yet; return what `publish` needs.

        The bytes go through the driver, so they name files, and hold no values.
        """

    def publish(self, txid: Txid, staged: bytes) -> None:
        """Commit what a task staged for this attempt, in the driver, as one transaction; raise as `commit` does."""


@runtime_checkable
class Resettable(Ability, Protocol):
    """A state or backing map that can be emptied, for `state_recovery="restart"`."""

    def reset(self) -> None:
        """Forget every key and the sentinel of this partition."""


# ---- states -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class Placed(Ability, Protocol):
    """A state whose sentinel names it, so that no other state takes its place."""

    @property
    def place(self) -> str:
        """Its name in its sentinels."""


def place_of(state: object) -> str:
    """Return the name of a state in its sentinels; "" for a user's state that has none."""
    return state.place if isinstance(state, Placed) else ""


@runtime_checkable
class MultiUpdatable(Ability, Protocol):
    """A state that a grouped aggregate can be kept in."""

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        """Update distinct keys, each by its `ValueUpdater`; return the new values."""


@runtime_checkable
class OnceUpdatable(Ability, Protocol):
    """A map state that can update many keys in pieces, in bounded memory."""

    def multi_update_once(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        """Update distinct keys as `multi_update` does; no other call of the commit updates any of them."""


@runtime_checkable
class FreelyWritten(Ability, Protocol):
    """A map state any key of which any partition may write: an updater of the user's chooses the keys (R16).

    Which keys a partition has written is compared before any of them commits. So puts are made at the commit, and nothing
    is remembered of a key, or deleted, that another partition may write meanwhile.
    """

    def share_keys(self) -> None:
        """Be a partition of such a state; called once, before the first commit."""

    def written_keys(self) -> Collection[Key]:
        """Return the keys that the commit under way writes, or removes although they are absent."""


@runtime_checkable
class Updatable(Ability, Protocol):
    """A state that an ungrouped aggregate can be kept in."""

    def update(self, updater: Any) -> Any:
        """Update the value by a `ValueUpdater` and return the new one."""


@runtime_checkable
class MultiPuttable(Ability, Protocol):
    """A state whose values can be replaced, many at once."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Replace the values of distinct keys."""


@runtime_checkable
class ITupleCollection(Ability, Protocol):
    """A state that can list its contents."""

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows: the fields of the key, then the value. No order is promised."""


@runtime_checkable
class SnapshotListable(Ability, Protocol):
    """A state that can list its contents after a committed batch."""

    def get_tuples_at(self, snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows as `ITupleCollection.get_tuples`, as they were after `snapshot.txid`."""


@runtime_checkable
class SnapshotReadable(Ability, Protocol):
    """A map that can be read as of a committed txid while a later batch is being written (R12)."""

    def multi_get_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        """Read many keys as they were after `snapshot.txid`; raise `StaleTransactionError` if it is too old."""


@runtime_checkable
class SnapshotGettable(Ability, Protocol):
    """A single value that can be read as of a committed txid while a later batch is being written."""

    def get_at(self, snapshot: Snapshot) -> Any:
        """Return the value as it was after `snapshot.txid`, None if not yet written then."""


@runtime_checkable
class ColumnarState(Ability, Protocol):
    """A map state that may combine numbers in columns, all keys of a batch at once."""

    @property
    def keeps_columns(self) -> bool:
        """Whether `multi_combine` can work with the store below."""

    def multi_combine(self, parts: Sequence[Sequence[Any]], values: Any, function: Any) -> Any | None:
        """Update distinct keys; return the column of new values, or None: use `multi_update`. See `OpaqueMap`."""


@runtime_checkable
class TimeTravelling(Ability, Protocol):
    """A state whose store keeps earlier batches."""

    def at(self, txid: Snapshot) -> Any:
        """Return the state as it was after that batch, to be read with `multi_get` or `get`."""


@runtime_checkable
class TableState(Ability, Protocol):
    """A state whose store is a table that Spark can read."""

    def to_dataframe(self, spark: Any, snapshot: Snapshot | None = None) -> Any:
        """Return the table as a DataFrame of its key columns and `value`: as of a committed batch, or the newest writes.

        Raise `EnvironmentProblem` if this session cannot read such tables.
        """


@runtime_checkable
class Publishing(Ability, Protocol):
    """A state that shows committed batches to programs of others, and so has to know which these are."""

    def recorded(self, snapshot: Snapshot) -> None:
        """Learn that the log holds the batches up to `snapshot.txid`; called at start and after each record.

        No commit of the state runs meanwhile. It must return at once, and what fails in it concerns no batch.
        """


# ---- what a factory may say before anything is opened -------------------------------------------------------------------


@runtime_checkable
class KeptInMemory(Ability, Protocol):
    """A factory that says whether its states are in the memory of the process that commits them."""

    @property
    def in_memory(self) -> bool:
        """Whether they are: then the log may be in memory too, and no other process can read them."""


@runtime_checkable
class KeptOnOneMachine(Ability, Protocol):
    """A factory that says whether only processes of this machine are sure to see its states, as with a folder."""

    @property
    def on_one_machine(self) -> bool:
        """Whether that is so: then executors commit such a state only if it is asked for."""


@runtime_checkable
class StagesInTasks(Ability, Protocol):
    """A factory that says whether its states are `StagedCommits`."""

    @property
    def stages_commits(self) -> bool:
        """Whether they are: then tasks of executors stage a batch, and the driver publishes it."""


@runtime_checkable
class Forgetting(Ability, Protocol):
    """A factory that says whether its states may forget values."""

    @property
    def forgets(self) -> bool:
        """Whether they may; such a state cannot hold a window."""


@runtime_checkable
class Expires(Ability, Protocol):
    """A factory of states or of backing maps that says when a value expires that is not written again."""

    @property
    def expires_after_s(self) -> float | None:
        """Seconds from the last write; None: never. A window is kept only where nothing expires before it is complete."""


@runtime_checkable
class DeclaresAttempts(Ability, Protocol):
    """A factory of backing maps that knows whether opaque values will say which attempt wrote them."""

    @property
    def keeps_attempts(self) -> bool | None:
        """Whether they will; None if that is not known yet."""


@runtime_checkable
class OverBackingMap(Ability, Protocol):
    """A factory of states over a backing map, as `map_state` makes it."""

    @property
    def backing_map_factory(self) -> Callable[..., Any]:
        """The function that opens the backing map of a partition."""
