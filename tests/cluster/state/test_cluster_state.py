"""The contract of `ClusterState`, on a file and on real servers: nodes, watches, sessions."""

from __future__ import annotations

import os
import threading

import pytest

from tests.harness.cluster_states import Opened, Opening
from trident.errors import ClusterError
from trident.nodes.interface import StoredNode

BINARY = bytes(range(256))


# ---- nodes ---------------------------------------------------------------------------------------------------------------


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


# ---- watches -------------------------------------------------------------------------------------------------------------


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


# ---- sessions ------------------------------------------------------------------------------------------------------------


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
