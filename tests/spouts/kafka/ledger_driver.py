"""A driver over a ledger topic: `python -m tests.spouts.kafka.ledger_driver '{...}'`; prints each batch that is recorded.

It sums the amounts of each account, follows the ids of each partition, both in Redis, and, with a transactional spout,
writes every entry to another topic.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from spouts.kafka import Json, OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.kafka import KafkaTopicState, ToTopic
from states.redis import RedisState
from tests.harness.topology_runs import start
from trident import TridentTopology, TridentTuple
from trident.operations import ReducerAggregator, Sum
from trident.spout.interfaces import TransactionAttempt
from trident.state import StateType

__all__ = ["OUT_OF_ORDER", "topology"]

OUT_OF_ORDER = -1_000_000_000


class InOrder(ReducerAggregator[int]):
    """The last id of a partition, whose ids are 0, 1, 2 …; far below 0 once one came twice, too early or never."""

    output_types = ("bigint",)

    def init(self) -> int:
        return -1

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return curr + 1 if tuple[0] == curr + 1 else OUT_OF_ORDER


def topology(life: dict[str, Any]) -> TridentTopology:
    spout = {"transactional": TransactionalTridentKafkaSpout, "opaque": OpaqueTridentKafkaSpout}[life["promise"]]
    declared = TridentTopology(life["name"])
    entries = declared.new_stream(
        "ledger",
        spout(
            life["bootstrap"], life["topic"], key="text", value=Json("id: bigint, amount: bigint"),
            fields="key, value, partition", max_batch_records=life["batch"],
        ),
    )  # fmt: skip
    kind = StateType(life["promise"])
    entries.group_by("key").persistent_aggregate(RedisState.of_kind(kind, life["redis"], {}), "amount", Sum(), "total")
    entries.group_by("partition").persistent_aggregate(
        RedisState.of_kind(kind, life["redis"], {}), "id", InOrder(), "last"
    )
    if life["promise"] == "transactional":
        copy = KafkaTopicState.transactional(life["bootstrap"], life["copy"])
        entries.partition_persist(copy, ["key", "id", "amount", "partition"], ToTopic(), state_name="copy")
    return declared


def main(life: dict[str, Any]) -> None:
    def say(step: str, attempt: TransactionAttempt) -> None:
        if step == "recorded":
            sys.stdout.write(f"{attempt.txid}\n")
            sys.stdout.flush()

    with start(topology(life), life["engine"], say, log_dir=life["log_dir"]) as running:
        running.process_all_available()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
