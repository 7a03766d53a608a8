"""A consumer group over one or several streams, as Redis has it: created, read, acknowledged, and checked for losses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from spouts.redis.group_client import GroupClient, GroupMember
from spouts.redis.stream_server import NOTHING, Entry, StreamInfo, StreamServer, id_of, order_of
from trident.errors import SpoutError
from trident.servers.redis_server import driver

_log = logging.getLogger(__name__)


class Losses(NamedTuple):
    """What is done when something is gone; see `RedisStreamSpout`."""

    entries: Literal["refuse", "skip"]
    group: Literal["refuse", "recreate"]


class GroupBacklog(NamedTuple):
    """Whether there are entries that were not delivered, and how many (None: the server does not say)."""

    has_new: bool
    unread: int | None


class ConsumerGroup:
    """Calls for one group. Each raises `SpoutError`, or `Away` if the server does not answer."""

    def __init__(self, server: StreamServer, member: GroupMember, streams: Sequence[str], losses: Losses) -> None:
        self.server, self.client = server, GroupClient(server, member)
        self.streams, self._losses = list(streams), losses
        self._group, self._first = member.group, member.first
        self._own = f"the group {self._group!r}"

    def open(self, last: Mapping[str, str]) -> dict[str, str]:
        """Create the group where it is not there yet; of a group of new entries (`first="$"`) return by stream where it is.

        `last`: the last id that earlier batches read of each stream: there the group must be, unless it may be recreated.
        """
        places = {stream: self._opened(stream, last.get(stream)) for stream in self.streams}
        return places if self._first == "$" else {}

    def _opened(self, stream: str, last: str | None) -> str:
        info, group = self._info(stream)
        if group is not None:
            return id_of(group["last-delivered-id"])
        if last is None:
            return self._create(stream, info, self._first)
        if self._losses.group == "refuse":
            raise self._gone(stream, info is not None, last)
        if info is None or self._is_another(stream, info, last):
            _log.warning(
                "%s of the stream %r is created again before all entries: the stream was made again, or the server lost its "
                "last writes; entry %s was read",
                self._own, stream, last,
            )  # fmt: skip
            return self._create(stream, info, NOTHING)
        _log.warning("%s of the stream %r is created again after entry %s", self._own, stream, last)
        return self._create(stream, info, last)

    def _is_another(self, stream: str, info: StreamInfo, last: str) -> bool:
        """Whether a stream surely is not the one of which this entry was read."""
        if order_of(info.last) < order_of(last):
            return True
        found = self.server.call(
            f"looking for entry {last} of the stream {stream!r}", lambda client: client.xrange(stream, last, last)
        )
        return not found and last != NOTHING and not info.may_lack(last)

    def _create(self, stream: str, info: StreamInfo | None, first: str) -> str:
        after = first
        if first == "$":  # as an id, so that it is known
            after = NOTHING if info is None else info.last
        # How many entries come before, where that is known: without it losses are found only after the first read.
        read = None
        if info is None:
            read = 0
        elif after == info.last:
            read = info.added
        elif after in (NOTHING, "0"):
            read = info.added - info.length
        self.client.create(stream, after, read)
        return after

    def look(self) -> GroupBacklog:
        """Check that nothing was lost, and say whether there is anything new."""
        has_new = False
        unread: int | None = 0
        for stream in self.streams:
            info, group = self._info(stream)
            if info is None or group is None:
                raise self._gone(stream, info is not None, None)
            delivered = id_of(group["last-delivered-id"])
            if delivered != info.last:
                self._check_losses(stream, info, delivered, group.get("entries-read"))
                has_new = has_new or info.length > 0
            lag = group.get("lag")
            unread = None if unread is None or lag is None else unread + int(lag)
        return GroupBacklog(has_new, unread)

    def _check_losses(self, stream: str, info: StreamInfo, delivered: str, read: int | None) -> None:
        missing = info.missing(delivered, read)
        if missing <= 0:
            return
        what = (
            f"{missing} entries of the stream {stream!r} on Redis {self.server.place}, behind {delivered}, were trimmed or "
            f"deleted before {self._own} got them"
        )
        if self._losses.entries == "refuse":
            raise SpoutError(
                f'{what}. Let fewer entries be trimmed (MAXLEN, MINID); start with lost_entries="skip" to go on without them'
            )
        if info.length:  # else it is said again until there is something to read
            _log.warning("%s; they are skipped", what)

    def read(self, count: int) -> list[Entry]:
        """Read new entries, about equally many of each stream; from now on they are pending."""
        each = max(1, count // len(self.streams))
        return self.client.read(dict.fromkeys(self.streams, ">"), each, "new entries")

    def claimed(self, idle_s: float, count: int) -> list[Entry]:
        """Take over entries that have been pending for `idle_s` seconds, for whatever consumer."""
        return [entry for stream in self.streams for entry in self.client.claim(stream, idle_s, count)]

    def whole(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that have their fields; the others were trimmed or deleted while they were pending."""
        given = list(entries)
        gone = [entry for entry in given if not entry.fields]
        if gone:
            what = (
                f"{len(gone)} entries that were pending for {self._own} were trimmed or deleted before they were "
                f"acknowledged, {gone[0].id} of the stream {gone[0].stream!r} on Redis {self.server.place} among them"
            )
            if self._losses.entries == "refuse":
                raise SpoutError(
                    f'{what}. Start with lost_entries="skip" to go on without them; let fewer entries be trimmed'
                )
            _log.warning("%s; they are skipped", what)
            self.acknowledge([entry.key for entry in gone])
        return [entry for entry in given if entry.fields]

    def acknowledge(self, keys: Sequence[tuple[str, str]]) -> None:
        """Tell Redis that entries are done with."""
        for stream, of_stream in groupby(sorted(keys), key=lambda key: key[0]):
            self.client.acknowledge(stream, [id_ for _, id_ in of_stream])

    def _info(self, stream: str) -> tuple[StreamInfo | None, dict[str, Any] | None]:
        """Return what a stream has, and this group of it, both as of one moment; None for what is not there."""

        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as both:
                both.xinfo_stream(stream)
                both.xinfo_groups(stream)
                answers: list[Any] = both.execute(raise_on_error=False)
            return answers

        def check(client: Any) -> list[Any]:
            answers = ask(client)
            for answer in answers:
                if isinstance(answer, driver().RedisError) and "no such key" not in str(answer):
                    raise answer
            return answers

        info, groups = self.server.call(f"looking at the stream {stream!r}", check)
        if isinstance(info, Exception):
            return None, None
        own = next((each for each in groups if id_of(each["name"]) == self._group), None)
        return stream_info(info), own

    def _gone(self, stream: str, is_stream_there: bool, last: str | None) -> SpoutError:
        what = (
            f"{self._own} of the stream {stream!r}" if is_stream_there else f"the stream {stream!r}, with {self._own},"
        )
        read = f" (entries up to {last} were read)" if last not in (None, NOTHING) else ""
        return SpoutError(
            f"{what} is gone from Redis {self.server.place}{read}: it was deleted, or the server lost its data. Restore it, "
            'or start with lost_group="recreate": the group is created again after the last entry that a batch of the log '
            "read, and entries that were pending then are lost"
        )


def stream_info(info: Mapping[str, Any]) -> StreamInfo:
    """Read the answer to XINFO STREAM."""
    if "entries-added" not in info:
        raise SpoutError("the server is older than Redis 7, which introduced the numbers that losses are found by")
    first = info["first-entry"]
    last, deleted = id_of(info["last-generated-id"]), id_of(info["max-deleted-entry-id"])
    return StreamInfo(
        int(info["length"]), id_of(first[0]) if first else None, last, int(info["entries-added"]), deleted
    )
