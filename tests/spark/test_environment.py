"""The Java check, the Python of the workers, and the Spark session as a user's terminal and Ctrl-C see it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from trident.errors import ConfigError, EnvironmentProblem
from trident.spark import environment, session
from trident.spark.connect import check_server
from trident.spark.environment import check_java, check_master, master_of, pin_worker_python
from trident.spark.session import spark_session
from trident.storm import StormConfig
from trident.storm.spark import running_storm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 280
starts_a_jvm = pytest.mark.timeout(300)  # on a busy machine a start alone may take a minute


def java_home(folder: Path, script: str) -> Path:
    """Make a JAVA_HOME whose `java` is a shell script."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return folder


def says(version: str) -> str:
    return f"echo 'Picked up _JAVA_OPTIONS: -Xmx1g' >&2; echo '{version}' >&2; echo 'Runtime Environment' >&2"


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "25" 2025-09-16 LTS', 25),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('x version "16"', 16),
    ],
)
def test_a_java_is_taken_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, says(line))))
    if major >= 17:
        found = check_java()
        assert (found.major, found.text, found.path) == (major, line, tmp_path / "bin" / "java")
        return
    with pytest.raises(
        EnvironmentProblem, match=rf"needs Java 17 or newer, and .*bin/java is Java {major} \(.*Install"
    ):
        check_java()


def test_java_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home(tmp_path, says('openjdk version "17"'))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert check_java().path == home / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))  # a wrong one is named though java is on the path
    with pytest.raises(EnvironmentProblem, match=r"JAVA_HOME is '.*gone', but there is no program .*gone/bin/java"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"no `java` is on PATH.*apt-get install openjdk-17-jre-headless"):
        check_java()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'Unable to locate.' >&2; exit 1", r"does not say which Java it is.*printed 'Unable to locate\.'"),
        ("exit 0", "does not say which Java it is.*printed 'nothing'"),
        ('exec cat "$0.never"', r"gave no answer within 0\.2 s"),
        ("\x7fELF, and then nothing", r"-version` cannot be run: OSError"),
    ],
)
def test_a_java_that_gives_no_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    program = java_home(tmp_path, script) / "bin" / "java"
    os.mkfifo(f"{program}.never")
    if script.startswith("\x7fELF"):
        program.write_text(script, encoding="utf-8")
    if "never" in script:
        monkeypatch.setattr(environment, "_ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=text):
        check_java()


def test_workers_run_the_python_of_the_driver_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "mine")
    pin_worker_python()
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, "mine")
    monkeypatch.setenv("PYSPARK_PYTHON", "of the environment")
    pin_worker_python()
    assert os.environ["PYSPARK_PYTHON"] == "of the environment"
    pin_worker_python("./environment/bin/python")
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_a_local_session_has_our_settings(spark: SparkSession) -> None:
    wanted = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
    }
    assert {key: spark.conf.get(key) for key in wanted} == wanted
    assert spark.range(5).count() == 5


def test_the_active_session_is_used(spark: SparkSession) -> None:
    assert spark_session("another") is spark
    assert spark_session("another", "local[2]", {"spark.ui.enabled": "false"}) is spark


def test_a_users_local_session_runs_the_drivers_python_unless_told_otherwise(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "the python3 on PATH")
    assert spark_session("another").sparkContext.pythonExec == "the python3 on PATH"  # PYSPARK_PYTHON is set in tests
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert spark_session("another").sparkContext.pythonExec == sys.executable


def test_a_setting_of_run_time_gives_a_session_of_its_own(spark: SparkSession) -> None:
    own = spark_session("another", conf={"spark.sql.shuffle.partitions": "3"})
    assert own.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert own.sparkContext is spark.sparkContext


