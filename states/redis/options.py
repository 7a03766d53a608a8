"""The options of a Redis state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from trident.errors import ConfigError
from trident.storekit import Account, Calls, Expiring, whole

__all__ = ["MAX_KEYS_PER_CALL", "RedisOptions"]

MAX_KEYS_PER_CALL = 3_900
"""A Lua call of Redis takes up to 7,999 arguments on its stack: two for each key."""

_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, repr=False, kw_only=True)
class RedisOptions(Calls, Account, Expiring):
    """The options of a Redis state; see `Calls`, `Account`, `Expiring` and `MapOptions` of `trident.storekit`.

    Attributes
    ----------
    url
        `redis://[user:password@]host:port/database`, `rediss://` (TLS), `unix://path`, or `redis+cluster://` and
        `rediss+cluster://` with one or several `host:port`, separated by commas. A query (`?health_check_interval=30`)
        is passed to redis-py.
    cluster
        True: the server is a node of a Redis cluster, as with `redis+cluster://`.
    cluster_buckets
        The number of hash tags, and so slots, over which a cluster spreads the keys of a state. It cannot change later.
    hash_key
        The Redis hash that holds all keys of the state, as fields; None: one Redis string for each key. With `ttl_s` the
        whole hash expires.
    prefix
        What every key starts with; None: `topology/state`. No control characters.
    allow_eviction
        True: keys that the server evicts during a commit (`maxmemory-policy`) are only warned of; evicted keys begin
        again as if they had never been written. False: the commit fails with `StateLossDetected`.
    user, password, database
        Used instead of those in the URL.
    tls
        True: as `rediss://`.
    tls_verify
        False accepts any certificate and any host name.
    retries
        While a cluster moves slots or replaces a node a call is sent again for `timeout_s`, whatever this says.
    max_keys_per_call
        1 … 3,900; one Lua call blocks the server for about 0.4 µs a key.
    """

    store: ClassVar[str] = "Redis"

    url: str = field(kw_only=False)
    cluster: bool = False
    cluster_buckets: int = whole(64, 1)
    hash_key: str | None = None
    prefix: str | None = None
    allow_eviction: bool = False
    database: int | None = whole(None, 0)
    tls_verify: bool = True
    max_keys_per_call: int = whole(1000, 1, MAX_KEYS_PER_CALL)

    def __post_init__(self) -> None:
        """Check the URL and the names too."""
        if self.scheme not in _SCHEMES or (self.clustered and self.scheme == "unix"):
            raise ConfigError(
                f"the URL of a Redis state starts with {self.scheme or 'no scheme'!r}; write redis://host:port/database, "
                "rediss:// (TLS), unix://path, redis+cluster://host:port,host:port or rediss+cluster://"
            )
        super().__post_init__()
        self._check_names()
        if self.clustered and self.database:
            raise self.refused("database", "a Redis cluster has database 0 only")
        if not self.tls_verify and not self.encrypts:
            raise self.refused("tls_verify", "there is no TLS; write rediss:// or tls=True")
        if self.tls and self.scheme == "unix":
            raise ConfigError("tls=True with a unix:// URL: a Unix socket has no TLS")

    @property
    def scheme(self) -> str:
        """The scheme of the URL, in lower case."""
        return urlsplit(self.url).scheme.lower() if isinstance(self.url, str) else ""

    @property
    def clustered(self) -> bool:
        """Whether the server is a cluster."""
        return self.cluster or self.scheme.endswith("+cluster")

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls or self.scheme.startswith("rediss")

    @property
    def buckets(self) -> int:
        """The number of hash tags; 1 without a cluster, where keys have no tag."""
        return self.cluster_buckets if self.clustered else 1

    def _check_names(self) -> None:
        for name in ("prefix", "hash_key"):
            value = getattr(self, name)
            if value is not None and (not value or any(char < " " for char in value)):
                raise self.refused(name, "give a text without control characters")
        if self.prefix is not None and self.hash_key is not None:
            raise ConfigError(
                f"prefix={self.prefix!r} and hash_key={self.hash_key!r}: a hash needs no prefix; give one"
            )
