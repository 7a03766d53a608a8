"""Redis Streams as a queue: a consumer of a group, whose list of pending entries keeps what is not acknowledged.

Redis counts the deliveries of a pending entry; that less one is how often it failed: a crash adds one, a failure writes it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from spouts.messages import Message, MessageQueue, decode_all
from spouts.redis.stream_server import NOTHING, Entry, EntryTables, StreamCalls, order_of
from trident.arrow import python_of
from trident.errors import SpoutError

T = TypeVar("T")
_AT_ONCE = 10_000  # ids in one command


class GroupReading(NamedTuple):
    """What is read, in which group, and where dead letters go; see `RedisStreamRichSpout`."""

    streams: tuple[str, ...]
    group: str
    first: str
    claim_idle_s: float
    dead_letters: str | None


class GroupQueue(MessageQueue):
    """One consumer of a group over one or several streams."""

    def __init__(
        self,
        server: StreamCalls,
        consumer: str,
        reading: GroupReading,
        tables: EntryTables,
        report: Callable[[BaseException], None],
    ) -> None:
        self.place = f"Redis at {server.place}"
        self._server, self._consumer, self._reading = server, consumer, reading
        self._tables, self._report = tables, report
        self._whose = f"the consumer {consumer!r} of the group {reading.group!r}"
        self._turns = deque(reading.streams)  # whose turn it is, if there is not room for an entry of each
        self._own = dict.fromkeys(reading.streams, NOTHING)  # up to where this consumer's own pending entries are read
        self._newest = dict(self._own)  # the last entry that was given, but for those taken over
        self._held: dict[str, dict[str, None]] = {stream: {} for stream in reading.streams}
        self._claim_at = 0.0
        self._sign_at = time.monotonic() + reading.claim_idle_s / 3

    def prepare(self) -> None:
        """Create the group where it is not there yet; `SpoutError` for a key that is no stream."""
        group, first = self._reading.group, self._reading.first
        for stream in self._reading.streams:
            self._server.is_there(stream)
            try:
                doing = f"creating the group {group!r} of the stream {stream!r}"
                self._call(doing, lambda client, stream=stream: client.xgroup_create(stream, group, first, True))  # type: ignore[misc]
            except SpoutError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        if self._reading.dead_letters is not None:
            self._server.is_there(self._reading.dead_letters)

    def reconnect(self) -> None:
        self._server.call("asking for a sign of life", lambda client: client.ping())  # the client connects by itself
        # New entries whose answer was lost are pending for this consumer, and no other takes them before `claim_idle_s`.
        self._own = {**self._newest, **self._own}

    def describe(self, message: Message) -> str:
        return f"entry {message.raw.id} of the stream {message.raw.stream!r}"

    def fetch(self, room: int) -> Sequence[Message]:
        """Take this consumer's own pending entries first, then entries of consumers that are gone, then new ones."""
        while self._own:
            if own := self._own_pending(room):
                return own
        now = time.monotonic()
        if now >= self._claim_at:
            for stream in self._reading.streams:
                # Its own that it holds are never among them: `maintain` came before. Of one stream only: what it holds is
                # given at once, before the next call may find the server away; and there may be more.
                if messages := self._delivered_again(self._claim(stream, room)):
                    return messages
            self._claim_at = now + self._reading.claim_idle_s / 2
        chosen = [self._turns[at] for at in range(min(room, len(self._turns)))]
        self._turns.rotate(-len(chosen))
        # The number that Redis is given holds for each stream.
        entries = self._read(dict.fromkeys(chosen, ">"), room // len(chosen), "new entries")
        self._newest.update((entry.stream, entry.id) for entry in entries)
        return self._messages(entries, {})

    def acknowledge(self, done: Sequence[Message]) -> None:
        keys = sorted(message.raw.key for message in done)
        for stream, found in groupby(keys, key=lambda key: key[0]):
            ids = [id_ for _, id_ in found]
            self._take_off(stream, ids)
            for each in ids:
                self._held[stream].pop(each, None)

    def note_failures(self, failed: Sequence[Message]) -> None:
        def write(client: Any) -> None:
            with client.pipeline(transaction=False) as commands:
                for message in failed:
                    stream, id_ = message.raw.key
                    self._claim_own(commands, stream, [id_], retrycount=message.failures + 1)
                commands.execute()

        self._call(f"noting failures of {self._whose}", write)

    def dead_letter(self, message: Message, reason: str) -> None:
        """Add the entry to the stream of dead letters, and only then acknowledge it."""
        entry, place = message.raw, self._reading.dead_letters
        assert place is not None
        letter = {
            **entry.fields, "dead_letter.reason": reason, "dead_letter.failures": message.failures,
            "dead_letter.stream": entry.stream, "dead_letter.id": entry.id, "dead_letter.group": self._reading.group,
        }  # fmt: skip
        self._server.call(f"adding a dead letter to the stream {place!r}", lambda client: client.xadd(place, letter))
        self.acknowledge([message])

    def maintain(self) -> None:
        """Give a sign of life, so that no other consumer takes over what is pending here."""
        now = time.monotonic()
        if now >= self._sign_at:
            self._sign_at = now + self._reading.claim_idle_s / 3
            for stream, held in self._held.items():
                for some in _cut(list(held)):
                    doing = f"keeping {len(some)} entries of {stream!r} pending for {self._whose}"
                    self._call(doing, partial(self._claim_own, stream=stream, ids=some))

    def close(self) -> None:
        self._server.close()  # what is pending stays so, for this consumer's next start or for others

    def _own_pending(self, room: int) -> list[Message]:
        """Read what was pending for this consumer when it started or connected again, stream after stream."""
        stream, after = next(iter(self._own.items()))
        entries = self._read({stream: after}, room, "pending entries")
        if not entries:
            del self._own[stream]
            return []
        held = self._held[stream]
        given = self._delivered_again([entry for entry in entries if entry.id not in held])
        self._own[stream] = self._newest[stream] = entries[-1].id
        return given

    def _delivered_again(self, entries: list[Entry]) -> list[Message]:
        """Make messages of entries of one stream that were delivered before, with how often they failed."""
        gone, there = [entry for entry in entries if not entry.fields], [entry for entry in entries if entry.fields]
        if gone:
            self._report(
                SpoutError(
                    f"{len(gone)} entries of the stream {gone[0].stream!r} on {self.place}, {gone[0].id} the first, were "
                    f"trimmed or deleted while they were pending for {self._whose}: they are lost. Let "
                    "fewer entries be trimmed (MAXLEN, MINID)"
                )
            )
            self._take_off(gone[0].stream, [entry.id for entry in gone])
        if not there:
            return []
        stream, ids = there[0].stream, sorted((entry.id for entry in there), key=order_of)
        most = len(entries) + len(self._held[stream])  # so many pending ones between the first and the last
        pending = self._call(
            f"asking how often entries of {stream!r} were delivered to {self._whose}",
            lambda client: client.xpending_range(stream, self._reading.group, ids[0], ids[-1], most, self._consumer),
        )
        return self._messages(there, {each["message_id"].decode(): each["times_delivered"] - 1 for each in pending})

    def _messages(self, entries: Sequence[Entry], failures: Mapping[str, int]) -> list[Message]:
        for entry in entries:
            self._held[entry.stream][entry.id] = None
        messages = []
        for entry, (values, trouble) in zip(entries, decode_all(entries, self._rows), strict=True):
            messages.append(Message(entry.key, values, entry, failures.get(entry.id, 0), trouble))
        return messages

    def _rows(self, entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
        return list(zip(*map(python_of, self._tables.table(entries).columns), strict=True))

    def _read(self, positions: dict[str, str], count: int, what: str) -> list[Entry]:
        """Read entries, at most `count` of each stream: new ones behind `>`, this consumer's pending ones behind an id."""
        answer = self._call(
            f"reading {what} for {self._whose} from {', '.join(map(repr, positions))}",
            lambda client: client.xreadgroup(self._reading.group, self._consumer, positions, count),
        )
        return [
            Entry(stream.decode(), id_.decode(), fields or {}) for stream, entries in answer for id_, fields in entries
        ]

    def _claim(self, stream: str, count: int) -> list[Entry]:
        """Take over entries that have been pending for long for another consumer; those deleted have no fields."""
        idle_ms, group = int(self._reading.claim_idle_s * 1000), self._reading.group
        _, claimed, deleted = self._call(
            f"taking over entries of {stream!r} for {self._whose}",
            lambda client: client.xautoclaim(stream, group, self._consumer, idle_ms, NOTHING, count),
        )
        found = [*claimed, *((id_, None) for id_ in deleted)]
        return [Entry(stream, id_.decode(), fields or {}) for id_, fields in found]

    def _claim_own(self, client: Any, stream: str, ids: Sequence[str], **counts: int) -> None:
        """Have entries count as just delivered, so that no other consumer takes them over."""
        client.xclaim(stream, self._reading.group, self._consumer, 0, ids, justid=True, **counts)

    def _take_off(self, stream: str, ids: Sequence[str]) -> None:
        for some in _cut(ids):
            doing = f"acknowledging {len(some)} entries of {stream!r} for {self._whose}"
            self._call(doing, lambda client, some=some: client.xack(stream, self._reading.group, *some))  # type: ignore[misc]

    def _call(self, doing: str, function: Callable[[Any], T]) -> T:
        """Call; `Away` if the server does not answer, `SpoutError` that says what was tried for anything else."""
        try:
            return self._server.call(doing, function)
        except SpoutError as error:
            if "NOGROUP" in str(error):
                raise SpoutError(
                    f"{error}. The group or its stream was deleted, or the server lost its data; a restart creates the group "
                    f"again, at first={self._reading.first!r}"
                ) from error
            raise


def _cut(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))
