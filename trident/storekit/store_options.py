"""The options that stores share: one name, one meaning and one check for each.

`StoreOptions` is the base of all options, `MapOptions` that of a store of bytes. `ServerCalls`, `Account`, `Expiring` and
`Changing` add options that only some stores have. A store's own class is a dataclass with `frozen=True, repr=False,
kw_only=True`; only the option for the place of the store is positional: `url: str = field(kw_only=False)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from trident.retention import Retention
from trident.servers.account import ServerAccount
from trident.setting_types import Settings, check_names, seconds, whole
from trident.state.encoding.serializers import Serializer
from trident.state.interfaces import REPLAY_WINDOW_S, Key, StateType
from trident.state.map_state import DEFAULT_SNAPSHOT_KEY


def check_options(store: str, declared: type, given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for the first name that is not a field of the dataclass `declared`."""
    check_names(f"a {store} state has no option", given, [each.name for each in dataclasses.fields(declared)])


@dataclass(frozen=True, repr=False, kw_only=True)
class StoreOptions(Settings):
    """The options of every state; `repr` shows no secrets.

    Attributes
    ----------
    store
        The name of the store, for messages.
    remains
        See `StoreFacts.remains`.
    snapshot_key
        Key of the single value of an ungrouped `persistent_aggregate`.
    """

    store: ClassVar[str] = "store"
    remains: ClassVar[str] = ""

    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY

    @classmethod
    def subject(cls) -> str:
        """Return what has the options, for messages."""
        return f"a {cls.store} state"

    @classmethod
    def of(cls, target: Any, given: Mapping[str, Any]) -> Self:
        """Return the options that a call gave: a target (where the store is), or options of which some are replaced."""
        check_options(cls.store, cls, given)
        if isinstance(target, cls):
            return dataclasses.replace(target, **given)
        needed = [
            each.name for each in dataclasses.fields(cls) if each.default is each.default_factory is dataclasses.MISSING
        ]
        if target is None and given.keys() >= set(needed):
            return cls(**given)
        return cls(cls.target(target), **given)  # type: ignore[call-arg]

    @classmethod
    def target(cls, given: Any) -> Any:
        """Return the first option, made from the target that a call gave."""
        return given


@dataclass(frozen=True, repr=False, kw_only=True)
class MapOptions(StoreOptions):
    """The options of a state over a map of bytes.

    Attributes
    ----------
    cache
        Entries of a partition that are remembered between commits (`CachedMap`), for keys that come often; 0: none.
    serializer
        `"codec"` (keeps every type), `"json"` (other programs can read it), or a `Serializer`.
    num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    """

    cache: int = whole(0, 0)
    serializer: Serializer | str = "codec"
    num_partitions: int | None = whole(None, 1)


@dataclass(frozen=True, repr=False, kw_only=True)
class ServerCalls(MapOptions):
    """Calls to a server.

    Attributes
    ----------
    connect_timeout_s, timeout_s
        Seconds to wait for a connection, and for each answer.
    retries
        How often a call is tried again after a lost connection, before the batch fails; 0: never.
    backoff_s, max_backoff_s
        Seconds before the first retry, and the longest pause; each pause is twice as long as the last, with jitter.
    max_keys_per_call, max_bytes_per_call
        The limits of one call: keys, and bytes of values; a single larger value goes alone.
    """

    connect_timeout_s: float = seconds(5.0)
    timeout_s: float = seconds(10.0)
    retries: int = whole(3, 0)
    backoff_s: float = seconds(0.05, least=0)
    max_backoff_s: float = seconds(2.0, least=0)
    max_keys_per_call: int = whole(1000, 1)
    max_bytes_per_call: int = whole(8 << 20, 1)


@dataclass(frozen=True, repr=False, kw_only=True)
class Account(MapOptions, ServerAccount):
    """An account on a server, and TLS: see `ServerAccount`."""


@dataclass(frozen=True, repr=False, kw_only=True)
class Expiring(StoreOptions):
    """Keys that the store forgets.

    Attributes
    ----------
    ttl_s
        Seconds from a key's last write to its expiry; None or 0: never. An expired key starts again as if it had never
        been written. The sentinel never expires.
    allow_short_ttl
        True accepts a `ttl_s` below a day. A batch that is replayed after such an expiry counts from 0.
    longest_ttl_s
        The longest `ttl_s` that the server accepts.
    """

    longest_ttl_s: ClassVar[int | None] = None

    ttl_s: int | None = whole(None, 0)
    allow_short_ttl: bool = False

    def __post_init__(self) -> None:
        """Check that no key expires before its batch may be replayed."""
        super().__post_init__()
        if not self.ttl_s:
            object.__setattr__(self, "ttl_s", None)
            return
        if self.longest_ttl_s is not None and self.ttl_s > self.longest_ttl_s:
            raise self.refused(
                "ttl_s", f"give None (never) or at most {self.longest_ttl_s} seconds, the server's limit"
            )
        if self.ttl_s < REPLAY_WINDOW_S and not self.allow_short_ttl:
            raise self.refused(
                "ttl_s",
                "a value may expire before its batch is replayed, and the replay then counts from 0. Give at least "
                f"{REPLAY_WINDOW_S} (a day), or allow_short_ttl=True",
            )


@dataclass(frozen=True, repr=False, kw_only=True)
class Changing(MapOptions):
    """Changes that are kept beside the values.

    Attributes
    ----------
    changes
        How long what each batch changed is kept for `trident.changes`: a time (`"7d"`) or a number of batches; 0: it is not
        written. None: as the last start that set it asked for, and none at first. Only for opaque states.
    """

    changes: str | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Retention.of(self.changes, "changes")

    @property
    def kept_changes(self) -> Retention | None:
        """The time or the number of batches; None: none are kept."""
        kept = Retention.of(self.changes, "changes")
        return None if kept is None or kept.keeps_nothing else kept

    def check_kind(self, kind: StateType) -> None:
        """Refuse changes of a kind whose values do not hold the value before."""
        if self.kept_changes is not None and kind is not StateType.OPAQUE:
            raise self.refused("changes", f"a {kind.value} state does not hold the value before; make it opaque")
