"""What guards a state in Memcached: the sentinel of a partition, the epochs, and what each server looked like at first.

The sentinel's record is replaced only if it is what this instance read or laid last, "none" included. At the begin of a
commit the servers must look as when the state began, and so they must at its end, after all reads and writes; see
`health.py` for what is compared. The epoch of a server is also what the client flags of the state's values must
be there: values with others count as absent, so a new epoch empties the state.
"""

from __future__ import annotations

from states.memcached.faults import CHANGED, refused
from states.memcached.health import Record, decode_record, encode_record
from states.memcached.key_names import Names
from states.memcached.options import MemcachedOptions
from states.memcached.servers import Connection, Servers
from states.memcached.watch import Watch
from trident.errors import StateLossDetected
from trident.state.interfaces import StateConf
from trident.state.sentinel import displaced, is_forward
from trident.state.txid import Sentinel, Txid

__all__ = ["Guard"]

_NEVER = b"0"
_UNREAD = b""  # no record is empty


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
        # The record that this instance read or laid last; the watch's baseline is that record's, or a later look.
        self._seen: bytes | None = _UNREAD
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
        record = self._learn()
        if record is None:
            if self._own is not None and not self._loss_told:
                raise self._lost(self._loss_of_sentinel())
            return None
        lost, sentinel = self._watch.loss(), record.sentinel
        if lost is None:
            return sentinel
        if sentinel == self._own and not self._loss_told:
            raise self._lost(lost)
        return sentinel._replace(incarnation=f"{sentinel.incarnation} (lost data: {lost})")

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the record that was read or laid last; the first one, or a forced one, takes the servers as they are.

        Raises
        ------
        FencedError
            Another writer has moved it, or it would go back.
        StateLossDetected
            It is gone, or was rolled back. Nothing was written.
        """
        self._inspect()
        found = self._learn() if self._seen == _UNREAD else _record(self._seen)
        if found is not None and not force and not is_forward(found.sentinel, sentinel):
            raise displaced(self.place, sentinel, found.sentinel, found.sentinel)
        if found is None or force:
            self._watch.begin()
        data = encode_record(Record(sentinel, self._watch.baseline))
        if not self._swap(data):
            raise self._displaced(sentinel, found)
        self._seen, self._own, self._loss_told = data, sentinel, False

    def reset(self) -> None:
        """Forget what this instance knew."""
        self._own, self._seen, self._watch.baseline = None, _UNREAD, {}

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

    def check_own(self) -> None:
        """Raise `FencedError` or `StateLossDetected` if the store has not what this instance laid, if it laid anything."""
        if self._own is None:
            return
        data, token = self._read()
        if data != self._seen:
            raise self._displaced(self._own, _record(self._seen))
        self._home.tokens[self._sentinel_name] = token

    def _learn(self) -> Record | None:
        """Read the record to replace, and what the servers were like when the state began."""
        data, self._home.tokens[self._sentinel_name] = self._read()
        record = _record(data)
        if record is not None and data != self._seen:
            self._watch.baseline = record.baseline
        self._seen = data
        return record

    def _read(self) -> tuple[bytes | None, bytes | None]:
        """Return the record and its token, None and None if there is none."""
        item = self._home.gets([self._sentinel_name]).get(self._sentinel_name)
        return (None, None) if item is None else (item.data, item.token)

    def _swap(self, data: bytes) -> bool:
        """Write the record if the store has what was seen. A move whose answer was lost finds its own record."""
        tokens, name = self._home.tokens, self._sentinel_name
        if name not in tokens:  # the token of what was seen ended with its connection, or with a commit
            found, tokens[name] = self._read()
            if found not in (self._seen, data):
                del tokens[name]
                return False
        (reply,) = self._home.write([(name, b"0", _NEVER, data, tokens.pop(name))])
        if reply != b"STORED" and reply not in CHANGED:
            raise refused(self._state, self._home.name, [(("the sentinel",), reply)])
        return reply == b"STORED"

    def _displaced(self, own: Sentinel, seen: Record | None) -> Exception:
        found = _record(self._read()[0])
        if found is None:
            return self._lost(self._loss_of_sentinel())
        return displaced(self.place, own, found.sentinel, None if seen is None else seen.sentinel)

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


def _record(data: bytes | None) -> Record | None:
    return None if data is None else decode_record(data)
