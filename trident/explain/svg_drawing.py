"""The graph as SVG: stages from left to right, each with its steps, and the states behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from trident.explain.column_layout import Layout, Point, laid_out
from trident.explain.descriptions import describe
from trident.explain.drawing import arrows
from trident.explain.labels import stages_of, what
from trident.explain.operation_list import operation_kind
from trident.graph import DrpcNode, Graph
from trident.naming import counted
from trident.observe.picture import state_node
from trident.planner import make_plan

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _TOP, _EDGE, _LANE = 196, 44, 40, 20, 34, 12, 36
_LABEL, _DETAIL = 24, 30  # characters that a box has room for
_FILLS = {
    "spout": "#d7f0dc",
    "request": "#d7f0dc",
    "step": "#eceff3",
    "exchange": "#fde5c8",
    "query": "#e6dcf7",
    "state": "#d5e6fb",
    "store": "#bcd6f7",
}


@dataclass(frozen=True)
class _Box:
    """What is drawn; `band` is the number of its stage, `more` what is shown where the mouse rests."""

    kind: str
    label: str
    detail: str
    band: int
    more: str = ""


def to_svg(graph: Graph) -> str:
    """Return the graph as an SVG picture; `TopologyError` if there is nothing to run."""
    titles, boxes = _boxes(graph)
    edges = list(dict.fromkeys(arrows(graph)))
    flows, reads = ([edge[:2] for edge in edges if edge[2] is only] for only in (False, True))
    layout, lane = _two_floors(titles, boxes, flows, bool(reads))
    bands = list(_bands(titles, boxes, layout))
    width, height = _x(1 + max(column for column, _ in layout.places.values())) - _GAP_X + _EDGE, lane
    height = max(height, *(_bottom([row]) for _, row in layout.places.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}" '
        f'style="min-width:{width * 0.7:g}px;max-width:100%;height:auto" font-family="system-ui,sans-serif" font-size="11" '
        f'role="img" aria-label="{_text(f"topology {graph.name}")}">',
        *bands,
        '<g fill="none" stroke="#7a8594" stroke-width="1.3">',
        *(_arrow(layout, edge) for edge in layout.ways),
        "</g>",
        *(_drawn(box, layout.places[id_]) for id_, box in boxes.items()),
        '<g fill="none" stroke="#7a5bb5" stroke-width="1.2" stroke-dasharray="4 3">',
        *(_read(layout.places[state], layout.places[query], lane) for state, query in reads),
        "</g></svg>",
    ]
    return "\n".join(parts)


def _two_floors(
    titles: list[str], boxes: Mapping[str, _Box], edges: list[tuple[str, str]], has_reads: bool
) -> tuple[Layout, float]:
    """Return the places of all boxes, those of requests below the others, and the height of what stands above."""
    columns = _columns(titles, boxes, edges)
    below = {id_ for id_, box in boxes.items() if box.band == len(titles) - 1}
    floors = []
    for only in (False, True):
        there = {id_: column for id_, column in columns.items() if (id_ in below) is only}
        floors.append(laid_out(there, [edge for edge in edges if edge[0] in there and edge[1] in there]))
    upper, lower = floors
    lane = _bottom([row for _, row in upper.places.values()]) + (_LANE if has_reads else 0)
    down = lane / (_HEIGHT + _GAP_Y)
    places = {id_: (column, row + down) for id_, (column, row) in lower.places.items()}
    ways = {edge: [(column, row + down) for column, row in way] for edge, way in lower.ways.items()}
    return Layout({**upper.places, **places}, {**upper.ways, **ways}), lane


def _boxes(graph: Graph) -> tuple[list[str], dict[str, _Box]]:
    """Return the titles of the bands, and what is drawn; a step that runs in several stages is drawn in the last."""
    plan = make_plan(graph)
    stages, states = stages_of(plan), {each["state"]: each for each in describe(graph)}
    titles = [*(stage.title for stage in stages), "states", "requests"]
    band_of: dict[str, int] = {}
    number_of: dict[str, str] = {}
    for band, stage in enumerate(stages):
        for number, entry in enumerate(stage.entries, 1):
            band_of |= dict.fromkeys(plan.fragments[entry].ids, band)
            if stage.driver and len(stage.entries) > 1:
                number_of[entry] = f"{number}. "
    boxes = {}
    for node in graph.nodes:
        kind = "request" if isinstance(node, DrpcNode) else operation_kind(graph, node)[0]
        label, detail = number_of.get(node.id, "") + node.id.rpartition("/")[2], _detail(what(node))
        boxes[node.id] = _Box(kind, label, detail, band_of.get(node.id, len(stages) + 1), f"{node.id}\n{what(node)}")
    for name, each in states.items():
        detail = f"{each['kind'] or 'own kind'}, {each['store']}"
        pairings = [f"{stream}: {one['guarantee']}" for stream, one in each["streams"].items()]
        more = "\n".join([name, detail, counted(each["partitions"], "partition"), *pairings])
        boxes[state_node(name)] = _Box("store", name, detail, len(stages), more)
    return titles, boxes


def _detail(text: str) -> str:
    """Return what a step does, without the name of its state, which an arrow shows."""
    kind, colon, rest = text.partition(": ")
    return f"{kind.partition(' ')[0]} {rest}" if colon and kind.startswith(("persist ", "query ")) else text


def _columns(titles: list[str], boxes: Mapping[str, _Box], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return the columns: bands one behind the other, in each of them a box behind those that lead to it."""
    depth: dict[str, int] = {}
    for id_, box in boxes.items():  # in order of declaration, parents first
        parents = [source for source, target in edges if target == id_ and boxes[source].band == box.band]
        depth[id_] = 1 + max((depth[each] for each in parents), default=-1)
    begin, first = {}, 0
    for band in range(len(titles)):
        there = [depth[id_] for id_, box in boxes.items() if box.band == band]
        begin[band], first = first, first + (1 + max(there) if there else 0)
    begin[len(titles) - 1] = 0  # requests begin on the left again, below the rest
    return {id_: begin[box.band] + depth[id_] for id_, box in boxes.items()}