@pytest.mark.parametrize(
    ("master", "conf", "text"),
    [
        ("local[7]", {}, r"spark\.master is 'local\[2\]', and 'local\[7\]' was asked for.*Stop it first"),
        (None, {"spark.executor.memory": "3g"}, r"spark\.executor\.memory is None, and '3g' was asked for"),
    ],
)
def test_what_a_running_session_cannot_change_is_refused(
    spark: SparkSession, master: str | None, conf: dict[str, str], text: str
) -> None:
    assert spark.sparkContext.master == "local[2]"
    with pytest.raises(ConfigError, match=text):
        spark_session("another", master, conf)


@pytest.mark.parametrize(
    ("master", "conf", "asks"),
    [
        ("sc://host:15002", {}, "spark.master"),
        (None, {"spark.remote": "local"}, "spark.remote"),
        (None, {"spark.api.mode": "connect"}, "spark.api.mode"),
    ],
)
def test_spark_connect_is_refused_by_name(master: str | None, conf: dict[str, str], asks: str) -> None:
    with pytest.raises(ConfigError, match=f"classic session of Spark is needed.* no RDDs .*; {asks} asks for Spark"):
        spark_session("connect", master, conf)


def test_a_session_of_spark_connect_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # what PySpark goes by once there is such a session
    with pytest.raises(EnvironmentProblem, match="this process has a session of Spark Connect. Stop that"):
        spark_session("connected")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [("SPARK_REMOTE", "sc://host/;token=abc"), ("SPARK_API_MODE", "connect")])
def test_an_environment_that_asks_for_spark_connect_is_refused_by_name(name: str, value: str) -> None:
    done = run("from trident.spark.session import spark_session; spark_session('connect')", **{name: value})
    assert f"the environment variable {name} asks for Spark Connect: unset it" in done.stderr
    assert "abc" not in done.stderr


class Stopping:
    """A session whose end is what the test makes of it."""

    def __init__(self, stop: Callable[[], Any]) -> None:
        self.stop = stop


