"""Lists the keys of a state, and empties it: SCAN over the servers.

A cursor is valid in one server process only, and a key may move from a server that is not yet listed to one that is. So if a
connection broke or a slot was moved meanwhile, everything is listed once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from states.redis.layout import RedisLayout
from states.redis.wire import Call, Wire
from trident.errors import BackendError
from trident.state.interfaces import Key

Names = list[bytes]

_PAGE = 1000
_START = b"0"
_PASSES = 5


def key_pages(wire: Wire, layout: RedisLayout, what: str) -> Iterator[Sequence[Key]]:
    """Iterate over pages of distinct keys."""
    seen: set[bytes] = set()
    for names in _names_of(wire, layout, what):
        places = map(layout.place_of, names)
        encoded = list(dict.fromkeys(place[1] for place in places if place is not None and place[1] not in seen))
        if encoded:
            seen.update(encoded)
            yield layout.keys(encoded)


def empty(wire: Wire, layout: RedisLayout, what: str) -> None:
    """Remove all keys. The sentinels go first, so that no writer can write meanwhile."""
    doing = f"empty {what}"
    wire.run(doing, [_removal(bucket, [key]) for bucket, key in enumerate(layout.sentinel_keys)])
    wire.run(doing, [_removal(bucket, [key]) for bucket, key in enumerate(layout.change_keys)])
    for names in _names_of(wire, layout, what):
        buckets: dict[int, Names] = {}
        for name in names:
            place = layout.place_of(name)
            if place is not None:
                buckets.setdefault(place[0], []).append(name)
        wire.run(doing, [_removal(bucket, found) for bucket, found in buckets.items()])


def _removal(bucket: int, names: Names) -> Call:
    command = (b"UNLINK", *names)
    return Call(bucket, command, lambda _answer: None)


def _names_of(wire: Wire, layout: RedisLayout, what: str) -> Iterator[Names]:
    """Iterate over pages of names; a name may occur twice, and foreign names may occur too."""
    doing = f"list the keys of {what}"
    for _ in range(_PASSES):
        before = wire.persist(doing, wire.servers.placement)
        for server in wire.persist(doing, lambda: [link.name for link in wire.servers.primaries()]):
            yield from _names(wire, server, layout.scan_pattern(), doing)
        if wire.persist(doing, wire.servers.placement) == before:
            return
    raise BackendError(f"{doing}: slots were moved or connections broke each of {_PASSES} times; list them again")


def _names(wire: Wire, server: str, pattern: bytes, doing: str) -> Iterator[Names]:
    cursor = _START

    def page() -> tuple[bytes, Names] | None:
        for link in wire.servers.primaries():
            if link.name == server:
                (answer,) = link.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _PAGE))
                if isinstance(answer, Exception):
                    raise answer
                return answer[0], answer[1]
        return None  # it has left the cluster, so there will be another pass

    while (found := wire.persist(doing, page)) is not None:
        cursor, names = found
        yield names
        if cursor == _START:
            return
