"""A correct store over a server of bytes, and stores that are wrong in one thing each.

`ServerMap` is written as a driver for a real server would be: encoded keys under a prefix, requests of bounded size, the
sentinel in the server, every request fenced. A wrong store overrides one method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trident.errors import BackendError, FencedError, StateError
from trident.state import CodecSerializer, Key, Sentinel, SerializedMap, StateConf, StateType, decode, encode
from trident.state.sentinel import displaced
from trident.testing import Limits, Promise

CHUNK = 100
LIMITS = Limits(chunk=CHUNK, repartitions=True, fences="all", lists=True, removes=True, resets=True)


class Server:
    """What survives the instances: entries and sentinels by name. A request is atomic."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[bytes, bytes] = {}
        self.sentinels: dict[str, Sentinel] = {}
        self.requests = 0


class ServerMap:
    """The correct store: an `IBackingMap` of bytes that keeps a sentinel, deletes, lists and is emptied."""

    chunk: ClassVar[int] = CHUNK

    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        self.server, self.conf = server, conf
        self.prefix = encode(conf.prefix)
        self.place = f"{conf.prefix}#{partition}"
        self.own: Sentinel | None = None
        self.seen: tuple[Sentinel | None] | None = None  # what was read or laid last

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        with self.server.lock:
            return [self.server.entries.get(self.name(key)) for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        for start in range(0, len(keys), self.chunk):
            some = slice(start, start + self.chunk)
            self.put_chunk([self.name(key) for key in keys[some]], values[some])

    def put_chunk(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        with self.server.lock:
            self.check_fence()
            self.write(names, values)

    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.server.entries.update(zip(names, values, strict=True))

    def check_fence(self) -> None:
        found = self.server.sentinels.get(self.place)
        if found != self.own:
            raise FencedError(f"put to {self.place}", str(self.own), str(found))

    def read_sentinel(self) -> Sentinel | None:
        with self.server.lock:
            self.seen = (self.server.sentinels.get(self.place),)
            return self.seen[0]

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        with self.server.lock:
            found = self.server.sentinels.get(self.place)
            self.compare(found, sentinel)
            if found is not None and not force and self.is_ahead(found, sentinel):
                raise FencedError(f"move the sentinel of {self.place}", str(sentinel), str(found))
            self.server.sentinels[self.place] = self.own = sentinel
            self.seen = (sentinel,)

    def compare(self, found: Sentinel | None, own: Sentinel) -> None:
        seen = found if self.seen is None else self.seen[0]
        if found != seen:
            raise displaced(f"move the sentinel of {self.place}", own, found, seen)

    def is_ahead(self, found: Sentinel, own: Sentinel) -> bool:
        return found.incarnation != own.incarnation or found.txid > own.txid or found.attempt > own.attempt

    def multi_delete(self, keys: Sequence[Key]) -> None:
        with self.server.lock:
            self.check_fence()
            for key in keys:
                self.server.entries.pop(self.name(key), None)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        with self.server.lock:
            names = [name for name in self.server.entries if name.startswith(self.prefix)]
        for start in range(0, len(names), self.chunk):
            yield [decode(name[len(self.prefix) :]) for name in names[start : start + self.chunk]]

    def reset(self) -> None:
        with self.server.lock:
            for name in [name for name in self.server.entries if name.startswith(self.prefix)]:
                del self.server.entries[name]
            self.server.sentinels.pop(self.place, None)
            self.own = self.seen = None

    def name(self, key: Key) -> bytes:
        return self.prefix + encode(key)


@dataclass(frozen=True)
class Factory:
    """Opens a store over one server."""

    store: Callable[[Server, StateConf, int], Any] = ServerMap
    kind: StateType = StateType.OPAQUE
    server: Server = field(default_factory=Server)

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        return SerializedMap(self.store(self.server, conf, partition_index), CodecSerializer(self.kind))


# ---- wrong in one thing each -----------------------------------------------------------------------------------------


class DropsTheLastKeyOfAChunk(ServerMap):
    def put_chunk(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        full = len(names) == self.chunk
        super().put_chunk(names[:-1] if full else names, values[:-1] if full else values)


class AnswersInTheOrderOfTheServer(ServerMap):
    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        return super().multi_get(sorted(keys, key=repr))


class ForgetsThatAKeyWasAskedTwice(ServerMap):
    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        return super().multi_get(list(dict.fromkeys(keys)))


class TakesNoneForAbsent(ServerMap):
    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        for name, value in zip(names, values, strict=True):
            stored = decode(value)
            if isinstance(stored, list) and stored[-1] is None:
                self.server.entries.pop(name, None)
            else:
                self.server.entries[name] = value


class TruncatesInts(ServerMap):
    bits: ClassVar[int] = 32

    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        super().write(names, [self.shortened(value) for value in values])

    def shortened(self, value: bytes) -> bytes:
        *rest, last = decode(value)
        if type(last) is int:
            last = (last + (1 << (self.bits - 1))) % (1 << self.bits) - (1 << (self.bits - 1))
        return encode([*rest, last])


class StoresNumbersAsDoubles(TruncatesInts):
    def shortened(self, value: bytes) -> bytes:
        *rest, last = decode(value)
        return encode([*rest, int(float(last)) if type(last) is int else last])


class IgnoresAnError(ServerMap):
    """The server refuses every 40th request; nobody hears of it."""

    def put_chunk(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.server.requests += 1
        if self.server.requests % 40:
            super().put_chunk(names, values)


class IgnoresThatAValueIsTooLarge(ServerMap):
    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        for name, value in zip(names, values, strict=True):
            if len(value) <= 1 << 20:
                self.server.entries[name] = value


class IgnoresTheFence(ServerMap):
    def put_chunk(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        try:
            super().put_chunk(names, values)
        except FencedError:
            return


class WritesBeforeFailing(ServerMap):
    def put_chunk(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        with self.server.lock:
            self.write(names, values)
            self.check_fence()


class RemembersBeforeWriting(ServerMap):
    """A cache that is filled first; the server refuses values above 1 MiB."""

    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        super().__init__(server, conf, partition)
        self.cache: dict[Key, bytes] = {}

    def begin(self, txid: int) -> None:
        pass

    def end(self, txid: int) -> None:
        self.cache = {}

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        return [self.cache.get(key, found) for key, found in zip(keys, super().multi_get(keys), strict=True)]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        self.cache.update(zip(keys, values, strict=True))
        if any(len(value) > 1 << 20 for value in values):
            raise BackendError(f"put {len(keys)} keys: a value is too large", retryable=False)
        super().multi_put(keys, values)


class CachesAcrossInstances(ServerMap):
    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        super().__init__(server, conf, partition)
        self.cache: dict[Key, bytes | None] = {}

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        missing = [key for key in keys if key not in self.cache]
        self.cache.update(zip(missing, super().multi_get(missing), strict=True))
        return [self.cache[key] for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        super().multi_put(keys, values)
        self.cache.update(zip(keys, values, strict=True))


class IsNotSafeForASecondWriter(ServerMap):
    def check_fence(self) -> None:
        pass


class SharesItsPrefix(ServerMap):
    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        super().__init__(server, conf, partition)
        self.prefix = encode(conf.topology)


class ConcatenatesItsPrefix(ServerMap):
    def name(self, key: Key) -> bytes:
        return (self.conf.prefix + "".join(map(str, key))).encode()


class EmptiesAllThatBeginsAlike(ServerMap):
    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        super().__init__(server, conf, partition)
        self.prefix = conf.prefix.encode()

    def key_pages(self) -> Iterator[Sequence[Key]]:
        length = len(self.prefix)
        with self.server.lock:
            names = [name[length:] for name in self.server.entries if name[: length + 1] == self.prefix + b"\x01"]
        yield [decode(name) for name in names]


class LosesBinaryKeys(ServerMap):
    def name(self, key: Key) -> bytes:
        parts = [("b", part.decode(errors="replace")) if isinstance(part, bytes) else part for part in key]
        return self.prefix + encode(parts)


# ---- wrong where nobody looks ----------------------------------------------------------------------------------------


class DropsAKeyOfLargePuts(ServerMap):
    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        super().multi_put(keys[: 1000 + (len(keys) > 5000) * 8000], values[: 1000 + (len(keys) > 5000) * 8000])


class MixesUpLargeReads(ServerMap):
    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        found = super().multi_get(keys)
        if len(found) > 1000:
            found[-1], found[-2] = found[-2], found[-1]
        return found


class WritesTheFirstCommitOnly(ServerMap):
    """Its second commit writes the first request of each put."""

    commits = 0

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        super().move_sentinel(sentinel, force)
        self.commits += 1

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        most = len(keys) if self.commits < 2 else self.chunk
        super().multi_put(keys[:most], values[:most])


class LosesTheEmptyText(ServerMap):
    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        empty = self.name(("",))
        for name, value in zip(names, values, strict=True):
            if name != empty:
                self.server.entries[name] = value


class KeepsTheSentinelInMemory(ServerMap):
    def read_sentinel(self) -> Sentinel | None:
        return self.own


class RemembersTheSentinel(ServerMap):
    known: Sentinel | None = None

    def read_sentinel(self) -> Sentinel | None:
        self.known = self.known or super().read_sentinel()
        return self.known

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        super().move_sentinel(sentinel, force)
        self.known = sentinel


class MovesTheSentinelBlindly(ServerMap):
    def compare(self, found: Sentinel | None, own: Sentinel) -> None:
        """Whatever was read, what is there now counts."""


class ForgetsTheSeal(ServerMap):
    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        super().move_sentinel(sentinel._replace(sealed=True), force)


class ForgetsThePlace(ServerMap):
    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        super().move_sentinel(sentinel._replace(place=""), force)


class SkipsAValueThatItWroteLast(ServerMap):
    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        super().__init__(server, conf, partition)
        self.last: dict[bytes, Any] = {}

    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        for name, value in zip(names, values, strict=True):
            curr = decode(value)[-1]
            if name not in self.last or self.last[name] != curr:
                self.server.entries[name] = value
            self.last[name] = curr


class LooksAtTheFenceInTheFirstChunkOnly(ServerMap):
    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        with self.server.lock:
            self.check_fence()
        for start in range(0, len(keys), self.chunk):
            some = slice(start, start + self.chunk)
            names = [self.name(key) for key in keys[some]]
            with self.server.lock:
                self.write(names, values[some])


class LooksAtTheFenceOncePerCommit(ServerMap):
    looked = False

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        super().move_sentinel(sentinel, force)
        self.looked = False

    def check_fence(self) -> None:
        if not self.looked:
            super().check_fence()
        self.looked = True


class FencesByTheBatchOnly(ServerMap):
    """An earlier attempt of the same batch may go on."""

    def check_fence(self) -> None:
        found = self.server.sentinels.get(self.place)
        if found is not None and (self.own is None or found.txid > self.own.txid):
            raise FencedError(f"put to {self.place}", str(self.own), str(found))


class DeletesWithoutAFence(ServerMap):
    def multi_delete(self, keys: Sequence[Key]) -> None:
        with self.server.lock:
            for key in keys:
                self.server.entries.pop(self.name(key), None)


class MovesTheSentinelBack(ServerMap):
    def is_ahead(self, found: Sentinel, own: Sentinel) -> bool:
        return found.attempt > own.attempt


class SharesOneSentinelAmongPartitions(ServerMap):
    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        super().__init__(server, conf, 0)


class ListsAKeyTwice(ServerMap):
    def key_pages(self) -> Iterator[Sequence[Key]]:
        last: list[Key] = []
        for page in super().key_pages():
            yield [*last, *page]
            last = list(page[-1:])


class FoldsCase(ServerMap):
    def name(self, key: Key) -> bytes:
        return self.prefix + encode([part.casefold() if isinstance(part, str) else part for part in key])


class StripsTrailingSpace(ServerMap):
    def name(self, key: Key) -> bytes:
        return self.prefix + encode([part.rstrip(" ") if isinstance(part, str) else part for part in key])


class CutsLongKeys(ServerMap):
    def name(self, key: Key) -> bytes:
        return super().name(key)[:250]


class TakesAnOutageForAbsence(ServerMap):
    """A read that fails is answered as if there were nothing."""

    down: ClassVar[bool] = False

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        return [None] * len(keys) if type(self).down else super().multi_get(keys)

    def put_chunk(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        if type(self).down:
            raise BackendError("put: no answer")
        super().put_chunk(names, values)


class LosesTheAttempt(ServerMap):
    """Storm's three fields: the attempt is not stored."""

    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        stored = [decode(value) for value in values]
        super().write(names, [encode([one[0], 1 << 20, *one[2:]] if len(one) == 4 else one) for one in stored])


class RaisesForAbsentKeys(ServerMap):
    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        found = super().multi_get(keys)
        if found and all(value is None for value in found):
            raise StateError("not found")
        return found


class ResetsItsSentinelNot(ServerMap):
    def reset(self) -> None:
        found = self.read_sentinel()
        super().reset()
        if found is not None:
            self.server.sentinels[self.place] = found


class LosesTheIncarnation(ServerMap):
    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        super().move_sentinel(sentinel._replace(incarnation="contract-log"), force)


class StripsTexts(ServerMap):
    def write(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        stored = [decode(value) for value in values]
        texts = [[*one[:-1], one[-1].strip()] if isinstance(one[-1], str) else one for one in stored]
        super().write(names, [encode(one) for one in texts])


class DropsPutsOfExactlyOneChunk(ServerMap):
    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        if len(keys) != self.chunk:
            super().multi_put(keys, values)


class ListsTheFirstPageOnly(ServerMap):
    def key_pages(self) -> Iterator[Sequence[Key]]:
        yield next(super().key_pages(), [])


class DeletesOneChunk(ServerMap):
    def multi_delete(self, keys: Sequence[Key]) -> None:
        super().multi_delete(keys[: self.chunk])


class MovesTheSentinelBeforeRefusing(ServerMap):
    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        found = self.read_sentinel()
        super().move_sentinel(sentinel, True)
        if found is not None and not force and self.is_ahead(found, sentinel):
            raise FencedError(f"move the sentinel of {self.place}", str(sentinel), str(found))


class ReadsOldValuesInReadOnlyInstances(ServerMap):
    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        if not self.conf.read_only:
            return super().multi_get(keys)
        if not hasattr(self, "copy"):
            self.copy = dict(self.server.entries)
        return [self.copy.get(self.name(key)) for key in keys]


WRONG: dict[type[ServerMap], Promise] = {
    # the ten that a store is most often wrong in
    DropsTheLastKeyOfAChunk: Promise.BULK,
    AnswersInTheOrderOfTheServer: Promise.ORDER,
    TakesNoneForAbsent: Promise.ABSENT,
    TruncatesInts: Promise.NUMBERS,
    IgnoresAnError: Promise.BULK,
    WritesBeforeFailing: Promise.FENCING,
    CachesAcrossInstances: Promise.REOPENED,
    IsNotSafeForASecondWriter: Promise.FENCING,
    SharesItsPrefix: Promise.PREFIX,
    LosesBinaryKeys: Promise.BINARY_KEYS,
    # variants of them
    ForgetsThatAKeyWasAskedTwice: Promise.ORDER,
    StoresNumbersAsDoubles: Promise.NUMBERS,
    IgnoresThatAValueIsTooLarge: Promise.ERRORS,
    IgnoresTheFence: Promise.FENCING,
    RemembersBeforeWriting: Promise.ERRORS,
    ConcatenatesItsPrefix: Promise.PREFIX,
    RaisesForAbsentKeys: Promise.ABSENT,
    # wrong where nobody looks
    DropsAKeyOfLargePuts: Promise.BULK,
    MixesUpLargeReads: Promise.BULK,
    WritesTheFirstCommitOnly: Promise.BULK,
    LosesTheEmptyText: Promise.KEYS,
    KeepsTheSentinelInMemory: Promise.SENTINEL,
    RemembersTheSentinel: Promise.SENTINEL,
    SkipsAValueThatItWroteLast: Promise.OVERWRITE,
    LooksAtTheFenceInTheFirstChunkOnly: Promise.FENCING,
    LooksAtTheFenceOncePerCommit: Promise.FENCING,
    FencesByTheBatchOnly: Promise.FENCING,
    DeletesWithoutAFence: Promise.FENCING,
    MovesTheSentinelBack: Promise.SENTINEL,
    MovesTheSentinelBlindly: Promise.SENTINEL,
    ForgetsTheSeal: Promise.SENTINEL,
    ForgetsThePlace: Promise.SENTINEL,
    SharesOneSentinelAmongPartitions: Promise.PARTITIONS,
    EmptiesAllThatBeginsAlike: Promise.RESET,
    ListsAKeyTwice: Promise.LISTING,
    FoldsCase: Promise.KEYS,
    StripsTrailingSpace: Promise.KEYS,
    CutsLongKeys: Promise.KEYS,
    LosesTheAttempt: Promise.RULES,
    ResetsItsSentinelNot: Promise.RESET,
    LosesTheIncarnation: Promise.SENTINEL,
    StripsTexts: Promise.VALUES,
    DropsPutsOfExactlyOneChunk: Promise.BULK,
    ListsTheFirstPageOnly: Promise.LISTING,
    DeletesOneChunk: Promise.REMOVAL,
    MovesTheSentinelBeforeRefusing: Promise.SENTINEL,
    ReadsOldValuesInReadOnlyInstances: Promise.REOPENED,
}
