"""Config: where settings come from, at every door; what is read, what is refused, and with which words."""

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import write_module
from trident import Config, TridentTopology, open_state
from trident.cli.app import app
from trident.cli.target import load_topology, settings
from trident.cluster.driver_orders import config_of
from trident.cluster.topology_package import make_package
from trident.cluster_state.cluster_records import StormBase, WantedStatus
from trident.config import resolve
from trident.errors import ConfigError
from trident.explain import explain
from trident.operations import Count
from trident.storm import StormConfig
from trident.testing import TopologyTestDriver


def test_settings_come_from_a_config_a_mapping_and_keywords() -> None:
    base = Config(max_spout_pending=5, log_dir="a")
    assert Config.of(base, log_dir="b") == Config(max_spout_pending=5, log_dir="b")
    assert Config.of({"max_spout_pending": 5}, log_dir="b") == Config(max_spout_pending=5, log_dir="b")
    assert Config.of() == Config()


def test_text_is_read_as_the_type_of_its_key() -> None:
    read = Config.of(
        {
            "max_spout_pending": "4", "message_timeout_s": "2.5", "takeover": "yes", "allow_inexact": "False",
            "parallelism": "2", "log_dir": "7", "engine": "in_process",
        }
    )  # fmt: skip
    assert read == Config(4, message_timeout_s=2.5, takeover=True, parallelism=2, log_dir="7", engine="in_process")


def test_a_path_is_taken_as_text() -> None:
    assert Config.of(log_dir=Path("a/b")).log_dir == str(Path("a/b"))


