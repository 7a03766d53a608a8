"""What guards a state in Memcached: the sentinel of a partition, and whether a server has forgotten anything since it began.

Memcached forgets when it restarts, on the command `flush_all`, when memory runs out (evictions), and when an item expires.
Expiry happens only where the user asked for it; the rest leaves traces:

- the *epoch*, a record of the state on each server, is gone or another one. The client flags of the state's values must be it:
  values with others count as absent;
- the process, its start and the number of flushes are other ones;
- the counters of dropped items, of whomever on that server, have risen: evicted for want of memory, dropped when a page of
  memory was moved, dropped from the disk of a server with extstore (also under `-M`), or missed there when asked for;
- the bytes that it has sent, which only rise, are fewer than before: the counters were reset (`stats reset`).

The *baseline* is what they were when the state began; at the begin of a commit the servers must look so, and at its end,
after all reads and writes. It lies in the sentinel's record, so what is lost between the runs of two drivers is found as
well.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from states.memcached.key_names import Names
from states.memcached.servers import CHANGED, MemcachedConnection, MemcachedOptions, Servers, write_error
from trident.errors import BackendError, EnvironmentProblem, StateLossDetected
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel, Txid
from trident.storekit import (
    RecordFence,
    Register,
    SentinelRecord,
    no_sentinel,
    sentinel_of,
    warn_of_eviction,
    warn_once,
)

_LOGGER = logging.getLogger(__name__)
_NEVER = b"0"
_LOOK_AGAIN_S = 0.001
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
        started = int(statistics[b"time"]) - int(statistics[b"uptime"])
        evictions = sum(int(statistics.get(name, 0)) for name in _EVICTIONS)
        flushes, sent = int(statistics.get(b"cmd_flush", 0)), int(statistics.get(b"bytes_written", 0))
        return Health(epoch, int(statistics[b"pid"]), started, flushes, evictions, sent)


Baseline = dict[str, Health]  # the health of each server of a state


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
        record_values = {"sentinel": record.sentinel, "servers": record.notes}
        return json.dumps(record_values, separators=(",", ":")).encode()

    def decode(self, data: bytes, what: str) -> SentinelRecord[Baseline]:
        try:
            values = json.loads(data)
            fields, servers = values["sentinel"], values["servers"]
            baseline = {str(name): Health(*map(int, health)) for name, health in servers.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise no_sentinel(data, what) from error
        return SentinelRecord(sentinel_of(fields, what), baseline)


def _dangers(settings: Mapping[bytes, Any], statistics: Mapping[bytes, Any]) -> list[str]:
    found = []
    if settings.get(b"evictions") == b"on":
        found.append(
            "evicts items when its memory is full, and the state then loses keys; start it with -M and enough memory "
            "(-m), so that a write fails instead"
        )
    if b"extstore_limit_maxbytes" in statistics:
        found.append(
            "drops items when its external storage (ext_path) is full, also with -M, and the state then loses keys; "
            "start it without, or with room for everything"
        )
    if settings.get(b"tail_repair_time") not in (None, 0, b"0"):
        found.append("drops items in use for long (tail_repair_time), and does not count them; start it without")
    return found


def _new_epoch() -> bytes:
    # Only the upper half of the flags: other clients take bits of the lower half for the type of the value.
    return b"%d" % ((secrets.randbelow(0xFFFF) + 1) << 16)


class CommitGuard:
    """The sentinel of one partition, and the health of the servers as it sees them."""

    def __init__(
        self, servers: Servers, names: Names, options: MemcachedOptions, conf: StateConf, partition: int
    ) -> None:
        self.place = f"partition {partition} of state {conf.prefix!r} on memcached"
        self._servers, self._epoch_name, self._state = servers, names.epoch, conf.prefix
        self._warns, self._patience_s = options.allow_eviction, options.timeout_s
        self._register = _RecordRegister(servers, names.sentinel(partition), conf.prefix)
        self._fence = RecordFence(self._register, BaselineCodec(), self.place)
        self._baseline: Baseline = {}  # empty: nothing to compare with
        self._known: SentinelRecord[Baseline] | None = None  # the baseline is this record's, or a later look
        self._loss_reported = False
        self._inspected, self._is_first = conf.read_only, partition == 0

    def begin(self, txid: Txid) -> None:
        if txid.sentinel is None:
            self.reset()
            self._take_servers()

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel; one of a foreign incarnation that names the loss, if a server has lost data since.

        Raises `StateLossDetected`, once: the sentinel of this very instance is gone, or a server has lost data since.
        """
        self._inspect()
        record, own = self._fence.read(), self._fence.own
        self._learn(record)
        if record is None:
            if own is not None and not self._loss_reported:
                raise self._loss_error(self._loss() or "its sentinel is gone")
            return None
        lost, sentinel = self._loss(), record.sentinel
        if lost is None:
            return sentinel
        if own is not None and sentinel == own.sentinel and not self._loss_reported:
            raise self._loss_error(lost)
        return sentinel._replace(incarnation=f"{sentinel.incarnation} (lost data: {lost})")

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the record that was read or laid last; the first one, or a forced one, takes the servers as they are."""
        self._inspect()
        found = self._fence.check_move(sentinel, force)
        self._learn(found)
        if found is None and not sentinel.txid and self._is_first:
            self._lay_epochs()  # a state that begins: what a server has kept of an earlier one must not count
        if found is None or force:
            self._take_servers()
        record = SentinelRecord(sentinel, self._baseline)
        with self._naming_the_loss():
            self._fence.lay(record)
        self._known, self._loss_reported = record, False

    def reset(self) -> None:
        self._fence.forget()
        self._known, self._baseline = None, {}

    def erase(self) -> None:
        """Lay new epochs, so that no value of the state counts any longer, and delete the sentinel of the partition."""
        self.reset()
        self._lay_epochs()
        self._register.delete()  # last: until then the old baseline shows that the epochs changed

    def check_own(self) -> None:
        """Raise `FencedError` or `StateLossDetected` if the store has not what this instance laid, if it laid anything."""
        with self._naming_the_loss():
            self._fence.check()

    def check_epoch(self, connection: MemcachedConnection, epoch: bytes) -> None:
        """Raise `StateLossDetected` if the epoch that was just read on a server is not the one of the begin."""
        name = connection.name
        known = self._baseline.get(name)
        if known is not None and int(epoch) != known.epoch:
            now = {name: self._look_at(connection)}
            raise self._loss_error(loss({name: known}, now) or f"server {name} has lost the epoch")

    def check_health(self) -> None:
        """Raise `StateLossDetected` if a server has forgotten anything since the state began."""
        if self._baseline:
            lost = self._loss()
            if lost is not None:
                raise self._loss_error(lost)

    def flags_on(self, connection: MemcachedConnection) -> bytes:
        """Return the client flags that a value on this server must have; for a put without any commit lay them."""
        if not self._baseline:
            self._take_servers()
        return b"%d" % self._baseline[connection.name].epoch

    def _lay_epochs(self) -> None:
        for connection in self._servers.connections:
            connection.put(self._epoch_name, b"0", _new_epoch())

    def _take_servers(self) -> None:
        """Take the servers as they are now, with an epoch on each."""
        self._baseline = {each.name: self._look_at(each, lay=True) for each in self._servers.connections}

    def _loss(self) -> str | None:
        """Look at every server and say what was lost. Evictions that are only warned of count no more after that."""
        now = {connection.name: self._look_at(connection) for connection in self._servers.connections}
        lost = loss(self._baseline, now)
        if lost is not None and self._warns and loss(self._baseline, now, evictions=False) is None:
            warn_of_eviction(_LOGGER, self.place, lost, allowed=True)
            lost = None
        if lost is None:
            self._baseline = now
        return lost

    def _learn(self, record: SentinelRecord[Baseline] | None) -> None:
        """Take from another record what the servers were like when the state began."""
        if record is not None and record != self._known:
            self._baseline = record.notes
        self._known = record

    @contextmanager
    def _naming_the_loss(self) -> Iterator[None]:
        """Add what the servers show of the loss where the sentinel is gone."""
        try:
            yield
        except StateLossDetected as error:
            raise self._loss_error(self._loss() or error.args[1]) from None

    def _loss_error(self, found: str) -> StateLossDetected:
        self._loss_reported = True  # from now on `read_sentinel` shows the store as it is
        return StateLossDetected(self.place, found)

    def _inspect(self) -> None:
        """Look once at how each server is set up: what makes a state impossible, or unsafe."""
        if self._inspected:
            return
        self._inspected = True
        for connection in self._servers.connections:
            settings = connection.statistics("settings")
            if settings.get(b"cas_enabled") in (b"no", False):
                raise EnvironmentProblem(
                    f"memcached server {connection.name} runs without cas (option -C), so a state cannot be fenced on "
                    "it; start it without -C"
                )
            for danger in _dangers(settings, connection.statistics()) if self._is_first else ():
                warn_once(_LOGGER, f"memcached server {connection.name}", f"it {danger} ({self.place})")

    def _look_at(self, connection: MemcachedConnection, lay: bool = False) -> Health:
        name = self._epoch_name
        found = connection.gets([name])
        if lay and name not in found:
            (reply,) = connection.write([name], b"0", b"0", [_new_epoch()], [None])  # or another partition did
            found = connection.gets([name])
            if name not in found:  # values of no epoch would count as absent, each time
                raise write_error(self._state, connection.name, [(("the epoch",), reply)])
        epoch = int(found[name].data) if name in found else 0
        return Health.of(epoch, self._read_statistics(connection))

    def _read_statistics(self, connection: MemcachedConnection) -> Mapping[bytes, Any]:
        """Return the statistics of a server, including the slab page that is being moved."""
        statistics = first = connection.statistics()
        give_up = time.monotonic() + self._patience_s
        # What a server drops in moving a page of memory, it counts at the end.
        while statistics.get(b"slab_reassign_running", b"0") not in (b"0", 0, False) and (
            statistics[b"slabs_moved"] == first[b"slabs_moved"]
        ):
            if self._warns:
                break
            if time.monotonic() > give_up:
                raise BackendError(
                    f"{self.place}: memcached server {connection.name} has been moving one page of its memory for "
                    f"{self._patience_s} s, and reports only afterwards what it dropped; some client does not take its "
                    "answer. The batch may be replayed"
                )
            time.sleep(_LOOK_AGAIN_S)
            statistics = connection.statistics()
        return statistics


class _RecordRegister(Register):
    """The record of a sentinel: written with the token that it had when it was read."""

    def __init__(self, servers: Servers, name: bytes, state: str) -> None:
        self._home, self._name, self._state = servers.of(name), name, state
        self._last: bytes | None = None  # what the token is of

    def read(self) -> bytes | None:
        item = self._home.gets([self._name]).get(self._name)
        self._last, self._home.tokens[self._name] = (None, None) if item is None else (item.data, item.token)
        return self._last

    def swap(self, found: bytes | None, new: bytes) -> bytes | None:
        tokens, name = self._home.tokens, self._name
        if name not in tokens or self._last != found:  # the token ended with its connection, or with a commit
            now = self.read()
            if now not in (found, new):
                return now
        (reply,) = self._home.write([name], b"0", _NEVER, [new], [tokens.pop(name)])
        if reply == b"STORED":
            return new
        if reply not in CHANGED:
            raise write_error(self._state, self._home.name, [(("the sentinel",), reply)])
        now = self.read()
        if now == new:  # the same bytes are not ours: each writer must find its own
            raise BackendError(f"another run of the same attempt moved the sentinel of state {self._state!r} meanwhile")
        return now

    def delete(self) -> None:
        self._home.delete([self._name])
