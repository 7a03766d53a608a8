"""What is packed, that the same code is the same package, and what is told before anything is sent."""

import io
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.cluster.code.packed_topologies import BOLTS, COUNTS_OF_WORDS, write_files
from trident.cluster import package_archive as package_files
from trident.cluster.package_archive import MANIFEST, ComponentFacts, PackageManifest
from trident.cluster.topology_package import make_package
from trident.errors import BadPackage
from trident.targets import NoSuchTarget

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = write_files(
        tmp_path / "mine",
        {
            "counts.py": "import inner\n" + textwrap.dedent(COUNTS_OF_WORDS),
            "inner/__init__.py": "from inner import deep\n",
            "inner/deep.py": "def f():\n    import late\n",
            "inner/data/words.txt": "the cow",
            "inner/__pycache__/deep.pyc": "compiled",
            "late.py": "",
            "other.py": "",
            "secret.txt": "of another program",
        },
    )
    (made / ".git").mkdir()
    (made / "inner" / ".hidden").write_text("")
    monkeypatch.chdir(made)
    return made


def test_a_package_has_the_modules_that_are_imported_and_packages_whole(folder: Path) -> None:
    made = make_package("counts.py:topology")
    files = ["counts.py", "inner/__init__.py", "inner/data/words.txt", "inner/deep.py", "late.py"]
    assert zipfile.ZipFile(io.BytesIO(made.data)).namelist() == [MANIFEST, *files]
    manifest = made.manifest
    assert (manifest.kind, manifest.name, manifest.target) == ("trident", "word-counts", "counts.py:topology")
    declared = [[*manifest.meaning[what]] for what in ("streams", "states")]
    assert (declared, list(manifest.files)) == ([["lines"], ["count"]], files)
    assert PackageManifest.of_bytes(manifest.to_bytes()) == manifest


def test_components_of_another_form_are_refused() -> None:
    made = PackageManifest("a.py:t", "bolts", "a", components={"split": ComponentFacts("bolt", 2, 4)}).to_bytes()
    for form in (b'{"kind":"bolt","executors":2,"tasks":4}', b'["bolt",2]', b'["bolt","two",4]', b"3"):
        with pytest.raises(BadPackage, match="manifest of a package cannot be read"):
            PackageManifest.of_bytes(made.replace(b'["bolt",2,4]', form))


@pytest.mark.long
def test_the_same_code_gives_the_same_package_wherever_and_whenever(folder: Path, tmp_path: Path) -> None:
    before = make_package("counts.py:topology")
    for path in folder.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (folder / "new.py").write_text("not imported")
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    assert make_package(f"{elsewhere}/counts.py:topology").sha256 == before.sha256
    (elsewhere / "late.py").write_text("changed = True")
    assert make_package(f"{elsewhere}/counts.py:topology").sha256 != before.sha256


def test_spouts_and_bolts_are_described_by_their_executors_and_tasks(tmp_path: Path) -> None:
    write_files(tmp_path, {"words.py": BOLTS})
    manifest = make_package(f"{tmp_path}/words.py:builder").manifest
    assert (manifest.kind, manifest.name) == ("bolts", "words")
    assert manifest.components == {"words": ComponentFacts("spout", 1, 1), "count": ComponentFacts("bolt", 2, 4)}


def test_what_no_import_names_is_packed_when_it_is_asked_for(folder: Path) -> None:
    made = make_package("counts.py:topology", ["other.py", "secret.txt"])
    assert {"other.py", "secret.txt"} <= {*made.manifest.files}
    with pytest.raises(BadPackage, match="--include nothing: there is no such file or folder in"):
        make_package("counts.py:topology", ["nothing"])
    with pytest.raises(BadPackage, match="--include ../x: it is outside of"):
        make_package("counts.py:topology", ["../x"])


