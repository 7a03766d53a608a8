"""The spouts of Redis Streams, as logs and as queues: what a user gives, checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from spouts.messages.deliveries import RetryPolicy
from spouts.messages.spout import MessageSpout
from spouts.redis.entry_tables import EntryTables
from spouts.redis.group_queue import GroupQueue, GroupReading
from spouts.redis.id_ranges import RangeCoordinator, RangeEmitter, RangeSettings
from spouts.redis.stream_server import RedisServerOptions, StreamCalls, StreamServer
from trident.errors import ConfigError
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import OnNewLog, SpoutType
from trident.storm.interfaces import TopologyContext

_log = logging.getLogger(__name__)
_ID = re.compile(r"\d+(-\d+)?$")


class TransactionalRedisStreamSpout:
    """Emits the entries of streams as a log, by their ids: a batch is a range of ids, and a replay reads the same entries.

    It needs no group, acknowledges nothing and leaves nothing behind in Redis. Entries must stay until their batch is
    committed.

    Parameters
    ----------
    url
        `redis://[user:password@]host:port/database`, `rediss://` or `unix://path`.
    streams
        The key of a stream, or several. A stream need not exist yet.
    fields
        The fields of entries to read, with their types: `"user: string, amount: bigint"`. `id: string` follows, and with
        several streams `stream: string`.
    first
        Where the first batch begins: `"0"` with all entries, `"$"` with those added from the first start on, or behind an id.
    max_entries
        The greatest number of entries of one batch, shared equally by the streams.
    lost_entries
        When entries were trimmed or deleted before a batch had them: `"refuse"` raises `SpoutError`, `"skip"` warns and goes
        on.
    with_stream
        Whether to emit `stream: string` after `id`; default: if there are several.
    **server
        `user`, `password`, `database`, `tls`, `tls_ca_file`, `tls_cert_file`, `tls_key_file`, `tls_verify`,
        `connect_timeout_s` (5), `timeout_s` (10), `retries` (3), as for `RedisState`.
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
        if lost_entries not in ("refuse", "skip"):
            raise ValueError(f"lost_entries is {lost_entries!r}; it must be 'refuse' or 'skip'")
        self._tables = EntryTables(fields, len(self._streams) > 1 if with_stream is None else with_stream)
        self._settings = RangeSettings(max_entries, first, lost_entries)
        self.on_new_log: OnNewLog = "elsewhere" if first == "$" else "start"

    def get_output_fields(self) -> Fields:
        return self._tables.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> RangeCoordinator:
        """Open the driver's side."""
        return RangeCoordinator(self._server(), self._streams, self._settings)

    def get_emitter(self, conf: Mapping[str, Any]) -> RangeEmitter:
        """Return the worker's side."""
        return RangeEmitter(self._options, self._tables)

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


class RedisStreamRichSpout(MessageSpout):
    """Emits the entries of Redis Streams one by one; each is pending in a consumer group until its tree is acknowledged.

    Every task is a consumer of the group. A task that comes back takes its own pending entries up again at once; the entries
    of one that does not come back are taken over by the others after `claim_idle_s`. The order is not promised.

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
    max_pending
        The most entries that a task takes before they are acknowledged.
    claim_idle_s
        After so many seconds without a sign of life from a consumer, others take over its entries.
    max_failures
        After so many failures an entry is given up, deliveries to tasks that died among them. None: never, or after 10 if
        there are `dead_letters`.
    first_pause_s, longest_pause_s
        Seconds before the first retry; each further pause is twice as long, up to the longest.
    dead_letters
        The stream that gets entries that are given up, and why. None: the log gets them.
    with_stream
        Whether to emit `stream: string` after `id`; default: if there are several.
    **server
        `user`, `password`, `database`, `tls`, `tls_ca_file`, `tls_cert_file`, `tls_key_file`, `tls_verify`,
        `connect_timeout_s` (5), `timeout_s` (10), as for `RedisState`.
    """

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: FieldsLike,
        *,
        group: str,
        first: str = "0",
        max_pending: int = 1000,
        claim_idle_s: float = 60.0,
        max_failures: int | None = None,
        first_pause_s: float = 0.2,
        longest_pause_s: float = 60.0,
        dead_letters: str | None = None,
        with_stream: bool | None = None,
        **server: Any,
    ) -> None:
        keys = (streams,) if isinstance(streams, str) else tuple(dict.fromkeys(streams))
        self._options = RedisServerOptions(url, **server)
        self._tables = EntryTables(fields, len(keys) > 1 if with_stream is None else with_stream)
        policy = RetryPolicy(max_failures, first_pause_s, longest_pause_s, dead_letters)
        super().__init__(self._tables.fields, policy, max_pending)
        self._reading = GroupReading(keys, group, first, claim_idle_s, dead_letters)
        if not keys or not all(keys) or not group:
            raise ConfigError(
                f"streams={streams!r}, group={group!r}: give the name of a stream or several, and of a group"
            )
        if first != "$" and not _ID.match(first):
            raise ConfigError(
                f'first={first!r}: give "0" (all entries), "$" (only new ones), or an id like "1700000-0"'
            )
        if not claim_idle_s > 0:
            raise ConfigError(f"claim_idle_s={claim_idle_s!r}: give a number of seconds above 0")
        if dead_letters in keys:
            raise ConfigError(f"dead_letters={dead_letters!r} is a stream that is read: dead letters would come again")

    def __repr__(self) -> str:
        """Show the options without secrets."""
        return f"RedisStreamRichSpout({self._options!r}, {self._reading!r}, {self._policy!r})"

    def _connect(self, context: TopologyContext, report: Callable[[BaseException], None]) -> GroupQueue:
        consumer = f"trident-{context.component}-{context.task}"
        queue = GroupQueue(StreamCalls(self._options), consumer, self._reading, self._tables, report)
        try:
            queue.prepare()
        except BaseException:
            queue.close()
            raise
        return queue
