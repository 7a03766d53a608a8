"""StateChangesSpout: what the committed batches of another topology changed in one of its states; transactional.

A definition is `{"after": t, "until": u, "log": i, "by": [a, r]}`: the batches of the other topology behind t, up to u, in its
log i, and which attempt of which driver committed u: a log that is set back has other batches under these numbers. What they
changed never changes as long as it is kept, so a replay reads the same rows. The driver reads them from the store. With t = u
it says where reading begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts.rows.driver_rows import DriverRows, table_of_rows
from trident.arrow import TablePart, cut_table
from trident.config import Config
from trident.errors import (
    BackendError,
    ChangesGoneError,
    LogError,
    ReplayMismatchError,
    SourceAwayError,
    StateReadError,
    TopologyError,
)
from trident.fields import Fields, free_name
from trident.graph import Graph, name_of_state
from trident.setting_types import Limit, check_arguments
from trident.spout.interfaces import BatchTraits, Definition, Lag, OnNewLog, ThrottledCoordinator, TransactionAttempt
from trident.stream import TridentState
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from trident.read.change_feed import ChangeFeed, FeedPosition

__all__ = ["StateChangesSpout"]


class StateChangesSpout(DriverRows):
    """Emits a row for each change: the fields of the key, `before`, `after`, and `batch`, the other topology's txid.

    A value is null in `before` where the key was not there, in `after` where it was removed.

    Parameters
    ----------
    topology, state
        The state whose changes to read, as for `trident.changes`; it must be declared with `changes=`.
    log_dir
        The log of that topology, as for `trident.open_state`.
    since
        The batch after which the first batch of this source begins, or the `position` of a feed; None: the last one
        that is committed at the first start.
    max_batches
        How many batches of the other topology one batch takes at most.
    """

    @check_arguments
    def __init__(
        self,
        topology: TridentTopology | str,
        state: TridentState | str,
        log_dir: str | Path | None = None,
        since: int | str | None = None,
        max_batches: Limit = 100,
    ) -> None:
        from trident.read.change_feed import FeedPosition
        from trident.targets import load_topology

        if since is not None:
            FeedPosition.of(since)

        self._graph: Graph = (load_topology(topology) if isinstance(topology, str) else topology).graph()
        self._state = name_of_state(state)
        self._config = Config() if log_dir is None else Config(log_dir=str(log_dir))
        self._since, self._most = since, max_batches
        self.on_new_log: OnNewLog = "elsewhere" if since is None else "start"
        self._fields = _fields(self._graph, self._state)

    def get_coordinator(self, conf: Mapping[str, Any]) -> _ChangesCoordinator:
        """Open the driver's side."""
        from trident.read.change_feed import ChangeFeed

        feed = ChangeFeed(self._graph, self._state, self._config, self._since)
        return _ChangesCoordinator(feed, self._fields, self._most, is_chosen=self._since is None)

    def __repr__(self) -> str:
        return f"StateChangesSpout({self._graph.name!r}, {self._state!r})"


def _fields(graph: Graph, state: str) -> Fields:
    from trident.read.views import columns_of

    columns = columns_of(graph.state(state))
    *keys, value = columns.types
    if value is None or graph.state(state).free_keys:
        raise TopologyError(
            f"the changes of state {state!r} of {graph.name!r} cannot be a source: an updater decides what its keys and values "
            "are. Read them with trident.changes"
        )
    names = list(columns.names[:-1])
    for name in ("before", "after", "batch"):
        names.append(free_name(name, names))
    return Fields.of(names, [*keys, value, value, "bigint"])


class _ChangesCoordinator(ThrottledCoordinator):
    """Cuts the batches of a feed into batches, and reads them again for each attempt."""

    def __init__(self, feed: ChangeFeed, fields: Fields, most: int, is_chosen: bool) -> None:
        self._feed, self._fields, self._max_batches = feed, fields, most
        self._start, self._is_chosen = feed.at, is_chosen

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the batches that are committed and in no batch yet, None if there are none; first where it begins."""
        self._check_log(previous)
        start = self._start if previous is None else self._position(previous)
        with _as_source():
            committed = self._feed.committed()
            self._feed.check(start)
        if previous is None and self._is_chosen:
            return self._definition(start.txid, start.txid)
        until = min(committed, start.txid + self._most(self._max_batches))
        return self._definition(start.txid, until) if until > start.txid else None

    def _definition(self, after: int, until: int) -> Definition:
        by = self._feed.place_of(until).by
        return {"after": after, "until": until, "log": self._feed.incarnation, "by": None if by is None else list(by)}

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_start_position=bool(definition["after"] == definition["until"]))

    @staticmethod
    def _position(definition: Definition) -> FeedPosition:
        from trident.read.change_feed import FeedPosition

        by = definition["by"]
        return FeedPosition(int(definition["until"]), None if by is None else (by[0], by[1]))

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        self._check_log(definition)
        with _as_source():
            self._feed.check(self._position(definition))
            batches = list(self._feed.between(int(definition["after"]), int(definition["until"])))
        rows = [(*one.key, one.before, one.after, batch.txid) for batch in batches for one in batch.changes]
        return cut_table(table_of_rows(self._fields, rows), parallelism) if rows else []

    def _check_log(self, definition: Definition | None) -> None:
        if definition is not None and definition["log"] != self._feed.incarnation:
            raise ReplayMismatchError(
                f"{self._feed!r} has been read up to batch {definition['until']} of another log: the topology began "
                "again, and its batches are different ones. Begin with another log and empty states here too"
            )

    def lag(self, definition: Definition) -> Lag:
        return Lag(max(0, self._feed.last_seen - int(definition["until"])), "batches")

    def close(self) -> None:
        self._feed.close()


@contextmanager
def _as_source() -> Iterator[None]:
    """Raise what a log or a store says as a source says it."""
    try:
        yield
    except (ChangesGoneError, StateReadError) as error:
        raise ReplayMismatchError(str(error)) from error
    except (BackendError, LogError) as error:
        raise SourceAwayError(str(error)) from error