def test_the_mapping_has_every_key() -> None:
    assert Config().as_mapping().keys() == {field.name for field in dataclasses.fields(Config)}
    assert Config.of(Config(parallelism=3).as_mapping()) == Config(parallelism=3)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"max_spout_pendin": 1},
            "unknown setting 'max_spout_pendin'; did you mean 'max_spout_pending'[?] Known are: ",
        ),
        (
            {"zzz": 1},
            r"unknown setting 'zzz'\. Known are: allow_changed_topology, allow_inexact, auto_bytes, batch_emit_interval_ms",
        ),
        ({"max_spout_pending": 0}, "max_spout_pending=0: give a whole number of at least 1"),
        ({"max_batch_attempts": 0}, "max_batch_attempts=0: give a whole number of at least 1"),
        ({"progress_kept": 0}, "progress_kept=0: give a whole number of at least 1"),
        ({"parallelism": 0}, "parallelism=0: give a whole number from 1 to 1000000 or None"),
        ({"poll_interval_ms": -1}, "poll_interval_ms=-1: give a whole number of at least 0"),
        ({"retry_backoff_ms": -1}, "retry_backoff_ms=-1: give a whole number of at least 0"),
        ({"message_timeout_s": 0}, "message_timeout_s=0: give seconds above 0"),
        ({"max_spout_pending": "many"}, "max_spout_pending='many': give a whole number"),
        ({"max_spout_pending": 1.5}, "max_spout_pending=1.5: give a whole number"),
        ({"max_spout_pending": True}, "max_spout_pending=True: give a whole number"),
        ({"message_timeout_s": "soon"}, "message_timeout_s='soon': give seconds above 0"),
        ({"takeover": "perhaps"}, "takeover='perhaps': give true or false"),
        ({"takeover": 1}, "takeover=1: give true or false"),
        ({"on_poison": "skip"}, "on_poison='skip': give 'stop' or 'dead_letter'"),
        ({"engine": "storm"}, "engine='storm': give 'spark', 'in_process' or 'auto'"),
        ({"state_recovery": "hope"}, "state_recovery='hope': give 'refuse', 'rewind', 'keep_totals', "),
        ({"state_recovery": "adopt"}, "state_recovery='adopt': give 'refuse', 'rewind', 'keep_totals'"),
        ({"spark_conf": "a=b"}, "spark_conf: the text is no JSON object"),
        ({"log_dir": 7}, "log_dir=7: give text or None"),
        ({"log_dir": "https://host/log"}, "log_dir='https://host/log': must be a folder on a local disk"),
        ({"log_dir": Path("https://host/log")}, "log_dir='https:/host/log': must be a folder on a local disk"),
        ({"log_dir": "dbfs:/logs"}, "log_dir='dbfs:/logs': must be a folder on a local disk"),
        ({"dead_letter_dir": "file:///var/dead"}, "dead_letter_dir='file:///var/dead': must be a folder"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config.of(settings)


@pytest.mark.parametrize("declared", [Config, StormConfig])
def test_what_is_no_mapping_of_settings_is_refused(declared: Any) -> None:
    with pytest.raises(ConfigError, match=r"a mapping, not a str; give one by name, master='local\[2\]'"):
        declared.of("local[2]")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://bucket", "name a bucket and a prefix that no other topology has, as in s3://BUCKET/PREFIX"),
        ("s3:///prefix", "name a bucket"),
        ("s3://bucket/a//b", "name a bucket"),
        ("s3://key:hush@bucket/prefix", "must have neither credentials nor options in it"),
        ("gs://bucket/prefix?token=hush", "must have neither credentials nor options in it"),
        ("postgresql://localhost/db", r"name the log, as in postgresql://USER@HOST/DATABASE\?topology=NAME"),
        ("postgresql://localhost/db?topology=", "name the log"),
        ("postgresql://me:hush@localhost/db?topology=a", "must have no password in it, because it is shown in logs"),
        ("postgresql://me@localhost/db?topology=a&password=hush", "must have no password in it"),
        ("zookeeper://host:2181", "name a path after the servers, as in zookeeper://host1:2181,host2:2181/trident/"),
        ("zookeeper://host:2181/", "name a path after the servers"),
        ("zookeeper:///path", "'' is not a server; give HOST:PORT"),
        ("zookeeper://a,,b/path", "'' is not a server"),
        ("zookeeper://host:port/path", "'host:port' is not a server"),
        ("zookeeper://host:70000/path", "'host:70000' is not a server"),
        ("zookeeper://host/a//b", "a path in ZooKeeper has no empty part"),
        ("zookeeper://host/a/../b", "no part that is . or .."),
        ("zookeeper://host/zookeeper/log", "ZooKeeper keeps /zookeeper for itself"),
        ("zookeeper://user:secret@host/log", "no user or password in it, .* TRIDENT_ZOOKEEPER_AUTH"),
    ],
)
def test_a_wrong_address_of_a_log_is_refused_before_anything_is_asked(address: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Config(log_dir=address)
    assert not re.search("hush|secret", str(caught.value))


MODULE = """
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import Config, TridentTopology
    from trident.operations import Count

    topology = TridentTopology("revenue", config=Config(engine="in_process", max_spout_pending=2))
    words = topology.new_stream("words", FixedBatchSpout("word", 2, ["the"], ["cow"], ["the"]))
    words.group_by("word").persistent_aggregate(DeltaState.opaque("table"), Count(), "count", state_name="count")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job, with its module, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path, "module", MODULE)
    return tmp_path


def declared(**config: Any) -> TridentTopology:
    topology = TridentTopology("revenue", config=config)
    words = topology.new_stream("words", FixedBatchSpout("word", 2, ["the"]))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


def of_folder(folder: Path, given: Config | None = None, **own: Any) -> Config:
    return resolve(Config(**own), ["revenue"], str(folder), given or Config())


def test_each_place_goes_before_the_ones_below_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "trident.toml").write_text("history = '7d'\nmax_spout_pending = 3\n[revenue]\nmax_spout_pending = 4\n")
    topology = load_topology("module.py:topology")
    assert topology.settings().origins == {
        "engine": "topology", "max_spout_pending": "trident.toml [revenue]", "history": "trident.toml",
    }  # fmt: skip
    assert topology.settings().max_spout_pending == 4
    monkeypatch.setenv("TRIDENT_MAX_SPOUT_PENDING", "5")
    found = topology.settings()
    assert (found.max_spout_pending, found.origins["max_spout_pending"]) == (5, "TRIDENT_MAX_SPOUT_PENDING")
    found = topology.settings(Config(max_spout_pending=6))
    assert (found.max_spout_pending, found.origins["max_spout_pending"]) == (6, "argument")
    found = settings(["max_spout_pending=7"], {}, topology)
    assert (found.max_spout_pending, found.origins["max_spout_pending"]) == (7, "command line")
    assert topology.settings(found) == found
    assert topology.settings(found).origins == found.origins


def test_an_argument_that_is_the_default_is_given(folder: Path) -> None:
    (folder / "trident.toml").write_text("on_poison = 'dead_letter'")
    assert of_folder(folder, Config(on_poison="stop")).on_poison == "stop"
    assert of_folder(folder, Config()).on_poison == "dead_letter"
    assert of_folder(folder, pickle.loads(pickle.dumps(Config(on_poison="stop")))).on_poison == "stop"


def test_a_section_of_another_topology_says_nothing(folder: Path) -> None:
    (folder / "trident.toml").write_text("[others]\nmax_spout_pending = 3\n")
    assert of_folder(folder) == Config()


def test_a_topology_that_is_submitted_under_another_name_has_both_sections(folder: Path) -> None:
    (folder / "trident.toml").write_text("[revenue]\nhistory = 5\nprogress_kept = 5\n[eu]\nhistory = 6\n")
    found = load_topology("module.py:topology", "eu").settings()
    assert (found.history, found.progress_kept) == (6, 5)


def test_settings_of_spark_come_together_from_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "trident.toml").write_text('spark.executor.memory = "4g"\n[spark_conf]\n"spark.a" = 1\nspark.b = true\n')
    monkeypatch.setenv("TRIDENT_SPARK_CONF", '{"spark.c": "2"}')
    found = of_folder(folder, Config.of(spark_conf={"spark.a": "5"}), spark_conf={"spark.d": "d"})
    assert found.spark_conf == {
        "spark.a": "5", "spark.b": "true", "spark.c": "2", "spark.d": "d", "spark.executor.memory": "4g",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("histori = '7d'", r"trident\.toml: unknown setting 'histori'; did you mean 'history'\?"),
        ("[revenue]\nhistori = '7d'", r"trident\.toml \[revenue\]: unknown setting 'histori'"),
        ("max_spout_pending = 0", r"trident\.toml: max_spout_pending=0: give a whole number of at least 1"),
        ("history = ", r"trident\.toml: cannot be read as TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_refused_with_its_place(folder: Path, text: str, problem: str) -> None:
    (folder / "trident.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        of_folder(folder)


def test_a_variable_named_nearly_as_a_setting_is_refused_others_are_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIDENT_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TRIDENT_HISTORY", "")
    assert of_folder(folder) == Config()
    monkeypatch.setenv("TRIDENT_HISTORI", "7d")
    with pytest.raises(ConfigError, match=r"TRIDENT_HISTORI: there is no setting 'histori'; did you mean 'history'\?"):
        of_folder(folder)
    monkeypatch.delenv("TRIDENT_HISTORI")
    monkeypatch.setenv("TRIDENT_TAKEOVER", "perhaps")
    with pytest.raises(ConfigError, match="TRIDENT_TAKEOVER: takeover='perhaps': give true or false"):
        of_folder(folder)


def test_what_is_wrong_with_the_config_of_a_topology_is_told_where_it_is_declared() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'histori'"):
        TridentTopology("revenue", config={"histori": "7d"})


@pytest.mark.slow
def test_a_reader_and_a_command_find_the_log_that_the_file_names(folder: Path) -> None:
    (folder / "trident.toml").write_text("log_dir = 'the-log'")
    topology = load_topology("module.py:topology")
    with topology.start() as running:
        running.process_all_available()
    assert running.config.origins["log_dir"] == "trident.toml"
    assert list((folder / "the-log").glob("*.log"))
    with open_state(topology, "count") as counts:
        assert counts.multi_get(["the"]) == [2]
    read = CliRunner().invoke(app, ["get", "module.py:topology", "count", "the"])
    assert (read.exit_code, read.stdout.split()[-1]) == (0, "2"), read.output


def test_explain_shows_each_setting_given_with_its_origin_and_no_secrets(folder: Path) -> None:
    text = "log_dir = 'postgresql://me@host/db?topology=revenue'\nhistory = '7d'\nspark.ssl.keyPassword = 'hush'\n"
    (folder / "trident.toml").write_text(text)
    told = load_topology("module.py:topology").explain()
    assert "settings\n  engine: in_process (topology)\n  history: 7d (trident.toml)\n" in told
    assert "log_dir: postgresql://***@host/db?topology=*** (trident.toml)" in told
    assert "hush" not in told
    assert "settings" not in explain(declared().graph(), config=Config())


def test_the_test_driver_takes_what_becomes_of_tuples_and_no_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "trident.toml").write_text("on_poison = 'stop'\nmax_batch_attempts = 9")
    monkeypatch.setenv("TRIDENT_LOG_DIR", "elsewhere")
    topology = declared(on_poison="dead_letter", max_batch_attempts=1, log_dir="a-log", history="7d", engine="spark")
    with TopologyTestDriver(topology, max_batch_attempts=2) as driver:
        driver.feed("words", "the")
        driver.run()
        assert (driver._config.on_poison, driver._config.max_batch_attempts) == ("dead_letter", 2)
    assert [path.name for path in folder.iterdir() if path.suffix != ".py"] == ["trident.toml"]


@pytest.mark.slow
def test_a_package_has_the_file_and_says_where_the_log_is(folder: Path) -> None:
    (folder / "trident.toml").write_text("log_dir = 'the-log'")
    package = make_package("module.py:topology")
    assert (set(package.manifest.files), package.log_dir) == ({"module.py", "trident.toml"}, "the-log")


def test_a_driver_of_a_cluster_takes_its_record_over_the_settings_in_the_package(folder: Path) -> None:
    (folder / "trident.toml").write_text("history = '7d'\nmax_spout_pending = 3\n")
    status, conf = WantedStatus("active", 0.0), {"max_spout_pending": "9"}
    base = StormBase("revenue", 1.0, status, 1, {}, "trident", "m:t", "code", conf, 2, "")
    config = config_of(load_topology("module.py:topology"), base, "where-the-cluster-has-it")
    assert isinstance(config, Config)
    assert config.origins == {
        "engine": "topology", "max_spout_pending": "submission", "history": "trident.toml", "takeover": "cluster",
        "log_dir": "cluster",
    }  # fmt: skip
    assert (config.max_spout_pending, config.log_dir, config.takeover) == (9, "where-the-cluster-has-it", True)
