"""The two spouts over Redis Streams: one is a queue that a consumer group guards, the other reads the stream as a log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from spouts.redis.consumer_group import ConsumerGroup, Losses
from spouts.redis.entry_tables import EntryTables
from spouts.redis.group_batches import EntriesPart, GroupCoordinator, GroupLimits
from spouts.redis.group_client import GroupMember
from spouts.redis.id_ranges import RangeCoordinator, RangeEmitter, RangeSettings
from spouts.redis.stream_server import RedisServerOptions, StreamServer
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import OnNewLog, SpoutType

_log = logging.getLogger(__name__)
_ID = re.compile(r"\d+(-\d+)?$")


class _Streams:
    """What both spouts have: the server, the streams, the fields."""

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: FieldsLike,
        with_stream: bool | None,
        first: str,
        max_entries: int,
        server: Mapping[str, Any],
    ) -> None:
        self._options = RedisServerOptions(url, **server)
        self._streams = [streams] if isinstance(streams, str) else list(dict.fromkeys(streams))
        if not self._streams or not all(self._streams):
            raise ValueError("give the name of a stream, or a list of names")
        if first != "$" and not _ID.match(first):
            raise ValueError(
                f'first is {first!r}; it must be "0" (all entries), "$" (only new ones), or an id like "1700000-0"'
            )
        if max_entries < len(self._streams):
            raise ValueError(f"max_entries is {max_entries}; it must be at least 1 for each stream")
        self._tables = EntryTables(fields, len(self._streams) > 1 if with_stream is None else with_stream)

    def get_output_fields(self) -> Fields:
        return self._tables.fields

    def _server(self) -> StreamServer:
        """Connect; `SpoutError` if the server cannot be reached, or a key is no stream."""
        server = StreamServer(self._options)
        try:
            missing = server.missing(self._streams)
        except BaseException:
            server.close()
            raise
        for stream in missing:
            _log.warning("there is no stream %r on Redis %s; waiting for its first entry", stream, server.place)
        return server


class RedisStreamSpout(_Streams):
    """Emits the entries of streams that a consumer group delivers: each at least once, acknowledged after its batch's record.

    Parameters
    ----------
    url
        `redis://[user:password@]host:port/database`, `rediss://` or `unix://path`.
    streams
        The key of a stream, or several. A stream that does not exist yet is created with the group.
    fields
        The fields of entries to read, with their types: `"user: string, amount: bigint"`. `id: string` follows, and with
        several streams `stream: string`.
    group
        The consumer group, created if it is not there. One topology per group.
    first
        Where a new group begins: `"0"` with all entries, `"$"` with those added from now on, or behind an id.
    consumer
        This topology's name in the group. Under the same name a restart goes on with what the one before left pending.
    max_entries
        The greatest number of entries of one batch, shared equally by the streams.
    claim_idle_s
        Entries that have been pending for so long are taken over from any other consumer. Longer than any batch takes.
    lost_entries
        When entries were trimmed or deleted before they were read or acknowledged: `"refuse"` raises
        `SpoutError`, `"skip"` warns and goes on.
    lost_group
        When the group or the stream that earlier batches read is gone: `"refuse"` raises `SpoutError`, `"recreate"`
        creates the group again, at the start, behind the last entry that was read; what was pending then is lost.
    with_stream
        Whether to emit `stream: string` after `id`; default: if there are several.
    **server
        `user`, `password`, `database`, `tls`, `tls_ca_file`, `tls_cert_file`, `tls_key_file`, `tls_verify`,
        `connect_timeout_s` (5), `timeout_s` (10), `retries` (3), as for `RedisState`.
    """

    spout_type = SpoutType.NON_TRANSACTIONAL
    on_new_log: OnNewLog = "behind"

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: FieldsLike,
        *,
        group: str,
        first: str = "0",
        consumer: str = "trident",
        max_entries: int = 10_000,
        claim_idle_s: float = 300.0,
        lost_entries: Literal["refuse", "skip"] = "refuse",
        lost_group: Literal["refuse", "recreate"] = "refuse",
        with_stream: bool | None = None,
        **server: Any,
    ) -> None:
        super().__init__(url, streams, fields, with_stream, first, max_entries, server)
        if not group or not consumer:
            raise ValueError(f"the group {group!r} and the consumer {consumer!r} must have names")
        if claim_idle_s <= 0:
            raise ValueError(f"claim_idle_s is {claim_idle_s}; it must be more than 0 seconds")
        _check("lost_entries", lost_entries, ("refuse", "skip"))
        _check("lost_group", lost_group, ("refuse", "recreate"))
        self._member, self._losses = GroupMember(group, consumer, first), Losses(lost_entries, lost_group)
        self._limits = GroupLimits(max_entries, claim_idle_s)

    def get_coordinator(self, conf: Mapping[str, Any]) -> GroupCoordinator:
        """Open the driver's side."""
        group = ConsumerGroup(self._server(), self._member, self._streams, self._losses)
        return GroupCoordinator(group, self._limits)

    def get_emitter(self, conf: Mapping[str, Any]) -> _EntriesEmitter:
        """Return the worker's side; the entries are in the parts."""
        return _EntriesEmitter(self._tables)


class _EntriesEmitter:
    is_quick = True  # it never waits, so the loop may call it

    def __init__(self, tables: EntryTables) -> None:
        self._tables = tables

    def emit(self, part: EntriesPart) -> Iterable[pa.Table]:
        return [self._tables.table(part)]


class TransactionalRedisStreamSpout(_Streams):
    """Emits the entries of streams as a log, by their ids: a batch is a range of ids, and a replay reads the same entries.

    It needs no group, acknowledges nothing and leaves nothing behind in Redis. Entries must stay until their batch is
    committed.

    Parameters
    ----------
    url, streams, fields, with_stream, **server
        As for `RedisStreamSpout`. A stream need not exist yet.
    first
        Where the first batch begins: `"0"` with all entries, `"$"` with those added from the first start on, or behind an id.
    max_entries
        The greatest number of entries of one batch, shared equally by the streams.
    lost_entries
        When entries were trimmed or deleted before a batch had them: `"refuse"` raises `SpoutError`, `"skip"` warns and goes
        on.
    """

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: FieldsLike,
        *,
        first: str = "0",
        max_entries: int = 10_000,
        lost_entries: Literal["refuse", "skip"] = "refuse",
        with_stream: bool | None = None,
        **server: Any,
    ) -> None:
        super().__init__(url, streams, fields, with_stream, first, max_entries, server)
        _check("lost_entries", lost_entries, ("refuse", "skip"))
        self._settings = RangeSettings(max_entries, first, lost_entries)
        self.on_new_log: OnNewLog = "elsewhere" if first == "$" else "start"

    def get_coordinator(self, conf: Mapping[str, Any]) -> RangeCoordinator:
        """Open the driver's side."""
        return RangeCoordinator(self._server(), self._streams, self._settings)

    def get_emitter(self, conf: Mapping[str, Any]) -> RangeEmitter:
        """Return the worker's side."""
        return RangeEmitter(self._options, self._tables)


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be {' or '.join(map(repr, allowed))}")
