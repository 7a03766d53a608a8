"""The spouts of Redis Streams, as logs and as queues, and the bolt that writes one: what a user gives, checked."""

import datetime as dt
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, Unpack

from spouts.messages import MessageSpout, RetryPolicy
from spouts.redis.group_queue import GroupQueue, GroupReading
from spouts.redis.id_ranges import RangeCoordinator, RangeEmitter
from spouts.redis.stream_server import (
    EntryTables,
    RedisServerOptions,
    RedisServerSettings,
    ServerAway,
    StreamCalls,
    StreamServer,
    order_of,
)
from trident.errors import ConfigError, ReportedFailedException, TopologyError
from trident.fields import Fields, FieldsLike
from trident.roles import close_on_error
from trident.setting_types import Limit, Pause, check_arguments
from trident.spout.interfaces import OnNewLog, SpoutType
from trident.storm.interfaces import BaseBasicBolt, BasicOutputCollector, TopologyContext
from trident.storm.storm_tuples import Tuple

_log = logging.getLogger(__name__)
_ID = re.compile(r"\d{1,20}(-\d{1,20})?", re.ASCII)


def _check_streams(streams: str | Sequence[str], first: str) -> tuple[str, ...]:
    """Return the keys of the streams; `ConfigError` for what is no key, and for a beginning that is none."""
    keys = (streams,) if isinstance(streams, str) else tuple(dict.fromkeys(streams))
    if not keys or not all(keys):
        raise ConfigError(f"streams={streams!r}: give the name of a stream, or a list of names")
    if first != "$" and not (_ID.fullmatch(first) and max(order_of(first)) < 1 << 64):
        raise ConfigError(f'first={first!r}: give "0" (all entries), "$" (only new ones), or an id like "1700000-0"')
    return keys


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
        `RedisServerSettings`, as for `RedisState`.
    """

    spout_type = SpoutType.TRANSACTIONAL

    @check_arguments
    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: FieldsLike,
        *,
        first: str = "0",
        max_entries: Limit = 10_000,
        lost_entries: Literal["refuse", "skip"] = "refuse",
        with_stream: bool | None = None,
        **server: Unpack[RedisServerSettings],
    ) -> None:
        self._options = RedisServerOptions(url, **server)
        self._streams = _check_streams(streams, first)
        if len(self._streams) > max_entries:
            raise ConfigError(f"max_entries={max_entries}: give at least 1 for each stream")
        self._tables = EntryTables(fields, len(self._streams) > 1 if with_stream is None else with_stream)
        self._limits, self.source_names = (first, max_entries, lost_entries), self._streams
        self.on_new_log: OnNewLog = "elsewhere" if first == "$" else "start"

    def get_output_fields(self) -> Fields:
        return self._tables.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> RangeCoordinator:
        """Open the driver's side."""
        return RangeCoordinator(self._server(), self._streams, *self._limits)

    def get_emitter(self, conf: Mapping[str, Any]) -> RangeEmitter:
        """Return the worker's side."""
        return RangeEmitter(self._options, self._tables)

    def _server(self) -> StreamServer:
        """Connect; `SpoutError` if the server cannot be reached, or a key is no stream."""
        server = StreamServer(self._options)
        with close_on_error(server.close):
            missing = server.missing(self._streams)
        for stream in missing:
            _log.warning("there is no stream %r on Redis %s; waiting for its first entry", stream, server.place)
        return server


