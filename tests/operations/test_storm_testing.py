"""The operations of Storm's own tests."""

import pytest

from spouts import FixedBatchSpout
from tests.harness.topology_runs import keep, run_all
from trident import BatchFailedError, TridentTopology
from trident.operations import CountAsAggregator, StringLength, TrueFilter, TuplifyArgs


def test_lengths_filters_and_counts() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("text: string", 3, ("abc",), ("🐍",), (None,), ("",)))
    lengths = keep(stream.each("text", TrueFilter()).each("text", StringLength(), "length"), "lengths")
    counts = keep(stream.aggregate("text", CountAsAggregator(), "count"), "counts")
    run_all(topology, "in_process")
    assert lengths.rows == [("abc", 3), ("🐍", 1), (None, None), ("", 0)]
    assert counts.rows == [(3,), (1,)]


def tuplified(*texts: str) -> list[object]:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("args: string", 2, *([text] for text in texts)))
    rows = keep(stream.each("args", TuplifyArgs(), "word: string, n: int").project("word", "n"))
    run_all(topology, "in_process", max_batch_attempts=1)
    return list(rows.rows)


def test_arguments_become_tuples() -> None:
    assert tuplified('[["a", 1], ["b", null]]', "[]") == [("a", 1), ("b", None)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1}', "is not a JSON list of lists"),
        ('["a"]', "is not a JSON list of lists"),
        ("[", "JSONDecodeError"),
        ('[["a"]]', r"emitted 1 value \['a'\] for the 2 output fields"),
    ],
)
def test_arguments_that_are_none_are_named(text: str, error: str) -> None:
    with pytest.raises(BatchFailedError, match=error):
        tuplified(text)
