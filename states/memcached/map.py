"""The backing map of bytes over Memcached: reads in chunks, and writes that cannot undo another writer's.

Why a writer that was replaced does no harm
    Every write carries the token that the item had when this writer read it (`cas`; `add` where there was no item), and
    each chunk is preceded by a look at the sentinel *after* its tokens were read. A successor moves the sentinel before
    it writes. So if the look found the sentinel to be this writer's, every write of a successor comes after the tokens
    were read, changes them, and makes the late `cas` or `add` fail: what a successor wrote is never overwritten. What
    is left is the time between the look and the arrival of that one chunk: in it a replaced writer can still write keys
    that its successor has not written. Those values carry an attempt that lost, so an opaque state uses the value
    before them; in a transactional state they are what the successor's own replay writes.

`fence.py` detects losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from states.memcached.fence import CommitGuard
from states.memcached.key_names import Named, Names, prefix_of
from states.memcached.options import MemcachedOptions
from states.memcached.servers import CHANGED, MemcachedConnection, Servers, write_error
from trident.errors import BackendError
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.interfaces import Key, StateConf
from trident.state.txid import Sentinel, Txid
from trident.storekit import refuse_read_only

_AT_ONCE = b"-1"  # an item that has expired when it is stored: a delete with a condition, in one request


class MemcachedMap(BackingMap):
    """A map of bytes that keeps its own sentinel. Used by one thread at a time; connects on first use.

    Parameters
    ----------
    options
        See `MemcachedOptions`.
    conf
        The prefix of the state.
    partition
        Its number; only the sentinel's name depends on it.
    """

    facts = MapFacts(shares_keys=True)

    def __init__(self, options: MemcachedOptions, conf: StateConf, partition: int = 0) -> None:
        self._state, self._read_only = conf.prefix, conf.read_only
        self._names, self._servers = Names(prefix_of(conf, options.prefix)), Servers(options)
        self._guard = CommitGuard(self._servers, self._names, options, conf, partition)
        self._expiration = b"%d" % (options.ttl_s or 0)
        self._committing = False
        self._named: tuple[list[Key], Named] = ([], Named([], {}))

    # ---- reading and writing ---------------------------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        named, values = self._names_of(keys), dict[bytes, bytes]()
        for connection, chunk in self._servers.chunks(named.names):
            self._read(connection, [named.names[at] for at in chunk], values)
        return named.unwrap(keys, values)

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        """Write many keys, in chunks; `StateLossDetected` also if the epoch of a server is gone."""
        self._refuse_read_only(f"write {len(keys)} keys")
        named = self._names_of(keys)
        names, stored = named.names, named.wrap(values)
        for connection, chunk in self._servers.chunks(names, stored):
            self._write(connection, [keys[at] for at in chunk], [names[at] for at in chunk],
                        [stored[at] for at in chunk], self._expiration)  # fmt: skip

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete many keys that are there; fenced as `multi_put` is."""
        self._refuse_read_only(f"delete {len(keys)} keys")
        names, _ = self._names.of(keys)
        for connection, chunk in self._servers.chunks(names):
            self._learn_tokens(connection, [names[at] for at in chunk])
            there = [at for at in chunk if connection.tokens[names[at]] is not None]
            if there:
                self._write(connection, [keys[at] for at in there], [names[at] for at in there],
                            [b""] * len(there), _AT_ONCE)  # fmt: skip

    def _names_of(self, keys: Sequence[Key]) -> Named:
        """Return the names of keys. A commit writes the keys that it has read, so they are made only once."""
        known, names = self._named
        # The same objects: equal ones, such as 1 and True, have other names.
        if len(known) != len(keys) or not all(map(is_, known, keys)):
            names = self._names.of(keys)
            self._named = (list(keys), names) if self._committing else ([], Named([], {}))
        return names

    def _read(self, connection: MemcachedConnection, names: list[bytes], values: dict[bytes, bytes]) -> None:
        found = connection.gets([self._names.epoch, *names])
        record = found.pop(self._names.epoch, None)
        epoch = b"0" if record is None else record.data
        if self._committing:
            self._guard.check_epoch(connection, epoch)
            connection.remember(names, found)
        if record is not None:
            values.update({name: data for name, (flags, data, _) in found.items() if flags == epoch})

    def _write(
        self,
        connection: MemcachedConnection,
        keys: list[Key],
        names: list[bytes],
        values: list[bytes],
        expiration: bytes,
    ) -> None:
        flags, tokens = self._guard.flags_on(connection), connection.tokens
        self._learn_tokens(connection, names)
        self._guard.check_own()  # after the tokens were read, before the writes are sent: see the top of the module
        if not all(map(tokens.__contains__, names)):
            raise BackendError(
                f"write to state {self._state!r}: the connection to memcached server {connection.name} ended before the "
                "chunk was sent; the batch may be replayed"
            )
        replies = connection.write(names, flags, expiration, values, list(map(tokens.pop, names)))
        if replies.count(b"STORED") != len(replies):
            failed = [(key, reply) for key, reply in zip(keys, replies, strict=True) if reply != b"STORED"]
            if any(reply in CHANGED for _, reply in failed):
                self._guard.check_own()
                self._guard.check_health()
            raise write_error(self._state, connection.name, failed)

    def _learn_tokens(self, connection: MemcachedConnection, names: list[bytes]) -> None:
        unknown = [name for name in names if name not in connection.tokens]
        if unknown:
            connection.remember(unknown, connection.gets(unknown))

    # ---- the commit -------------------------------------------------------------------------------------------------

    def begin(self, txid: Txid) -> None:
        """Forget the tokens of an earlier commit; without a log, take the servers as they are now."""
        self._refuse_read_only("begin a commit")
        self._forget_tokens()
        self._guard.begin(txid)
        self._committing = True

    def end(self, txid: Txid) -> None:
        """Look once more at the sentinel and at every server: what was acknowledged must still be there."""
        self._committing = False
        self._forget_tokens()
        self._guard.check_own()
        self._guard.check_health()

    def read_sentinel(self) -> Sentinel | None:
        self._committing = False
        return self._guard.read_sentinel()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        self._refuse_read_only("move the sentinel")
        self._guard.move_sentinel(sentinel, force)

    def reset(self) -> None:
        """Forget every key of the state, in all partitions, and the sentinel of this one."""
        self._refuse_read_only("empty the state")
        self._committing = False
        self._forget_tokens()
        self._guard.erase()

    def close(self) -> None:
        self._servers.close()

    def _refuse_read_only(self, doing: str) -> None:
        refuse_read_only(self._read_only, doing, self._guard.place)

    def _forget_tokens(self) -> None:
        self._named = ([], Named([], {}))
        for connection in self._servers.connections:
            connection.tokens.clear()
