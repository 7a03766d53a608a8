"""The state of a cluster: paths, versions and watches, and its addresses."""

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.code.packed_topologies import package_of, put
from tests.harness.cluster_states import Opened, Opening
from tests.harness.commands import started
from tests.harness.zookeeper_servers import ZooKeeperEnsemble
from trident.cluster.client import ClusterClient, left_of
from trident.cluster.code_store import CodeStore
from trident.cluster_state.cluster_address import STATE_FILE, default_address, folder_of, open_cluster_state, own_token
from trident.cluster_state.storm_cluster_state import ClusterState
from trident.errors import ClusterError, ClusterUnreachable, ConfigError, EnvironmentProblem
from trident.log.file_log import FileLog
from trident.nodes.interface import StoredNode

BINARY = bytes(range(256))


def test_data_is_read_as_it_was_set(opened: Opened) -> None:
    for data in (b"", b"x", BINARY, "Größe 大小 🙂".encode(), b"z" * 1_000_000):
        opened.state.set_data("/a", data)
        assert opened.state.get_data("/a") == data
        assert opened.state.get_data_below("/") == {"a": data}


def test_a_node_that_is_not_there_is_none_and_has_nothing_below(opened: Opened) -> None:
    state = opened.state
    assert state.get_data("/none") is None
    assert state.get_node("/none") is None
    assert state.get_children("/none/at/all") == []
    assert state.get_data_below("/none") == {}
    assert state.get_data_below_each(["/none"]) == {"/none": {}}
    assert state.get_data_each(["/none"]) == [None]
    state.delete_node("/none")


@pytest.mark.sample(1)
def test_many_nodes_are_read_at_once_in_the_order_asked(opened: Opened) -> None:
    state = opened.state
    assert state.get_data_each([]) == []
    assert state.get_data_below_each([]) == {}
    for number in range(600):
        state.set_data(f"/{number % 3}/{number}", b"%d" % number)
    paths = [f"/{number % 3}/{number}" for number in range(610, 0, -1)]
    assert state.get_data_each(paths) == [None] * 11 + [b"%d" % number for number in range(599, 0, -1)]
    assert state.get_data_below_each(["/2", "/0"]) == {
        path: dict(sorted((f"{number}", b"%d" % number) for number in range(int(path[1:]), 600, 3)))
        for path in ("/2", "/0")
    }


def test_compare_and_set_needs_the_version(opened: Opened) -> None:
    state = opened.state
    assert not state.compare_and_set("/a/b", b"x", 0)
    assert state.compare_and_set("/a/b", b"0", None)
    assert not state.compare_and_set("/a/b", b"x", None)
    assert not state.compare_and_set("/a/b", b"x", 1)
    assert not state.compare_and_set("/a/b", b"x", -1)
    assert state.compare_and_set("/a/b", b"1", 0)
    assert not state.compare_and_set("/a/b", b"x", 0)
    assert state.get_node("/a/b") == StoredNode(b"1", 1)


def test_sequential_names_have_ten_digits_and_only_grow(opened: Opened) -> None:
    state = opened.state
    made = [state.create_sequential("/all/e", b"1")]
    state.delete_node(made[0])
    made.append(state.create_sequential("/all/e", b"2"))
    made.append(state.create_sequential("/all/f", b"3"))
    numbers = [path[-10:] for path in made]
    assert all(number.isdecimal() for number in numbers)
    assert numbers == sorted(set(numbers))
    assert [path[:-10] for path in made] == ["/all/e", "/all/e", "/all/f"]
    assert state.get_data_below("/all") == {made[1][5:]: b"2", made[2][5:]: b"3"}


def test_too_much_data_is_refused_and_the_session_goes_on(opened: Opened) -> None:
    with pytest.raises(ClusterError, match="1,000,001 bytes are too many for the node '/a', which holds 1,000,000"):
        opened.state.set_data("/a", b"x" * 1_000_001)
    assert opened.state.get_data("/a") is None


