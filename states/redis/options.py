"""The options of a Redis state."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from trident.errors import ConfigError
from trident.redaction import SECRET, Redacted
from trident.state.encoding.serializers import Serializer
from trident.state.interfaces import REPLAY_WINDOW_S, Key
from trident.state.snapshottable import DEFAULT_SNAPSHOT_KEY

__all__ = ["MAX_KEYS_PER_CALL", "RedisOptions"]

MAX_KEYS_PER_CALL = 3_900
"""A Lua call of Redis takes up to 7,999 arguments on its stack: two for each key."""

_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, repr=False)
class RedisOptions(Redacted):
    """How a Redis state is reached and kept.

    Attributes
    ----------
    url
        `redis://[user:password@]host:port/database`, `rediss://` (TLS), `unix://path`, or `redis+cluster://` and
        `rediss+cluster://` with one or several `host:port`, separated by commas. A query (`?health_check_interval=30`)
        is passed to redis-py.
    cluster
        True: the server is a node of a Redis cluster, as with `redis+cluster://`.
    cluster_buckets
        Over how many hash tags, so slots, the keys of a state are spread in a cluster. It cannot be changed later.
    hash_key
        The Redis hash that holds all keys of the state, as fields; None: one Redis string for each key.
    prefix
        What every key starts with; None: `topology/state`. No control characters.
    ttl_s
        Seconds after its last write in which a key expires (with `hash_key`: the whole hash); None: never. An expired
        key starts anew as if it had never been written, so a count begins again at 0. The sentinel never expires.
    allow_short_ttl
        True accepts a `ttl_s` below a day. A batch that is replayed after such an expiry counts from 0.
    allow_eviction
        True: keys that the server evicts during a commit (`maxmemory-policy`) are only warned of; evicted keys start
        anew. False: the commit fails with `StateLossDetected`.
    username, password, database
        Used in place of what the URL says.
    tls
        True: as `rediss://`.
    tls_ca_file, tls_cert_file, tls_key_file
        PEM files: the authorities to trust (None: the system's), and this client's own certificate and key.
    tls_verify
        False accepts any certificate and any host name.
    connect_timeout_s, timeout_s
        Seconds to wait for a connection, and for each answer.
    retries
        How often a call is sent again after a lost connection or a timeout, before the batch fails; 0: never. While a
        cluster moves slots or replaces a node it is sent again for `timeout_s`, whatever this says.
    backoff_s, max_backoff_s
        Seconds before the first of these, and at most before a later one; each waits twice as long, with jitter.
    max_keys_per_call
        Keys in one call, 1 … 3,900; one Lua call blocks the server for about 0.4 µs a key.
    max_bytes_per_call
        Bytes of values in one call that writes; a single larger value goes alone.
    cache
        Entries of a partition that are remembered between commits (`CachedMap`); 0: none.
    snapshot_key
        Key of the single value of an ungrouped `persistent_aggregate`.
    serializer
        `"codec"` (keeps every type), `"json"` (other programs can read it), `"storm"` (Storm's JSON), or a `Serializer`.
    num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    """

    url: str
    cluster: bool = False
    cluster_buckets: int = 64
    hash_key: str | None = None
    prefix: str | None = None
    ttl_s: int | None = None
    allow_short_ttl: bool = False
    allow_eviction: bool = False
    username: str | None = None
    password: str | None = field(default=None, metadata=SECRET)
    database: int | None = None
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify: bool = True
    connect_timeout_s: float = 5.0
    timeout_s: float = 10.0
    retries: int = 3
    backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    max_keys_per_call: int = 1000
    max_bytes_per_call: int = 8 << 20
    cache: int = 0
    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY
    serializer: Serializer | str = "codec"
    num_partitions: int | None = None

    def __post_init__(self) -> None:
        if self.scheme not in _SCHEMES or (self.clustered and self.scheme == "unix"):
            raise ConfigError(
                f"the URL of a Redis state starts with {self.scheme or 'no scheme'!r}; write redis://host:port/database, "
                "rediss:// (TLS), unix://path, redis+cluster://host:port,host:port or rediss+cluster://"
            )
        self._check_numbers()
        self._check_names()
        if self.ttl_s is not None and self.ttl_s < REPLAY_WINDOW_S and not self.allow_short_ttl:
            raise ConfigError(
                f"ttl_s={self.ttl_s} is less than a day ({REPLAY_WINDOW_S}): a value may expire before its batch is "
                "replayed, and the replay then counts from 0. Give at least a day, or allow_short_ttl=True"
            )

    @property
    def scheme(self) -> str:
        """The scheme of the URL, in lower case."""
        return urlsplit(self.url).scheme.lower() if isinstance(self.url, str) else ""

    @property
    def clustered(self) -> bool:
        """Whether the server is a cluster."""
        return self.cluster or self.scheme.endswith("+cluster")

    @property
    def buckets(self) -> int:
        """The number of hash tags; 1 without a cluster, where keys have no tag."""
        return self.cluster_buckets if self.clustered else 1

    def _check_numbers(self) -> None:
        for name in ("connect_timeout_s", "timeout_s", "cluster_buckets", "max_bytes_per_call", "ttl_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} of a Redis state is {value}; it must be above 0")
        for name in ("retries", "backoff_s", "max_backoff_s", "cache", "database"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} of a Redis state is {value}; it must be 0 or more")
        if not 1 <= self.max_keys_per_call <= MAX_KEYS_PER_CALL:
            raise ConfigError(f"max_keys_per_call={self.max_keys_per_call}: give 1 to {MAX_KEYS_PER_CALL}")
        if self.num_partitions is not None and self.num_partitions < 1:
            raise ConfigError(f"num_partitions={self.num_partitions}: give at least 1, or None")

    def _check_names(self) -> None:
        for name in ("prefix", "hash_key"):
            value = getattr(self, name)
            if value is not None and (not value or any(char < " " for char in value)):
                raise ConfigError(f"{name}={value!r} of a Redis state: give a text without control characters")
        if self.prefix is not None and self.hash_key is not None:
            raise ConfigError(
                f"prefix={self.prefix!r} and hash_key={self.hash_key!r}: a hash needs no prefix; give one"
            )
        if self.clustered and self.database:
            raise ConfigError(f"database={self.database}: a Redis cluster has database 0 only")
        files = (self.tls_ca_file, self.tls_cert_file, self.tls_key_file)
        if (any(files) or not self.tls_verify) and not (self.tls or self.scheme.startswith("rediss")):
            raise ConfigError("a Redis state has TLS options and no TLS: write rediss:// or tls=True")
        if self.tls and self.scheme == "unix":
            raise ConfigError("tls=True with a unix:// URL: a Unix socket has no TLS")