def _bands(titles: list[str], boxes: Mapping[str, _Box], layout: Layout) -> Iterator[str]:
    floors: dict[bool, list[float]] = {False: [], True: []}
    for id_, box in boxes.items():
        floors[box.band == len(titles) - 1].append(layout.places[id_][1])
    for band, title in enumerate(titles):
        there = [layout.places[id_][0] for id_, box in boxes.items() if box.band == band]
        if there:
            rows = floors[band == len(titles) - 1]
            left, right = _x(min(there)) - _EDGE / 2, _x(max(there)) + _WIDTH + _EDGE / 2
            top, bottom = _y(min(rows)) - _TOP + 2, _bottom(rows)
            yield (
                f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" rx="6" fill="#808a98" '
                f'fill-opacity="0.1"/><text x="{left + 6:g}" y="{top + 16:g}" fill="#7a8594">{_text(title)}</text>'
            )


def _drawn(box: _Box, place: Point) -> str:
    x, y = _x(place[0]), _y(place[1])
    outline = f'x="{x}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"'
    shape = f"<rect {outline}/>"
    if box.kind == "store":
        round_, over = f"a{_WIDTH / 2:g} 6 0 0 1", f"a{_WIDTH / 2:g} 6 0 0 0"
        shape = (
            f'<path d="M{x} {y + 6:g}{round_} {_WIDTH} 0v{_HEIGHT - 12}{round_} {-_WIDTH} 0z"/>'
            f'<path d="M{x} {y + 6:g}{over} {_WIDTH} 0" fill="none"/>'
        )
    middle, lower = x + _WIDTH / 2, 4 if box.kind == "store" else 0
    return (
        f'<g><title>{_text(box.more)}</title><g fill="{_FILLS[box.kind]}" stroke="#7a8594">{shape}</g>'
        f'<g text-anchor="middle" fill="#1c2430"><text x="{middle:g}" y="{y + 19 + lower:g}" font-size="13" '
        f'font-weight="600">{_text(_cut(box.label, _LABEL))}</text><text x="{middle:g}" y="{y + 34 + lower / 2:g}">'
        f"{_text(_cut(box.detail, _DETAIL))}</text></g></g>"
    )


def _arrow(layout: Layout, edge: tuple[str, str]) -> str:
    (column, row), end = layout.places[edge[0]], layout.places[edge[1]]
    x, y = _x(column) + _WIDTH, _y(row) + _HEIGHT / 2
    path = [f"M{x} {y:g}"]
    for column, row in [*layout.ways[edge], end]:
        to, there = _x(column), _y(row) + _HEIGHT / 2
        path.append(f"C{x + 20} {y:g} {to - 20} {there:g} {to} {there:g}")
        x, y = to + _WIDTH, there
        if (column, row) != end:
            path.append(f"H{x}")
    return f'<path d="{"".join(path)}"/><path d="M{_x(end[0])} {y:g}l-7 -4v8z" fill="#7a8594" stroke="none"/>'


def _read(state: Point, query: Point, lane: float) -> str:
    """Return the arrow of a query: from below, because a state is to the right of its queries, or from above, of a request."""
    (from_x, from_y), (x, y) = ((_x(column) + _WIDTH / 2, _y(row) + _HEIGHT) for column, row in (state, query))
    y, head = (y, 7) if y < lane else (y - _HEIGHT, -7)
    return (
        f'<path d="M{from_x:g} {from_y:g}C{from_x:g} {lane:g} {x:g} {lane:g} {x:g} {y:g}"/>'
        f'<path d="M{x:g} {y:g}l-4 {head}h8z" fill="#7a5bb5" stroke="none" stroke-dasharray="none"/>'
    )


def _x(column: int) -> int:
    return _EDGE + column * (_WIDTH + _GAP_X)


def _y(row: float) -> float:
    return _TOP + row * (_HEIGHT + _GAP_Y)


def _bottom(rows: list[float]) -> float:
    return _y(max(rows)) + _HEIGHT + _EDGE


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _text(text: str) -> str:
    return escape("".join(each if each.isprintable() or each == "\n" else "?" for each in text))
