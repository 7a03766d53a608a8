"""From an address to a cluster's state: what is an address, what is not, and what the error expects."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from tests.cluster.code.packed_topologies import package_of, put
from tests.harness.commands import started
from tests.harness.zookeeper_servers import ZooKeeperEnsemble
from trident.cluster.client import ClusterClient, left_of
from trident.cluster.code_store import CodeStore
from trident.cluster_state.cluster_address import STATE_FILE, default_address, folder_of, open_cluster_state, own_token
from trident.errors import ClusterError, ClusterUnreachable, ConfigError, EnvironmentProblem
from trident.log.file_log import FileLog


def test_a_path_is_a_folder_from_here_or_from_home_and_a_server_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(
        ClusterError, match=f"{why}.*; expected is a folder, or zookeeper://host:2181,host:2181/storm"
    ) as caught:
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
    with pytest.raises(
        EnvironmentProblem, match=r"needs the package kazoo .* pip install 'trident-spark\[zookeeper\]'"
    ):
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


# ---- a folder whose cluster is gone ----------------------------------------------------------------------------------------


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
