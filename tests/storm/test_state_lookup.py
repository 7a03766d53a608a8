"""A bolt reads a state of a Trident topology at its snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trident import TridentTopology
from trident.errors import TopologyError
from trident.storm import BaseBasicBolt, StormTopology, TopologyBuilder
from trident.storm.state_lookup import StateLookupBolt
from trident.storm.testing import MockedSpout, complete_topology

PROGRAM = """
from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Split

topology = TridentTopology("words")
counts = (
    topology.new_stream("lines", FixedBatchSpout("line", 1, ["the cow"], ["the moon"]))
    .each("line", Split(), "word")
    .group_by("word")
    .persistent_aggregate(DeltaState.opaque({table!r}), Count(), "count")
)
"""


class Sink(BaseBasicBolt):
    """The end."""

    def execute(self, *given: Any) -> None:
        pass


def lookups(bolt: StateLookupBolt) -> StormTopology:
    builder = TopologyBuilder()
    builder.set_spout("words", MockedSpout("word: string"))
    builder.set_bolt("lookup", bolt).shuffle_grouping("words")
    builder.set_bolt("sink", Sink()).shuffle_grouping("lookup")
    return builder.create_topology()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(PROGRAM.format(table=str(tmp_path / "table")), encoding="utf-8")
    return path


def test_a_bolt_looks_up_what_is_committed(program: Path, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(program.read_text(encoding="utf-8"), str(program), "exec"), namespace)
    log = str(tmp_path / "log")
    with namespace["topology"].start(engine="in_process", log_dir=log) as running:
        running.process_all_available()
    bolt = StateLookupBolt(
        f"{program}:topology",
        "count",
        fields="word: string",
        key="word",
        value="count: bigint",
        txid="batch",
        log_dir=log,
    )
    done = complete_topology(lookups(bolt), {"words": [["the"], ["cow"], ["man"]]})
    assert done.errors == ()
    assert sorted(done.tuples("lookup")) == [("cow", 1, 2), ("man", None, 2), ("the", 2, 2)]
    assert done.acked["words"] == [0, 1, 2]


def test_a_topology_that_is_not_there_is_an_error_of_the_worker(tmp_path: Path) -> None:
    bolt = StateLookupBolt(f"{tmp_path}/none.py:topology", "count", fields="word", key="word", value="count")
    with pytest.raises(Exception, match="prepare") as caught:
        complete_topology(lookups(bolt), {"words": [["the"]]})
    assert "none.py" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"key": "wort", "value": "count"}, "no field 'wort' of stream 'that StateLookupBolt reads'"),
        ({"key": "word", "value": "a, b"}, "must be one field"),
        ({"key": "word", "value": "word"}, "cannot add field 'word'"),
    ],
)
def test_fields_that_do_not_fit_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        StateLookupBolt("module:topology", "count", fields="word", **given)


def test_a_topology_object_is_refused() -> None:
    with pytest.raises(TopologyError, match="give the topology as text, 'module:topology'"):
        StateLookupBolt(TridentTopology("lines"), "count", fields="word", key="word", value="n")  # type: ignore[arg-type]
