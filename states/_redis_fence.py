"""The sentinel of one partition: read, moved, and compared by every write (R8, R9).

A copy of it lies in each bucket. Bucket 0 decides between two writers: both move it there first. A read returns the copy that
is farthest behind, so what a node lost is found.

The record has a fourth field, the renewal. When a connection breaks while writes are outstanding, the old connection may
still deliver them, after what this writer did since. So before they are sent again the record gets the next renewal, and
whatever still has the old one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from states._redis_exchange import Exchange
from states._redis_layout import BUCKETS_FIELD, Layout, sentinel_of, sentinel_record
from states._redis_scripts import DROP, MOVE, RENEW
from states._redis_wire import Call
from trident.errors import ConfigError, FencedError, StateLossDetected
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

    def command(
        self, script: bytes, bucket: int, names: Sequence[bytes], arguments: Sequence[bytes] = ()
    ) -> tuple[Any, ...]:
        """Return the call of a script that writes under these names while the sentinel is this writer's own."""
        keys = [self._layout.sentinel_keys[bucket], *names]
        own = b"" if self._own is None else sentinel_record(self._own, self._renewal)
        return (b"EVALSHA", script, len(keys), *keys, self._field, own, *arguments)

    def check(self, doing: str, answer: Any) -> None:
        """Check what a script answered.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel. The call wrote nothing.
        StateLossDetected
            There is no sentinel, and this writer laid one. The call wrote nothing.
        """
        if answer == 1:
            return
        if answer is None:
            raise StateLossDetected(
                self._place,
                f"{doing}: the sentinel that this writer laid ({self._own}) is gone; Redis was emptied, was restarted "
                "without its data, or evicted the key",
            )
        raise FencedError(f"{doing} of {self._place}", str(self._own), str(self._sentinel(answer)))

    def read(self) -> Sentinel | None:
        """Return the copy that is farthest behind; None if one is missing."""
        layout = self._layout
        copies: dict[int, Sentinel | None] = {}

        def take(bucket: int, answer: list[bytes | None]) -> None:
            record, buckets = answer
            self._check_buckets(buckets)
            copies[bucket] = None if record is None else self._sentinel(record)

        def call(bucket: int) -> Call:
            command = (b"HMGET", layout.sentinel_keys[bucket], self._field, BUCKETS_FIELD)
            return Call(bucket, lambda: command, partial(take, bucket), reads=True)

        self._run("read the sentinel", map(call, range(layout.buckets)))
        found = [copy for copy in copies.values() if copy is not None]
        if len(found) < layout.buckets:
            return None
        first = copies[0]
        # A move to a new incarnation that was not completed leaves copies of the old one behind.
        return min(found, key=lambda one: (first is not None and one.incarnation == first.incarnation, one.version))

    def check_layout(self) -> None:
        """Check that the state is spread over as many buckets as the options say, if it was ever written."""
        if self._layout.clustered:
            key = self._layout.sentinel_keys[0]
            self._run("read the layout", [Call(0, lambda: (b"HGET", key, BUCKETS_FIELD), self._check_buckets, True)])

    def move(self, sentinel: Sentinel, force: bool) -> None:
        """Move every copy, that of bucket 0 first; this is the writer from now on."""
        self._own, self._renewal = None, 0
        buckets = b"%d" % self._layout.buckets if self._layout.clustered else b""
        record = sentinel_record(sentinel, 0)

        def call(bucket: int) -> Call:
            key = self._layout.sentinel_keys[bucket]
            command = (b"EVALSHA", MOVE, 1, key, self._field, record, b"force" if force else b"", buckets)
            return Call(bucket, lambda: command, take)

        def take(answer: Any) -> None:
            if isinstance(answer, list):
                self._check_buckets(answer[0])
            elif answer != 1:
                raise FencedError(f"move the sentinel of {self._place}", str(sentinel), str(self._sentinel(answer)))

        self._run("move the sentinel", [call(0)])
        self._run("move the sentinel", map(call, range(1, self._layout.buckets)))
        self._own = sentinel

    def renewals(self) -> Iterable[Call]:
        """Make the calls after which only what is sent from now on can write."""
        if self._own is None:
            return []
        self._renewal += 1
        return self._calls(RENEW, partial(self.check, "write again"))

    def drop(self) -> None:
        """Remove this writer's sentinel, so that no commit can go on as if nothing had been lost."""
        if self._own is not None:
            self._run("remove the sentinel", self._calls(DROP, lambda _answer: None))
        self._own = None

    def forget(self) -> None:
        """Stop being the writer."""
        self._own, self._renewal = None, 0

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _run(self, doing: str, calls: Iterable[Call]) -> None:
        self._exchange.run(f"{doing} of {self._what}", calls)

    def _calls(self, script: bytes, take: Callable[[Any], None]) -> list[Call]:
        return [Call(bucket, partial(self.command, script, bucket, ()), take) for bucket in range(self._layout.buckets)]

    def _sentinel(self, record: bytes) -> Sentinel:
        return sentinel_of(record, f"the sentinel of {self._place} (key {self._layout.sentinel_keys[0]!r})")

    def _check_buckets(self, recorded: bytes | None) -> None:
        if self._layout.clustered and recorded is not None and recorded != b"%d" % self._layout.buckets:
            raise ConfigError(
                f"{self._place} is spread over {recorded.decode(errors='replace')} buckets, and cluster_buckets is "
                f"{self._layout.buckets}; its keys would not be found. Give the recorded number"
            )
