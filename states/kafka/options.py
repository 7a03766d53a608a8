"""The options of a Kafka topic that a stream is written to; nothing here needs the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trident.errors import ConfigError
from trident.storekit import StoreOptions, seconds

_OURS = {
    "bootstrap.servers": "bootstrap", "compression.type": "compression", "transactional.id": "prefix", **dict.fromkeys((
        "acks", "compression.codec", "delivery.report.only.error", "enable.idempotence", "error_cb", "group.id", "logger",
        "on_delivery", "request.required.acks",
    ), ""),
}  # fmt: skip
"""The client's settings that the state gives; the options in place of them."""

_TRANSACTION = "transaction.timeout.ms"
_SHORTEST_S, _LONGEST_S = 60, 900  # the client's default, and the brokers' limit (transaction.max.timeout.ms)


@dataclass(frozen=True, repr=False, kw_only=True)
class KafkaTopicOptions(StoreOptions):
    """Where and how records are written.

    Attributes
    ----------
    bootstrap
        Brokers to ask first, as `host:port,host:port`.
    topic
        It must exist.
    prefix
        The name of the transactional id and of the consumer group that holds the sentinel; None: `topology/state`. No two
        states may share one.
    compression
        Of batches of records: `"none"`, `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`.
    connect_timeout_s, timeout_s
        Seconds to wait for the first answer, and for each later one; a commit may take the second. `transaction.timeout.ms`
        in `config` must be at least that; it is derived from it if it is not given.
    config
        Any further setting of librdkafka, as `{"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", …}`; shown
        nowhere.
    """

    store: ClassVar[str] = "Kafka"

    bootstrap: str = field(kw_only=False)
    topic: str = field(default="", kw_only=False)
    prefix: str | None = None
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    connect_timeout_s: float = seconds(10.0)
    timeout_s: float = seconds(60.0)
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bootstrap or "://" in self.bootstrap:
            raise self.refused("bootstrap", "give brokers as host:port, several with commas between them")
        if not self.topic:
            raise self.refused("topic", "give the name of a topic: KafkaTopicState.transactional(bootstrap, topic)")
        if self.prefix is not None and not self.prefix:
            raise self.refused("prefix", "give a text, or None")
        for name in sorted(_OURS.keys() & self.config):
            raise ConfigError(
                f"config[{name!r}] of a Kafka state is set by the state, because no transaction is exact without it: "
                + (f"give {_OURS[name]}=" if _OURS[name] else "leave it out")
            )
        if self.transaction_ms < min(self.timeout_s, _LONGEST_S) * 1000:
            raise ConfigError(
                f"config[{_TRANSACTION!r}]={self.config[_TRANSACTION]!r} of a Kafka state is less than "
                f"timeout_s={self.timeout_s:g}: Kafka would end a transaction whose commit is still waited for. Lower "
                f"timeout_s, or raise {_TRANSACTION} to {round(self.timeout_s * 1000)} milliseconds"
            )

    @property
    def transaction_ms(self) -> float:
        """After how many milliseconds Kafka ends a transaction: not before a commit is given up."""
        default = max(_SHORTEST_S, min(self.timeout_s, _LONGEST_S)) * 1000
        try:
            return float(self.config.get(_TRANSACTION, default))
        except (TypeError, ValueError):
            raise ConfigError(
                f"config[{_TRANSACTION!r}]={self.config[_TRANSACTION]!r} of a Kafka state: give milliseconds"
            ) from None