def test_code_that_needs_what_is_not_packed_is_refused_with_what_to_do(folder: Path) -> None:
    for line, name in (
        ("__import__('other')", "other.py"),
        ("from pathlib import Path; (Path(__file__).parent / 'secret.txt').read_text()", "secret.txt"),
    ):
        write_files(folder, {"bad.py": f"{line}\n"})
        with pytest.raises((BadPackage, NoSuchTarget), match=f"add it with --include {name}$") as caught:
            make_package("bad.py:topology")
        assert "trident-package-" not in str(caught.value)  # the paths are those of the user


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("counts.py:topolog", "has no 'topolog'; its topologies are: topology"),
        ("count.py:topology", "there is no file 'count.py'"),
        ("count:topology", "there is no module 'count' in .* name its package in a file of requirements"),
        ("counts.py", "expected MODULE:TOPOLOGY"),
    ],
)
def test_a_wrong_target_is_told(folder: Path, target: str, said: str) -> None:
    with pytest.raises(NoSuchTarget, match=said):
        make_package(target)


def test_code_that_fails_is_told(folder: Path) -> None:
    write_files(folder, {"bad.py": "1 / 0\n", "ends.py": "import os\nos._exit(7)\n"})
    with pytest.raises(BadPackage, match="bad.py cannot be imported: ZeroDivisionError"):
        make_package("bad.py:topology")
    with pytest.raises(BadPackage, match="ended with exit code 7"):
        make_package("ends.py:topology")


@pytest.mark.long
def test_what_a_module_prints_does_not_disturb(folder: Path) -> None:
    write_files(folder, {"loud.py": "print('{}')\nfrom counts import topology\n"})
    assert make_package("loud.py:topology").manifest.name == "word-counts"


def test_code_that_is_too_large_is_refused_with_largest_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "inner" / "table.csv").write_bytes(b"x" * 3000)
    monkeypatch.setattr(package_files, "MAX_BYTES", 2000)
    with pytest.raises(BadPackage, match=r"The largest files are inner/table.csv \(2.9 KiB\), counts.py"):
        make_package("counts.py:topology")


@pytest.mark.parametrize("name", [b"\xff.csv", b"a\\b.csv"])
def test_a_file_that_no_package_can_hold_is_named_before_anything_is_sent(folder: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(folder / "inner") + b"/" + name)).write_bytes(b"1")
    with pytest.raises(BadPackage, match=r"'inner/.*b?\.csv' cannot be in a package: .* Rename it"):
        make_package("counts.py:topology")


@pytest.mark.parametrize("line", [
    "-r other.txt", "-e .", "./wheels/x.whl", "-c pins.txt", "--requirement=other.txt", "x @ file:///home/ann/x.whl",
    "file:///home/ann/x.whl", "--find-links wheels", "--find-links=file:///home/ann", "-rother.txt", "-e.", "-f./wheels",
    "wheels/x-1.0-py3-none-any.whl", "x-1.0.tar.gz",
])  # fmt: skip
def test_requirements_that_name_files_of_this_machine_are_refused(folder: Path, line: str) -> None:
    write_files(folder, {"needed.txt": f"requests\n{line}\n"})
    with pytest.raises(BadPackage, match="refers to this machine"):
        make_package("counts.py:topology", requirements=folder / "needed.txt")


@pytest.mark.long
def test_requirements_are_part_of_the_package(folder: Path) -> None:
    write_files(folder, {"needed.txt": "# for the words\n#see/docs\nrequests>=2\n\n  wheel\n"})
    made = make_package("counts.py:topology", requirements=folder / "needed.txt")
    assert made.manifest.requirements == "requests>=2\nwheel\n"
    assert made.sha256 != make_package("counts.py:topology").sha256


def test_requirements_that_are_not_installed_here_are_told(folder: Path) -> None:
    write_files(folder, {"needed.txt": "surely_not_installed\n", "bad.py": "import surely_not_installed\n"})
    with pytest.raises((BadPackage, NoSuchTarget), match="surely_not_installed.* install its requirements here too$"):
        make_package("bad.py:topology", requirements=folder / "needed.txt")


@pytest.mark.long
def test_trident_itself_is_not_packed(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", "from trident.cluster.topology_package import *\n"
         "print(*make_package('examples.word_count:topology').manifest.files)"],
        cwd=root, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    files = done.stdout.split()
    assert "examples/word_count.py" in files
    assert {each.partition("/")[0] for each in files} == {"examples"}
