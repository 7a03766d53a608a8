"""The options of a PostgreSQL state, and those for libpq; nothing here needs the driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import ClassVar, Literal

from trident.errors import ConfigError
from trident.redaction import redacted
from trident.state.interfaces import StateConf
from trident.storekit import Account, Changing, Expiring, ServerCalls, seconds, whole
from trident.storekit.plain_columns import OWN

MAX_NAME_BYTES = 63  # PostgreSQL cuts longer names


@dataclass(frozen=True, repr=False, kw_only=True)
class PostgresOptions(ServerCalls, Account, Expiring, Changing):
    """The options of a PostgreSQL state; see `trident.storekit` for those that it shares.

    Attributes
    ----------
    url
        `postgresql://user:password@host:port/database`. The query takes libpq's parameters, such as
        `target_session_attrs=read-write` with several hosts; the rest comes from libpq's environment (`~/.pgpass`).
    schema
        Where the table is; None: the first schema of the user's `search_path`. It must exist.
    table
        None: `topology/state`. Each state has a table of its own.
    layout
        `"columns"`: fields of plain types are columns of their own; `"binary"`: key and value are bytes;
        `"auto"`: columns if all fields are of plain types.
    tls
        True encrypts and checks the server's name (`sslmode=verify-full`).
    """

    store: ClassVar[str] = "PostgreSQL"
    remains: ClassVar[str] = (
        "in the pages of the table until VACUUM FULL, in the write-ahead log until it is reused, and in backups"
    )

    url: str = field(kw_only=False)
    schema: str | None = None
    table: str | None = None
    layout: Literal["auto", "columns", "binary"] = "auto"
    timeout_s: float = seconds(30.0)
    max_keys_per_call: int = whole(10_000, 1)
    max_bytes_per_call: int = whole(16 << 20, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(("postgresql://", "postgres://")):
            given = redacted(self.url) if "://" in self.url else "no URL"  # other texts may have a password anywhere
            raise ConfigError(f"the url of a PostgreSQL state is {given}: write postgresql://user@host:port/database")
        for name in ("schema", "table"):
            value = getattr(self, name)
            if value is not None and not (0 < len(value.encode()) <= MAX_NAME_BYTES and "\0" not in value):
                raise self.refused(name, f"give 1 to {MAX_NAME_BYTES} bytes, without NUL")

    def names(self, conf: StateConf) -> TableNames:
        """Return the names of what a state has, in the schema if one is given."""
        at, table = [self.schema] if self.schema is not None else [], self.table or table_name(conf.prefix)
        index = identifier(table_name(f"{table}_changes_txid"))  # which is where its table is
        changes, committed = (table_name(f"{table}_{beside}") for beside in ("changes", "committed"))
        names = table, f"{OWN}sentinels", changes, f"{OWN}changes_gone", committed
        return TableNames(table, index, *(identifier(*at, name) for name in names))

    @property
    def parameters(self) -> dict[str, str]:
        """The arguments of libpq in addition to the URL."""
        given = {"user": self.user, "password": self.password}
        given |= {"sslcert": self.tls_cert_file, "sslkey": self.tls_key_file}
        if self.tls:
            given |= {"sslmode": "verify-full", "sslrootcert": self.tls_ca_file or "system"}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class TableNames:
    """The names, as SQL, of what a state has; `bare`: its table by its name alone, as the tables of all states know it."""

    bare: str
    changes_index: str
    table: str
    sentinels: str
    changes: str
    gone: str
    committed: str

    def sql(self, statement: str, **parts: str) -> str:
        """Fill names and `parts` into a statement that is run with arguments, all at once: a name may have braces."""
        return statement.format(**self._quoted_names, **parts)

    @cached_property
    def _quoted_names(self) -> dict[str, str]:
        return {place: name.replace("%", "%%") for place, name in asdict(self).items()}


def identifier(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def table_name(prefix: str) -> str:
    """Return the name of a state's table: the prefix, with a hash replaces the end of a long one."""
    name = prefix.replace("\0", "%00").encode()
    if len(name) <= MAX_NAME_BYTES:
        return name.decode()
    return f"{name[:46].decode(errors='ignore')}-{blake2b(name, digest_size=8).hexdigest()}"
