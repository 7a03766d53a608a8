"""Random sequences of operations on all kinds of cluster state, compared with a plain dictionary; and many nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.cluster_states import Opened, Opening
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.storm_cluster_state import ClusterState
from trident.errors import ClusterError

_roots = itertools.count(1)


class Model:
    """Nodes as a dictionary: data, version, and whose end is their end. Of watches, what was read and what may be told."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, int | None]] = {"/": (b"", 0, None)}
        self.data_watches: dict[tuple[int, str], object] = {}
        self.child_watches: dict[tuple[int, str], object] = {}
        self.may_tell: dict[int, set[str]] = {0: set(), 1: set()}

    def must_tell(self, session: int) -> set[str]:
        data = {
            path for (by, path), seen in self.data_watches.items() if by == session and self.nodes.get(path) != seen
        }
        return data | {
            path for (by, path), seen in self.child_watches.items() if by == session and self.below(path) != seen
        }

    def below(self, path: str) -> list[str]:
        prefix = path if path == "/" else f"{path}/"
        names = {each.removeprefix(prefix) for each in self.nodes if each.startswith(prefix) and each != "/"}
        return sorted(name for name in names if "/" not in name)

    def create(self, path: str, data: bytes, owner: int | None = None) -> None:
        above = path.rpartition("/")[0] or "/"
        if above not in self.nodes:
            self.create(above, b"")
        if self.nodes[above][2] is not None:
            raise ClusterError("below an ephemeral node")
        self.nodes[path] = (data, 0, owner)
        self._tell(path)

    def put(self, path: str, data: bytes) -> None:
        if path not in self.nodes:
            self.create(path, data)
            return
        _, version, owner = self.nodes[path]
        self.nodes[path] = (data, version + 1, owner)
        self._tell(path, is_new=False)

    def replace(self, path: str, data: bytes, owner: int) -> None:
        if path in self.nodes and self.nodes[path][2] == owner:
            self.put(path, data)
            return
        if self.below(path):
            raise ClusterError("has nodes below")
        if path in self.nodes:
            self.delete(path)
        self.create(path, data, owner)

    def delete(self, path: str) -> None:
        for each in sorted((each for each in self.nodes if each == path or each.startswith(f"{path}/")), reverse=True):
            del self.nodes[each]
            self._tell(each)

    def _tell(self, path: str, is_new: bool = True) -> None:
        above = path.rpartition("/")[0] or "/"
        for session in (0, 1):
            if (session, path) in self.data_watches or (is_new and (session, path) in self.child_watches):
                self.may_tell[session].add(path)
            if is_new and (session, above) in self.child_watches:
                self.may_tell[session].add(above)


_PATHS = st.sampled_from(["/a", "/b", "/a/b", "/a/c", "/a/b/c", "/a!", "/a0", "/b/ü"])
_DATA = st.sampled_from([b"", b"1", b"22"])
_SESSION = st.sampled_from([0, 1])
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set_data"), _SESSION, _PATHS, _DATA),
        st.tuples(st.just("set_ephemeral_node"), _SESSION, _PATHS, _DATA),
        st.tuples(st.just("create_ephemeral_node"), _SESSION, _PATHS, _DATA),
        st.tuples(st.just("compare_and_set"), _SESSION, _PATHS, st.sampled_from([None, 0, 1, 2])),
        st.tuples(st.just("delete_node"), _SESSION, _PATHS, st.none()),
        st.tuples(st.just("mkdirs"), _SESSION, _PATHS, st.none()),
        st.tuples(st.just("watch_data"), _SESSION, _PATHS, st.none()),
        st.tuples(st.just("watch_children"), _SESSION, _PATHS, st.none()),
    ),
    max_size=14,
)
Operation = tuple[str, int, str, object]


def expected(model: Model, operation: Operation) -> object:
    """Return what an operation must return; `ClusterError` if it must raise that."""
    before = dict(model.nodes)
    try:
        return _returned(model, *operation)
    except ClusterError:
        model.nodes = before
        return ClusterError


