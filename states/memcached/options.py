"""The options of a Memcached state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trident.storekit import Expiring, ServerCalls, seconds, whole

_SERVER = re.compile(r"(unix:|/).+|\[.+\]|[^:/\s]+|[^/\s]+:\d+")


@dataclass(frozen=True, repr=False, kw_only=True)
class MemcachedOptions(ServerCalls, Expiring):
    """How a Memcached state is stored; the other options are in `ServerCalls`, `Expiring` and `MapOptions`.

    Attributes
    ----------
    servers
        `host:port` of each server, or the path of its Unix socket. A key is on one of them, chosen by rendezvous
        hashing; a state that was written with another list is refused.
    prefix
        What every key starts with; None: `topology/state`.
    allow_eviction
        True: evictions are only warned of, and the state goes on with what is left. False: they fail the batch with
        `StateLossDetected`.
    retries
        Of reads, over a new connection. A write is not sent again: the batch is replayed.
    """

    store: ClassVar[str] = "Memcached"
    longest_ttl_s: ClassVar[int | None] = 30 * 24 * 60 * 60  # the server takes a larger number for a date

    servers: tuple[str, ...] = field(default=("127.0.0.1:11211",), kw_only=False)
    prefix: str | None = None
    allow_eviction: bool = False
    max_keys_per_call: int = whole(1000, 1, 10_000)
    max_bytes_per_call: int = whole(1 << 20, 1)
    connect_timeout_s: float = seconds(3.0)
    timeout_s: float = seconds(5.0)
    retries: int = whole(2, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = {*self.servers}
        if not names or len(names) != len(self.servers) or not all(map(_SERVER.fullmatch, names)):
            raise self.refused("servers", "give at least one host:port, and each once")

    @classmethod
    def target(cls, given: Any) -> Any:
        """Return the servers of a list, or of a text with commas."""
        names = given.split(",") if isinstance(given, str) else given
        is_list = isinstance(names, (list, tuple)) and {str}.issuperset(map(type, names))
        return tuple(name.strip() for name in names) if is_list else given
