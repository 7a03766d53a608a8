"""What keys are called in Memcached: at most 250 bytes, without spaces and control characters, another one for each key.

`prefix:the` is a key of one field that is short plain ASCII text, and does not start with `=` or `#`; `prefix:=AZGhYQ` any
other, the encoded key as URL-safe base64; `prefix:#` and 64 hexadecimal digits one that would be too long, its BLAKE2b hash.
A hash does not give the key back, so the value of such a name starts with the encoded key, which is compared when it is read.
"""

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote

from trident.errors import ConfigError, CorruptValueError
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key, StateConf
from trident.storekit import by_count

MAX_NAME_BYTES = 250  # the longest name that a server takes
_LONGEST_PREFIX = 120
_TOGETHER = 1000
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Named(NamedTuple):
    """The names of keys, in order; for those at the places in `hashed`, the encoded key that the value must start with."""

    names: list[bytes]
    hashed: dict[int, bytes]

    def wrap(self, values: Sequence[bytes]) -> list[bytes]:
        stored = list(values)
        for at, encoded in self.hashed.items():
            stored[at] = len(encoded).to_bytes(4, "big") + encoded + stored[at]
        return stored

    def unwrap(self, keys: Sequence[Key], stored: Mapping[bytes, bytes]) -> list[bytes | None]:
        """Return the values of keys that were found under their names; `CorruptValueError`: one is of another key."""
        found = list(map(stored.get, self.names))
        for at, encoded in self.hashed.items():
            data, head = found[at], len(encoded).to_bytes(4, "big") + encoded
            if data is not None and not data.startswith(head):
                raise CorruptValueError(
                    f"read key {keys[at]!r:.80} from Memcached: the value under the hash of this long key belongs to another "
                    "key, or to another program. Use another prefix, or shorter keys"
                )
            found[at] = None if data is None else data[len(head) :]
        return found


def prefix_of(conf: StateConf, prefix: str | None) -> str:
    """Return what the names of a state start with, percent-encoded, so that none is the beginning of another's names."""
    if prefix is None:
        prefix = f"{quote(conf.topology, safe='')}/{quote(conf.state, safe='')}"
    else:
        prefix = quote(prefix, safe="/")
    if not prefix or len(prefix) > _LONGEST_PREFIX:
        raise ConfigError(
            f"the key prefix of Memcached state {conf.prefix!r} is {prefix[:200]!r}, {len(prefix)} bytes: the server's "
            f"names are short, so give a prefix of 1 to {_LONGEST_PREFIX} bytes"
        )
    return prefix


class Names:
    """The names of one state; `space` tells apart what several caches keep under one prefix."""

    def __init__(self, prefix: str, space: str = "") -> None:
        self._state = prefix.encode("ascii")
        self._head = self._state + (b"!" + space.encode("ascii") if space else b"") + b":"
        longest = MAX_NAME_BYTES - len(self._head)
        plain = rf"[!-\"$-<>-~][!-~]{{0,{longest - 1}}}"
        self._plain, self._all_plain = re.compile(plain).fullmatch, re.compile(rf"{plain}(?:\n{plain})*").fullmatch
        self._longest_base64 = longest - 1

    @property
    def epoch(self) -> bytes:
        """The name of the record that says which values of a server count; the same on every server."""
        return self._state + b"!epoch"

    def sentinel(self, partition: int) -> bytes:
        return b"%b!sentinel-%d" % (self._state, partition)

    def of(self, keys: Sequence[Key]) -> Named:
        names = [name for some in by_count(keys, _TOGETHER) for name in self._plain_of(some)]
        others = [at for at, name in enumerate(names) if not name]
        hashed: dict[int, bytes] = {}
        for at, data in zip(others, encode_keys([keys[at] for at in others]), strict=True):
            text = b2a_base64(data, newline=False).translate(_URL_SAFE).rstrip(b"=")
            if len(text) <= self._longest_base64:
                names[at] = self._head + b"=" + text
            else:
                names[at] = self._head + b"#" + blake2b(data, digest_size=32).hexdigest().encode("ascii")
                hashed[at] = data
        return Named(names, hashed)

    def _plain_of(self, keys: Sequence[Key]) -> list[bytes]:
        """Return the names of keys that are plain text, b"" in place of the others."""
        texts = [key[0] if len(key) == 1 and type(key[0]) is str else "" for key in keys]
        head, lines = self._head, "\n".join(texts)
        if self._all_plain(lines) and lines.count("\n") == len(texts) - 1:
            return (head + lines.encode("ascii").replace(b"\n", b"\n" + head)).split(b"\n")
        return [head + text.encode("ascii") if self._plain(text) else b"" for text in texts]
