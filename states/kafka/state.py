"""KafkaTopicState: the tuples of a stream as records of a topic, each batch once.

What is stored
    The records, in the order of the batches, and the sentinel: the metadata of the offset that the consumer group
    `topology/state` has in partition 0 of the topic.

What one commit guarantees
    Records and sentinel are one transaction of Kafka's. A replay of a batch that is there writes nothing. Readers must use
    `isolation.level=read_committed`: others also see what was aborted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from states.kafka.options import KafkaTopicOptions, KafkaTopicSettings
from trident.errors import ConfigError
from trident.servers.kafka_client import kafka_package
from trident.state.interfaces import StateConf, StateSpec, StateType
from trident.storekit import check_options


@dataclass(frozen=True)
class _TopicFactory:
    """The `StateFactory` of a sink."""

    options: KafkaTopicOptions
    kind: StateType = StateType.TRANSACTIONAL

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        """Open the sink; it connects when it is used."""
        kafka_package()
        from states.kafka.topic_sink import TopicSink

        return TopicSink(self.options, conf)


class KafkaTopicState:
    """A topic that a stream is written to, with `ToTopic` as the updater.

    Examples
    --------
    >>> spec = KafkaTopicState.transactional("localhost:9092", "totals")
    >>> spec.kind, spec.required_num_partitions
    (<StateType.TRANSACTIONAL: 'transactional'>, 1)
    """

    @classmethod
    def transactional(
        cls, bootstrap: str | KafkaTopicOptions, topic: str | None = None, **options: Unpack[KafkaTopicSettings]
    ) -> StateSpec:
        """Return the state; exact with transactional spouts. Takes brokers and topic, or options, and fields of them by name.

        There is no opaque one: Kafka cannot take back what an earlier attempt has committed.
        """
        given = options if topic is None else {"topic": topic, **options}
        check_options(KafkaTopicOptions.store, KafkaTopicOptions, given)
        if isinstance(bootstrap, KafkaTopicOptions):
            made = KafkaTopicOptions.of(bootstrap, given)
        elif "topic" in given:
            made = KafkaTopicOptions(bootstrap, **given)
        else:
            raise ConfigError("a Kafka state needs a topic: KafkaTopicState.transactional(bootstrap, topic)")
        # With several, the sentinel of one would say nothing of the tuples that another number sends elsewhere.
        return StateSpec(_TopicFactory(made), required_num_partitions=1, store=cls.__name__)
