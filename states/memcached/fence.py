"""What guards a state in Memcached: the sentinel of a partition, the epochs, and what each server looked like at first.

The sentinel's record is replaced only if it is what this instance read or laid last, "none" included. At the begin of a
commit the servers must look as when the state began, and so they must at its end, after all reads and writes; see
`health.py` for what is compared. The epoch of a server is also what the client flags of the state's values must
be there: values with others count as absent, so a new epoch empties the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from states.memcached.health import Baseline, BaselineCodec, ServerWatch
from states.memcached.key_names import Names
from states.memcached.options import MemcachedOptions
from states.memcached.protocol import CHANGED, refused
from states.memcached.servers import MemcachedConnection, Servers
from trident.errors import BackendError, StateLossDetected
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel, Txid
from trident.storekit import RecordFence, Register, SentinelRecord

_NEVER = b"0"


class CommitGuard:
    """The sentinel of one partition, and the health of the servers.

    `servers`, `names`: of the state.
    `options`, `conf`, `partition`: as of `MemcachedMap`.
    """

    def __init__(
        self, servers: Servers, names: Names, options: MemcachedOptions, conf: StateConf, partition: int
    ) -> None:
        self.place = f"partition {partition} of state {conf.prefix!r} on memcached"
        self._partition = partition
        self.watch = ServerWatch(servers, names.epoch, options, self.place)
        self._register = _RecordRegister(servers, names.sentinel(partition), conf.prefix)
        self._fence = RecordFence(self._register, BaselineCodec(), self.place)
        self._known: SentinelRecord[Baseline] | None = None  # the watch's baseline is this record's, or a later look
        self._loss_reported = False
        self._inspected = conf.read_only

    def begin(self, txid: Txid) -> None:
        """A commit begins; without a log it takes the servers as they are now."""
        if txid.sentinel is None:
            self.reset()
            self.watch.begin()

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel; one of a foreign incarnation that names the loss, if a server has lost data since.

        Raises `StateLossDetected`: this very instance laid the sentinel, and now finds it gone or a server to have lost data.
        Raised once: the next read shows the store as it is.
        """
        self._inspect()
        record, own = self._fence.read(), self._fence.own
        self._learn(record)
        if record is None:
            if own is not None and not self._loss_reported:
                raise self._lost(self.watch.loss() or "its sentinel is gone")
            return None
        lost, sentinel = self.watch.loss(), record.sentinel
        if lost is None:
            return sentinel
        if own is not None and sentinel == own.sentinel and not self._loss_reported:
            raise self._lost(lost)
        return sentinel._replace(incarnation=f"{sentinel.incarnation} (lost data: {lost})")

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the record that was read or laid last; the first one, or a forced one, takes the servers as they are.

        Raises `FencedError`: another writer has moved it, or it would go back.
        Raises `StateLossDetected`: it is gone, or was rolled back. Nothing was written.
        """
        self._inspect()
        found = self._fence.check_move(sentinel, force)
        self._learn(found)
        if found is None or force:
            self.watch.begin()
        record = SentinelRecord(sentinel, self.watch.baseline)
        with self._naming_the_loss():
            self._fence.lay(record)
        self._known, self._loss_reported = record, False

    def reset(self) -> None:
        """Forget what this instance knew."""
        self._fence.forget()
        self._known, self.watch.baseline = None, {}

    def erase(self) -> None:
        """Lay new epochs, so that no value of the state counts any longer, and delete the sentinel of the partition."""
        self.reset()
        self.watch.lay_epochs()
        self._register.delete()  # last: until then the old baseline shows that the epochs changed

    def check_epoch(self, connection: MemcachedConnection, epoch: bytes) -> None:
        """Raise `StateLossDetected` if the epoch that was just read on a server is not the one of the begin."""
        lost = self.watch.loss_of_epoch(connection, epoch)
        if lost is not None:
            raise self._lost(lost)

    def check_own(self) -> None:
        """Raise `FencedError` or `StateLossDetected` if the store has not what this instance laid, if it laid anything."""
        with self._naming_the_loss():
            self._fence.check()

    def check_health(self) -> None:
        """Raise `StateLossDetected` if a server has forgotten anything since the state began."""
        if self.watch.baseline:
            lost = self.watch.loss()
            if lost is not None:
                raise self._lost(lost)

    def _learn(self, record: SentinelRecord[Baseline] | None) -> None:
        """Take from another record what the servers were like when the state began."""
        if record is not None and record != self._known:
            self.watch.baseline = record.notes
        self._known = record

    @contextmanager
    def _naming_the_loss(self) -> Iterator[None]:
        """Add what the servers show of the loss where the sentinel is gone."""
        try:
            yield
        except StateLossDetected as error:
            raise self._lost(self.watch.loss() or error.args[1]) from None

    def _inspect(self) -> None:
        if not self._inspected:
            self._inspected = True
            self.watch.inspect(warn=self._partition == 0)

    def _lost(self, found: str) -> StateLossDetected:
        self._loss_reported = True  # from now on `read_sentinel` shows the store as it is
        return StateLossDetected(self.place, found)


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
            raise refused(self._state, self._home.name, [(("the sentinel",), reply)])
        now = self.read()
        if now == new:  # the same bytes are not ours: each writer must find its own
            raise BackendError(f"another run of the same attempt moved the sentinel of state {self._state!r} meanwhile")
        return now

    def delete(self) -> None:
        self._home.delete([self._name])
