r"""The names of the keys of a Redis state, on one server and in a cluster. Nothing here talks to a server.

One string for each key, P being the prefix::

    P:<key>              the value; <key> is the key's encoding, whose first byte is a control character
    P:sentinels          hash: partition number -> JSON [incarnation, txid, attempt, renewal, sealed, place], and run if it
                         is of a task of Spark's; and, while a commit is under way, "<partition>:calls" -> the number of
                         its writes

One hash for each key that its owner can read (`layout="fields"`, `plain_hashes.py`)::

    P:<text of the key>  hash: <field of the value> -> text, _txid, _attempt, _before
    P:\sentinels        hash, as P:sentinels; no text of a key has a backslash before a letter but N

What batches have changed, with `changes=` (`change_stream.py`)::

    P:changes, P:\changes with layout="fields"    stream: an entry for each call that writes

In a cluster there are these keys for each bucket; one server has one bucket. No name
has control characters, so no state's keys start like another's.

The names of a state's keys in a cluster: each bucket of keys has a hash tag, and so a slot, of its own.

For each bucket b the names are the same as in `RedisLayout` with the hash tag `{P:b}` in place of P. The sentinels are
copied to each bucket, because a write is fenced in the slot where it happens; the hash of sentinels also has the field
"buckets", the number of buckets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from states.redis.plain_hashes import PlainHashes
from trident.errors import ConfigError
from trident.state.encoding.codec import decode_keys, encode_keys
from trident.state.interfaces import Key
from trident.storekit import FieldsCodec

SENTINEL = FieldsCodec(("incarnation", "txid", "attempt", "renewal", "sealed", "place", "run"))
"""The record of a sentinel, with the number of its renewal as a note."""

_PLAIN_SENTINELS, _PLAIN_CHANGES = b":\\sentinels", b":\\changes"
_ODD = re.compile(r"[\x00-\x1f%]")
_GLOB = re.compile(rb"([\\*?\[\]^-])")


class RedisLayout:
    """The names of one state's keys.

    `prefix`: P.
    `buckets`: how many there are in a cluster; None: on one server there is one, which has no tag.
    `plain`: the names of keys in `layout="fields"`.
    """

    def __init__(self, prefix: str, buckets: int | None = None, plain: PlainHashes | None = None) -> None:
        tag = prefix.replace("%", "%25").replace("}", "%7D")  # a closing brace would end the tag too early
        if buckets is None:
            stems, before, tags = [prefix.encode()], f"{prefix}:".encode(), b""
        else:
            stems = [f"{{{tag}:{bucket}}}".encode() for bucket in range(buckets)]
            before, tags = f"{{{tag}:".encode(), b"*}:"
        # Recorded with each sentinel, so that no other number of buckets is used; one server records nothing.
        self.recorded_buckets = b"" if buckets is None else b"%d" % buckets
        own, other, changes, glob = b":sentinels", _PLAIN_SENTINELS, b":changes", b"[\x01-\x1f]*"
        if plain is not None:
            own, other, changes, glob = other, own, _PLAIN_CHANGES, b"*"
        self.stems, self.buckets, self.plain, self._before = stems, len(stems), plain, len(before)
        self.starts = [stem + b":" for stem in stems]  # of the names of a bucket's keys
        self._bucket_of = {start: bucket for bucket, start in enumerate(self.starts)}
        self.sentinel_keys = [stem + own for stem in stems]
        self.other_sentinels = [stem + other for stem in stems]
        self.change_keys = [stem + changes for stem in stems]
        self.named: Callable[..., list[bytes]] = encode_keys if plain is None else plain.names
        self.scan_pattern = _GLOB.sub(rb"\\\1", before) + tags + glob
        """The glob that the names of all keys match, and few others."""

    def check_buckets(self, recorded: bytes | None, place: str) -> None:
        """Refuse a number of buckets that differs from the one recorded with the sentinels of `place`."""
        if self.recorded_buckets and recorded is not None and recorded != self.recorded_buckets:
            raise ConfigError(
                f"{place} is spread over {recorded.decode(errors='replace')} buckets, and cluster_buckets is "
                f"{self.buckets}; its keys would not be found. Give the recorded number"
            )

    def place_of(self, name: bytes) -> tuple[int, bytes] | None:
        """Return the bucket and the encoded key of a name that a scan found; None if it is something else."""
        end = name.find(b"}:", self._before) + 2 if self.recorded_buckets else self._before
        bucket, key = self._bucket_of.get(name[:end]), name[end:]
        own = (_PLAIN_SENTINELS, _PLAIN_CHANGES)
        is_key = b"" < key[:1] < b" " if self.plain is None else b":" + key not in own
        return None if bucket is None or not is_key else (bucket, key)

    def keys(self, encoded: Sequence[bytes]) -> list[Key]:
        return decode_keys(encoded) if self.plain is None else self.plain.keys(encoded)


def default_prefix(topology: str, state: str) -> str:
    """Return `topology/state`; a slash in the topology's name, and control characters, are percent-encoded."""
    return f"{_ODD.sub(_percent, topology).replace('/', '%2F')}/{_ODD.sub(_percent, state)}"


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
