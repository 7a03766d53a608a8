"""The drawings: read back by small parsers, and compared with the graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.explain.topologies import everything, rows, stock, with_requests, word_count
from trident import TopologyError, TridentTopology
from trident.graph import Graph, PersistNode, QueryNode

TOPOLOGIES = [word_count, stock, everything, with_requests]
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|->|[{}\[\];,=]|\w+)', re.DOTALL)


class Drawing(NamedTuple):
    """What was read: node -> label, edges, and cluster -> nodes."""

    nodes: dict[str, str]
    edges: set[tuple[str, str]]
    clusters: dict[str, list[str]]


class DotParser:
    """A parser of the part of DOT that Graphviz calls graph, subgraph, node_stmt, edge_stmt and attr_stmt."""

    def __init__(self, text: str) -> None:
        self.tokens, at = [], 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            assert found is not None, f"no DOT at {text[at : at + 40]!r}"
            self.tokens.append(found[1])
            at = found.end()
        self.drawing = Drawing({}, set(), {})

    def parse(self) -> Drawing:
        self.take("digraph")
        self.word()
        self.block("")
        assert not self.tokens, self.tokens
        return self.drawing

    def block(self, cluster: str) -> None:
        self.take("{")
        while self.tokens[0] != "}":
            self.statement(cluster)
        self.take("}")

    def statement(self, cluster: str) -> None:
        if self.tokens[0] == "subgraph":
            self.take("subgraph")
            self.block(self.word())
            return
        name = self.word()
        if self.tokens[0] == "=":
            self.take("=")
            self.word()
        elif self.tokens[0] == "->":
            self.take("->")
            self.drawing.edges.add((name, self.word()))
            self.attributes()
        elif (given := self.attributes()) and name != "node":
            self.drawing.nodes[name] = given["label"]
            self.drawing.clusters.setdefault(cluster, []).append(name)
        self.take(";")

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.tokens[0] != "[":
            return found
        while self.tokens.pop(0) != "]":  # that was "[" or ","
            name = self.word()
            self.take("=")
            found[name] = self.word()
            if self.tokens[0] != ",":
                self.take("]")
                break
        return found

    def word(self) -> str:
        token = self.tokens.pop(0)
        assert token[0] == '"' or token.isidentifier() or token.isdigit(), token
        unescaped = {r"\"": '"', r"\\": "\\", r"\n": "\n"}
        return re.sub(r'\\["\\n]', lambda found: unescaped[found[0]], token[1:-1]) if token[0] == '"' else token

    def take(self, token: str) -> None:
        assert self.tokens.pop(0) == token


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


@pytest.mark.parametrize("made", [*TOPOLOGIES, awkward])
def test_dot_can_be_read_and_is_the_graph(made: Callable[[], TridentTopology]) -> None:
    graph = made().graph()
    drawing = DotParser(made().to_dot()).parse()
    assert set(drawing.nodes) == {node.id for node in graph.nodes} | {f"state {state.name}" for state in graph.states}
    assert drawing.edges == edges_of(graph)
    for node in graph.nodes:
        assert drawing.nodes[node.id].startswith(node.id.rpartition("/")[2] + "\n")


def test_nodes_are_drawn_in_their_stages() -> None:
    clusters = DotParser(stock().to_dot()).parse().clusters
    assert clusters["cluster_0"] == ["came", "came/merge", "went", "went/Sum:part"]
    assert clusters["cluster_1"] == ["came/join", "came/join/each", "went/Sum:exchange", "went/Sum"]
    assert clusters["cluster_2"][0] == "went/Sum/MapGet@stock"
    assert clusters[""] == ["state stock", "state moved"]


@pytest.mark.parametrize("text", ["digraph x { a -> ; }", 'digraph x { "a" [label="b ]; }', "graph x { }"])
def test_what_is_no_dot_is_found(text: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        DotParser(text).parse()


@pytest.mark.parametrize("made", [*TOPOLOGIES, awkward])
def test_mermaid_is_the_graph_too(made: Callable[[], TridentTopology]) -> None:
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


@pytest.mark.parametrize("draw", [TridentTopology.to_dot, TridentTopology.to_mermaid])
def test_a_topology_that_does_nothing_cannot_be_drawn(draw: Callable[[TridentTopology], str]) -> None:
    with pytest.raises(TopologyError, match="has no stream"):
        draw(TridentTopology("t"))
