"""The options of a Redis state."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from trident.servers.redis_server import RedisServer
from trident.storekit import Account, Changing, Expiring, ServerCalls, whole

MAX_KEYS_PER_CALL = 3_900  # a Lua call of Redis takes up to 7,999 arguments on its stack: two for each key


@dataclass(frozen=True, repr=False, kw_only=True)
class RedisOptions(ServerCalls, Account, Expiring, Changing, RedisServer):
    """The options of a Redis state; see `trident.storekit` for those of `ServerCalls`, `Account`, `Expiring`, `Changing`.

    Attributes
    ----------
    url
        `redis://user:password@host:port/database`, `rediss://` (TLS), `unix://path`, or `redis+cluster://` and
        `rediss+cluster://` with one or several `host:port`, separated by commas. A query (`?health_check_interval=30`) is
        passed to redis-py.
    cluster
        True: the server is a node of a Redis cluster, as with `redis+cluster://`.
    cluster_buckets
        The number of hash tags, and so slots, over which a cluster spreads the keys of a state. It cannot change later.
    layout
        `"strings"`: a string for each key, in the encoding of the serializer. `"fields"`: a hash for each key, whose name and
        fields its owner can read; the key and the value have declared types with a plain form.
    prefix
        What every key starts with; None: `topology/state`. No control characters.
    allow_eviction
        True: keys that the server evicts during a commit (`maxmemory-policy`) are only warned of; evicted keys begin
        again as if they had never been written. False: the commit fails with `StateLossDetected`.
    retries
        While a cluster moves slots or replaces a node a call is sent again for `timeout_s`, whatever this says.
    max_keys_per_call
        1 … 3,900; one Lua call blocks the server for about 0.4 µs a key.
    """

    store: ClassVar[str] = "Redis"
    remains: ClassVar[str] = "in the append-only file until it is rewritten (BGREWRITEAOF), and in RDB copies"
    schemes: ClassVar[tuple[str, ...]] = (*RedisServer.schemes, "redis+cluster", "rediss+cluster")
    forms: ClassVar[str] = (
        "redis://host:port/database, rediss:// (TLS), unix://path, redis+cluster://host:port,host:port or rediss+cluster://"
    )

    cluster: bool = False
    cluster_buckets: int = whole(64, 1)
    layout: Literal["strings", "fields"] = "strings"
    prefix: str | None = None
    allow_eviction: bool = False
    max_keys_per_call: int = whole(1000, 1, MAX_KEYS_PER_CALL)

    def __post_init__(self) -> None:
        super().__post_init__()
        prefix = self.prefix
        if prefix is not None and (not prefix or any(char < " " for char in prefix)):
            raise self.refused("prefix", "give a text without control characters")
        if self.layout == "fields" and prefix is not None and ":" in prefix:
            raise self.refused("prefix", "in layout='fields' a ':' ends the prefix; take another character")
        if self.is_cluster and self.database:
            raise self.refused("database", "a Redis cluster has database 0 only")
        if self.is_cluster and self.scheme == "unix":
            raise self.refused("cluster", f"a Unix socket leads to one server; write {self.forms}")

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a cluster."""
        return self.cluster or self.scheme.endswith("+cluster")

    @property
    def buckets(self) -> int | None:
        """The number of hash tags; None without a cluster, where keys have no tag."""
        return self.cluster_buckets if self.is_cluster else None
