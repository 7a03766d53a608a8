"""What `new_stream` says to an object that is no spout: what it lacks, of the interface that it comes nearest to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.topology_runs import keep
from tests.spout.partition_source import Source, Transactional
from trident import Fields, TopologyError, TridentTopology
from trident.spout import SpoutType


class AlmostBatch:
    def open(self, conf: Any) -> None: ...

    def emit_batch(self, batch_id: int, collector: Any) -> None: ...

    def get_output_fields(self) -> Fields:
        return Fields("a: int")


class AlmostRich:
    def open(self, conf: Any, context: Any, collector: Any) -> None: ...

    def next_tuple(self) -> None: ...

    def ack(self, msg_id: Any) -> None: ...


class AlmostPartitioned:
    def get_output_fields(self) -> Fields:
        return Fields("a: int")

    def get_coordinator(self, conf: Any) -> None: ...

    def get_emitter(self, conf: Any) -> None: ...


@pytest.mark.parametrize(
    ("spout", "said"),
    [
        (AlmostBatch(), "For IBatchSpout it lacks ack, close"),
        (AlmostRich(), "For IRichSpout it lacks fail, close"),
        (
            AlmostPartitioned(),
            "For ITridentSpout it lacks spout_type; a partitioned spout is a subclass of IPartitionedTrid",
        ),
        (3, "It has none of the methods of ITridentSpout, IBatchSpout or IRichSpout"),
        (AlmostBatch, r"It is a class; give an object: AlmostBatch\(...\)"),
        (Transactional, r"It is a class; give an object: Transactional\(...\)"),
    ],
    ids=[
        "batch",
        "rich",
        "partitioned",
        "number",
        "class of batches",
        "class of partitions",
    ],  # with no address in them
)
def test_what_is_missing_is_named(spout: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=f"stream 's' got .*, which is not a spout. {said}"):
        TridentTopology("t").new_stream("s", spout)


def test_a_partitioned_spout_is_taken_for_what_it_is() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", Transactional(Source()))
    assert stream.fields.names == ("partition", "n")
    assert Transactional(Source()).spout_type is SpoutType.TRANSACTIONAL
    keep(stream)
    assert "spout Transactional (transactional)" in topology.explain()
