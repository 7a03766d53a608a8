"""The sentinel of one partition: read, moved, and compared by every write (R8, R9).

A copy of it lies in each bucket. Bucket 0 decides between two writers: both move it there first. A read returns the copy that
is farthest behind, so what a node lost is found. A move replaces what was read in each bucket, and nothing else.

Two more things than the sentinel's own fields guard a commit through broken connections. The record has a renewal: the old
connection may still deliver writes, after what this writer did since, so before they are sent again the record gets the next
renewal, and whatever still has the old one is refused. And each bucket counts the writes of the commit: a server that came
back without the latest of them, sentinel and all the rest in place, has counted fewer than it had acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from states.redis.calls import Exchange
from states.redis.layout import BUCKETS_FIELD, Layout, sentinel_of, sentinel_record
from states.redis.scripts import DROP, MOVE, RENEW
from states.redis.wire import Call
from trident.errors import BackendError, ConfigError, StateLossDetected
from trident.state.sentinel import displaced, is_forward
from trident.state.txid import Sentinel

__all__ = ["Fence"]


class Fence:
    """What this writer holds of the partition's sentinel.

    Parameters
    ----------
    exchange, layout
        Where the sentinel is.
    partition
        Its number.
    what, server
        The state and partition, and the server's address, for messages.
    """

    def __init__(self, exchange: Exchange, layout: Layout, partition: int, what: str, server: str) -> None:
        self._exchange, self._layout, self._what = exchange, layout, what
        self._place = f"{what} on Redis {server}"
        self._field = layout.sentinel_field(partition)
        self._own: Sentinel | None = None
        self._renewal = 0
        self._record = b""  # of `_own`
        self._acknowledged = [0] * layout.buckets  # the writes of the commit
        self._seen: list[bytes | None] | None = None  # the records that were read or laid last

    def command(
        self, script: bytes, bucket: int, names: Sequence[bytes], arguments: Sequence[bytes] = ()
    ) -> tuple[Any, ...]:
        """Return the call of a script that writes under these names while the sentinel is this writer's own."""
        keys = [self._layout.sentinel_keys[bucket], *names]
        return (b"EVALSHA", script, len(keys), *keys, self._field, self._record, *arguments)

    def written(self, doing: str, bucket: int, answer: Any) -> None:
        """Check what a script answered that writes values.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel. The call wrote nothing.
        StateLossDetected
            The sentinel that this writer laid is gone, or an earlier one stands in its place. The call wrote nothing.
        """
        self._check(doing, self._own, answer)
        self._acknowledged[bucket] += 1

    def read(self) -> Sentinel | None:
        """Return the copy that is farthest behind; None if one is missing."""
        layout = self._layout
        records: list[bytes | None] = [None] * layout.buckets

        def take(bucket: int, answer: list[bytes | None]) -> None:
            records[bucket], buckets = answer
            self._check_buckets(buckets)

        def call(bucket: int) -> Call:
            command = (b"HMGET", layout.sentinel_keys[bucket], self._field, BUCKETS_FIELD)
            return Call(bucket, lambda: command, partial(take, bucket), reads=True)

        self._run("read the sentinel", map(call, range(layout.buckets)))
        self._seen = records
        found = [self._sentinel(record) for record in records if record is not None]
        if len(found) < layout.buckets:
            return None
        first = found[0].incarnation
        # A move to a new incarnation that was not completed leaves copies of the old one behind.
        return min(found, key=lambda one: (one.incarnation == first, one.version, one.sealed))

    def check_layout(self) -> None:
        """Check that the state is spread over as many buckets as the options say, if it was ever written."""
        if self._layout.clustered:
            key = self._layout.sentinel_keys[0]
            self._run("read the layout", [Call(0, lambda: (b"HGET", key, BUCKETS_FIELD), self._check_buckets, True)])

    def move(self, sentinel: Sentinel, force: bool) -> None:
        """Replace what was read or laid last by this sentinel, in each bucket; this is the writer from now on.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError
            There is something else, or (without `force`) something that is not behind this sentinel.
        BackendError
            It seals a commit, and Redis has lost writes of it.
        """
        doing, mine = "move the sentinel", self._own == sentinel
        seen = self._seen_by_now()
        for found in () if force else map(self._sentinel, {record for record in seen if record is not None}):
            if not is_forward(found, sentinel):
                raise displaced(f"{doing} of {self._place}", sentinel, found, found)
        renewal = self._renewal if mine else 0
        record = sentinel_record(sentinel, renewal)
        buckets = range(self._layout.buckets)
        calls = [self._move_of(bucket, sentinel, record, seen[bucket], mine) for bucket in buckets]
        if not mine:
            self._run(doing, [calls.pop(0)])
        self._run(doing, calls)
        self._own, self._renewal, self._record = sentinel, renewal, record
        self._seen, self._acknowledged = [record for _ in buckets], [0 for _ in buckets]

    def renewals(self) -> Iterable[Call]:
        """Make the calls after which only what is sent from now on can write."""
        if self._own is None:
            return []
        self._renewal += 1
        self._record = record = sentinel_record(self._own, self._renewal)

        def command(bucket: int) -> tuple[Any, ...]:
            return self.command(RENEW, bucket, (), [b"%d" % self._acknowledged[bucket]])

        def take(bucket: int, answer: Any) -> None:
            self._check("write again", self._own, answer)
            if self._seen is not None:
                self._seen[bucket] = record

        buckets = range(self._layout.buckets)
        return [Call(bucket, partial(command, bucket), partial(take, bucket)) for bucket in buckets]

    def drop(self) -> None:
        """Remove this writer's sentinel, so that no commit can go on as if nothing had been lost."""
        if self._own is not None:
            drops = (partial(self.command, DROP, bucket, ()) for bucket in range(self._layout.buckets))
            self._run("remove the sentinel", [Call(b, drop, lambda _answer: None) for b, drop in enumerate(drops)])
        self.forget()

    def forget(self) -> None:
        """Stop being the writer."""
        self._own, self._renewal, self._record, self._seen = None, 0, b"", None

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _run(self, doing: str, calls: Iterable[Call]) -> None:
        self._exchange.run(f"{doing} of {self._what}", calls)

    def _seen_by_now(self) -> list[bytes | None]:
        if self._seen is None:
            self.read()
            assert self._seen is not None
        return self._seen

    def _move_of(self, bucket: int, sentinel: Sentinel, record: bytes, seen: bytes | None, mine: bool) -> Call:
        """Make the call that lays a record in one bucket; it seals a commit if the sentinel is `mine`."""
        layout = self._layout

        def take(answer: Any) -> None:
            if isinstance(answer, list):
                self._check_buckets(answer[0])
            else:
                self._check("move the sentinel", sentinel, answer, None if seen is None else self._sentinel(seen))

        calls = b"%d" % self._acknowledged[bucket] if mine else b""
        buckets = b"%d" % layout.buckets if layout.clustered else b""
        command = (
            b"EVALSHA", MOVE, 1, layout.sentinel_keys[bucket], self._field, record, calls, seen or b"", buckets,
        )  # fmt: skip
        return Call(bucket, lambda: command, take)

    def _check(self, doing: str, own: Sentinel | None, answer: Any, seen: Sentinel | None = None) -> None:
        if answer == 1:
            return
        what, seen = f"{doing} of {self._place}", own if seen is None else seen
        if answer == 0:
            raise BackendError(
                f"{what}: Redis has lost writes of this very commit that it had acknowledged; it was restarted or replaced "
                "without its latest data. The batch may be replayed"
            )
        if answer is None:
            raise StateLossDetected(
                what,
                f"the sentinel that was read or laid there ({seen}) is gone; Redis was emptied, was restarted without its "
                "data, or evicted the key",
            )
        assert own is not None
        raise displaced(what, own, self._sentinel(answer), seen)

    def _sentinel(self, record: bytes) -> Sentinel:
        return sentinel_of(record, f"the sentinel of {self._place} (key {self._layout.sentinel_keys[0]!r})")

    def _check_buckets(self, recorded: bytes | None) -> None:
        if self._layout.clustered and recorded is not None and recorded != b"%d" % self._layout.buckets:
            raise ConfigError(
                f"{self._place} is spread over {recorded.decode(errors='replace')} buckets, and cluster_buckets is "
                f"{self._layout.buckets}; its keys would not be found. Give the recorded number"
            )
