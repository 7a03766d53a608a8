"""What `explain` says of whole topologies, `describe` of states, and the drawings show of the graph."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spouts import FixedBatchSpout
from states.cassandra import CassandraState
from states.memcached import MemcachedState
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.crashing_stores import WithoutAttempts
from tests.harness.topology_runs import dict_state
from tests.plan.explained_topologies import everything, rows, stock, with_requests, word_count
from trident import TopologyError, TridentTopology
from trident.errors import InexactPairingError
from trident.explain import Explanation
from trident.graph import Graph, PersistNode, QueryNode
from trident.operations import Count, Split
from trident.operations.names import MergedCombiner
from trident.spout import SpoutType
from trident.state import StateSpec, StateType
from trident.steps.applying import step_runs

GOLDEN = Path(__file__).parent / "golden"
TOPOLOGIES: list[Callable[[], TridentTopology]] = [word_count, stock, everything]


class Shout(Split):
    """A subclass may do something else, so it has no kernel."""


class Longest(Count):
    """As `Shout`."""


@pytest.mark.parametrize("made", TOPOLOGIES)
def test_a_topology_is_explained(made: Callable[[], TridentTopology]) -> None:
    assert made().explain() == (GOLDEN / f"{made.__name__}.txt").read_text(encoding="utf-8")


def test_between_them_the_topologies_have_every_kind_of_step() -> None:
    kinds = {type(node).__name__ for made in TOPOLOGIES for node in made().graph().nodes}
    assert kinds == {
        "SpoutNode", "EachNode", "FilterNode", "MapNode", "PeekNode", "ProjectNode", "MergeNode", "AggregateNode",
        "PersistNode", "QueryNode", "RepartitionNode", "MultiReduceNode", "JoinNode",
    }  # fmt: skip


def test_a_subclass_of_a_built_in_is_not_said_to_have_its_kernel() -> None:
    topology = TridentTopology("t")
    lines = rows(topology, "lines", "line: string", ["a"])
    for function, runs in ((Split(), "Arrow kernel"), (Shout(), "row by row")):
        assert step_runs(lines.each("line", function, "word")._node) == runs
    words = lines.each("line", Split(), "word").group_by("word")
    for aggregator, runs in ((Count(), "Arrow kernel"), (Longest(), "row by row")):
        assert step_runs(words.partition_aggregate(aggregator, "n: bigint").to_stream()._node) == runs
    chain = words.chained_agg().partition_aggregate(Count(), "a").partition_aggregate(Longest(), "b: bigint")
    assert step_runs(chain.chain_end()._node) == "row by row"


def test_the_rest_of_a_combiner_is_named_as_the_combiner() -> None:
    topology = TridentTopology("t")
    stream = rows(topology, "in", "n: bigint", [1]).aggregate("n", Longest(), "c: bigint")
    assert isinstance(stream._node.members[0].aggregator, MergedCombiner)  # type: ignore[attr-defined]
    stream.peek(print)
    assert "aggregate: Longest(c) -> c [row by row]" in topology.explain()


def test_a_topology_that_does_nothing_cannot_be_explained() -> None:
    with pytest.raises(TopologyError, match="has no stream"):
        TridentTopology("t").explain()


def test_an_explanation_is_a_text_that_a_notebook_shows_line_by_line() -> None:
    topology = TridentTopology("t")
    rows(topology, "in", "n: bigint", [1]).map(lambda row: row).peek(print)
    text = topology.explain()
    assert isinstance(text, Explanation)
    assert (text, type(str(text))) == (str(text), str)
    html = text._repr_html_()
    assert "<b>stage 1, in the workers</b>" in html
    assert "map &lt;lambda&gt;" in html
    assert re.sub(r"</?(b|pre)[^>]*>", "", html).replace("&lt;", "<").replace("&gt;", ">") == text.rstrip("\n")
    shown: list[str] = []
    printer = type("Printer", (), {"text": staticmethod(shown.append)})()
    text._repr_pretty_(printer, cycle=False)
    assert shown == [text]
    assert topology._repr_html_() == html


def test_a_notebook_shows_what_a_topology_lacks_that_does_nothing_yet() -> None:
    assert "has no stream" in TridentTopology("t")._repr_html_()


@pytest.mark.slow
def test_declaring_loads_no_engine_and_explaining_no_spark() -> None:
    script = (
        "import sys; from spouts import FixedBatchSpout; from trident import TridentTopology; t = TridentTopology('t')\n"
        "t.new_stream('in', FixedBatchSpout('a: string', 1, ['x'])).peek(print)\n"
        "print('trident.run' in sys.modules, len(t.explain()) > 50, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["False", "True", "False"], "")


def test_a_state_that_executors_commit_is_a_stage_of_its_own() -> None:
    text = TOPOLOGIES[0]().explain({"count": "executors"})
    assert "\nstage 2, in the workers: commit\n" in text
    assert "commit, in the driver" not in text
    assert "      committed by the executors; the driver publishes what their tasks wrote\n" in text  # it is in Delta


def test_a_state_is_described() -> None:
    (count,) = word_count().describe()
    why = "a replay is applied to the value from before the batch"
    cell = "(transactional spout, opaque state)"
    pairing = {"spout": "transactional", "cell": cell, "exact": True, "guarantee": "exact", "why": why}
    assert count == {
        "state": "count",
        "kind": "opaque",
        "store": "DeltaState",
        "partitions": 1,
        "static": False,
        "key": ["word: string"],
        "value": ["count: bigint"],
        "streams": {"lines": pairing},
    }


def test_a_state_names_all_streams_that_reach_it() -> None:
    assert {state["state"]: list(state["streams"]) for state in stock().describe()} == {
        "stock": ["came", "went"],
        "moved": ["came", "went"],
    }


def test_static_states_and_states_of_ones_own() -> None:
    towns, mine, loose = everything().describe()
    assert (towns["static"], towns["partitions"], towns["streams"]) == (True, 2, {})
    assert (mine["kind"], mine["store"]) == (None, "RowsState")
    assert (mine["streams"]["in"]["exact"], mine["streams"]["in"]["guarantee"]) == (None, "unknown")
    assert loose["streams"]["in"]["guarantee"] == "not exact"


def test_a_map_of_ones_own_is_named() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("n: bigint", 1, [1]))
    stream.persistent_aggregate(dict_state({}), Count(), "c").parallelism_hint(3)
    (state,) = topology.describe()
    assert (state["store"], state["partitions"]) == ("<lambda>", 3)


@pytest.mark.parametrize(
    "spec",
    [
        RedisState.opaque("redis://localhost", serializer=WithoutAttempts()),
        CassandraState.opaque("localhost", keyspace="k", serializer=WithoutAttempts()),
        MemcachedState.opaque(serializer=WithoutAttempts()),
        MemcachedState.cache_for(RedisState.opaque("redis://localhost", serializer=WithoutAttempts())),
    ],
)
def test_a_layout_without_attempts_is_not_exact_with_an_opaque_spout(spec: StateSpec) -> None:
    for promise, exact in ((SpoutType.OPAQUE, False), (SpoutType.TRANSACTIONAL, True)):
        topology = TridentTopology("t")
        spout = FixedBatchSpout("n: bigint", 1, [1])
        spout.spout_type = promise
        topology.new_stream("in", spout).persistent_aggregate(spec, Count(), "c")
        pairing = topology.describe()[0]["streams"]["in"]
        assert (pairing["exact"], pairing["cell"]) == (exact, f"({promise.value} spout, opaque state without attempts)")
        assert ("what a failed attempt wrote stays" in pairing["why"]) is not exact


def test_a_description_is_plain_data() -> None:
    for made in (word_count, stock, everything):
        assert json.loads(json.dumps(made().describe())) == made().describe()


@pytest.mark.parametrize(("promise", "kind"), list(itertools.product(SpoutType, StateType)))
def test_what_is_called_exact_is_what_is_let_start(promise: SpoutType, kind: StateType) -> None:
    topology = TridentTopology("t")
    spout = FixedBatchSpout("n: bigint", 1, [1])
    spout.spout_type = promise
    topology.new_stream("in", spout).persistent_aggregate(MemoryMapState(kind=kind), Count(), "c")
    (state,) = topology.describe()
    try:
        topology.start(engine="in_process").stop()
        accepted = True
    except InexactPairingError:
        accepted = False
    assert state["streams"]["in"]["exact"] is accepted
    assert state["streams"]["in"]["cell"] == f"({promise.value} spout, {kind.value} state)"


DRAWN = [word_count, stock, everything, with_requests]


def edges_of(graph: Graph) -> set[tuple[str, str]]:
    parents = {(parent, node.id) for node in graph.nodes for parent in node.parents}
    writes = {(node.id, f"state {node.state}") for node in graph.nodes if isinstance(node, PersistNode)}
    return parents | writes | {(f"state {node.state}", node.id) for node in graph.nodes if isinstance(node, QueryNode)}


def awkward() -> TridentTopology:
    """Names that are syntax elsewhere."""
    topology = TridentTopology("end")
    stream = rows(topology, "end", 'a"b: string, <c>: string', ["x", "y"])
    stream.name('say "hi"\\n <b>#`').map(lambda row: row).name("line\nbreak").peek(print)
    return topology


@pytest.mark.parametrize("made", [*DRAWN, awkward])
def test_mermaid_is_the_graph(made: Callable[[], TridentTopology]) -> None:
    graph = made().graph()
    first, *lines = made().to_mermaid().splitlines()
    assert first == "flowchart LR"
    shapes = {
        "node": r' +(n_\w+)\["([^"]*)"\]',
        "state": r'  (n_\w+)\[\("([^"]*)"\)\]',
        "edge": r"  (n_\w+) (?:-->|-\.->) (n_\w+)",
        "begin": r'  subgraph (stage_\d+)\["([^"]*)"\]',
        "end": "  (e)(nd)",
    }
    found: dict[str, list[tuple[str, str]]] = {shape: [] for shape in shapes}
    for line in lines:
        (shape, match), *others = [(s, m) for s, p in shapes.items() if (m := re.fullmatch(p, line))]
        assert not others
        found[shape].append((match[1], match[2]))
    names = [name for name, _ in found["node"] + found["state"]]
    assert len(set(names)) == len(names) == len(graph.nodes) + len(graph.states)
    assert len(found["edge"]) == len(edges_of(graph))
    assert {name for edge in found["edge"] for name in edge} <= set(names)
    assert len(found["begin"]) == len(found["end"])
    assert not any(character in label for _, label in found["node"] for character in "`\n")


def test_different_ids_have_different_names_in_mermaid() -> None:
    topology = TridentTopology("t")
    for name in ("a.b", "a_b", "a-b", "a_2e_b"):
        rows(topology, name, "n: bigint", [1]).peek(print)
    assert len(set(re.findall(r"^ +(n_\w+)\[", topology.to_mermaid(), re.MULTILINE))) == 8


def test_drawings_do_not_depend_on_what_else_is_declared() -> None:
    one, two = word_count(), word_count()
    rows(two, "more", "n: bigint", [1]).peek(print)
    mine = [line for line in one.to_mermaid().splitlines() if "n_lines" in line]
    assert mine == [line for line in two.to_mermaid().splitlines() if "n_lines" in line]


def test_a_topology_that_does_nothing_cannot_be_drawn() -> None:
    with pytest.raises(TopologyError, match="has no stream"):
        TridentTopology("t").to_mermaid()


if __name__ == "__main__":
    for each in TOPOLOGIES:
        (GOLDEN / f"{each.__name__}.txt").write_text(each().explain(), encoding="utf-8")
