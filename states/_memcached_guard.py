"""What guards a state in Memcached: the sentinel of a partition, the epochs, and what each server looked like at first.

At the begin of a commit the servers must look as when the state began, and so they must at its end, after all reads and
writes; see `_memcached_health` for what is compared. The epoch of a server is also what the client flags of the state's
values must be there: values with others count as absent, so a new epoch empties the state.
"""

from __future__ import annotations

from states._memcached_health import Record, decode_record, encode_record
from states._memcached_keys import Names
from states._memcached_options import MemcachedOptions
from states._memcached_refusals import CHANGED, refused
from states._memcached_servers import Connection, Servers
from states._memcached_watch import Watch
from trident.errors import BackendError, FencedError, StateLossDetected
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel, Txid

__all__ = ["Guard"]

_MOVES = 5
_NEVER = b"0"


class Guard:
    """The sentinel of one partition, and the health of the servers.

    Parameters
    ----------
    servers, names
        Of the state.
    options, conf, partition
        As of `MemcachedMap`.
    """

    def __init__(
        self, servers: Servers, names: Names, options: MemcachedOptions, conf: StateConf, partition: int
    ) -> None:
        self.place = f"partition {partition} of state {conf.prefix!r} on memcached"
        self._partition, self._state = partition, conf.prefix
        self._watch = Watch(servers, names.epoch, options, self.place)
        self._sentinel_name = names.sentinel(partition)
        self._home = servers.of(self._sentinel_name)
        self._own: Sentinel | None = None  # what this instance laid: it may write while the store has it
        self._verified: Sentinel | None = None  # the sentinel that the watch's baseline belongs to
        self._loss_told = False
        self._inspected = conf.read_only

    def begin(self, txid: Txid) -> None:
        """A commit begins; without a log it takes the servers as they are now."""
        if txid.sentinel is None:
            self.reset()
            self._watch.begin()

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel; one of a foreign incarnation that names the loss, if a server has lost data since.

        Raises
        ------
        StateLossDetected
            This very instance laid the sentinel, and now finds it gone or a server to have lost data. Raised once:
            the next read shows the store as it is.
        """
        self._inspect()
        record, _ = self._read_record()
        if record is None:
            if self._own is not None and not self._loss_told:
                raise self._lost(self._loss_of_sentinel())
            self._verified = None
            return None
        sentinel = record.sentinel
        if sentinel != self._verified:
            self._verified, self._watch.baseline = sentinel, record.baseline
        lost = self._watch.loss()
        if lost is None:
            return sentinel
        if sentinel == self._own and not self._loss_told:
            raise self._lost(lost)
        return sentinel._replace(incarnation=f"{sentinel.incarnation} (lost data: {lost})")

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Move the sentinel forward; the first one, or a forced one, takes the servers as they are now."""
        self._inspect()
        for _ in range(_MOVES):
            found, token = self._read_record()
            if found is None and self._verified is not None and not force:
                raise self._lost(self._loss_of_sentinel())  # it was there a moment ago: no first commit
            if found is None or force:
                self._watch.begin()
            elif not _is_forward(found.sentinel, sentinel):
                raise FencedError(self.place, str(sentinel), str(found.sentinel))
            elif found.sentinel != self._verified:
                self._watch.baseline = found.baseline
            record = Record(sentinel, self._watch.baseline)
            (reply,) = self._home.write([(self._sentinel_name, b"0", _NEVER, encode_record(record), token)])
            if reply == b"STORED":
                self._own = self._verified = sentinel
                self._loss_told = False
                return
            if reply not in CHANGED:
                raise refused(self._state, self._home.name, [(("the sentinel",), reply)])
        raise BackendError(f"move the sentinel of {self.place}: another writer moved it {_MOVES} times meanwhile")

    def reset(self) -> None:
        """Forget what this instance knew."""
        self._own, self._verified, self._watch.baseline = None, None, {}

    def erase(self) -> None:
        """Lay new epochs, so that no value of the state counts any longer, and delete the sentinel of the partition."""
        self.reset()
        self._watch.lay_epochs()
        self._home.delete([self._sentinel_name])  # last: until then the old baseline tells that the epochs changed

    def flags_on(self, connection: Connection) -> bytes:
        """Return the client flags that a value on this server must have; for a put without any commit lay them."""
        return self._watch.flags_on(connection)

    def check_epoch(self, connection: Connection, epoch: bytes) -> None:
        """Raise `StateLossDetected` if the epoch that was just read on a server is not the one of the begin."""
        lost = self._watch.loss_of_epoch(connection, epoch)
        if lost is not None:
            raise self._lost(lost)

    def _read_record(self) -> tuple[Record | None, bytes | None]:
        item = self._home.gets([self._sentinel_name]).get(self._sentinel_name)
        return (None, None) if item is None else (decode_record(item.data), item.token)

    def check_own(self) -> None:
        """Raise `FencedError` if the store has another sentinel than this instance laid, if it laid one."""
        if self._own is None:
            return
        found, _ = self._read_record()
        if found is None:
            raise self._lost(self._loss_of_sentinel())
        if found.sentinel != self._own:
            raise FencedError(self.place, str(self._own), str(found.sentinel))

    def check_health(self) -> None:
        """Raise `StateLossDetected` if a server has forgotten anything since the state began."""
        if self._watch.baseline:
            lost = self._watch.loss()
            if lost is not None:
                raise self._lost(lost)

    def _loss_of_sentinel(self) -> str:
        return self._watch.loss() or "its sentinel is gone"

    def _inspect(self) -> None:
        if not self._inspected:
            self._inspected = True
            self._watch.inspect(warn=self._partition == 0)

    def _lost(self, found: str) -> StateLossDetected:
        self._loss_told = True  # from now on `read_sentinel` shows the store as it is
        return StateLossDetected(self.place, found)


def _is_forward(found: Sentinel, sentinel: Sentinel) -> bool:
    if found.incarnation != sentinel.incarnation:
        return False
    return found.txid <= sentinel.txid and found.attempt <= sentinel.attempt
