"""Calls to Redis for one consumer of a group: each says in its error what was tried where, what was found, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from spouts.redis.stream_server import NOTHING, Entry, StreamCalls, order_of
from trident.errors import SpoutError

T = TypeVar("T")
_AT_ONCE = 10_000  # ids in one command


class GroupMember(NamedTuple):
    """A group, and a consumer in it."""

    group: str
    consumer: str


class GroupClient:
    """One consumer's calls. Each raises `Away` if the server does not answer, and `SpoutError` for anything else.

    `if_gone`: what follows in the error if the group is not there.
    `whose`: the consumer with its group, for messages.
    """

    def __init__(self, server: StreamCalls, member: GroupMember, if_gone: str) -> None:
        self.server, self.member, self._if_gone = server, member, if_gone
        self.whose = f"the consumer {member.consumer!r} of the group {member.group!r}"

    def create(self, stream: str, after: str) -> None:
        """Create the group behind an id, where it is not there yet."""
        doing = f"creating the group {self.member.group!r} of the stream {stream!r}"
        try:
            self._call(doing, lambda client: client.xgroup_create(stream, self.member.group, after, True))
        except SpoutError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def read(self, positions: dict[str, str], count: int, what: str) -> list[Entry]:
        """Read entries, at most `count` of each stream: new ones behind `>`, this consumer's pending ones behind an id."""
        answer = self._call(
            f"reading {what} for {self.whose} from {', '.join(map(repr, positions))}",
            lambda client: client.xreadgroup(self.member.group, self.member.consumer, positions, count),
        )
        return [
            Entry(stream.decode(), id_.decode(), fields or {}) for stream, entries in answer for id_, fields in entries
        ]

    def claim(self, stream: str, idle_s: float, count: int) -> list[Entry]:
        """Take over entries that have been pending for `idle_s` seconds for another consumer; those deleted have no fields."""
        idle_ms, (group, consumer) = int(idle_s * 1000), self.member
        _, claimed, deleted = self._call(
            f"taking over entries of {stream!r} for {self.whose}",
            lambda client: client.xautoclaim(stream, group, consumer, idle_ms, NOTHING, count),
        )
        found = [*claimed, *((id_, None) for id_ in deleted)]
        return [Entry(stream, id_.decode(), fields or {}) for id_, fields in found]

    def deliveries(self, entries: Sequence[Entry], most: int) -> Mapping[str, int]:
        """Return by id how often entries of one stream were delivered, `most` pending ones between the first and the last."""
        stream, ids = entries[0].stream, sorted((entry.id for entry in entries), key=order_of)
        group, consumer = self.member
        pending = self._call(
            f"asking how often entries of {stream!r} were delivered to {self.whose}",
            lambda client: client.xpending_range(stream, group, ids[0], ids[-1], most, consumer),
        )
        return {each["message_id"].decode(): each["times_delivered"] for each in pending}

    def acknowledge(self, stream: str, ids: Sequence[str]) -> None:
        """Take entries off the list of pending ones."""
        for some in _cut(ids):
            doing = f"acknowledging {len(some)} entries of {stream!r} for {self.whose}"
            self._call(doing, lambda client, some=some: client.xack(stream, self.member.group, *some))  # type: ignore[misc]

    def keep(self, stream: str, ids: Sequence[str]) -> None:
        """Have entries count as just delivered, so that no other consumer takes them over."""
        group, consumer = self.member
        for some in _cut(ids):
            self._call(
                f"keeping {len(some)} entries of {stream!r} pending for {self.whose}",
                lambda client, some=some: client.xclaim(stream, group, consumer, 0, some, justid=True),  # type: ignore[misc]
            )

    def set_deliveries(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Write down how often entries count as delivered, also for the consumer that takes them over."""
        group, consumer = self.member

        def write(client: Any) -> None:
            with client.pipeline(transaction=False) as commands:
                for (stream, id_), count in counts.items():
                    commands.xclaim(stream, group, consumer, 0, [id_], retrycount=count, justid=True)
                commands.execute()

        self._call(f"noting failures of {self.whose}", write)

    def _call(self, doing: str, function: Callable[[Any], T]) -> T:
        try:
            return self.server.call(doing, function)
        except SpoutError as error:
            if "NOGROUP" in str(error):
                raise SpoutError(f"{error}{self._if_gone}") from error
            raise


def _cut(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))
