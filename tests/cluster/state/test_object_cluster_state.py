"""What a cluster's state does in a bucket: lost answers, many writers, heartbeats, a store that hangs, other contents."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import obstore
import pytest
from obstore.store import from_url

from tests.harness.cluster_states import LOST_ANSWERS, Opening, address_on, check_hang, opened
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from trident.cluster_state.cluster_address import open_cluster_state
from trident.errors import ClusterError
from trident.nodes.object_store import ObjectStore

pytestmark = pytest.mark.server
TREE = "nodes/cluster.db"


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    return address_on("s3", request)


def objects(address: str) -> Any:
    return from_url(address, client_options={"allow_http": True})


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", LOST_ANSWERS)
def test_a_change_is_made_once_though_the_answer_of_the_store_is_lost(
    address: str, s3_server: Server, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    before, act, returned, node = case
    with closing(Proxy(s3_server.port)) as proxy:
        with monkeypatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            shaky = open_cluster_state(address)
        with opened(address) as direct:
            before(shaky, direct.state)
            swap, lost = ObjectStore.swap, list[str]()

            def lose_and_swap(store: ObjectStore, name: str, data: bytes, tag: Any) -> Any:
                if not lost:  # the next answer is that to the put
                    lost.append(name)
                    proxy.arm("reply", lambda: None)
                return swap(store, name, data, tag)

            with monkeypatch.context() as patched:
                patched.setattr(ObjectStore, "swap", lose_and_swap)
                assert act(shaky) == returned
            assert not proxy.disarm() or not lost
            assert (direct.state.get_node("/a") or ())[:2] == node
            shaky.close()


def test_many_sessions_that_change_one_node_lose_no_change(opening: Opening) -> None:
    sessions = [opening().state for _ in range(3)]
    sessions[0].set_data("/sum", b"0")

    def add(number: int) -> None:
        state = sessions[number]
        for turn in range(6):
            state.set_ephemeral_node(f"/beat{number}", b"%d" % turn)
            while True:
                node = state.get_node("/sum")
                assert node is not None
                if state.compare_and_set("/sum", b"%d" % (int(node.data) + 1), node.version):
                    break

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(add, range(3)))
    assert sessions[0].get_data_below("/") == {"sum": b"18"} | {f"beat{number}": b"5" for number in range(3)}


@pytest.mark.parametrize("name", ["set_ephemeral_node", "set_data"])  # a supervisor's and a driver's
def test_a_heartbeat_is_no_change_of_what_all_write(address: str, name: str) -> None:
    with opened(address) as one, opened(address) as other:
        beat = getattr(one.state, name)
        beat("/beat", b"first")
        tag = obstore.head(objects(address), TREE)["e_tag"]
        for number in range(5):
            beat("/beat", b"%d" % number)
            assert other.state.get_data("/beat") == b"%d" % number
        assert obstore.head(objects(address), TREE)["e_tag"] == tag
        one.state.set_data("/a", b"1")
        assert (other.state.get_data("/beat"), other.state.get_data("/a")) == (b"4", b"1")
        other.state.set_data("/beat", b"set")
        assert one.state.get_data("/beat") == b"set"
        beat("/beat", b"again")
        assert (other.state.get_node("/beat") or ())[:2] == (b"again", 7)
        other.state.delete_node("/beat")
        other.state.set_data("/beat", b"taken")
        one.state.set_data("/a", b"2")
        assert one.state.get_data("/beat") == b"taken"
        # By a process whose session is over.
        obstore.put(objects(address), "nodes/sessions/late", b'[["sessions/late", "10 0", 1]]')
    assert [each["path"] for batch in obstore.list(objects(address), "nodes/sessions") for each in batch] == []


def test_a_store_that_hangs_is_an_error_after_the_timeout(address: str, s3_server: Server) -> None:
    check_hang(address, s3_server, "the object store")


def test_what_is_no_state_of_a_cluster_and_what_was_removed_is_told(address: str) -> None:
    with pytest.raises(ClusterError, match=r"cannot keep a cluster at s3://nowhere/storm/nodes: .*Make the bucket"):
        open_cluster_state("s3://nowhere/storm")
    with pytest.raises(ClusterError, match=r"name a bucket and a prefix that no other cluster has"):
        open_cluster_state("s3://logs")
    with opened(address) as one:
        whole = bytes(obstore.get(objects(address), TREE).bytes())
        for name, damage in (("nodes/sessions/a", b"x"), (TREE, b"no database" * 100)):
            obstore.put(objects(address), name, damage)
            with pytest.raises(ClusterError, match="is damaged, below nodes/: .*; restore it from a backup"):
                one.state.get_data("/a")
            obstore.delete(objects(address), [name])
        with pytest.raises(ClusterError, match="was removed while it was open; start this process again"):
            one.state.set_data("/a", b"1")
        obstore.put(objects(address), TREE, whole)
