"""The options of a PostgreSQL state, checked when they are given; nothing here needs the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from states.postgres.statements import MAX_NAME_BYTES
from trident.errors import ConfigError
from trident.redaction import SECRET, Redacted, redacted
from trident.state.encoding.serializers import Serializer
from trident.state.interfaces import Key
from trident.state.snapshottable import DEFAULT_SNAPSHOT_KEY

__all__ = ["PostgresOptions"]


@dataclass(frozen=True, repr=False)
class PostgresOptions(Redacted):
    """Where the database is and how a state is kept in it.

    Attributes
    ----------
    url
        `postgresql://[user[:password]@]host[:port][,host…]/database`; its query (`?sslmode=verify-full&sslrootcert=…`) and
        what it does not say (`PGPASSFILE`, `~/.pgpass` …) are as libpq has it.
    schema
        Where the table is; None: the first schema of the user's `search_path`. It must exist.
    table
        None: the names of the topology and the state, as `topology/state`. Each state has a table of its own.
    username, password
        Used in place of what the URL says.
    connect_timeout_s, timeout_s
        Seconds to wait for a connection, and for each answer.
    retries
        How often a call is sent again after a lost connection, before the batch fails; 0: never.
    backoff_s, max_backoff_s
        Seconds before the first of these, and at most before a later one; each waits twice as long.
    max_keys_per_call, max_bytes_per_call
        Keys, and bytes of values, in one statement.
    cache
        Entries of a partition that are remembered between commits (`CachedMap`); 0: none.
    snapshot_key
        Key of the single value of an ungrouped `persistent_aggregate`.
    serializer
        `"codec"` (keeps every type), `"json"` (other programs can read it), or a `Serializer`.
    num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    """

    url: str
    schema: str | None = None
    table: str | None = None
    username: str | None = None
    password: str | None = field(default=None, metadata=SECRET)
    connect_timeout_s: float = 5.0
    timeout_s: float = 30.0
    retries: int = 3
    backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    max_keys_per_call: int = 10_000
    max_bytes_per_call: int = 16 << 20
    cache: int = 0
    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY
    serializer: Serializer | str = "codec"
    num_partitions: int | None = None

    def __post_init__(self) -> None:
        if not str(self.url).startswith(("postgresql://", "postgres://")):
            raise ConfigError(
                f"the URL of a PostgreSQL state is {redacted(str(self.url).rpartition('@')[2])!r}; write "
                "postgresql://user@host:port/database"
            )
        for name in ("connect_timeout_s", "timeout_s", "max_keys_per_call", "max_bytes_per_call"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} of a PostgreSQL state is {getattr(self, name)}; it must be above 0")
        for name in ("retries", "backoff_s", "max_backoff_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of a PostgreSQL state is {getattr(self, name)}; it must be 0 or more")
        for name in ("schema", "table"):
            value = getattr(self, name)
            if value is not None and not (0 < len(value.encode()) <= MAX_NAME_BYTES and "\0" not in value):
                raise ConfigError(
                    f"{name}={value!r} of a PostgreSQL state: give 1 to {MAX_NAME_BYTES} bytes, without NUL"
                )
