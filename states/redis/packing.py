"""Commands as the bytes that Redis reads: many words in one join; words of several commands are packed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Command = tuple[Any, ...]
"""The words of a command: bytes, texts, whole numbers, and `Words`."""

_HEADS = [b"\r\n$%d\r\n" % size for size in range(1024)]


class Words:
    """Many words, packed.

    `count`: their number.
    `packed`: for each the end of the line before, its length, and itself.
    """

    __slots__ = ("count", "packed")

    def __init__(self, words: Sequence[bytes]) -> None:
        sizes = list(map(len, words))
        is_short = max(sizes, default=0) < len(_HEADS)
        pieces = [b""] * (2 * len(words))
        pieces[::2] = map(_HEADS.__getitem__ if is_short else _head, sizes)
        pieces[1::2] = words
        self.count, self.packed = len(words), b"".join(pieces)


def pack(command: Command) -> bytes:
    """Return the bytes of a command."""
    parts = [word if type(word) is Words else Words([_bytes(word)]) for word in command]
    return b"*%d%b\r\n" % (sum(part.count for part in parts), b"".join(part.packed for part in parts))


def _head(size: int) -> bytes:
    return b"\r\n$%d\r\n" % size


def _bytes(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
