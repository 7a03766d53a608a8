"""ChangeFeed: what each committed batch changed in a state, once and in order, from any process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trident.config import Config
from trident.errors import ChangesGoneError, ChangesReplacedError, StateError, UnsupportedOperation
from trident.graph import Graph
from trident.log.log_state import LogState
from trident.plan.meaning import with_kept_options
from trident.read.open_partitions import former_types
from trident.read.state_reader import FollowedView, ForeignLog
from trident.roles import Closes, close_on_error
from trident.setting_types import count_of
from trident.spout.interfaces import TransactionAttempt
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key
from trident.state.maps import migrate_values
from trident.state.txid import Winners

_SHORTEST_S, _LONGEST_S = 0.05, 1.0
_BATCHES, _ROWS = 1000, 10_000  # of one request to the store, at most; a batch is read whole


class Change(NamedTuple):
    """What one batch did to a key, a tuple of the grouping fields' values: the values before and after, which may be equal.

    None: the key was absent, or is removed.
    """

    key: Key
    before: Any
    after: Any


class ChangedBatch(NamedTuple):
    """A committed batch that wrote to the state; each key has one change."""

    txid: int
    changes: list[Change]

    def as_mapping(self) -> dict[str, Any]:
        return {"txid": self.txid, "changes": [change._asdict() for change in self.changes]}


class FeedPosition(NamedTuple):
    """A batch up to which changes were read, and who committed it, if it is known: the attempt, and the driver of its start.

    A log that is set back and goes on has other batches under the same numbers.
    """

    txid: int
    by: tuple[int, str] | None = None

    def __str__(self) -> str:
        return "-".join(map(str, (self.txid, *(self.by or ()))))

    @classmethod
    def of(cls, given: int | str | FeedPosition) -> FeedPosition:
        """Read what `str` gives, or the number of a batch alone; ValueError if it is neither."""
        txid, *by = str(given if isinstance(given, str | cls) else count_of("since", given)).split("-")
        if not txid.isdecimal() or len(by) not in (0, 2) or not all(map(str.isdecimal, by[:1])):
            raise ValueError(f"since={given!r}: expected the number of a batch, or the position of a feed")
        return cls(int(txid), (int(by[0]), by[1]) if by else None)

    def in_words(self) -> str:
        if self.by is None:
            return str(self.txid)
        attempt, run = self.by
        return str(TransactionAttempt(self.txid, attempt)) + (f" with the id {run}" if run else "")

    def is_other(self, found: FeedPosition) -> bool:
        """Whether another driver or attempt committed a batch of the same number, as far as both are known."""
        if self.by is None or found.by is None:
            return False
        (attempt, run), (other, other_run) = self.by, found.by
        return attempt != other or bool(run and other_run and run != other_run)


class ChangeFeed(Closes):
    """Gives the changes of a state through the log of its topology; never writes. A context manager, for one thread at a time.

    Made by `trident.changes`. A batch is given once its record is in the log: then it is all there, of all partitions, and
    nothing of an attempt that lost. Batches that wrote nothing to the state are passed over.
    """

    def __init__(self, graph: Graph, name: str, config: Config, since: int | str | None = None) -> None:
        given = None if since is None else FeedPosition.of(since)
        self.topology, self.name = graph.name, name
        self._log = ForeignLog(graph.name, config, [graph.state(name)], "")
        self._graph = with_kept_options(graph, self._log.now().declared.get("states", {}))
        node = self._graph.state(name)
        if not node.spec.facts.keeps_changes:
            self._log.close()
            raise UnsupportedOperation(
                f"state {name!r} of {graph.name!r} keeps no changes: one in PostgreSQL or Redis does that is "
                'declared with changes=, as in PostgresState(url, changes="7d") or RedisState(url, changes="7d")'
            )
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._is_total = not len(node.key_fields) and not node.free_keys
        with close_on_error(self._log.close):
            self._view = FollowedView(self._graph, name, config, self._log)
        log = self._log.now()
        self.incarnation, self.last_seen = log.incarnation, log.txid
        self._writers = log.writers(name)
        self.at = given if given is not None and given.by else self.place_of(log.txid if given is None else given.txid)

    @property
    def txid(self) -> int:
        """The batch up to which changes were given."""
        return self.at.txid

    @property
    def position(self) -> str:
        """That batch and who committed it: what `since` of the next feed is to be, once the changes are worked up."""
        return str(self.at)

    def place_of(self, txid: int) -> FeedPosition:
        return FeedPosition(txid, self._writers.of(txid))

    def read(self, most: int | None = None) -> list[ChangedBatch]:
        """Return the committed batches after `txid`, some thousand rows of them at a time, at most `most` batches.

        An empty list says that there are none now; it does not wait.

        Raises `ChangesGoneError`: the changes of the next batch are not kept, or not any more, or the log began again. Begin
        with a `snapshot`.
        Raises `StateReadError`: the store does not belong to the log: it was set back, for example. Nothing of it is given.
        """
        return self._up_to(None, _BATCHES if most is None else min(count_of("most", most), _BATCHES))

    def _up_to(self, end: int | None, most: int) -> list[ChangedBatch]:
        """Return the next batches, none of them behind `end`, if it is given."""
        with self._lock:
            while True:
                if self._closed.is_set():
                    raise StateError(f"read {self!r}: it was closed")
                log = self._log.now()
                if self.at.txid <= log.txid:
                    self._check(log, self.at)
                until = min(log.txid if end is None else end, self.txid + most)
                if log.incarnation != self.incarnation or max(self.txid, until) > log.txid:
                    raise self._gone_error(log, log.txid)
                if until <= self.txid:
                    return []
                if found := self._read(log, until):
                    return found

    def __iter__(self) -> Iterator[ChangedBatch]:
        """Iterate over the batches, those that are still to come included; it ends with `close`, from whatever thread."""
        pause = _SHORTEST_S
        while not self._closed.is_set():
            start = self.at
            try:
                found = self.read()
            except StateError:
                if self._closed.is_set():
                    return
                raise
            end, self.at = self.at, start  # that of the batch that was given last, if the iteration is left
            for batch in found:
                self.at = self.place_of(batch.txid)
                yield batch
            self.at = max(self.at, end, key=lambda each: each.txid)
            pause = _SHORTEST_S if found else pause
            if self._closed.wait(pause):
                return
            pause = min(_LONGEST_S, 2 * pause)

    def snapshot(self) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the last committed batch, and the rows after it (the key's fields, then the value); the feed goes on there."""
        self.at = self.place_of(self.committed())
        listed = list(self._view.follow().get_tuples())
        # A row is as of a batch that was committed meanwhile; what the batches since the first changed is known.
        rows = dict(zip(encode_keys([row[:-1] for row in listed]), listed, strict=True))
        last = self.committed()
        while self.txid < last:
            for batch in self._up_to(last, _BATCHES):
                for name, change in zip(encode_keys([one.key for one in batch.changes]), batch.changes, strict=True):
                    rows[name] = (*change.key, change.after)
        return self.txid, [row for row in rows.values() if row[-1] is not None]

    def between(self, after: int, until: int) -> Iterator[ChangedBatch]:
        """Iterate over the batches behind `after` up to `until`, which are committed; the feed goes on behind them."""
        self.at = self.place_of(after)
        while self.txid < until:
            yield from self._up_to(until, _BATCHES)

    def committed(self) -> int:
        log = self._log.now()
        self._writers, self.last_seen = log.writers(self.name), log.txid
        return self.last_seen

    def check(self, at: FeedPosition) -> None:
        """Compare a position with the log as it is; `ChangesReplacedError` if the log has another batch there, or none."""
        self._check(self._log.now(), at)

    def _check(self, log: LogState, at: FeedPosition) -> None:
        if log.incarnation != self.incarnation:
            return  # which is told by itself
        found = FeedPosition(at.txid, log.writers(self.name).of(at.txid))
        if at.txid > log.txid:
            there = f"ends with batch {log.txid} now"
        elif at.is_other(found):
            there = f"has a batch {found.in_words()}"
        else:
            return
        raise ChangesReplacedError(self.topology, self.name, at.txid, f"which was {at.in_words()}", there)

    def close(self) -> None:
        """End an iteration, and close the connections to the store and to the log."""
        self._closed.set()
        with self._lock:  # another thread may be reading
            self._view.close()
            self._log.close()

    def __repr__(self) -> str:
        return f"ChangeFeed({self.topology!r}, {self.name!r}, txid={self.txid})"

    def _read(self, log: LogState, until: int) -> list[ChangedBatch]:
        """Read some batches up to `until`; what was deleted, or taken back, is found after the read."""
        since, view = log.changes_since(self.name), self._view.follow()
        view.compare()  # a replica may lag, and have caught up by the end
        if since is None or self.txid < since:
            raise self._gone_error(log, log.txid if since is None else since)
        writers = log.writers(self.name)  # before the read: it is compared before the next one
        found: list[ChangedBatch] = []
        rows, last, winners = 0, until, log.winners_of(self.name)
        for txid, pairs in view.kept_changes.read(self.txid, until):
            batch = self._changed_batch(txid, pairs, winners)
            if batch.changes:
                found.append(batch)
            rows += len(pairs)
            if rows >= _ROWS and txid < until:
                last = txid
                break
        gone = view.kept_changes.last_gone()
        if self.txid < gone:
            raise self._gone_error(log, gone)
        view.compare()
        self._writers = writers
        self.at = self.place_of(last)
        return found

    def _gone_error(self, log: LogState, first: int) -> ChangesGoneError:
        return ChangesGoneError(self.topology, self.name, self.txid, first, log.txid)

    def _changed_batch(self, txid: int, pairs: Sequence[tuple[Key, Any]], winners: Winners) -> ChangedBatch:
        won = [(key, value) for key, value in pairs if winners.won(txid, value.attempt)]
        last = dict(zip(encode_keys([key for key, _ in won]), won, strict=True))  # 1 and True are two keys
        rows, types = [last[name] for name in sorted(last)], former_types(self._view.node)  # the same in each reading
        values: Sequence[Any] = migrate_values([value for _, value in rows], winners, types)
        sides = [[value[at] for value in values] for at in (2, 3)]
        if types is not None:
            sides = list(map(types.narrow, sides))
        keys = [() if self._is_total else key for key, _ in rows]
        changes = map(Change._make, zip(keys, *sides, strict=True))
        return ChangedBatch(txid, [one for one in changes if one.before is not None or one.after is not None])
