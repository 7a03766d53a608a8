"""From a command line's words to a topology and its settings: what is found, and what is said of the rest."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.harness.commands import COUNTS, write_module
from trident import TopologyError
from trident.cli.target import load_topology, settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `counts`; what is imported from it is forgotten afterwards."""
    write_module(tmp_path, "counts", COUNTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("counts", "broken"):
            del sys.modules[name]


@pytest.mark.usefixtures("folder")
def test_a_module_of_the_working_directory_is_found() -> None:
    assert load_topology("counts:topology").name == "counts"


def test_the_workers_of_a_local_spark_look_where_the_driver_looked(folder: Path) -> None:
    load_topology("counts:topology")
    load_topology("counts:topology")
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(folder), "elsewhere"])


def test_a_file_is_read_anew_whatever_has_its_name(folder: Path) -> None:
    load_topology("counts:topology")
    (folder / "other").mkdir()
    write_module(folder / "other", "counts", COUNTS.replace('"counts"', '"others"'))
    assert load_topology("other/counts.py:topology").name == "others"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("counts", "'counts': expected MODULE:TOPOLOGY, as in counts:topology"),
        (":topology", "expected MODULE:TOPOLOGY, as in word_count.py:topology"),
        ("counts:", "expected MODULE:TOPOLOGY, as in counts:topology"),
        ("nowhere:topology", "there is no module 'nowhere'"),
        ("counts.inner:topology", "there is no module 'counts.inner'"),
        ("nowhere.py:topology", "there is no file 'nowhere.py'"),
        ("counts:topolgy", "module 'counts' has no 'topolgy'; its topologies are: topology, endless"),
        ("json:JSONDecodr", "module 'json' has no 'JSONDecodr'; did you mean 'JSONDecoder'?"),
        ("json:topology", "module 'json' has no 'topology'; it has no topology"),
    ],
)
def test_a_target_that_is_not_there_is_wrong_usage(target: str, said: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        load_topology(target)
    assert said in str(raised.value)


EXACTLY_ONCE = """
from states.memory import MemoryMapState
from trident import exactly_once
from trident.operations import Count

known = exactly_once("words", MemoryMapState(), group_by="w", aggregate=Count(), value="n", schema="w: string", log_dir="log")
unknown = exactly_once("words", MemoryMapState(), group_by="w", aggregate=Count(), value="n", log_dir="log")
"""


def test_a_function_of_exactly_once_names_its_topology(folder: Path) -> None:
    (folder / "broken.py").write_text(EXACTLY_ONCE, encoding="utf-8")
    assert load_topology("broken:known").graph().state("n").key_fields.names == ("w",)
    with pytest.raises(TopologyError, match="does not know its columns before its first batch: give them"):
        load_topology("broken:unknown")


@pytest.mark.parametrize(("text", "said"), [
    ("y = 2\nx = (1,\n",
        "broken cannot be imported: SyntaxError: '(' was never closed, in {file}, line 2: x = (1,"),
    ("x = 1\ny = x / 0\n", "broken cannot be imported: ZeroDivisionError: division by zero (in {file}, line 2)"),
    ("import sys\nsys.exit()\n", "broken cannot be imported: it ends the program (in "),
    ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name' (in "),
    ("topology = 3\n", "broken:topology is a int; expected a TridentTopology or a function without arguments"),
    ("def topology():\n    return 'x'\n", "broken:topology() returned a str; expected a TridentTopology"),
    ("def topology():\n    raise OSError('no disk')\n", "broken:topology() failed: OSError: no disk"),
    ("def topology(a):\n    return a\n", "missing 1 required positional argument: 'a'"),
])  # fmt: skip
def test_a_module_without_a_topology_is_explained(folder: Path, text: str, said: str) -> None:
    (folder / "broken.py").write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as raised:
        load_topology("broken:topology")
    assert said.replace("{file}", str(folder / "broken.py")) in str(raised.value)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["states/__init__.py", "states.py"])
def test_a_folder_that_hides_our_packages_is_named(tmp_path: Path, hidden: str) -> None:
    (tmp_path / hidden).parent.mkdir(exist_ok=True)
    (tmp_path / hidden).touch()
    (tmp_path / "job.py").write_text("from states.delta import DeltaState\n", encoding="utf-8")
    command = [sys.executable, "-m", "trident.cli", "run", "job.py:topology"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    said = " ".join(done.stderr.split())
    assert f"{tmp_path / hidden} hides the package 'states' of trident-spark" in said
    assert (done.returncode, "Traceback" in said) == (1, False)


def test_an_error_of_the_declaration_is_passed_on_as_it_is(folder: Path) -> None:
    (folder / "broken.py").write_text("from trident import TridentTopology\nTridentTopology('a b')\n", encoding="utf-8")
    with pytest.raises(TopologyError, match="^'a b' cannot name a topology"):
        load_topology("broken:topology")


def test_settings_have_the_types_of_their_keys_and_options_win() -> None:
    words = ["parallelism=3", "takeover=yes", "log_dir=a=b", "master=local", "spark.executor.memory=2g"]
    config = settings(words, {"master": "local[2]", "log_dir": None})
    assert (config.parallelism, config.takeover, config.log_dir) == (3, True, "a=b")
    assert config.master == "local[2]"
    assert config.spark_conf == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("engine", "--conf 'engine': expected key=value"),
        ("", "--conf '': expected key=value"),
        ("=spark", "expected key=value"),
        ("engin=spark", "unknown setting 'engin'; did you mean 'engine'?"),
        ("engine=flink", "engine='flink': give 'spark', 'in_process' or 'auto'"),
        ("parallelism=two", "parallelism='two': give a whole number from 1 to 1000000"),
        ("max_spout_pending=0", "max_spout_pending=0: give a whole number of at least 1"),
    ],
)
def test_a_setting_that_cannot_be_is_wrong_usage(word: str, said: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        settings([word], {})
    assert said in str(raised.value)


def test_a_file_that_runs_here_already_is_not_run_a_second_time(folder: Path) -> None:
    (folder / "runs_here.py").write_text("from trident import TridentTopology\ntopology = TridentTopology('t')\n")
    first = load_topology("runs_here.py:topology")
    assert load_topology("runs_here.py:topology") is first
