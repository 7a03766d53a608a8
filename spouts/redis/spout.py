"""The spout that reads Redis Streams as logs: what a user gives, checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from spouts.redis.entry_tables import EntryTables
from spouts.redis.id_ranges import RangeCoordinator, RangeEmitter, RangeSettings
from spouts.redis.stream_server import RedisServerOptions, StreamServer
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import OnNewLog, SpoutType

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
