"""Totals per account from a ledger in Kafka, and an audit that recomputes every balance from the topic itself.

::

    make ledger

writes 200,000 entries to a Kafka of its own, kills the job with SIGKILL three times on its way, and audits the balances.
With your Kafka, at KAFKA::

    python examples/ledger.py
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import trident
from spouts.kafka import Json, TransactionalTridentKafkaSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.errors import TridentError
from trident.operations import Sum

KAFKA = os.environ.get("KAFKA", "localhost:9092")
PARTITIONS = 4
ACCOUNTS = 500
ENTRIES = 200_000


def topology() -> TridentTopology:
    """Declare the balances: the sum of the amounts of each account, in a Delta table."""
    topology = TridentTopology("ledger")
    entries = TransactionalTridentKafkaSpout(
        KAFKA, "ledger", value=Json("account: string, amount: bigint"), max_batch_records=2_000
    )
    (
        topology.new_stream("entries", entries)
        .group_by("account")
        .persistent_aggregate(DeltaState("balances"), "amount", Sum(), "balance")
    )
    return topology


def write_entries() -> None:
    """Make the topic and write bookings between random accounts to it; all amounts together are 0."""
    admin = AdminClient({"bootstrap.servers": KAFKA})
    for made in admin.create_topics([NewTopic("ledger", PARTITIONS)]).values():
        made.result()
    draw = random.Random(7)
    producer = Producer({"bootstrap.servers": KAFKA, "linger.ms": 50, "queue.buffering.max.messages": ENTRIES})
    for number in range(ENTRIES // 2):
        amount = draw.randrange(1, 1000)
        for account, signed in ((draw.randrange(ACCOUNTS), -amount), (draw.randrange(ACCOUNTS), amount)):
            name = f"account-{account:03}"
            producer.produce("ledger", json.dumps({"account": name, "amount": signed}), key=name)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()


def committed() -> int:
    """Return the number of the last committed batch, 0 before the first."""
    try:
        with trident.open_state(topology(), "balance") as state:
            state.multi_get(["account-000"])
            return state.txid
    except TridentError:  # there is no log yet
        return 0


def run(dies_after: int | None) -> None:
    """Run the job until all entries are committed, or kill it once so many more batches are committed."""
    command = [sys.executable, "-m", "trident.cli", "run", f"{__file__}:topology", "--once", "--engine", "in_process"]
    job = subprocess.Popen(command, stderr=subprocess.DEVNULL if dies_after else None)
    before = committed()
    while dies_after is not None and committed() < before + dies_after:
        time.sleep(0.05)
    if dies_after is not None:
        job.send_signal(signal.SIGKILL)
        job.wait()
        print(f"killed after batch {committed()}")
    elif job.wait() != 0:
        sys.exit("the job failed")


def recomputed() -> Counter[str]:
    """Read the whole topic with a plain consumer, and add up each account."""
    consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": "audit"})
    partitions = [TopicPartition("ledger", partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    unread = sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)
    balances: Counter[str] = Counter()
    while unread:
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error() is not None:
                sys.exit(f"the topic cannot be read: {message.error()}")
            entry = json.loads(message.value() or b"")
            balances[entry["account"]] += entry["amount"]
            unread -= 1
    consumer.close()
    return balances


def main() -> None:
    """Write the entries, run the job and kill it three times, run it to its end, and compare every balance."""
    write_entries()
    print(f"{ENTRIES:,} entries of {ACCOUNTS} accounts in the topic")
    for dies_after in (10, 20, 15):
        run(dies_after)
    run(None)
    with trident.open_state(topology(), "balance") as state:
        balances = dict(state.get_tuples())
    expected = recomputed()
    wrong = [account for account in expected.keys() | balances if balances.get(account) != expected.get(account)]
    print(f"audit: {len(balances)} balances, sum {sum(balances.values())}, {len(wrong)} differ from the topic")
    if wrong:
        sys.exit(f"wrong: {', '.join(sorted(wrong)[:10])}")


if __name__ == "__main__":
    main()
