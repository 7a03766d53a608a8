"""Packages are kept whole or not at all, checked when they are read, and unpacked once; requirements are installed by pip."""

import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.code.packed_topologies import COUNTS_OF_WORDS, archive_by_hand, package_of, put, write_files
from trident.cluster.code_store import CodeCache, CodeStore
from trident.cluster.package_archive import MANIFEST, read_package
from trident.cluster.topology_package import load_package, make_package
from trident.errors import BadPackage, ClusterError, RequirementsFailed
from trident.topology import TridentTopology


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


@pytest.mark.parametrize("name", ["../x", "", "A" * 64, "0" * 63, "0" * 64])
def test_what_is_no_hash_of_a_package_that_is_there_is_an_error(store: CodeStore, name: str) -> None:
    said = "there is no package 0000" if name == "0" * 64 else "is not the hash of a package"
    with pytest.raises(BadPackage, match=said):
        store.get(name)


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
from trident.cluster.code_store import CodeStore
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


class Fetching:
    """Packages by hash, and how often one was fetched."""

    def __init__(self, *packages: bytes) -> None:
        self._packages = {hashlib.sha256(data).hexdigest(): data for data in packages}
        self.fetched = 0

    def __call__(self, sha256: str) -> bytes:
        self.fetched += 1
        return self._packages[sha256]


def test_a_package_is_fetched_and_unpacked_once(tmp_path: Path) -> None:
    sha256, data = package_of({"a.py": b"1", "inner/data.txt": b"2"})
    fetching = Fetching(data)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: CodeCache(tmp_path, fetching).prepare(sha256), range(8)))
    again = CodeCache(tmp_path, fetching).prepare(sha256)
    assert {each.folder for each in (*found, again)} == {tmp_path / "code" / sha256}
    assert (again.folder / "inner" / "data.txt").read_bytes() == b"2"
    assert again.python_path == (str(again.folder),)
    assert fetching.fetched <= 8
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == [sha256, f"{sha256}.lock"]
    assert (tmp_path / "code" / sha256).stat().st_mode & 0o777 == 0o755


def test_a_file_that_was_lost_or_changed_is_fetched_again(tmp_path: Path) -> None:
    sha256, data = package_of({"a.py": b"1", "b.py": b"2"})
    fetching = Fetching(data)
    cache = CodeCache(tmp_path, fetching)
    folder = cache.prepare(sha256).folder
    (folder / "a.py").write_bytes(b"")
    (folder / "b.py").unlink()
    assert (cache.prepare(sha256).folder / "a.py").read_bytes() == b"1"
    assert (folder / "b.py").read_bytes() == b"2"
    assert fetching.fetched == 2


def test_a_crash_leaves_no_package_half_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one, data), (two, _) = package_of({"a.py": b"1"}), package_of({"a.py": b"2"})
    mine, other = (tmp_path / "code" / f"unfinished-{name}-abc" for name in (one, two))
    for each in (mine, other):
        each.mkdir(parents=True)
    named: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: named.append((tmp_path / "code" / one).exists()))
    CodeCache(tmp_path, Fetching(data)).prepare(one)
    assert (mine.exists(), other.exists()) == (False, True)  # that of the other may be under way
    assert named == [False]  # it is durable before it has its name


def test_what_is_unused_is_removed(tmp_path: Path) -> None:
    (one, data), (two, other) = package_of({"a.py": b"1"}), package_of({"a.py": b"2"})
    cache = CodeCache(tmp_path, Fetching(data, other))
    cache.prepare(one)
    cache.prepare(two)
    cache.remove_unused({two})
    assert [each.name for each in (tmp_path / "code").iterdir() if each.is_dir()] == [two]


def test_another_package_than_the_one_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    sha256, _ = package_of({"a.py": b"1"})
    _, other = package_of({"a.py": b"2"})
    with pytest.raises(BadPackage, match="is a different one, or damaged"):
        CodeCache(tmp_path, lambda _: other).prepare(sha256)
    assert not (tmp_path / "code").exists()


