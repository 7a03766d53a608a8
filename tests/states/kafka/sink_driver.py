"""A driver that writes numbers to a topic and may kill itself: `python -m tests.states.kafka.sink_driver '{...}'`.

`point` says where in batch `txid`: after the transaction began, with half of the records in Kafka, before or after Kafka's
commit of the transaction, after the record in the log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from confluent_kafka import Producer

from spouts import FixedBatchSpout
from states.kafka import KafkaTopicState, ToTopic, topic_sink
from tests.harness import topology_runs
from trident import TridentTopology
from trident.spout.interfaces import TransactionAttempt

POINTS = ("began", "half written", "before the sentinel", "before Kafka's commit", "after Kafka's commit", "recorded")
BATCH, ROWS = 4, 20


def topology(bootstrap: str, topic: str, **options: Any) -> TridentTopology:
    declared = TridentTopology("numbers")
    spout = FixedBatchSpout("key: string, value: string", BATCH, *[(str(n % 3), str(n)) for n in range(ROWS)])
    sink = KafkaTopicState.transactional(bootstrap, topic, **options)
    declared.new_stream("numbers", spout).partition_persist(sink, ["key", "value"], ToTopic())
    return declared


class Fuse:
    """Kills this process where it is told to."""

    def __init__(self, point: str, txid: int) -> None:
        self.point, self.txid, self.now = point, txid, 0

    def reach(self, point: str) -> None:
        if (point, self.now) == (self.point, self.txid):
            os.kill(os.getpid(), signal.SIGKILL)

    def observe(self, step: str, attempt: TransactionAttempt) -> None:
        self.now = attempt.txid if step == "recorded" else self.now
        self.reach(step)

    def arm(self) -> None:
        """Have the sink's producer come by the points."""
        fuse, begin = self, topic_sink.TopicSink.begin_commit

        def begin_commit(sink: Any, txid: int) -> None:
            fuse.now = int(txid)
            begin(sink, txid)
            fuse.reach("began")

        class FusedProducer(Producer):
            made = 0

            def produce(self, *args: Any, **named: Any) -> None:
                super().produce(*args, **named)
                self.made += 1
                if self.made % (BATCH // 2) == 0 and fuse.point == "half written":
                    self.flush()  # so that Kafka has them
                    fuse.reach("half written")

            def send_offsets_to_transaction(self, *args: Any) -> None:
                self.flush()
                fuse.reach("before the sentinel")
                super().send_offsets_to_transaction(*args)

            def commit_transaction(self, *args: Any) -> None:
                fuse.reach("before Kafka's commit")
                super().commit_transaction(*args)
                fuse.reach("after Kafka's commit")

        topic_sink.TopicSink.begin_commit = begin_commit  # type: ignore[method-assign, assignment]
        topic_sink.Producer = FusedProducer  # type: ignore[attr-defined]


def main(life: dict[str, Any]) -> None:
    fuse = Fuse(life["point"], life["txid"])
    fuse.arm()
    declared = topology(life["bootstrap"], life["topic"])
    with topology_runs.start(declared, "in_process", fuse.observe, log_dir=life["log_dir"]) as running:
        running.process_all_available()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