class RedisStreamRichSpout(MessageSpout):
    """Emits the entries of Redis Streams one by one; each is pending in a consumer group until its tree is acknowledged.

    Every task is a consumer of the group. A task that comes back takes its own pending entries up again at once; the entries
    of one that does not come back are taken over by the others after `claim_idle_s`. The order is not promised.

    Parameters
    ----------
    url, fields, with_stream
        As for `TransactionalRedisStreamSpout`.
    streams
        The key of a stream, or several. A stream that does not exist yet is created with the group.
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
    **server
        `RedisServerSettings`, as for `RedisState`.
    """

    @check_arguments
    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: FieldsLike,
        *,
        group: str,
        first: str = "0",
        max_pending: Limit = 1000,
        claim_idle_s: Pause = 60.0,
        max_failures: int | None = None,
        first_pause_s: float = 0.2,
        longest_pause_s: float = 60.0,
        dead_letters: str | None = None,
        with_stream: bool | None = None,
        **server: Unpack[RedisServerSettings],
    ) -> None:
        keys = _check_streams(streams, first)
        self._options = RedisServerOptions(url, **server)
        self._tables = EntryTables(fields, len(keys) > 1 if with_stream is None else with_stream)
        policy = RetryPolicy(max_failures, first_pause_s, longest_pause_s, dead_letters)
        super().__init__(self._tables.fields, policy, max_pending)
        self._reading = GroupReading(keys, group, first, claim_idle_s, dead_letters)
        if not group:
            raise ConfigError(f"group={group!r}: give the name of a group")
        if dead_letters in keys:
            raise ConfigError(f"dead_letters={dead_letters!r} is a stream that is read: dead letters would come again")

    def __repr__(self) -> str:
        """Show the options without secrets."""
        return f"RedisStreamRichSpout({self._options!r}, {self._reading!r}, {self._policy!r})"

    def _connect(self, context: TopologyContext, report: Callable[[BaseException], None]) -> GroupQueue:
        consumer = f"trident-{context.component}-{context.task}"
        queue = GroupQueue(StreamCalls(self._options), consumer, self._reading, self._tables, report)
        with close_on_error(queue.close):
            queue.prepare()
        return queue


class RedisStreamBolt(BaseBasicBolt):
    """Adds each tuple to a stream as an entry of the fields that are named; the tuple is acked when Redis has it.

    `TransactionalRedisStreamSpout` reads such a stream into a Trident topology, each entry exactly once. A message that is
    replayed here is added again, so let an entry carry what identifies it if that matters. If Redis does not answer, tuples
    fail, and their messages are replayed by the spout.

    Parameters
    ----------
    url
        As for `TransactionalRedisStreamSpout`.
    stream
        The key of the stream; created with the first entry.
    fields
        The fields of the tuples to write: texts, bytes, numbers, truth values, dates and times. A null is left out.
    max_entries
        About how many entries the stream keeps; older ones are trimmed, read or not. None keeps all.
    **server
        As for `RedisStreamRichSpout`.
    """

    @check_arguments
    def __init__(
        self,
        url: str,
        stream: str,
        fields: FieldsLike,
        *,
        max_entries: Limit | None = None,
        **server: Unpack[RedisServerSettings],
    ) -> None:
        self._options = RedisServerOptions(url, **server)
        self._stream, self._names, self._max_entries = stream, Fields(fields).names, max_entries
        if not stream or not self._names:
            raise ConfigError(
                f"stream={stream!r}, fields={fields!r}: give the name of a stream, and at least one field"
            )

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Connect; `SpoutError` if the server cannot be reached, or the key is not a stream."""
        self._server = StreamServer(self._options)
        self._server.missing([self._stream])

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        entry = {name: _text(name, tuple[name]) for name in self._names if tuple[name] is not None}
        if not entry:
            raise TopologyError(f"{tuple!r}: all of {list(self._names)} are null; Redis has no entry without a field")
        try:
            self._server.call(
                f"adding to the stream {self._stream!r}",
                lambda client: client.xadd(self._stream, entry, maxlen=self._max_entries),
            )
        except ServerAway as error:
            raise ReportedFailedException(str(error)) from error

    def cleanup(self) -> None:
        self._server.close()


def _text(name: str, value: Any) -> bytes | str | int | float:
    """A value in the form in which the spouts over Redis Streams read it."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes() | str() | int() | float():
            return value
        case Decimal() | dt.date() | dt.time():
            return str(value)
    raise TopologyError(f"field {name!r}: a {type(value).__name__} has no form in a Redis stream; write a text")
