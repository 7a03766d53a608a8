"""Calls to Redis for one consumer of a group: each says in its error what was tried where, what was found, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from spouts.redis_streams.stream_server import NOTHING, Away, Entry, RedisServerOptions, told
from trident.errors import SpoutError
from trident.servers.redis_server import driver, is_transient

__all__ = ["GroupCalls", "GroupReading"]

T = TypeVar("T")
_FEW = 1000  # ids in one command


@dataclass(frozen=True)
class GroupReading:
    """What is read, in which group, and where dead letters go; see `RedisStreamRichSpout`."""

    streams: tuple[str, ...]
    group: str
    first: str
    claim_idle_s: float
    dead_letters: str | None


class GroupCalls:
    """One consumer's calls. Each raises `Away` if the server does not answer, and `SpoutError` for anything else.

    Attributes
    ----------
    place, whose
        The server, and the consumer with its group, for messages.
    """

    def __init__(self, options: RedisServerOptions, reading: GroupReading, consumer: str) -> None:
        self._reading, self._consumer, self._client = reading, consumer, options.client()
        self.place = options.place
        self.whose = f"the consumer {consumer!r} of the group {reading.group!r}"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ping(self) -> None:
        """Ask for a sign of life; the client connects by itself."""
        self._call("asking for a sign of life", lambda client: client.ping())

    def prepare(self) -> None:
        """Create the group where it is not there yet; `SpoutError` for a key that is no stream."""
        for stream in self._reading.streams:
            self._check_type(stream)
            self._call(
                f"creating the group {self._reading.group!r} of the stream {stream!r}", partial(self._create, stream)
            )
        if self._reading.dead_letters is not None:
            self._check_type(self._reading.dead_letters)

    def _check_type(self, key: str) -> None:
        kind = self._call(f"looking for the stream {key!r}", lambda client: client.type(key))
        if kind not in (b"stream", b"none"):
            raise SpoutError(f"the key {key!r} on Redis {self.place} is a {kind.decode()} and not a stream")

    def _create(self, stream: str, client: Any) -> None:
        try:
            client.xgroup_create(stream, self._reading.group, self._reading.first, mkstream=True)
        except driver().ResponseError as error:
            if "BUSYGROUP" not in str(error):  # it is there already
                raise

    def read(self, positions: dict[str, str], count: int, what: str) -> list[Entry]:
        """Read entries, at most `count` of each stream: new ones behind `>`, this consumer's pending ones behind an id."""
        answer = self._call(
            f"reading {what} for {self.whose} from {', '.join(map(repr, positions))}",
            lambda client: client.xreadgroup(self._reading.group, self._consumer, positions, count),
        )
        return [Entry(stream.decode(), id_.decode(), fields or {}) for stream, found in answer for id_, fields in found]

    def claim(self, stream: str, count: int) -> list[Entry]:
        """Take over entries of consumers that have given no sign for too long."""
        idle_ms, group = int(self._reading.claim_idle_s * 1000), self._reading.group
        answer = self._call(
            f"taking over entries of {stream!r} for {self.whose}",
            lambda client: client.xautoclaim(stream, group, self._consumer, idle_ms, NOTHING, count),
        )
        return [Entry(stream, id_.decode(), fields or {}) for id_, fields in answer[1]]

    def deliveries(self, entries: Sequence[Entry], most: int) -> Mapping[str, int]:
        """Return by id how often entries of one stream were delivered, `most` pending ones between the first and the last."""
        stream, ids = entries[0].stream, sorted((entry.id for entry in entries), key=_order)
        pending = self._call(
            f"asking how often entries of {stream!r} were delivered to {self.whose}",
            lambda client: client.xpending_range(stream, self._reading.group, ids[0], ids[-1], most, self._consumer),
        )
        return {each["message_id"].decode(): each["times_delivered"] for each in pending}

    def acknowledge(self, stream: str, ids: Sequence[str]) -> None:
        """Take entries off the list of pending ones."""
        for few in _cut(ids):
            doing = f"acknowledging {len(few)} entries of {stream!r} for {self.whose}"
            self._call(doing, partial(_acknowledge, stream, self._reading.group, few))

    def keep(self, stream: str, ids: Sequence[str]) -> None:
        """Have entries count as just delivered, so that no other consumer takes them over."""
        for few in _cut(ids):
            doing = f"keeping {len(few)} entries of {stream!r} pending for {self.whose}"
            self._call(doing, partial(_keep, stream, self._reading.group, self._consumer, few))

    def set_deliveries(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Write down how often entries count as delivered, also for whoever takes them over."""
        group, consumer = self._reading.group, self._consumer

        def write(client: Any) -> None:
            with client.pipeline(transaction=False) as commands:
                for (stream, id_), count in counts.items():
                    commands.xclaim(stream, group, consumer, 0, [id_], retrycount=count, justid=True)
                commands.execute()

        self._call(f"noting failures of {self.whose}", write)

    def add(self, stream: str, fields: Mapping[Any, Any]) -> None:
        """Add an entry to a stream."""
        self._call(f"adding a dead letter to the stream {stream!r}", lambda client: client.xadd(stream, dict(fields)))

    def _call(self, doing: str, function: Callable[[Any], T]) -> T:
        try:
            return function(self._client)
        except driver().RedisError as error:
            text = told(doing, self.place, error)
            if is_transient(error):
                self._client.connection_pool.disconnect()  # after a failover the old primary still answers, as a replica
                raise Away(f"{text}; is the server up, and its address right?") from error
            if "NOGROUP" in str(error):
                text += (
                    ". The group or its stream was deleted, or the server lost its data; a restart creates the group again, "
                    f"at first={self._reading.first!r}"
                )
            raise SpoutError(text) from error


def _cut(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[at : at + _FEW] for at in range(0, len(ids), _FEW))


def _acknowledge(stream: str, group: str, ids: Sequence[str], client: Any) -> None:
    client.xack(stream, group, *ids)


def _keep(stream: str, group: str, consumer: str, ids: Sequence[str], client: Any) -> None:
    client.xclaim(stream, group, consumer, 0, ids, justid=True)


def _order(id_: str) -> tuple[int, int]:
    time_ms, _, number = id_.partition("-")
    return int(time_ms), int(number)
