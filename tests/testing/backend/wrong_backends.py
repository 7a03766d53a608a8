"""A correct store over a server of bytes, and stores that are wrong in one thing each.

`ServerMap` is written as a driver for a real server would be: encoded keys under a prefix, requests of bounded size, the
sentinel in the server, every request fenced. A wrong store has one line of it changed.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from tests.harness.crashing_stores import DictMap
from tests.testing.mutated_classes import mutated
from trident.errors import BackendError, FencedError, StateError
from trident.state import CodecSerializer, Key, Sentinel, SerializedMap, StateConf, StateType, decode, encode
from trident.state.sentinel import displaced
from trident.testing import Limits, Promise

CHUNK = 100
LIMITS = Limits(chunk=CHUNK, repartitions=True, fences="all", lists=True, removes=True, resets=True)
LARGEST = 1 << 21


class Server:
    """What survives the instances: entries and sentinels by name. A request is atomic."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[bytes, bytes] = {}
        self.sentinels: dict[str, Sentinel] = {}
        self.requests = itertools.count(1)
        self.is_down = False


class ServerMap:
    """The correct store: an `IBackingMap` of bytes that keeps a sentinel, deletes, lists and is emptied."""

    chunk: ClassVar[int] = CHUNK

    def __init__(self, server: Server, conf: StateConf, partition: int) -> None:
        self.server, self.conf = server, conf
        self.prefix = encode(conf.prefix)
        self.place = f"{conf.prefix}#{partition}"
        self.own: Sentinel | None = None
        self.seen: tuple[Sentinel | None] | None = None  # what was read or laid last
        self.kept: dict[Any, Any] = {}  # what a wrong store remembers

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        names = [self.name(key) for key in keys]
        with self.server.lock:
            return [self.server.entries.get(name) for name in names]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        pairs = [(self.name(key), value) for key, value in zip(keys, values, strict=True)]
        if any(len(value) > LARGEST for value in values):
            raise BackendError(f"put {len(keys)} keys: a value is too large", retryable=False)
        for start in range(0, len(pairs), self.chunk):
            self.put_chunk(start, pairs[start : start + self.chunk])

    def put_chunk(self, start: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        with self.server.lock:
            self.check_fence("put")
            self.server.entries.update(pairs)

    def check_fence(self, what: str) -> None:
        found = self.server.sentinels.get(self.place)
        if self.server.is_down:
            raise BackendError(f"{what}: no answer")
        if found != self.own:
            raise FencedError(f"{what} {self.place}", str(self.own), str(found))

    def read_sentinel(self) -> Sentinel | None:
        with self.server.lock:
            self.seen = (self.server.sentinels.get(self.place),)
            return self.seen[0]

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        with self.server.lock:
            found = self.server.sentinels.get(self.place)
            seen = found if self.seen is None else self.seen[0]
            if found != seen:
                raise displaced(f"move the sentinel of {self.place}", sentinel, found, seen)
            if found is not None and not force and self.is_ahead(found, sentinel):
                raise FencedError(f"move the sentinel of {self.place}", str(sentinel), str(found))
            self.server.sentinels[self.place] = self.own = sentinel
            self.seen = (sentinel,)

    def is_ahead(self, found: Sentinel, own: Sentinel) -> bool:
        return found.incarnation != own.incarnation or found.txid > own.txid or found.attempt > own.attempt

    def multi_delete(self, keys: Sequence[Key]) -> None:
        with self.server.lock:
            self.check_fence("delete")
            for key in keys:
                self.server.entries.pop(self.name(key), None)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        with self.server.lock:
            names = [name for name in self.server.entries if name.startswith(self.prefix)]
        for start in range(0, len(names), self.chunk):
            yield [decode(name[len(self.prefix) :]) for name in names[start : start + self.chunk]]

    def reset(self) -> None:
        with self.server.lock:
            for name in list(filter(lambda name: name.startswith(self.prefix), self.server.entries)):
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


Entries = dict[str, dict[Key, Any]]


def over(entries: Entries, store: type[DictMap] = DictMap) -> Any:
    """Return what opens a store of two methods over dicts, one for each prefix."""
    return lambda conf, partition, partitions: store(entries.setdefault(conf.prefix, {}))


class TakesAnOutageForAbsence(ServerMap):
    """A read that fails is answered as if there were nothing."""

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        return [None] * len(keys) if self.server.is_down else super().multi_get(keys)


def changed(value: bytes, kind: type, change: Callable[[Any], Any]) -> bytes:
    """Return a stored value with another current value, if that is of a type."""
    *rest, last = decode(value)
    return encode([*rest, change(last) if type(last) is kind else last])


def fail(text: str) -> NoReturn:
    raise StateError(text)


PAIR, WRITE = "(self.name(key), value) for", "self.server.entries.update(pairs)"
FENCED_WRITE = f'self.check_fence("put")\n            {WRITE}'
PAIRS, READ = "zip(keys, values, strict=True)]", "self.server.entries.get(name) for"
ANSWER = f"return [{READ} name in names]"
NAME, FENCE = "return self.prefix + encode(key)", "if found != self.own:"
LAY, LOOK = (
    "self.server.sentinels[self.place] = self.own = sentinel",
    "self.seen = (self.server.sentinels.get(self.place),)",
)
AHEAD = "if found is not None and not force and self.is_ahead(found, sentinel):"


def putting(which: str) -> tuple[str, str]:
    """Return the change of a store that writes some of the pairs of a request."""
    return WRITE, f"self.server.entries.update((name, value) for name, value in pairs if {which})"


def answering(what: str) -> tuple[str, str]:
    """Return the change of a store that makes another answer of what it has found."""
    return ANSWER, f"found = {ANSWER.removeprefix('return ')}\n            return {what}"


def naming(part: str, of: str) -> tuple[str, str]:
    """Return the change of a store that names keys with their parts of a type changed."""
    return NAME, f"return self.prefix + encode([{part} if isinstance(part, {of}) else part for part in key])"


CHANGES: dict[str, tuple[Promise, *tuple[tuple[str, str], ...]]] = {
    # the ten that a store is most often wrong in
    "DropsTheLastKeyOfAChunk": (Promise.BULK, ("pairs[start : start + self.chunk]", "pairs[start : start + self.chunk - 1]")),
    "AnswersInTheOrderOfTheServer": (
        Promise.ORDER, ("names = [self.name(key) for key in keys]", "names = sorted(map(self.name, keys))")
    ),
    "TakesNoneForAbsent": (
        Promise.ABSENT, answering("[None if one is None or decode(one)[-1] is None else one for one in found]")
    ),
    "TruncatesInts": (
        Promise.NUMBERS, (PAIR, "(self.name(key), changed(value, int, lambda n: (n + 2**31) % 2**32 - 2**31)) for")
    ),
    "IgnoresAnError": (Promise.BULK, putting("name != pairs[0][0] or next(self.server.requests) % 40")),
    "WritesBeforeFailing": (Promise.FENCING, (FENCED_WRITE, f'{WRITE}\n            self.check_fence("put")')),
    "CachesAcrossInstances": (
        Promise.REOPENED, (READ, "self.kept.setdefault(name, self.server.entries.get(name)) for"),
        (WRITE, f"{WRITE}\n            self.kept.update(pairs)"),
    ),
    "IsNotSafeForASecondWriter": (Promise.FENCING, (FENCE, "if False:")),
    "SharesItsPrefix": (Promise.PREFIX, ("encode(conf.prefix)", "encode(conf.topology)")),
    "LosesBinaryKeys": (Promise.BINARY_KEYS, naming('("b", part.decode(errors="replace"))', "bytes")),
    # variants of them
    "ForgetsThatAKeyWasAskedTwice": (Promise.ORDER, (ANSWER, ANSWER.replace("in names", "in dict.fromkeys(names)"))),
    "StoresNumbersAsDoubles": (
        Promise.NUMBERS, (PAIR, "(self.name(key), changed(value, int, lambda n: int(float(n)))) for")
    ),
    "IgnoresThatAValueIsTooLarge": (
        Promise.ERRORS, ("if any(len(value) > LARGEST for value in values):", "if False:"), putting("len(value) <= LARGEST")
    ),
    "IgnoresTheFence": (
        Promise.FENCING,
        ('self.check_fence("put")', "if self.server.sentinels.get(self.place) != self.own: return"),
    ),
    "RemembersBeforeWriting": (
        Promise.ERRORS, (READ, "self.kept.get(name, self.server.entries.get(name)) for"),
        (PAIRS, f"{PAIRS}\n        self.kept = dict(pairs)"),
    ),
    "ConcatenatesItsPrefix": (Promise.PREFIX, (NAME, 'return (self.conf.prefix + "".join(map(str, key))).encode()')),
    "RaisesForAbsentKeys": (Promise.ABSENT, answering('found if any(found) or not found else fail("not found")')),
    # wrong where one does not look
    "DropsAKeyOfLargePuts": (Promise.BULK, (PAIRS, f"{PAIRS}[: 1000 + (len(keys) > 5000) * 8000]")),
    "MixesUpLargeReads": (
        Promise.BULK, answering("found if len(found) <= 1000 else [*found[:-2], found[-1], found[-2]]")
    ),
    "WritesTheFirstCommitOnly": (  # of later ones the first request
        Promise.BULK, ("range(0, len(pairs),", "range(0, len(pairs) if self.own.txid < 2 else 1,")
    ),
    "LosesTheEmptyText": (Promise.KEYS, putting('name != self.name(("",))')),
    "KeepsTheSentinelInMemory": (Promise.SENTINEL, (LOOK, "self.seen = (self.own,)")),
    "RemembersTheSentinel": (Promise.SENTINEL, (LOOK, LOOK.replace("= (", "= self.seen or ("))),
    "SkipsAValueThatItWroteLast": (
        Promise.OVERWRITE,
        putting("self.kept.get(name, self) != decode(value)[-1] and not self.kept.update({name: decode(value)[-1]})"),
    ),
    "LooksAtTheFenceInTheFirstChunkOnly": (
        Promise.FENCING, ('self.check_fence("put")', 'start or self.check_fence("put")')
    ),
    "LooksAtTheFenceOncePerCommit": (
        Promise.FENCING,
        ('self.check_fence("put")', 'self.kept.get(self.own) or self.check_fence("put") or self.kept.update({self.own: True})'),
    ),
    "FencesByTheBatchOnly": (  # an earlier attempt of the same batch may go on
        Promise.FENCING, (FENCE, "if found is not None and (self.own is None or found.txid > self.own.txid):")
    ),
    "DeletesWithoutAFence": (Promise.FENCING, ('self.check_fence("delete")', "pass")),
    "MovesTheSentinelBack": (
        Promise.SENTINEL, ("found.incarnation != own.incarnation or found.txid > own.txid or found.attempt", "found.attempt")
    ),
    "MovesTheSentinelBlindly": (Promise.SENTINEL, ("if found != seen:", "if False:")),
    "ForgetsTheSeal": (Promise.SENTINEL, (LAY, f"{LAY} = sentinel._replace(sealed=True)")),
    "ForgetsThePlace": (Promise.SENTINEL, (LAY, f'{LAY} = sentinel._replace(place="")')),
    "SharesOneSentinelAmongPartitions": (Promise.PARTITIONS, ("#{partition}", "#0")),
    "EmptiesAllThatBeginsAlike": (Promise.RESET, ("encode(conf.prefix)", "conf.prefix.encode()")),
    "ListsAKeyTwice": (Promise.LISTING, ("names[start : start", "names[max(0, start - 1) : start")),
    "FoldsCase": (Promise.KEYS, naming("part.casefold()", "str")),
    "StripsTrailingSpace": (Promise.KEYS, naming('part.rstrip(" ")', "str")),
    "CutsLongKeys": (Promise.KEYS, (NAME, "return (self.prefix + encode(key))[:250]")),
    "LosesTheAttempt": (  # Storm's three fields
        Promise.RULES, (PAIR, "(self.name(key), encode([decode(value)[0], 1 << 20, *decode(value)[2:]])) for")
    ),
    "ResetsItsSentinelNot": (Promise.RESET, ("self.server.sentinels.pop(self.place, None)", "pass")),
    "LosesTheIncarnation": (Promise.SENTINEL, (LAY, f'{LAY} = sentinel._replace(incarnation="contract-log")')),
    "StripsTexts": (Promise.VALUES, (PAIR, "(self.name(key), changed(value, str, str.strip)) for")),
    "DropsPutsOfExactlyOneChunk": (Promise.BULK, (PAIRS, f"{PAIRS}[: None if len(keys) != self.chunk else 0]")),
    "ListsTheFirstPageOnly": (Promise.LISTING, ("range(0, len(names),", "range(0, min(1, len(names)),")),
    "DeletesOneChunk": (Promise.REMOVAL, ("for key in keys:\n", "for key in keys[: self.chunk]:\n")),
    "MovesTheSentinelBeforeRefusing": (
        Promise.SENTINEL, (AHEAD, f"self.server.sentinels[self.place] = sentinel\n            {AHEAD}")
    ),
    "ReadsOldValuesInReadOnlyInstances": (
        Promise.REOPENED, (ANSWER, f"self.kept = self.kept or dict(self.server.entries)\n            {ANSWER}"),
        (READ, "(self.kept if self.conf.read_only else self.server.entries).get(name) for"),
    ),
}  # fmt: skip
WRONG: dict[str, tuple[Any, Promise]] = {
    name: (mutated(globals(), ServerMap, name, *changes), promise) for name, (promise, *changes) in CHANGES.items()
}
