"""A broker that lacks what was read leads, and gets other records for those offsets: that is told, and none is skipped.

Nothing is simulated: a copy that has 20 records is made the leader after 60 were read, and is given 60 others.
"""

import copy
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from spouts import KafkaSpout
from spouts.kafka import Json, OpaqueTridentKafkaSpout
from spouts.kafka.clients import LogPosition, Spot, assign, truncation_of
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Topics
from tests.spouts.driving import Task
from tests.spouts.kafka.kafka_batches import BOTH, Batches, Kind, batches
from trident.errors import ReplayMismatchError, SpoutError
from trident.spout import Definition

TEXTS = Json("word: string")


@dataclass
class Election:
    """What was read before the election, with what definitions; and a topic for messages, of which some are acknowledged."""

    bootstrap: str
    topic: str
    definitions: list[Definition]
    messages: str
    group: str

    def queue(self, **options: Any) -> KafkaSpout:
        """Return a spout of messages that goes on in the group."""
        return KafkaSpout(
            self.bootstrap, self.messages, group_id=self.group, value=TEXTS, commit_every_s=0.02, **options
        )


pytestmark = pytest.mark.long  # they start a Kafka of two brokers


@pytest.fixture(scope="module")
def election(kafka_cluster: KafkaCluster) -> Election:
    leader, follower = kafka_cluster.brokers
    topics = Topics(kafka_cluster.bootstrap)
    names = [f"unclean-{uuid.uuid4().hex[:8]}-{at}" for at in range(2)]
    config = {"unclean.leader.election.enable": "true"}
    for future in topics.admin.create_topics(
        [NewTopic(name, 1, replica_assignment=[[leader.node, follower.node]], config=config) for name in names]
    ).values():
        future.result(30)
    for name in names:
        topics._wait(name, lambda found: len(found) == 1 and found[0].leader == leader.node)
        topics.produce(name, records("a", 0, 20))
    made = Election(kafka_cluster.bootstrap, names[0], [], names[1], f"group-{names[1]}")
    Task(made.queue()).close()  # has Kafka make its topic of offsets, while it can have two copies
    follower.kill()
    alone = Topics(leader.address)
    for name in names:
        alone.produce(name, records("a", 20, 60))
    with batches(OpaqueTridentKafkaSpout(leader.address, made.topic, value=TEXTS, max_batch_records=40)) as before:
        assert len(before.rest()) == 60
        made.definitions = before.definitions
    task = Task(KafkaSpout(leader.address, made.messages, group_id=made.group, value=TEXTS, commit_every_s=0.02))
    for (word,), id_ in task.take(60):
        if not 5 <= int(word[1:]) < 30:
            task.spout.ack(id_)
    task.close()
    leader.kill()
    follower.start()
    left = Topics(follower.address)
    for name in names:
        left._wait(name, lambda found: len(found) == 1 and found[0].leader == follower.node)
        assert left.ends(name) == [20]
        left.produce(name, records("b", 0, 60))
    leader.start()
    return made


def told(made: Batches) -> None:
    """Ask for the next batch; a broker that has just come back may not know yet who leads, and then there is none."""
    while made.next() is None:
        pass


def records(letter: str, start: int, end: int) -> list[bytes]:
    return [b'{"word": "%s%d"}' % (letter.encode(), n) for n in range(start, end)]


def words(letter: str, start: int, end: int) -> list[tuple[str]]:
    return [(f"{letter}{n}",) for n in range(start, end)]


@BOTH
def test_what_was_read_and_lost_is_told_at_each_start_whatever_came_after(election: Election, kind: Kind) -> None:
    with batches(kind(election.bootstrap, election.topic, value=TEXTS)) as made:
        made.definitions = copy.deepcopy(election.definitions)
        for attempt in range(4):
            with pytest.raises(SpoutError, match="only what is before offset 20 is still what was read: 40 offsets"):
                told(made)
            if attempt % 2:  # what one try has found lost, the next tries find too
                made.restart()


def test_a_client_that_knows_the_leader_compares_all_that_it_is_assigned(election: Election) -> None:
    """By itself it would only compare when it hears of another leader."""
    spot, options = Spot(election.topic, 0), {"auto.offset.reset": "error", "group.id": "none"}
    consumer = Consumer({"bootstrap.servers": election.bootstrap, **options})
    for _ in range(3):
        assign(consumer, {spot: LogPosition(50, 0)})
        while (message := consumer.poll(1)) is None:
            pass
        error = message.error()
        assert error is not None
        assert truncation_of(error) == 20
        consumer.unassign()
    consumer.close()


@BOTH
def test_records_that_took_the_numbers_of_lost_ones_are_read_if_losses_may_be(election: Election, kind: Kind) -> None:
    with batches(
        kind(election.bootstrap, election.topic, value=TEXTS, on_data_loss="skip", max_batch_records=25)
    ) as made:
        made.definitions = copy.deepcopy(election.definitions)
        assert made.rest() == words("b", 0, 60)
        assert made.coordinator._positions.skipped == 40
        made.restart()
        assert made.next() is None


@BOTH
def test_a_batch_that_was_defined_before_is_not_read_with_the_records_of_others(election: Election, kind: Kind) -> None:
    first, second = election.definitions
    with batches(kind(election.bootstrap, election.topic, value=TEXTS)) as made:
        with pytest.raises(ReplayMismatchError, match="offset 39 was written under epoch"):
            made.read(first)
        with pytest.raises(
            ReplayMismatchError, match="before offset 40 then only what is before offset 20 is still there"
        ):
            made.read(second)
        made.restart(kind(election.bootstrap, election.topic, value=TEXTS, on_data_loss="skip"))
        assert made.read(first) == words("a", 0, 20)
        assert made.read(second) == []
        made.definitions = [first, second]
        assert made.rest() == words("b", 0, 60)


def test_messages_that_were_acknowledged_and_lost_are_told_at_each_start(election: Election) -> None:
    for _ in range(2):
        with pytest.raises(
            SpoutError, match="read up to offset 60, and only what is before offset 20 is still what was read"
        ):
            Task(election.queue())


def test_what_was_acknowledged_and_lost_hides_no_message_that_has_its_number(election: Election) -> None:
    """Last: it commits to the group of the messages."""
    task = Task(election.queue(on_data_loss="skip"))
    found = [values for values, _ in task.take(75)]
    assert found == words("a", 5, 20) + words("b", 0, 60)
    task.close()
