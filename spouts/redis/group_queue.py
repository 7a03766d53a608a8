"""Redis Streams as a queue: a consumer of a group, whose list of pending entries keeps what is not acknowledged.

Redis counts the deliveries of each pending entry. That number less one is how often the entry failed: a failure writes it
down, and a delivery after a crash adds one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spouts.messages.queue import Message, decoded
from spouts.redis.entry_tables import EntryTables
from spouts.redis.group_client import GroupClient
from spouts.redis.stream_server import NOTHING, Entry
from trident.arrow import python_of
from trident.errors import SpoutError


@dataclass(frozen=True)
class GroupReading:
    """What is read, in which group, and where dead letters go; see `RedisStreamRichSpout`."""

    streams: tuple[str, ...]
    group: str
    first: str
    claim_idle_s: float
    dead_letters: str | None


class GroupQueue:
    """One consumer of a group over one or several streams.

    `client`, `reading`: the consumer, and what it reads.
    `tables`: reads the fields of entries.
    `report`: takes errors to show.
    """

    def __init__(
        self, client: GroupClient, reading: GroupReading, tables: EntryTables, report: Callable[[BaseException], None]
    ) -> None:
        self.place = f"Redis at {client.server.place}"
        self._client, self._reading, self._tables, self._report = client, reading, tables, report
        self._turns = deque(reading.streams)  # whose turn it is, if there is not room for an entry of each
        self._own = dict.fromkeys(reading.streams, NOTHING)  # up to where this consumer's own pending entries are read
        self._held: dict[str, dict[str, None]] = {stream: {} for stream in reading.streams}
        self._claim_at = 0.0
        self._sign_at = time.monotonic() + reading.claim_idle_s / 3

    def prepare(self) -> None:
        """Create the group where it is not there yet; `SpoutError` for a key that is no stream."""
        for stream in self._reading.streams:
            self._client.server.is_there(stream)
            self._client.create(stream, self._reading.first)
        if self._reading.dead_letters is not None:
            self._client.server.is_there(self._reading.dead_letters)

    def reconnect(self) -> None:
        """Ask for a sign of life; the client connects by itself."""
        self._client.server.call("asking for a sign of life", lambda client: client.ping())

    def describe(self, message: Message) -> str:
        return f"entry {message.raw.id} of the stream {message.raw.stream!r}"

    def fetch(self, room: int) -> Sequence[Message]:
        """Take this consumer's own pending entries first, then entries of consumers that are gone, then new ones."""
        while self._own:
            if own := self._own_pending(room):
                return own
        now = time.monotonic()
        if now >= self._claim_at:
            if claimed := self._claimed(room):
                return claimed  # there may be more
            self._claim_at = now + self._reading.claim_idle_s / 2
        return self._new(room)

    def acknowledge(self, done: Sequence[Message]) -> None:
        for stream, ids in _by_stream(message.raw for message in done):
            self._client.acknowledge(stream, ids)
            for each in ids:
                self._held[stream].pop(each, None)

    def note_failures(self, failed: Sequence[Message]) -> None:
        """Have Redis know how often each has failed."""
        self._client.set_deliveries({message.raw.key: message.failures + 1 for message in failed})

    def bury(self, message: Message, reason: str) -> None:
        """Add the entry to the stream of dead letters, and only then acknowledge it."""
        entry, place = message.raw, self._reading.dead_letters
        assert place is not None
        letter = {
            **entry.fields, "dead_letter.reason": reason, "dead_letter.failures": message.failures,
            "dead_letter.stream": entry.stream, "dead_letter.id": entry.id, "dead_letter.group": self._reading.group,
        }  # fmt: skip
        self._client.server.call(
            f"adding a dead letter to the stream {place!r}", lambda client: client.xadd(place, letter)
        )
        self.acknowledge([message])

    def tend(self) -> None:
        """Give a sign of life, so that no other consumer takes over what is pending here."""
        now = time.monotonic()
        if now >= self._sign_at:
            self._sign_at = now + self._reading.claim_idle_s / 3
            for stream, held in self._held.items():
                self._client.keep(stream, list(held))

    def rest(self) -> None:
        """Nothing to do: Redis knows what is done."""

    def close(self) -> None:
        """Close the connections; what is pending stays so, for this consumer's next start or for others."""
        self._client.server.close()

    # ---- reading ------------------------------------------------------------------------------------------------------

    def _own_pending(self, room: int) -> list[Message]:
        """Read what was pending for this consumer when it started, stream after stream."""
        stream, after = next(iter(self._own.items()))
        entries = self._client.read({stream: after}, room, "pending entries")
        if not entries:
            del self._own[stream]
            return []
        self._own[stream] = entries[-1].id
        return self._delivered_again(entries)

    def _claimed(self, room: int) -> list[Message]:
        messages: list[Message] = []
        for stream in self._reading.streams:
            if len(messages) < room:
                # Its own that it holds are never among them: `tend` came before.
                messages += self._delivered_again(
                    self._client.claim(stream, self._reading.claim_idle_s, room - len(messages))
                )
        return messages

    def _new(self, room: int) -> list[Message]:
        chosen = [self._turns[at] for at in range(min(room, len(self._turns)))]
        self._turns.rotate(-len(chosen))
        # The number that Redis is given holds for each stream.
        entries = self._client.read(dict.fromkeys(chosen, ">"), room // len(chosen), "new entries")
        return self._messages(entries, {})

    def _delivered_again(self, entries: list[Entry]) -> list[Message]:
        """Make messages of entries of one stream that were delivered before, with how often they failed."""
        there = self._still_there(entries)
        if not there:
            return []
        most = len(entries) + len(self._held[there[0].stream])
        counts = self._client.deliveries(there, most)
        return self._messages(there, {id_: count - 1 for id_, count in counts.items()})

    def _still_there(self, entries: list[Entry]) -> list[Entry]:
        """Leave out entries that were trimmed or deleted while they were pending, and report them."""
        gone = [entry for entry in entries if not entry.fields]
        if gone:
            self._report(
                SpoutError(
                    f"{len(gone)} entries of the stream {gone[0].stream!r} on {self.place}, {gone[0].id} the first, were "
                    f"trimmed or deleted while they were pending for {self._client.whose}: they are lost. Let "
                    "fewer entries be trimmed (MAXLEN, MINID)"
                )
            )
            self._client.acknowledge(gone[0].stream, [entry.id for entry in gone])
        return [entry for entry in entries if entry.fields]

    def _messages(self, entries: Sequence[Entry], failures: Mapping[str, int]) -> list[Message]:
        for entry in entries:
            self._held[entry.stream][entry.id] = None
        messages = []
        for entry, row in zip(entries, decoded(entries, self._rows), strict=True):
            values, trouble = ((), row) if isinstance(row, str) else (row, None)
            messages.append(Message(entry.key, values, entry, failures.get(entry.id, 0), trouble))
        return messages

    def _rows(self, entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
        return list(zip(*map(python_of, self._tables.table(entries).columns), strict=True))


def _by_stream(entries: Iterable[Entry]) -> list[tuple[str, list[str]]]:
    keys = sorted(entry.key for entry in entries)
    return [(stream, [id_ for _, id_ in found]) for stream, found in groupby(keys, key=lambda key: key[0])]
