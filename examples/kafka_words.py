"""Lines from a Kafka topic, counted word by word in Redis, looked up over HTTP.

::

    make words

does all of it, with a Kafka and a Redis of its own. With yours, at KAFKA and REDIS_URL::

    trident run examples/kafka_words.py:topology --engine auto --drpc-port 3774
    curl -d "the cow" localhost:3774/drpc/words
"""

import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spouts.kafka import TransactionalTridentKafkaSpout
from states.redis import RedisState
from trident import TridentTopology
from trident.drpc import DRPCClient, DRPCServer
from trident.operations import Count, FilterNull, MapGet, Split, Sum

KAFKA = os.environ.get("KAFKA", "localhost:9092")
REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
SENTENCES = [
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
]


def topology() -> TridentTopology:
    """Declare the word count, and the request that sums the counts of the words of a text."""
    topology = TridentTopology("kafka-words")
    word_counts = (
        topology.new_stream("lines", TransactionalTridentKafkaSpout(KAFKA, "lines", value="text"))
        .each("value", Split(), "word")
        .group_by("word")
        .persistent_aggregate(RedisState(REDIS), Count(), "count")
    )
    (
        topology.new_drpc_stream("words")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(word_counts, "word", MapGet(), "count")
        .each("count", FilterNull())
        .aggregate("count", Sum(), "sum")
    )
    return topology


def write_lines(count: int) -> None:
    """Make the topic, with four partitions, and write lines to it."""
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for made in admin.create_topics([NewTopic("lines", 4)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": KAFKA, "linger.ms": 50})
    for number in range(count):
        producer.produce("lines", SENTENCES[number % len(SENTENCES)], partition=number % 4)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def main() -> None:
    """Write lines, count their words, and ask over HTTP."""
    lines = 100_000
    write_lines(lines)
    print(f"{lines:,} lines in the topic")
    with topology().start(engine="auto") as running:
        running.process_all_available()
        with DRPCServer(running.local_drpc(), port=0) as server, DRPCClient(server.url) as client:
            for text in ("the", "cow moon", "dish"):
                print(f"{text}: {client.execute('words', text)}")


if __name__ == "__main__":
    main()
