"""Packages are kept whole or not at all, and checked whenever they are read."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.code.packed_topologies import package_of, put
from trident.cluster.code.code_store import CodeStore
from trident.cluster_errors import BadPackage, ClusterError


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(tmp_path / "code")


def test_a_package_is_kept_and_read(store: CodeStore) -> None:
    sha256, data = package_of({"a.py": b"1"})
    put(store, sha256, data)
    put(store, sha256, data)
    assert store.get(sha256) == data
    assert store.hashes() == [sha256]
    assert store.manifest(sha256).files == {"a.py": hashlib.sha256(b"1").hexdigest()}
    assert [path.name for path in store.folder.iterdir()] == [f"{sha256}.zip"]


def test_bytes_of_another_hash_are_not_kept(store: CodeStore) -> None:
    sha256, data = package_of({"a.py": b"1"})
    with pytest.raises(BadPackage, match=f"announced with the hash {sha256}"):
        put(store, sha256, data[:-1])
    assert list(store.folder.iterdir()) == []


def test_a_damaged_package_is_an_error_until_it_is_put_again(store: CodeStore) -> None:
    sha256, data = package_of({"a.py": b"1"})
    put(store, sha256, data)
    store.path(sha256).write_bytes(data[:-7] + b"damaged")
    with pytest.raises(BadPackage, match="is damaged: its bytes have the hash"):
        store.get(sha256)
    put(store, sha256, data)
    assert store.get(sha256) == data


@pytest.mark.parametrize("name", ["../x", "", "A" * 64, "0" * 63])
def test_what_is_no_hash_names_no_file(store: CodeStore, name: str) -> None:
    with pytest.raises(BadPackage, match="is not the hash of a package"):
        store.get(name)


def test_a_package_that_is_not_there_is_an_error(store: CodeStore) -> None:
    with pytest.raises(BadPackage, match="there is no package 0000"):
        store.get("0" * 64)


def test_what_is_unused_is_removed_when_it_is_old(store: CodeStore) -> None:
    used, data = package_of({"a.py": b"1"})
    old, other = package_of({"a.py": b"2"})
    new, third = package_of({"a.py": b"3"})
    for sha256, each in ((used, data), (old, other), (new, third)):
        put(store, sha256, each)
    (store.folder / "left.part").write_bytes(b"of a crash")
    for name in (f"{used}.zip", f"{old}.zip", "left.part"):
        os.utime(store.folder / name, (time.time() - 7200,) * 2)
    assert store.remove_unused({used}) == [old]
    assert sorted(path.name for path in store.folder.iterdir()) == sorted([f"{used}.zip", f"{new}.zip"])


def test_a_package_that_is_asked_for_is_not_removed_before_it_is_used(store: CodeStore) -> None:
    sha256, data = package_of({"a.py": b"1"})
    assert not store.is_there(sha256)
    put(store, sha256, data)
    os.utime(store.path(sha256), (time.time() - 7200,) * 2)
    assert store.is_there(sha256)
    assert store.remove_unused(()) == []
    store.path(sha256).write_bytes(b"damaged")
    assert not store.is_there(sha256)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("a file")
    with pytest.raises(ClusterError, match="packages of code cannot be stored in"):
        CodeStore(tmp_path / "code")


_WRITER = """
import sys
from pathlib import Path
from trident.cluster.code.code_store import CodeStore
with CodeStore(Path(sys.argv[1])).incoming("0" * 64) as take:
    take(b"half" * 100_000)
    print("half", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_no_package(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        writer.send_signal(signal.SIGKILL)
    store = CodeStore(tmp_path)
    assert store.hashes() == []
    assert store.remove_unused((), older_than_s=-1) == []
    assert list(tmp_path.iterdir()) == []
