"""Batches of a consumer group: what was delivered and is not acknowledged is held here until its batch is committed.

Redis remembers each entry that it delivered until it is acknowledged: it is *pending*. So a driver that starts first gets
what the one before left pending under the same name of a consumer, later also what other consumers left, then new entries.
An entry is in one live batch at most, so a batch never has it twice.

A definition says what was read, and for each stream the last id that was delivered:

``read``
    `[id of the first entry, id of the last one, number of entries]` by stream.
``last``
    The last id by stream, of all batches so far: with it a group that is gone can be made again. Of a group of new entries
    (`first="$"`), a batch without entries says where it began.
``bytes``
    About the size of the batch.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spouts.redis.consumer_group import ConsumerGroup
from spouts.redis.stream_server import NOTHING, Entry, ServerAway, order_of
from trident.errors import SpoutError
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, TransactionAttempt

_log = logging.getLogger(__name__)
_ENTRIES_PER_PART = 1024
_SAMPLE = 100  # entries whose size is counted

EntriesPart = Sequence[Entry]


@dataclass(frozen=True)
class GroupLimits:
    """How many entries a batch has at most, and after how many idle seconds other consumers' entries are taken over."""

    max_entries: int
    claim_idle_s: float


class GroupCoordinator(BatchCoordinator):
    """The driver's side of `RedisStreamSpout`: reads entries, and acknowledges them once their batch is committed."""

    def __init__(self, group: ConsumerGroup, limits: GroupLimits) -> None:
        self._group, self._limits, self._share = group, limits, 1.0
        self._begun: dict[str, str] | None = (
            None  # where a group of new entries was at the start, by stream; None: not open
        )
        self._waiting: deque[Entry] = deque()  # delivered, and in no live batch
        self._taken: dict[int, list[Entry]] = {}  # by batch, until it is committed
        self._made: dict[int, Definition] = {}
        self._done: dict[tuple[str, str], None] = {}  # committed, and not acknowledged yet
        self._held: set[tuple[str, str]] = set()  # the keys of all of these
        self._unread: int | None = None
        self._left: dict[str, str | None] = dict.fromkeys(group.streams, NOTHING)  # read own pending entries from here
        self._lost: SpoutError | None = None
        self._claim_at = 0.0

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Take entries that an ended attempt gave back, then pending ones, then new ones; None if there are none."""
        self._give_back(txid)
        limit = max(1, int(self._limits.max_entries * self._share))
        try:
            self._read(limit, previous)
        except ServerAway:  # said by the server's object; what was read before may still make a batch
            self._left = dict.fromkeys(self._left, NOTHING)  # an answer may have been lost, with what it delivered
        entries = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        known = previous["last"] if previous else {}
        last = {**(self._begun or {}), **known}
        if not entries and last.keys() == known.keys():
            return None
        # A batch may be empty: it says where a group of new entries began, or what comes would be lost with the group.
        self._taken[txid], self._made[txid] = entries, _definition(entries, last)
        return self._made[txid]

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[EntriesPart]:
        """Cut the entries of a batch; a few make one part, which keeps their order."""
        entries = self._taken[attempt.txid]
        size = max(_ENTRIES_PER_PART, -(-len(entries) // max(1, parallelism)))
        return [entries[at : at + size] for at in range(0, len(entries), size)]

    def success(self, txid: int, definition: Definition) -> None:
        """Acknowledge the entries of a batch: its record is written. While Redis is away that waits."""
        self._made.pop(txid, None)
        self._done.update((entry.key, None) for entry in self._taken.pop(txid, ()))
        self._acknowledge()

    def size(self, definition: Definition) -> int:
        return int(definition["bytes"])

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many entries are behind a batch: entries that the group has not delivered, and entries of later batches."""
        if self._unread is None:
            return None
        this = next((txid for txid, made in self._made.items() if made == definition), 0)
        later = sum(len(entries) for txid, entries in self._taken.items() if txid > this)
        return Lag(self._unread + len(self._waiting) + later, "records")

    def throttle(self, share: float) -> None:
        """Let batches have this share of `max_entries`, one entry at least."""
        self._share = share

    def look_now(self) -> None:
        """Nothing to do: entries are looked for at each call."""

    def is_preparing(self) -> bool:
        """Whether entries may be there that cannot be read now, because the server is away."""
        return self._group.server.is_away

    def close(self) -> None:
        """Acknowledge what is committed, and close the connection."""
        self._acknowledge()
        self._group.server.close()

    def _give_back(self, txid: int) -> None:
        """Put back the entries of this batch and of all later ones: it is asked for again, so their attempts ended."""
        for ended in sorted((each for each in self._taken if each >= txid), reverse=True):
            self._waiting.extendleft(reversed(self._taken.pop(ended)))
            del self._made[ended]

    def _read(self, limit: int, previous: Definition | None) -> None:
        if self._lost is not None:
            raise self._lost
        if self._begun is None:
            self._begun = self._group.open(previous["last"] if previous else {})
        self._acknowledge()
        self._take_pending(limit)
        self._take_over(limit)
        found = self._group.look()
        self._unread = found.unread
        if found.has_new and len(self._waiting) < limit:
            new = self._group.read(limit - len(self._waiting))
            self._keep(new)
            if self._unread is not None:
                self._unread = max(0, self._unread - len(new))

    def _take_pending(self, limit: int) -> None:
        """Read what is pending for this consumer: at the start, and when an answer may have been lost."""
        for stream, after in self._left.items():
            if after is not None and len(self._waiting) < limit:
                pending = self._group.client.read({stream: after}, limit, "pending entries")
                self._keep(pending)
                self._left[stream] = pending[-1].id if pending else None

    def _take_over(self, limit: int) -> None:
        now = time.monotonic()
        if now >= self._claim_at and len(self._waiting) < limit:
            claimed = self._group.claimed(self._limits.claim_idle_s, limit)
            try:
                more = self._keep(claimed)
            except SpoutError as error:
                self._lost = (
                    None if isinstance(error, ServerAway) else error
                )  # Redis has forgotten them, and says it once only
                raise
            self._claim_at = now if more else now + self._limits.claim_idle_s / 2

    def _keep(self, entries: Iterable[Entry]) -> bool:
        new = [entry for entry in self._group.whole(entries) if entry.key not in self._held]
        self._held.update(entry.key for entry in new)
        self._waiting.extend(new)
        return bool(new)

    def _acknowledge(self) -> None:
        try:
            self._group.acknowledge(list(self._done))
        except ServerAway:
            _log.debug("%d entries are acknowledged later", len(self._done))
            return
        self._held.difference_update(self._done)
        self._done.clear()


def _definition(entries: Sequence[Entry], last: dict[str, str]) -> Definition:
    ids: dict[str, list[str]] = {}
    for entry in entries:
        ids.setdefault(entry.stream, []).append(entry.id)
    for stream, of_stream in ids.items():
        # Entries that come again may be anywhere. An id that is too low costs no entry: some would be delivered again.
        last[stream] = max(last.get(stream, NOTHING), of_stream[0], of_stream[-1], key=order_of)
    read = {stream: [of_stream[0], of_stream[-1], len(of_stream)] for stream, of_stream in ids.items()}
    sample = entries[:: max(1, len(entries) // _SAMPLE)]
    size = sum(entry.size for entry in sample) * len(entries) // max(1, len(sample))
    return {"read": read, "last": last, "bytes": size}