def test_a_session_that_does_not_stop_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(session, "_jvm_outputs", [])
    monkeypatch.setattr(session, "_STOP_S", 0.05)
    with caplog.at_level("WARNING", session.__name__):
        session.stop_session(cast(Any, Stopping(let_go.wait)))
    let_go.set()
    assert [record.message for record in caplog.records] == [
        "Spark did not stop within 0.05 seconds; it is left behind"
    ]
    with pytest.raises(ZeroDivisionError):
        session.stop_session(cast(Any, Stopping(lambda: 1 // 0)))


def test_a_session_whose_jvm_is_gone_is_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stop() -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(session, "_jvm_outputs", [])
    with caplog.at_level("INFO", session.__name__):
        session.stop_session(cast(Any, Stopping(stop)))
    assert caplog.records == []


def unsteered() -> dict[str, str]:
    """Return this environment without what would steer Spark; how Java starts stays."""
    steers = tuple(
        name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_")) and name != "SPARK_SUBMIT_OPTS"
    )
    return {name: value for name, value in os.environ.items() if name not in steers}


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own, with nothing set that would steer Spark."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**unsteered(), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


QUIET = """
import sys
from trident.spark.session import spark_session

def noisy(batches):
    for batch in batches:
        print("from a worker", file=sys.stderr)
        yield batch

def failing(batches):
    raise ValueError("on purpose")
    yield

spark = spark_session("quiet")
print(spark.sparkContext.master, spark.sparkContext.appName)
print(spark.range(1).coalesce(1).mapInArrow(noisy, "id long").count())
try:
    spark.range(1).coalesce(1).mapInArrow(failing, "id long").count()
except Exception as error:
    print("on purpose" in str(error))
spark.stop()
again = spark_session("again", "local[1]", {"spark.sql.shuffle.partitions": "5"})
print(again.sparkContext.master, again.conf.get("spark.sql.shuffle.partitions"), again.range(3).count())
log = again._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.Anything")
log.warn("a warning")
log.error("an error")
"""


@pytest.mark.long
@pytest.mark.spark
@starts_a_jvm
def test_a_session_prints_nothing_but_errors_and_what_workers_print() -> None:
    done = run(QUIET)
    assert done.stdout.splitlines() == ["local[*] quiet", "1", "True", "local[1] 5 3"]
    lines = done.stderr.splitlines()
    assert lines[0] == "from a worker"
    assert len(lines) == 2
    assert lines[1].endswith("ERROR Anything: an error")


FAILS = """
from trident.errors import EnvironmentProblem
from trident.spark.session import spark_session
try:
    spark_session("fails", {master!r}, {conf!r})
except EnvironmentProblem as error:
    print(error)
"""


@pytest.mark.spark
@starts_a_jvm
def test_a_jvm_that_does_not_start_is_an_error_with_its_last_lines() -> None:
    done = run(FAILS.format(master="local[1]", conf={"spark.driver.memory": "1x"}))
    assert done.stdout.startswith("Spark did not start: ")
    assert "Invalid maximum heap size: -Xmx1x" in done.stdout
    assert done.stderr == ""


@pytest.mark.long
@pytest.mark.spark
@starts_a_jvm
def test_a_context_that_does_not_start_is_an_error_without_a_stack_of_the_jvm() -> None:
    done = run(FAILS.format(master="local[none]", conf={}))
    assert done.stdout.startswith("Spark did not start: org.apache.spark.SparkException: ")
    assert "local[none]" in done.stdout
    assert "Py4J" not in done.stdout


@pytest.mark.long
@pytest.mark.spark
@starts_a_jvm
def test_the_logging_of_the_user_is_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\nappender.c.type = Console\nappender.c.name = c\n"
        "appender.c.target = SYSTEM_ERR\nappender.c.layout.type = PatternLayout\n"
        "appender.c.layout.pattern = mine %p %m%n\n",
        encoding="utf-8",
    )
    tmp_path.joinpath("spark-defaults.conf").write_text("spark.master local[1]\nspark.sql.shuffle.partitions 9\n")
    script = (
        "from trident.spark.session import spark_session\n"
        "spark = spark_session('mine')\n"
        "print(spark.sparkContext.master, spark.conf.get('spark.sql.shuffle.partitions'))\n"
        "spark._jvm.org.apache.logging.log4j.LogManager.getLogger('org.apache.spark.Any').warn('a warning')\n"
    )
    done = run(script, SPARK_CONF_DIR=str(tmp_path))
    assert done.stdout.strip() == "local[1] 9"
    assert "mine WARN a warning" in done.stderr.splitlines()


INTERRUPTED = """
import signal, sys
interrupts = []
signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
from trident.spark.session import spark_session
spark = spark_session("interrupted", "local[2]")

def wait(batches):
    open({inside!r}, "w").close()
    open({go_on!r}).close()
    yield from batches

print("first", spark.range(3).coalesce(1).mapInArrow(wait, "id long").count())
print("second", spark.range(4).mapInArrow(lambda batches: batches, "id long").count())
print("interrupts", len(interrupts))
"""


@contextmanager
def group(script: str) -> Iterator[subprocess.Popen[str]]:
    """Start a script in a process group of its own, as a terminal does; nothing of the group outlives the test."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=unsteered(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.spark
@starts_a_jvm
def test_ctrl_c_reaches_the_driver_and_spares_the_jvm(tmp_path: Path) -> None:
    inside, go_on = tmp_path / "inside", tmp_path / "go_on"
    os.mkfifo(inside)
    os.mkfifo(go_on)
    with group(INTERRUPTED.format(inside=str(inside), go_on=str(go_on))) as process:
        inside.read_bytes()  # returns once the task is in the middle of the first job
        os.killpg(process.pid, signal.SIGINT)
        go_on.write_bytes(b"")
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert out.splitlines() == ["first 3", "second 4", "interrupts 1"]
    assert (err, process.returncode) == ("", 0)


def test_a_master_that_does_not_answer_is_named_before_spark_tries_for_a_minute() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(
            EnvironmentProblem,
            match=rf"no Spark master answers at spark://127.0.0.1:{port},host \(127.0.0.1:{port}: .*ref",
        ):
            check_master(f"spark://127.0.0.1:{port},host")
        closed.listen()
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")  # one of several is enough
    for other in ("local[2]", "k8s://https://127.0.0.1:1"):  # which is not asked
        check_master(other)


def test_an_address_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(EnvironmentProblem, match=r"no Spark master answers at spark://127.0.0.1:99999 \("):
        check_master("spark://127.0.0.1:99999")
    for server in ("sc://h:abc/;token=s3cret", "sc://h:99999", "sc://[::1"):
        with pytest.raises(ConfigError, match="the address of Spark Connect is none: .* sc://HOST:15002") as raised:
            check_server(server)
        assert "s3cret" not in str(raised.value)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no Spark, and nothing that says which one it is to be."""
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("asked", "variables", "master"),
    [
        (None, {}, "local[*]"),
        (
            "spark://asked:7077",
            {"PYSPARK_SUBMIT_ARGS": "--master spark://other:7077 pyspark-shell"},
            "spark://asked:7077",
        ),
        (None, {"PYSPARK_SUBMIT_ARGS": "--name x --master spark://other:7077 pyspark-shell"}, "spark://other:7077"),
        (None, {"PYSPARK_SUBMIT_ARGS": "--master 'local[3]' pyspark-shell"}, "local[3]"),
        (None, {"PYSPARK_SUBMIT_ARGS": "--conf spark.master=yarn --conf spark.x=1 pyspark-shell"}, "yarn"),
        (None, {"PYSPARK_SUBMIT_ARGS": "--conf=spark.master=k8s --master=yarn pyspark-shell"}, "yarn"),
        (
            None,
            {"PYSPARK_SUBMIT_ARGS": "--properties-file other.conf pyspark-shell", "SPARK_CONF_DIR": "conf"},
            "k8s://it",
        ),
        (None, {"SPARK_CONF_DIR": "conf"}, "yarn"),
        (None, {"SPARK_HOME": ""}, "local[*]"),
        (None, {"SPARK_HOME": "."}, "yarn"),
    ],
)
def test_the_master_is_known_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, variables: dict[str, str], master: str
) -> None:
    (tmp_path / "conf").mkdir()
    text = "# spark.master local\nspark.executor.memory 2g\nspark.master     yarn\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(text, encoding="utf-8")
    (tmp_path / "other.conf").write_text("spark.master: local\nspark.master: k8s://it\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert master_of(asked) == master


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("settings", "submitted", "master"),
    [
        ({}, "", "local[2]"),
        ({"master": "spark://h:7077"}, "", "spark://h:7077"),
        ({"spark_conf": {"spark.master": "spark://h:7077"}}, "", "spark://h:7077"),
        ({}, "--conf spark.master=spark://h:7077 pyspark-shell", None),
    ],
)
def test_bolts_get_a_local_spark_where_nothing_names_another(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], submitted: str, master: str | None
) -> None:
    asked: list[str | None] = []

    def start(name: str, master: str | None, conf: Any) -> Any:
        asked.append(master)
        return SimpleNamespace(sparkContext=None)

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submitted)
    monkeypatch.setattr(running_storm, "spark_session", start)
    monkeypatch.setattr(running_storm, "ship_code", lambda context: None)
    running_storm.open_spark(StormConfig.of(settings, workers=2))
    assert asked == [master]


@pytest.mark.slow
def test_a_pyspark_without_python_sources_is_named_with_what_reads_a_state() -> None:
    done = run("import sys; sys.modules['pyspark.sql.datasource'] = None; from trident.spark import TridentDataSource")
    assert (
        'spark.read.format("trident") needs PySpark 4.0 or newer. Read the state with running.state(...)' in done.stderr
    )
