"""The options of a Memcached state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trident.errors import ConfigError
from trident.redaction import Redacted
from trident.state.encoding.serializers import Serializer
from trident.state.interfaces import REPLAY_WINDOW_S, Key
from trident.state.snapshottable import DEFAULT_SNAPSHOT_KEY

__all__ = ["MemcachedOptions", "options_of"]

_LONGEST_EXPIRATION_S = 30 * 24 * 60 * 60  # the server takes a larger number for a date
_MOST_KEYS_PER_CALL = 10_000


@dataclass(frozen=True, repr=False)
class MemcachedOptions(Redacted):
    """How a Memcached state is kept.

    Attributes
    ----------
    servers
        `host:port` of each server, or the path of its Unix socket. A key lives on one of them, chosen by rendezvous
        hashing; a state that was written with another list is refused.
    key_prefix
        What every key starts with; None: `topology/state`.
    expiration_s
        Seconds after its last write at which a key is forgotten and starts anew; 0: never.
    allow_short_expiration
        Accept an `expiration_s` below a day: a batch that is replayed later than that finds other values than it left.
    on_eviction
        What evictions do: `"fail"` the batch with `StateLossDetected`, or `"warn"` and go on with what is left.
    serializer
        `"codec"`, `"json"`, `"storm"` or a `Serializer`.
    max_keys_per_call, max_bytes_per_call
        The bounds of one request: how many keys, and how many bytes of values are sent before replies are read.
    connect_timeout_s, timeout_s
        How long to wait for a connection, and for each answer.
    retries, backoff_s
        How often a read is tried again over a new connection, and the wait before, which doubles each time. Writes are
        not: the batch is replayed.
    cache
        How many entries of a partition are remembered between commits; 0: none.
    snapshot_key
        The key of the single value of an ungrouped aggregate.
    num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    """

    servers: tuple[str, ...] = ("127.0.0.1:11211",)
    key_prefix: str | None = None
    expiration_s: int = 0
    allow_short_expiration: bool = False
    on_eviction: Literal["fail", "warn"] = "fail"
    serializer: Serializer | str = "codec"
    max_keys_per_call: int = 1000
    max_bytes_per_call: int = 1 << 20
    connect_timeout_s: float = 3.0
    timeout_s: float = 5.0
    retries: int = 2
    backoff_s: float = 0.05
    cache: int = 0
    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY
    num_partitions: int | None = None

    def __post_init__(self) -> None:
        self._check_servers()
        if self.on_eviction not in ("fail", "warn"):
            raise ConfigError(f'on_eviction={self.on_eviction!r} of a Memcached state: give "fail" or "warn"')
        if not 1 <= self.max_keys_per_call <= _MOST_KEYS_PER_CALL or self.max_bytes_per_call < 1:
            raise ConfigError(
                f"max_keys_per_call={self.max_keys_per_call} and max_bytes_per_call={self.max_bytes_per_call} of a "
                f"Memcached state: give 1 to {_MOST_KEYS_PER_CALL} keys and at least 1 byte"
            )
        if self.connect_timeout_s <= 0 or self.timeout_s <= 0 or self.retries < 0 or self.backoff_s < 0:
            raise ConfigError(
                f"connect_timeout_s={self.connect_timeout_s}, timeout_s={self.timeout_s}, retries={self.retries} and "
                f"backoff_s={self.backoff_s} of a Memcached state: timeouts are above 0, the others not below 0"
            )
        self._check_expiration()

    def _check_servers(self) -> None:
        if not self.servers or len(set(self.servers)) != len(self.servers) or not all(self.servers):
            raise ConfigError(
                f"servers={list(self.servers)} of a Memcached state: give at least one host:port, and each once"
            )

    def _check_expiration(self) -> None:
        seconds = self.expiration_s
        if seconds < 0 or seconds > _LONGEST_EXPIRATION_S:
            raise ConfigError(
                f"expiration_s={seconds} of a Memcached state: give 0 (never) or at most {_LONGEST_EXPIRATION_S} "
                "(30 days, the server's limit)"
            )
        if 0 < seconds < REPLAY_WINDOW_S and not self.allow_short_expiration:
            raise ConfigError(
                f"expiration_s={seconds} of a Memcached state: a key that expires within a day may be gone when its "
                f"batch is replayed, and is then counted anew. Give at least {REPLAY_WINDOW_S}, or "
                "allow_short_expiration=True"
            )


def options_of(servers: str | Sequence[str] | MemcachedOptions, options: dict[str, Any]) -> MemcachedOptions:
    """Return the options that a call gave: servers (a list, or text with commas) and fields, or ready options."""
    if isinstance(servers, MemcachedOptions):
        return replace(servers, **options)
    names = servers.split(",") if isinstance(servers, str) else servers
    return MemcachedOptions(servers=tuple(name.strip() for name in names), **options)