def test_names_are_of_any_language(opened: Opened) -> None:
    state = opened.state
    state.set_data("/all/other", b"2")
    for name in ("Größe", "大小", "a b", "a%2Fb", "e'; DROP TABLE node; --", "%", "_", "*"):
        state.set_data(f"/all/{name}/below", b"1")
        assert name in state.get_children("/all")
        assert state.get_data_below(f"/all/{name}") == {"below": b"1"}
        state.delete_node(f"/all/{name}")
        assert state.get_children("/all") == ["other"]


def test_a_data_watch_tells_once(opening: Opening) -> None:
    one, other = opening(), opening()
    one.state.set_data("/a", b"1")
    assert one.state.get_data("/a", watch=True) == b"1"
    assert one.state.get_data("/a", watch=True) == b"1"
    other.state.set_data("/a", b"2")
    other.state.set_data("/a", b"3")
    one.until(bool)
    assert one.settled() == [("changed", "/a")]
    assert other.settled() == []


def test_reading_without_a_watch_tells_nothing(opened: Opened) -> None:
    opened.state.get_data("/a")
    opened.state.get_children("/")
    opened.state.get_node("/a")
    opened.state.get_data_below("/")
    opened.state.set_data("/a", b"")
    assert opened.settled() == []


def test_an_ephemeral_node_vanishes_when_its_session_is_closed(opening: Opening) -> None:
    one, other = opening(), opening()
    one.state.set_ephemeral_node("/there/one", b"1")
    assert other.state.get_children("/there", watch=True) == ["one"]
    assert other.state.get_data("/there/one", watch=True) == b"1"
    one.state.close()
    other.told(("changed", "/there/one"), ("changed", "/there"))
    assert other.state.get_children("/there") == []


def test_one_of_two_creates_an_ephemeral_node(opening: Opening) -> None:
    one, other = opening(), opening()
    assert one.state.create_ephemeral_node("/leader", b"one")
    assert not other.state.create_ephemeral_node("/leader", b"other")
    assert not one.state.create_ephemeral_node("/leader", b"one")
    assert other.state.get_data("/leader", watch=True) == b"one"
    one.state.close()
    other.told(("changed", "/leader"))
    assert other.state.create_ephemeral_node("/leader", b"other")


def test_an_ephemeral_node_of_another_session_becomes_one_of_this(opening: Opening) -> None:
    one, other, looks = opening(), opening(), opening()
    one.state.set_ephemeral_node("/supervisors/a", b"one")
    one.state.set_ephemeral_node("/supervisors/a", b"one again")
    assert (looks.state.get_node("/supervisors/a") or ())[:2] == (b"one again", 1)
    other.state.set_ephemeral_node("/supervisors/a", b"other")
    one.state.close()
    assert (looks.state.get_node("/supervisors/a") or ())[:2] == (b"other", 0)
    other.state.close()
    assert looks.state.get_data("/supervisors/a") is None


def test_a_persistent_node_can_become_ephemeral_unless_nodes_are_below(opening: Opening) -> None:
    one, other = opening(), opening()
    one.state.set_data("/a", b"")
    one.state.set_ephemeral_node("/a", b"1")
    one.state.set_data("/b/c", b"")
    with pytest.raises(ClusterError, match="has nodes below it"):
        one.state.set_ephemeral_node("/b", b"1")
    assert other.state.get_children("/b") == ["c"]
    one.state.close()
    assert other.state.get_children("/") == ["b"]


def test_nothing_can_be_below_an_ephemeral_node(opened: Opened) -> None:
    state = opened.state
    state.set_ephemeral_node("/a", b"")
    for call in (
        lambda: state.set_data("/a/b", b""),
        lambda: state.create_sequential("/a/b", b""),
        lambda: state.mkdirs("/a/b/c"),
        lambda: state.set_ephemeral_node("/a/b", b""),
        lambda: state.compare_and_set("/a/b", b"", None),
    ):
        with pytest.raises(ClusterError, match="vanishes with a session"):
            call()
    assert state.get_children("/a") == []


