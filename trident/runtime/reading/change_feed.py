"""ChangeFeed: what each committed batch changed in a state, once and in order, from any process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.errors import ChangesGoneError, UnsupportedOperation
from trident.graph import Graph
from trident.planner import make_plan
from trident.runtime.reading.open_partitions import readers_of
from trident.runtime.reading.state_reader import ForeignLog, StateReader
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key
from trident.state.winners import Winners

_SHORTEST_S, _LONGEST_S = 0.05, 1.0
_BATCHES, _ROWS = 1000, 10_000  # of one request to the store, at most; a batch is read whole


class Change(NamedTuple):
    """What one batch did to a key.

    Attributes
    ----------
    key
        A tuple of the grouping fields' values.
    before, after
        The values before and after the batch; None: the key was not there, or is removed. They may be equal: the batch wrote
        what was there.
    """

    key: Key
    before: Any
    after: Any


class ChangedBatch(NamedTuple):
    """A committed batch that wrote to the state; each key has one change."""

    txid: int
    changes: list[Change]


class ChangeFeed:
    """Gives the changes of a state through the log of its topology; never writes. A context manager, for one thread at a time.

    Made by `trident.changes`. A batch is given once its record is in the log: then it is all there, of all partitions, and
    nothing of an attempt that lost. Batches that wrote nothing to the state are passed over.

    Attributes
    ----------
    txid
        The batch up to which changes were given: what `since` of the next feed is to be, once they are worked up.
    last_seen
        The last batch that was committed when `committed` was asked.
    """

    def __init__(self, graph: Graph, name: str, config: Config, since: int | None = None) -> None:
        self.topology, self.name = graph.name, name
        self._graph, self._config = graph, config
        node = graph.state(name)
        if not node.spec.facts.keeps_changes:
            raise UnsupportedOperation(
                f"state {name!r} of {graph.name!r} keeps no changes: declare it with changes=, as in "
                'PostgresState.opaque(url, changes="7d") or RedisState.opaque(url, changes="7d")'
            )
        self._log = ForeignLog(graph.name, config, [node], "")
        self._closed, self._is_total = threading.Event(), not len(node.key_fields) and not node.free_keys
        try:
            self._store = readers_of(make_plan(graph), config, name, self._log.partitions(name))[0]
        except BaseException:
            self._log.close()
            raise
        self.last_seen = self._log.now().txid
        self.txid = self.last_seen if since is None else since

    def read(self, most: int | None = None) -> list[ChangedBatch]:
        """Return the committed batches after `txid`, some thousand rows of them at a time, at most `most` batches.

        An empty list says that there are none now; it does not wait.

        Raises
        ------
        ChangesGoneError
            The changes of the next batch are not kept, or not any more. Begin with a `snapshot`.
        """
        while True:
            log = self._log.now()
            until = min(log.txid, self.txid + (_BATCHES if most is None else min(most, _BATCHES)))
            since = log.changes_since(self.name)
            if until <= self.txid:
                return []
            if since is None or self.txid < since:
                raise self._gone(log, log.txid if since is None else since)
            found, last = self._batches(until, log.winners_of(self.name))
            gone = self._store.changes_gone()  # after the read, so that nothing was deleted meanwhile
            if self.txid < gone:
                raise self._gone(log, gone)
            self.txid = last
            if found:
                return found

    def __iter__(self) -> Iterator[ChangedBatch]:
        """Iterate over the batches, those that are still to come included; it ends with `close`, from whatever thread."""
        pause = _SHORTEST_S
        while not self._closed.is_set():
            for batch in self._one_by_one():
                pause = _SHORTEST_S
                yield batch
            if self._closed.wait(pause):
                return
            pause = min(_LONGEST_S, 2 * pause)

    def snapshot(self) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the last committed batch, and the rows of the state after it; the feed goes on behind this batch.

        A row is the key's fields, then the value.
        """
        self.txid = self._log.now().txid
        with StateReader(self._graph, self.name, self._config) as state:
            listed = list(state.get_tuples())
        # A row is as of a batch that was committed meanwhile; what the batches since the first changed is known.
        rows = dict(zip(encode_keys([row[:-1] for row in listed]), listed, strict=True))
        last = self._log.now().txid
        while self.txid < last:
            for batch in self.read(last - self.txid):
                for name, change in zip(encode_keys([one.key for one in batch.changes]), batch.changes, strict=True):
                    rows[name] = (*change.key, change.after)
        return self.txid, [row for row in rows.values() if row[-1] is not None]

    def between(self, after: int, until: int) -> Iterator[ChangedBatch]:
        """Iterate over the batches behind `after` up to `until`, which are committed; the feed goes on behind them."""
        self.txid = after
        while self.txid < until:
            yield from self.read(until - self.txid)

    def committed(self) -> int:
        """Return the last committed batch."""
        self.last_seen = self._log.now().txid
        return self.last_seen

    def close(self) -> None:
        """End an iteration, and close the connections to the store and to the log."""
        self._closed.set()
        self._store.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ChangeFeed({self.topology!r}, {self.name!r}, txid={self.txid})"

    def _one_by_one(self) -> Iterator[ChangedBatch]:
        """Read what is there now; `txid` is that of the batch that was given last."""
        start = self.txid
        found = self.read()
        end, self.txid = self.txid, start
        for batch in found:
            self.txid = batch.txid
            yield batch
        self.txid = max(self.txid, end)

    def _batches(self, until: int, winners: Winners) -> tuple[list[ChangedBatch], int]:
        """Return batches up to `until`, some thousand rows of them, and the last batch of which all is read."""
        found: list[ChangedBatch] = []
        rows = 0
        for txid, pairs in self._store.changed(self.txid, until):
            batch = self._committed(txid, pairs, winners)
            if batch.changes:
                found.append(batch)
            rows += len(pairs)
            if rows >= _ROWS and txid < until:
                return found, txid
        return found, until

    def _gone(self, log: LogState, first: int) -> ChangesGoneError:
        return ChangesGoneError(self.topology, self.name, self.txid, first, log.txid)

    def _committed(self, txid: int, pairs: Sequence[tuple[Key, Any]], winners: Winners) -> ChangedBatch:
        won = [(key, value) for key, value in pairs if winners.won(txid, value.attempt)]
        last = dict(zip(encode_keys([key for key, _ in won]), won, strict=True))  # 1 and True are two keys
        ordered = (last[name] for name in sorted(last))  # the same in each reading
        some = (Change(() if self._is_total else key, value.prev, value.curr) for key, value in ordered)
        return ChangedBatch(txid, [one for one in some if one.before is not None or one.after is not None])
