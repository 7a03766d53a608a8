"""The SVG picture: read back as XML, and compared with the graph and with what a reader can tell apart.

`python -m tests.explain.test_svg_drawing` writes the one of docs/.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from tests.explain.test_drawing import awkward, edges_of
from tests.explain.topologies import everything, rows, stock, with_requests, word_count
from tests.runtime.random_topologies import Random
from trident import TopologyError, TridentTopology
from trident.explain import Explanation
from trident.explain.column_layout import laid_out
from trident.graph import QueryNode

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "word-count.svg"
SVG = "{http://www.w3.org/2000/svg}"
NUMBER = r"-?[\d.]+(?:e-?\d+)?"


class Picture(NamedTuple):
    """What was read: of each box its id and x, y, width, height; arrows from and to a point."""

    boxes: dict[str, tuple[float, ...]]
    arrows: list[tuple[float, ...]]
    reads: list[tuple[float, ...]]
    words: str


def parsed(svg: str) -> Picture:
    root = ElementTree.fromstring(svg)
    boxes: dict[str, tuple[float, ...]] = {}
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text is not None:
            shape = next(iter(next(iter(group.findall(f"{SVG}g")))))
            label = title.text if shape.tag.endswith("rect") else f"state {title.text}"
            boxes[label] = _outline(shape)
    solid, dashed = (_ends(root, stroke) for stroke in ("#7a8594", "#7a5bb5"))
    return Picture(boxes, solid, dashed, " ".join(each.text or "" for each in root.iter(f"{SVG}text")))


def _outline(shape: ElementTree.Element) -> tuple[float, ...]:
    if shape.tag.endswith("rect"):
        return tuple(float(shape.attrib[name]) for name in ("x", "y", "width", "height"))
    x, y, *_ = (float(each) for each in re.findall(NUMBER, shape.attrib["d"]))
    return (x, y - 6, 196, 44)


def _ends(root: ElementTree.Element, stroke: str) -> list[tuple[float, ...]]:
    group = next(
        each for each in root.findall(f"{SVG}g") if each.get("fill") == "none" and each.get("stroke") == stroke
    )
    paths = [each.attrib["d"] for each in group if each.get("fill") is None]
    heads = [each.attrib["d"] for each in group if each.get("fill") is not None]
    points = [[float(each) for each in re.findall(NUMBER, path)[:2]] for path in [*paths, *heads]]
    return [(*begin, *end) for begin, end in zip(points[: len(paths)], points[len(paths) :], strict=True)]


def starts(id_: str, boxes: dict[str, Any]) -> str:
    """Return the title that begins with an id."""
    (found,) = [title for title in boxes if title.startswith(f"{id_}\n")]
    return found


def on_edge(point: tuple[float, float], box: tuple[float, ...]) -> bool:
    x, y, width, height = box
    return x <= point[0] <= x + width and y <= point[1] <= y + height


@pytest.mark.parametrize("made", [word_count, stock, everything, with_requests, awkward])
def test_the_picture_is_the_graph(made: Callable[[], TridentTopology]) -> None:
    topology = made()
    graph, picture = topology.graph(), parsed(topology.to_svg())
    assert len(picture.boxes) == len(graph.nodes) + len(graph.states)
    edges = edges_of(graph)
    reading = {(f"state {node.state}", node.id) for node in graph.nodes if isinstance(node, QueryNode)}
    for drawn, wanted in ((picture.arrows, edges - reading), (picture.reads, reading)):
        found = {
            edge
            for edge in wanted
            for x, y, to_x, to_y in drawn
            if on_edge((x, y), picture.boxes[starts(edge[0], picture.boxes)])
            and on_edge((to_x, to_y), picture.boxes[starts(edge[1], picture.boxes)])
        }
        assert (found, len(drawn)) == (wanted, len(wanted))


@pytest.mark.parametrize("made", [word_count, stock, everything, with_requests, awkward])
def test_no_two_boxes_overlap_and_arrows_lead_to_the_right(made: Callable[[], TridentTopology]) -> None:
    check_places(made())


def test_random_topologies_are_drawn_alike() -> None:
    for seed in range(40):
        topology = TridentTopology("random")
        Random(topology, seed)
        check_places(topology)


def check_places(topology: TridentTopology) -> None:
    graph, picture = topology.graph(), parsed(topology.to_svg())
    assert len(picture.boxes) == len(graph.nodes) + len(graph.states)
    for (x, y, width, height), (other_x, other_y, *_) in combinations(picture.boxes.values(), 2):
        assert abs(x - other_x) >= width or abs(y - other_y) >= height
    assert all(to_x > x for x, _, to_x, _ in picture.arrows)


def test_the_picture_of_the_docs_is_what_is_drawn() -> None:
    assert IMAGE.read_text(encoding="utf-8") == f"{word_count().to_svg()}\n"


def test_stages_commits_in_their_order_and_states_are_named() -> None:
    words = parsed(stock().to_svg()).words
    for part in (
        "stage 1, in the workers",
        "stage 2, in the workers",
        "commit, in the driver, in this order",
        "states",
    ):
        assert part in words
    for part in ("1. MapGet@stock", "2. Sum@stock", "3. Sum@moved"):
        assert part in words
    assert "opaque, MemoryMapState" in words


def test_requests_are_drawn_below_the_batches() -> None:
    boxes = parsed(with_requests().to_svg()).boxes
    batches, requests = boxes[starts("lines", boxes)], boxes[starts("drpc:words", boxes)]
    assert (batches[0], requests[1] > batches[1] + batches[3]) == (requests[0], True)


def test_an_edge_that_passes_columns_meets_no_box() -> None:
    columns = {"a": 0, "b": 1, "c": 2, "d": 3}
    layout = laid_out(columns, [*pairwise("abcd"), ("a", "d"), ("b", "d")])
    taken = set(layout.places.values())
    assert [len(layout.ways[edge]) for edge in (("a", "b"), ("a", "d"), ("b", "d"))] == [0, 2, 1]
    passing = [point for way in layout.ways.values() for point in way]
    assert not taken.intersection(passing)
    assert len(set(passing)) == len(passing)


def test_a_notebook_shows_a_topology_as_a_picture() -> None:
    topology = word_count()
    bundle = topology._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert bundle["image/svg+xml"] == topology.to_svg()
    assert topology.to_svg() in bundle["text/html"]
    assert bundle["text/plain"] == repr(topology)


def test_a_topology_that_does_nothing_yet_is_shown_with_what_it_lacks() -> None:
    topology = TridentTopology("t")
    with pytest.raises(TopologyError, match="has no stream"):
        topology.to_svg()
    bundle = topology._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "has no stream" in bundle["text/html"]


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


if __name__ == "__main__":
    IMAGE.write_text(f"{word_count().to_svg()}\n", encoding="utf-8")