def test_a_closed_state_says_so_is_told_nothing_and_can_be_closed_again(opening: Opening) -> None:
    one, other = opening(), opening()
    one.state.get_data("/a", watch=True)
    one.state.close()
    one.state.close()
    other.state.set_data("/a", b"")
    other.settled()
    assert one.take() == []
    with pytest.raises(ClusterError, match="is closed"):
        one.state.get_data("/a")
    with pytest.raises(ClusterError, match="is closed"):
        one.state.set_data("/a", b"")


def test_a_closed_state_leaves_no_thread(opening: Opening) -> None:
    before = set(threading.enumerate())
    for one in [opening() for _ in range(3)]:
        assert set(threading.enumerate()) - before
        one.state.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]


def test_a_forked_child_is_refused_and_the_parent_goes_on(opened: Opened) -> None:
    opened.state.set_ephemeral_node("/a", b"1")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            opened.state.get_data("/a")
        except ClusterError as error:
            status = 0 if "was opened before this process was forked; open it again here" in str(error) else 2
        opened.state.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    opened.state.set_data("/b", b"2")
    assert opened.state.get_children("/") == ["a", "b"]


def test_what_is_persistent_outlasts_all_sessions(opening: Opening) -> None:
    one = opening()
    one.state.set_data("/a", b"1")
    sequential = one.state.create_sequential("/e", b"2")
    one.state.close()
    other = opening()
    assert other.state.get_data("/a") == b"1"
    assert other.state.get_data(sequential) == b"2"
    assert other.state.create_sequential("/e", b"3") > sequential


_roots = itertools.count(1)


