"""The names of a state's keys in a cluster: each bucket of keys has a hash tag, and so a slot, of its own.

For each bucket b the names are those of `states/redis/layout.py` with the hash tag `{P:b}` (`{H:b}`) in place of P (H). The
sentinels are copied to each bucket, because a write is fenced in the slot where it happens; the hash of sentinels also has
the field "buckets", the number of buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

from states.redis.layout import KeyGroup, RedisLayout, escaped
from trident.errors import ConfigError
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key

__all__ = ["ClusterLayout"]


class ClusterLayout(RedisLayout):
    """The names of one state's keys in a cluster.

    Parameters
    ----------
    prefix
        P, or H if `hashed`.
    buckets
        Their number.
    """

    def __init__(self, prefix: str, buckets: int, hashed: bool, expires: bool) -> None:
        tag = prefix.replace("%", "%25").replace("}", "%7D")  # a closing brace would end the tag too early
        super().__init__([f"{{{tag}:{bucket}}}".encode() for bucket in range(buckets)], hashed, expires)
        self.recorded_buckets = b"%d" % buckets
        self._before_bucket = self.stems[0][: -len(b"0}")]

    def check_buckets(self, recorded: bytes | None, place: str) -> None:
        """Refuse a number of buckets that differs from the one recorded with the sentinels of `place`."""
        if recorded is not None and recorded != self.recorded_buckets:
            raise ConfigError(
                f"{place} is spread over {recorded.decode(errors='replace')} buckets, and cluster_buckets is "
                f"{self.buckets}; its keys would not be found. Give the recorded number"
            )

    def groups(self, keys: Sequence[Key], size: int) -> Iterator[KeyGroup]:
        """Group keys for calls of at most `size`, taking enough keys at a time to fill a call for each bucket."""
        stride = size * self.buckets
        for first in range(0, len(keys), stride):
            encoded = encode_keys(keys[first : first + stride])
            places: dict[int, list[int]] = {}
            for place, key in enumerate(encoded):
                places.setdefault(crc32(key) % self.buckets, []).append(place)
            for bucket, found in places.items():
                start = self._starts[bucket]
                for at in range(0, len(found), size):
                    some = found[at : at + size]
                    yield KeyGroup(
                        bucket, [first + place for place in some], [start + encoded[place] for place in some]
                    )

    def scan_pattern(self) -> bytes:
        """Return a glob that the names of all keys match, and few others."""
        return escaped(self._before_bucket) + b"*}:[\x01-\x1f]*"

    def place_of(self, name: bytes) -> tuple[int, bytes] | None:
        """Return the bucket and the encoded key of a name that a scan found; None if it is something else."""
        number = b"0" if self.hashed else name[len(self._before_bucket) :].partition(b"}")[0]
        bucket = int(number) if number.isdigit() else self.buckets
        if bucket >= self.buckets or not name.startswith(self._starts[bucket]):
            return None
        key = name[len(self._starts[bucket]) :]
        return (bucket, key) if b"" < key[:1] < b" " else None