_LINK = 0o120777
_HOSTILE = {
    "a path that leads out": archive_by_hand({"../out.py": b"x"}),
    "a path from the root": archive_by_hand({"/out.py": b"x"}),
    "a path of Windows": archive_by_hand({"..\\out.py": b"x"}),
    "a path with a detour": archive_by_hand({"a/./b.py": b"x"}),
    "a path that leads out in the middle": archive_by_hand({"a/../../out.py": b"x"}),
    "a link": archive_by_hand({"a.py": b"/etc/passwd"}, mode=_LINK),
    "a device": archive_by_hand({"a.py": b""}, mode=0o020666),
    "a file that is a folder too": archive_by_hand({"a": b"x", "a/b.py": b"y"}),
    "a folder that is a file too": archive_by_hand({"a/b.py": b"x", "a": b"y"}),
    "a folder in a folder that is a file too": archive_by_hand({"a/b/c.py": b"x", "a": b"y"}),
    "a name that no disk takes": archive_by_hand({f"{'a' * 256}.py": b"x"}),
    "a path that no disk takes": archive_by_hand({"a/" * 600 + "a.py": b"x"}),
    "compressed zeros": archive_by_hand({"a.py": b"\0" * 1_000_000}, compression=zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_package_that_was_made_to_do_harm_is_not_unpacked(tmp_path: Path, name: str) -> None:
    data = _HOSTILE[name]
    cache = CodeCache(tmp_path / "cache", lambda _: data)
    with pytest.raises(BadPackage, match="which no package of `trident submit` does"):
        cache.prepare(hashlib.sha256(data).hexdigest())
    assert [path for path in tmp_path.rglob("*") if path.suffix not in ("", ".lock")] == []
    with pytest.raises(BadPackage, match="which no package of `trident submit` does"):
        read_package(io.BytesIO(data))


def test_files_that_the_manifest_does_not_name_and_those_of_other_bytes_are_refused(tmp_path: Path) -> None:
    _, data = package_of({"a.py": b"1"}, files={})
    with pytest.raises(BadPackage, match="name other files: a.py"):
        CodeCache(tmp_path, lambda _: data).prepare(hashlib.sha256(data).hexdigest())
    _, data = package_of({"a.py": b"1"}, files={"a.py": "0" * 64})
    with pytest.raises(BadPackage, match="a.py is not what its manifest says"):
        CodeCache(tmp_path, lambda _: data).prepare(hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_package_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadPackage, match="not the package of a topology"):
        CodeCache(tmp_path, lambda _: data).prepare(hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"python": "3.9"}, "made with Python 3.9, and this machine runs"),
        ({"trident": "99.1.0"}, "made with Trident 99.1.0, and this machine has"),
    ],
)
def test_a_package_of_other_versions_may_run_elsewhere(tmp_path: Path, facts: dict[str, str], said: str) -> None:
    sha256, data = package_of({"a.py": b"1"}, **facts)
    with pytest.raises(RequirementsFailed, match=said):
        CodeCache(tmp_path, lambda _: data).prepare(sha256)


@pytest.mark.slow
def test_the_topology_of_a_package_is_loaded_under_its_submitted_name(tmp_path: Path) -> None:
    write_files(tmp_path / "mine", {"counts_of_package.py": COUNTS_OF_WORDS})
    package = make_package(f"{tmp_path}/mine/counts_of_package.py:topology")
    code = CodeCache(tmp_path / "cache", lambda _: package.data).prepare(package.sha256)
    found = load_package(code.folder, code.manifest, "mine")
    assert isinstance(found, TridentTopology)
    assert found.graph().name == "mine"
    assert sys.modules["counts_of_package"].__file__ == str(code.folder / "counts_of_package.py")


def test_a_package_without_its_topology_is_an_error(tmp_path: Path) -> None:
    sha256, data = package_of({"a_without.py": b"x = 1"}, target="a_without.py:topology")
    code = CodeCache(tmp_path, lambda _: data).prepare(sha256)
    with pytest.raises(BadPackage, match="the package does not hold a_without.py:topology: .* has no 'topology'"):
        load_package(code.folder, code.manifest)
    assert (code.folder / MANIFEST).is_file()


def wheel(folder: Path, name: str, version: str, text: str) -> None:
    """Write a wheel of one module, as a tool that builds them would."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, data in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, data)


@pytest.mark.long
@pytest.mark.slow
def test_requirements_are_installed_once_and_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path, "words_of_a_wheel", "1.2", "WORDS = ['the', 'cow']\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    sha256, data = package_of({"a.py": b"1"}, requirements="words_of_a_wheel==1.2\n")
    cache = CodeCache(tmp_path / "cache", lambda _: data)
    code = cache.prepare(sha256)
    script = "import words_of_a_wheel; print(words_of_a_wheel.WORDS)"
    found = {"PYTHONPATH": ":".join(code.python_path)}
    told = subprocess.check_output([sys.executable, "-c", script], env=found, text=True, timeout=60)
    assert told == "['the', 'cow']\n"
    (tmp_path / "words_of_a_wheel-1.2-py3-none-any.whl").unlink()
    assert cache.prepare(sha256) == code  # pip is not asked again
    assert stat.S_IMODE(Path(code.python_path[1]).stat().st_mode) == 0o755  # as the code has it
    for python in (tmp_path / "cache").glob("requirements/pip-*/bin/python"):  # one that was removed, or replaced
        python.unlink()
    sha256, data = package_of({"a.py": b"1"}, requirements="words_of_a_wheel==2.0\n")
    said = r"cannot be installed \(words_of_a_wheel==2.0\); pip said:\n(.*\n)*.*No matching"
    with pytest.raises(RequirementsFailed, match=said):
        CodeCache(tmp_path / "cache", lambda _: data).prepare(sha256)
    left = [path.name for path in (tmp_path / "cache" / "requirements").iterdir() if path.name.startswith("unfinished")]
    assert left == []
