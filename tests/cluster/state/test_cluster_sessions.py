"""Sessions of real processes, on a file and on real servers: killed, stopped, woken, and many at once."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.harness.cluster_session import SessionProcess
from tests.harness.cluster_states import ON_SERVERS, Opening
from trident.nodes.interface import StoredNode

pytestmark = pytest.mark.slow

_TIMEOUT_S = 1.0
_SLACK_S = 10.0  # of a busy machine

Processes = Callable[..., SessionProcess]


@pytest.fixture
def processes(address: str) -> Iterator[Processes]:
    with contextlib.ExitStack() as stack:
        yield lambda timeout_s=10.0: stack.enter_context(SessionProcess(address, timeout_s))


def test_ephemeral_nodes_of_a_killed_process_vanish_within_its_timeout(opening: Opening, processes: Processes) -> None:
    looks, owner = opening(_TIMEOUT_S), processes(_TIMEOUT_S)
    owner.ask("state.set_ephemeral_node('/all/a', b'1')")
    owner.ask("state.set_data('/all/b', b'2')")
    assert looks.state.get_data("/all/a", watch=True) == b"1"
    assert looks.state.get_children("/all", watch=True) == ["a", "b"]
    began = time.monotonic()
    owner.kill()
    looks.told(("changed", "/all/a"), ("changed", "/all"))
    assert time.monotonic() - began < _TIMEOUT_S + _SLACK_S
    assert looks.state.get_data_below("/all") == {"b": b"2"}
    assert looks.state.create_ephemeral_node("/all/a", b"new")


@pytest.mark.parametrize("address", [pytest.param(on, marks=pytest.mark.server) for on in ON_SERVERS], indirect=True)
def test_a_process_stopped_beyond_its_timeout_finds_its_session_expired(opening: Opening, processes: Processes) -> None:
    looks, owner = opening(_TIMEOUT_S), processes(_TIMEOUT_S)
    owner.ask("state.set_ephemeral_node('/leader', b'old')")
    owner.ask("state.get_data('/watched', watch=True)")
    looks.state.get_data("/leader", watch=True)
    owner.pause()
    looks.told(("changed", "/leader"))
    assert looks.state.create_ephemeral_node("/leader", b"new")
    owner.resume()
    assert owner.ask("state.create_ephemeral_node('/leader', b'old')") is False
    assert owner.ask("state.create_ephemeral_node('/follower', b'old')") is True
    told = _until(owner, lambda events: ("expired", "") in events)
    assert [event for event in told if event[0] != "suspended"] == [("expired", "")]
    looks.state.set_data("/watched", b"")  # watches went with the session
    owner.ask("state.get_data('/again', watch=True)")
    looks.state.set_data("/again", b"")
    told = _until(owner, lambda events: ("changed", "/again") in events)
    assert ("changed", "/watched") not in told
    assert looks.state.get_data("/leader") == b"new"
    assert looks.state.get_data("/follower", watch=True) == b"old"
    owner.kill()
    looks.told(("changed", "/follower"))


def test_a_process_stopped_within_its_timeout_keeps_its_session(opening: Opening, processes: Processes) -> None:
    looks, owner = opening(), processes()
    owner.ask("state.set_ephemeral_node('/leader', b'1')")
    owner.ask("state.get_data('/watched', watch=True)")
    owner.pause()
    looks.state.set_data("/watched", b"")
    looks.state.set_data("/watched", b"again")
    owner.resume()
    told = _until(owner, bool)
    assert told == [("changed", "/watched")]
    assert looks.state.get_data("/leader") == b"1"


@pytest.mark.sample(1)
def test_a_process_that_starts_again_takes_its_ephemeral_node_over(opening: Opening, processes: Processes) -> None:
    looks, old, new = opening(), processes(_TIMEOUT_S), processes()
    old.ask("state.set_ephemeral_node('/supervisors/a', b'old')")
    old.kill()
    new.ask("state.set_ephemeral_node('/supervisors/a', b'new')")
    assert looks.state.get_data("/supervisors/a", watch=True) == b"new"
    gone = opening(_TIMEOUT_S)  # its end comes after that of the killed one: both were in touch a timeout ago at most
    gone.state.set_ephemeral_node("/supervisors/b", b"")
    gone.state.close()
    assert looks.settled() == []
    assert looks.state.get_data("/supervisors/a") == b"new"


@pytest.mark.sample(1)
def test_sequential_names_of_several_processes_are_all_different(opening: Opening, processes: Processes) -> None:
    looks, many = opening(), [processes() for _ in range(3)]
    for each in many:
        each.begin("[state.create_sequential('/all/e', b'') for _ in range(60)]")
    made = [each.result() for each in many]
    assert [sorted(each) for each in made] == made
    names = sorted(path.removeprefix("/all/") for each in made for path in each)
    assert len(set(names)) == 180
    assert looks.state.get_children("/all") == names


@pytest.mark.sample(1)
def test_events_of_concurrent_writers_are_told_once(opening: Opening, processes: Processes) -> None:
    looks, writers = opening(), [processes() for _ in range(2)]
    for writer in writers:
        writer.ask("state.mkdirs('/all')")
    for number in range(200):
        looks.state.get_data(f"/all/{number}", watch=True)
    for first, writer in enumerate(writers):
        each = "state.set_data(f'/all/{n}', b'') or state.set_data('/all/0', b'')"
        writer.begin(f"[{each} for n in range({first}, 200, 2)]")
    for writer in writers:
        writer.result()
    looks.until(lambda told: len(told) >= 200)
    told = looks.settled()
    assert {event.kind for event in told} == {"changed"}
    assert sorted(int(event.path.removeprefix("/all/")) for event in told) == list(range(200))


@pytest.mark.sample(1)
def test_who_watches_again_sees_every_state_of_a_node_or_a_later_one(opening: Opening, processes: Processes) -> None:
    looks, writer = opening(), processes()
    seen: list[bytes | None] = [looks.state.get_data("/a", watch=True)]
    told = threading.Event()
    looks.state.register(lambda event: told.set())
    writer.begin("[state.set_data('/a', b'%d' % n) for n in range(300)] and None")
    while seen[-1] != b"299":
        assert told.wait(60)
        told.clear()
        seen.append(looks.state.get_data("/a", watch=True))
    numbers = [int(each) for each in seen if each is not None]
    assert numbers == sorted(numbers)
    assert writer.result() is None


@pytest.mark.sample(1)
def test_what_a_killed_process_was_told_is_there_and_one_more_at_most(opening: Opening, processes: Processes) -> None:
    looks = opening()
    for life in range(3):
        writer = processes()
        writer.begin(f"[state.set_data('/a{life}', b'%d' % n) or print(n, flush=True) for n in range(10**9)]")
        told = [writer.result() for _ in range(20)]
        writer.process.kill()
        assert writer.process.stdout is not None
        told += [int(line) for line in writer.process.stdout if line.endswith("\n")]
        assert told == list(range(len(told)))
        found = looks.state.get_node(f"/a{life}")
        assert found in (StoredNode(b"%d" % (len(told) - 1), len(told) - 1), StoredNode(b"%d" % len(told), len(told)))
    looks.state.set_data("/a0", b"goes on")
    assert looks.state.get_data("/a0") == b"goes on"


def test_a_process_ends_quietly_and_its_nodes_with_it(opening: Opening, processes: Processes) -> None:
    looks, one = opening(), processes()
    one.ask("state.set_ephemeral_node('/a', b'1')")
    assert one.end() == ""
    assert looks.state.get_data("/a") is None


def _until(process: SessionProcess, holds: Callable[[list[tuple[str, str]]], object]) -> list[tuple[str, str]]:
    deadline = time.monotonic() + _TIMEOUT_S + _SLACK_S
    while not holds(told := process.ask("events")):
        assert time.monotonic() < deadline, f"told: {told}"
    return list(told)