def _returned(model: Model, name: str, session: int, path: str, argument: object) -> object:
    data = argument if isinstance(argument, bytes) else b"set"
    found = model.nodes.get(path)
    match name:
        case "set_data":
            model.put(path, data)
        case "set_ephemeral_node":
            model.replace(path, data, session)
        case "delete_node":
            model.delete(path)
        case "mkdirs":
            if found is None:
                model.create(path, b"")
        case "create_ephemeral_node":
            if found is None:
                model.create(path, data, session)
            return found is None
        case "compare_and_set":
            done = argument == (None if found is None else found[1])
            if done:
                model.put(path, data)
            return done
        case "watch_data":
            model.data_watches[session, path] = found
            return None if found is None else found[0]
        case "watch_children":
            model.child_watches[session, path] = model.below(path)
            return model.below(path)
    return None


def actual(state: ClusterState, operation: Operation) -> object:
    name, _, path, argument = operation
    data = argument if isinstance(argument, bytes) else b"set"
    try:
        match name:
            case "watch_data":
                return state.get_data(path, watch=True)
            case "watch_children":
                return state.get_children(path, watch=True)
            case "compare_and_set":
                return state.compare_and_set(path, data, argument)  # type: ignore[arg-type]
            case "delete_node" | "mkdirs":
                return getattr(state, name)(path)
            case _:
                return getattr(state, name)(path, data)
    except ClusterError:
        return ClusterError


@pytest.fixture
def sessions(address: str) -> Iterator[tuple[Opened, Opened]]:
    states = [open_cluster_state(address) for _ in range(2)]
    yield Opened(states[0]), Opened(states[1])
    for each in states:
        each.close()


@pytest.mark.sample(1)
@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=_OPERATIONS)
def test_operations_of_two_sessions_do_what_a_dictionary_does(
    sessions: tuple[Opened, Opened], operations: list[Operation]
) -> None:
    root, model = f"/run{next(_roots)}", Model()
    sessions[0].state.mkdirs(root)
    for operation in operations:
        name, session, path, argument = operation
        wanted = expected(model, operation)
        assert actual(sessions[session].state, (name, session, root + path, argument)) == wanted, operation
    for path, (data, version, _) in model.nodes.items():
        if path != "/":
            assert (sessions[0].state.get_node(root + path) or ())[:2] == (data, version)
        at = root + path.rstrip("/")
        assert sessions[1].state.get_children(at) == model.below(path)
        assert sessions[0].state.get_data_below(at) == {
            name: model.nodes[f"{path.rstrip('/')}/{name}"][0] for name in model.below(path)
        }
    for session, each in enumerate(sessions):
        told = {event.path.removeprefix(root) or "/" for event in each.settled(f"{root}-settled")}
        assert model.must_tell(session) <= told <= model.may_tell[session]
    sessions[0].state.delete_node(root)
    for each in sessions:  # what still watched the nodes of this run
        each.settled(f"{root}-settled")


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_nodes(opening: Opening, address: str, count: int) -> None:
    one, other = opening(), opening()
    other.state.get_children("/all", watch=True)
    times = [time.process_time()]
    names = [f"node-{number:05}" for number in range(count)]
    with ThreadPoolExecutor(16) as threads:  # so that a server writes many at once to its disk
        list(threads.map(lambda name: one.state.set_data(f"/all/{name}", name.encode()), names))
    times.append(time.process_time())
    assert other.state.get_children("/all", watch=True) == names
    times.append(time.process_time())
    assert other.state.get_data_below("/all") == {name: name.encode() for name in names}
    times.append(time.process_time())
    other.settled()
    assert other.state.get_data("/all", watch=True) == b""
    one.state.delete_node("/all")
    times.append(time.process_time())
    assert other.state.get_data_below("/all") == {}
    assert ("changed", "/all") in other.settled()
    steps = zip(("create", "list", "read", "delete"), times, times[1:], strict=False)
    print(address.partition(":")[0], count, *(f"{name} {end - begin:.2f} s" for name, begin, end in steps))  # noqa: T201  with pytest -s
