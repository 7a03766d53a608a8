"""A bolt that adds its tuples to a Redis stream: the queue over which a Trident topology goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from spouts.redis.stream_server import RedisServerOptions, ServerAway, StreamServer
from trident.errors import ConfigError, ReportedFailedException, TopologyError
from trident.fields import Fields, FieldsLike
from trident.storm.interfaces import BaseBasicBolt, BasicOutputCollector, TopologyContext
from trident.storm.storm_tuples import Tuple


class RedisStreamBolt(BaseBasicBolt):
    """Adds each tuple to a stream as an entry of the fields that are named; the tuple is acked when Redis has it.

    `TransactionalRedisStreamSpout` reads such a stream into a Trident topology, each entry exactly once. A message that is
    replayed here is added again, so let an entry carry what identifies it if that matters. If Redis does not answer, tuples
    fail, and their messages are replayed by the spout.

    Parameters
    ----------
    url
        `redis://[user:password@]host:port/database`, `rediss://` or `unix://path`.
    stream
        The key of the stream; created with the first entry.
    fields
        The fields of the tuples to write: texts, bytes, numbers, truth values, dates and times. A null is left out.
    max_entries
        About how many entries the stream keeps; older ones are trimmed, read or not. None keeps all.
    **server
        As for `RedisStreamRichSpout`.
    """

    def __init__(
        self, url: str, stream: str, fields: FieldsLike, *, max_entries: int | None = None, **server: Any
    ) -> None:
        self._options = RedisServerOptions(url, **server)
        self._stream, self._names, self._max_entries = stream, Fields(fields).names, max_entries
        if not stream or not self._names:
            raise ConfigError(
                f"stream={stream!r}, fields={fields!r}: give the name of a stream, and at least one field"
            )
        if max_entries is not None and max_entries < 1:
            raise ConfigError(f"max_entries={max_entries}: must be at least 1, or None")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Connect; `SpoutError` if the server cannot be reached, or the key is not a stream."""
        self._server = StreamServer(self._options)
        self._server.missing([self._stream])

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        entry = {name: _text(name, tuple[name]) for name in self._names if tuple[name] is not None}
        if not entry:
            raise TopologyError(
                f"{tuple!r}: all of {list(self._names)} are null, and Redis has no entry without a field"
            )
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
