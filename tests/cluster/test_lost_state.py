"""A cluster whose file was removed says what is still there, before an empty one begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.code.archives import package_of, put
from tests.harness.commands import started
from trident.cluster.client import ClusterClient, left_of
from trident.cluster.code.code_store import CodeStore
from trident.cluster.state.cluster_address import STATE_FILE
from trident.cluster_errors import ClusterUnreachable
from trident.coordination.transaction_log import FileLog


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
