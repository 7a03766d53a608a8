"""Has a server forgotten anything? What is compared, and the record that keeps it with the sentinel.

Memcached forgets when it restarts, on the command `flush_all`, when memory runs out (evictions), and when an
item expires. Expiry happens only where the user asked for it; the rest leaves traces:

- the *epoch*, a record of the state on each server, is gone or another one after a start or a flush;
- the process, its start and the number of flushes are other ones;
- the counters of dropped items, of whomever on that server, have risen: evicted for want of memory, dropped when a page of
  memory was moved, dropped from the disk of a server with extstore (also under `-M`), or missed there when asked for;
- the bytes that it has sent, which only rise, are fewer than before: the counters were reset (`stats reset`), and what was
  dropped before is unknown.

The *baseline* is what they were when the state began. It lies in the sentinel's record, so what is lost between the
runs of two drivers is found as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from trident.storekit import SentinelRecord, no_sentinel, sentinel_of

_EVICTIONS = (
    b"evictions",
    b"slab_reassign_evictions_nomem",
    b"slab_reassign_busy_deletes",
    b"extstore_objects_evicted",
    b"extstore_compact_skipped",  # dropped when a page was compacted (ext_drop_unread)
    b"extstore_compact_lost",
    b"miss_from_extstore",  # also what the disk lost, or gave back damaged
)


class Health(NamedTuple):
    """What one server shows: `epoch` is 0 where the state has none."""

    epoch: int
    pid: int
    started: int
    flushes: int
    evictions: int
    sent: int = 0  # bytes

    @staticmethod
    def of(epoch: int, statistics: Mapping[bytes, Any]) -> Health:
        """Take what matters from a server's statistics."""
        started = int(statistics[b"time"]) - int(statistics[b"uptime"])
        evictions = sum(int(statistics.get(name, 0)) for name in _EVICTIONS)
        flushes, sent = int(statistics.get(b"cmd_flush", 0)), int(statistics.get(b"bytes_written", 0))
        return Health(epoch, int(statistics[b"pid"]), started, flushes, evictions, sent)


def moves_page(statistics: Mapping[bytes, Any]) -> bool:
    """Whether the server is moving a page of memory: what it drops in doing so, it counts at the end."""
    return statistics.get(b"slab_reassign_running", b"0") not in (b"0", 0, False)


Baseline = dict[str, Health]
"""The health of each server of a state."""


def loss(before: Baseline, now: Baseline, evictions: bool = True) -> str | None:
    """Say what was lost between two looks, None if nothing was; `evictions` may be left out."""
    if before.keys() != now.keys():
        return f"it was written on the servers {sorted(before)}, and this state names {sorted(now)}"
    found = [_loss(server, before[server], now[server], evictions) for server in sorted(now)]
    return "; ".join(filter(None, found)) or None


def _loss(server: str, before: Health, now: Health, evictions: bool) -> str | None:
    if (before.pid, before.started) != (now.pid, now.started):
        return f"server {server} was restarted (process {before.pid}, now {now.pid})"
    reset = now.sent < before.sent
    if before.flushes != now.flushes and not reset:
        return f"server {server} ran flush_all"
    if before.epoch != now.epoch:
        how = "is gone" if not now.epoch else "was replaced"
        return f"the record of the state on server {server} {how}"
    if evictions and reset:
        return f"the counters of server {server} were reset (stats reset), so what it has evicted is unknown"
    if evictions and before.evictions != now.evictions:
        number = now.evictions - before.evictions
        return f"server {server} has evicted {number} items, its own or others', since the state began there"
    return None


class BaselineCodec:
    """The record of the sentinel of a partition, with the baseline beside it: JSON."""

    def encode(self, record: SentinelRecord[Baseline]) -> bytes:
        record_values = {"sentinel": record.sentinel.fields, "servers": record.notes}
        return json.dumps(record_values, separators=(",", ":")).encode()

    def decode(self, data: bytes, what: str) -> SentinelRecord[Baseline]:
        try:
            values = json.loads(data)
            fields, servers = values["sentinel"], values["servers"]
            baseline = {str(name): Health(*map(int, health)) for name, health in servers.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise no_sentinel(data, what) from error
        return SentinelRecord(sentinel_of(fields, what), baseline)