class Model:
    """Nodes as a dictionary: data, version, and whose end is their end. Of watches, what was read and what may be told."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, int | None]] = {"/": (b"", 0, None)}
        self.data_watches: dict[tuple[int, str], object] = {}
        self.child_watches: dict[tuple[int, str], object] = {}
        self.may_tell: dict[int, set[str]] = {0: set(), 1: set()}

    def must_tell(self, session: int) -> set[str]:
        data = {at for (by, at), seen in self.data_watches.items() if by == session and self.nodes.get(at) != seen}
        return data | {at for (by, at), seen in self.child_watches.items() if by == session and self.below(at) != seen}

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
@pytest.mark.timeout(360)  # on S3 it takes two minutes and more
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=_OPERATIONS)
def test_two_sessions_do_what_a_dictionary_does(sessions: tuple[Opened, Opened], operations: list[Operation]) -> None:
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
        below = {name: model.nodes[f"{path.rstrip('/')}/{name}"][0] for name in model.below(path)}
        assert sessions[0].state.get_data_below(at) == below
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


def test_a_path_is_a_folder_from_here_or_home_or_of_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for address in ("cluster", "./a/b", "a b", "größe", "a:b", Path("cluster")):
        assert folder_of(address) == tmp_path / address
    assert (folder_of("/a/b"), folder_of("~/b")) == (Path("/a/b"), tmp_path / "home" / "b")
    assert folder_of("zookeeper://a:2181,b:2181/storm") is folder_of("zookeeper://a") is None


def test_a_folder_is_made_with_its_file(tmp_path: Path) -> None:
    open_cluster_state(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / "cluster.db").is_file()


def test_the_default_is_the_environments_or_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIDENT_CLUSTER", raising=False)
    assert default_address() == "trident-cluster"
    monkeypatch.setenv("TRIDENT_CLUSTER", "")
    assert default_address() == "trident-cluster"
    monkeypatch.setenv("TRIDENT_CLUSTER", "zookeeper://a")
    assert default_address() == "zookeeper://a"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "an empty text is not the address of a cluster"),
        ("  ", "an empty text is not the address of a cluster"),
        ("redis://localhost", "'redis://localhost' is not the address of a cluster"),
        ("http://localhost:2181", "is not the address of a cluster"),
        ("zookeeper:localhost:2181", "is not the address of a cluster"),
        ("zookeeper://", "is not a server"),
        ("zookeeper:///storm", "is not a server"),
        ("zookeeper://a,,b", "'' is not a server"),
        ("zookeeper://a:0", "'a:0' is not a server"),
        ("zookeeper://a:65536/", "'a:65536' is not a server"),
        ("zookeeper://a:port", "is not a server"),
        ("zookeeper://a b:2181", "is not a server"),
        ("zookeeper://user:secret@a:2181", "cluster: an address of ZooKeeper must have no user or password"),
        ("zookeeper://localhost/a//b", "a path in ZooKeeper has no empty part"),
        ("zookeeper://localhost/zookeeper/b", "ZooKeeper keeps /zookeeper for itself"),
    ],
)
def test_what_is_no_address_is_an_error_that_says_what_is_expected(address: str, why: str) -> None:
    said = f"{why}.*; expected is a folder, or zookeeper://host:2181,host:2181/storm"
    with pytest.raises(ClusterError, match=said) as caught:
        open_cluster_state(address)
    assert "secret" not in str(caught.value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="file is a file; expected is a folder"):
        open_cluster_state(tmp_path / "file")


def test_a_timeout_is_more_than_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session_timeout_s is 0; it must be more than 0"):
        open_cluster_state(tmp_path, 0)


def test_without_kazoo_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    said = r"needs the package kazoo .* pip install 'trident-spark\[zookeeper\]'"
    with pytest.raises(EnvironmentProblem, match=said):
        open_cluster_state("zookeeper://localhost")


@pytest.mark.parametrize("root", ["", "/"])
def test_the_root_is_storm_if_none_is_given_and_roots_are_apart(zookeeper_server: ZooKeeperEnsemble, root: str) -> None:
    with contextlib.ExitStack() as stack:
        with_root, without, other = (
            stack.enter_context(contextlib.closing(open_cluster_state(f"zookeeper://{zookeeper_server.hosts}{each}")))
            for each in ("/storm", root, "/another/")
        )
        with_root.set_data("/of-address", root.encode())
        assert (without.get_data("/of-address"), other.get_children("/")) == (root.encode(), [])


def test_a_file_of_a_token_that_lost_its_bytes_is_told(tmp_path: Path) -> None:
    token = own_token(None, tmp_path)
    assert own_token(None, tmp_path) == token != ""
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ClusterError, match="/token is empty.* Remove it"):
        own_token(None, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_a_client_with_a_token_that_none_can_be_opens_nothing(tmp_path: Path) -> None:
    open_cluster_state(tmp_path).close()
    with pytest.raises(ConfigError, match="a token must be one line"):
        ClusterClient(str(tmp_path), "hu\nsh")
    assert not list(tmp_path.glob("*-session-*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make what a cluster has that ran `words`, and `old` whose code is gone; without its state."""
    made = tmp_path / "trident-cluster"
    sha256, data = package_of({"a.py": b"1"}, name="words")
    put(CodeStore(made / "code"), sha256, data)
    (made / "code" / f"{'0' * 64}.zip").write_bytes(b"damaged")
    FileLog.open(made / "transactional" / "old", "old").close()
    return made


def test_what_is_left_is_named_with_what_to_do(folder: Path) -> None:
    said = left_of(folder)
    assert f"{folder / STATE_FILE}, is gone, but not the code and the logs of old, words." in said
    assert "submit the topologies again under the names that they had" in said
    (folder / STATE_FILE).touch()
    assert left_of(folder) == ""


@pytest.mark.parametrize("nothing", ["", "code"])
def test_of_a_new_cluster_nothing_is_left(tmp_path: Path, nothing: str) -> None:
    (tmp_path / "new" / nothing).mkdir(parents=True)
    assert left_of(tmp_path / "new") == ""


def test_a_client_is_not_led_to_an_empty_cluster(folder: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="is gone, but not the code and the logs of old, words"):
        ClusterClient(str(folder))


@pytest.mark.slow
def test_who_starts_an_empty_cluster_there_is_told(folder: Path) -> None:
    with started("up", "--port", "0", cwd=folder.parent) as up:
        assert up.says("warning: starting with an empty cluster: .*of old, words")
