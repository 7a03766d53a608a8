"""The Spark session that a topology runs on: a quiet local one by default, or the user's active one.

What the caller asked for comes before what spark-submit and its files say, and that before the defaults here. Only adaptive
execution is off whatever the files say: it would split or merge the partitions of a state.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import selectors
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from trident.errors import ConfigError, EnvironmentProblem, describe
from trident.spark.connect import PAGE
from trident.spark.environment import (
    check_java,
    check_master,
    conf_folder,
    is_spark_on,
    local_slots,
    pin_python_of,
    pin_worker_python,
)

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

logger = logging.getLogger(__name__)

_REQUIRED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # spark-submit sets it for every Python driver, so it is never missing
}
_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",  # tells a crash of native code from a kill
    "spark.python.unix.domain.socket.enabled": "true",  # halves the fixed cost of a Python task
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_WORKER_DAEMON = "trident.spark.worker_daemon"
_LOCAL_ADDRESS = "127.0.0.1"
_STOP_S = 60.0
_MOST_RESULTS = 1 << 30  # Spark's own spark.driver.maxResultSize, whatever the driver's heap
_OF_HEAP = 4  # with a third of the heap in results, Spark was seen to hang
# If any of these is set, the master may be set outside the program.
_OUTSIDE = ("MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
# In local mode these print, at level ERROR, the same exception that the driver raises; the others keep their errors. The last
# one belongs to a streaming query.
_ECHOING_SCHEDULER = "org.apache.spark.scheduler.TaskSetManager"
_ECHOING_LOGGERS = (
    "org.apache.spark.executor.Executor",
    _ECHOING_SCHEDULER,
    "org.apache.spark.TaskContextImpl",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)

# Only on a cluster a job may wait for executors that do not come; and there only the scheduler echoes a failed one.
_WAITING_LOGGER = "org.apache.spark.scheduler.TaskSchedulerImpl"

_jvm_outputs: list[JvmOutput] = []  # the output of this process's JVM, if we read it


def spark_session(
    app_name: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    spare: int = 0,
) -> SparkSession:
    """Return the active session if there is one, else start Spark.

    A start prints nothing but errors, leaves the handler of SIGINT as it was (PySpark alone would replace it by one
    that cancels all jobs), and starts a JVM that ignores SIGINT: so a driver that handles Ctrl-C can finish its batch.

    `conf`: wins over everything else; a session that is active stays as it is, and another one on its context gets the
    settings.
    `defaults`: have the lowest precedence. `spare`: how many more tasks at once a local Spark can run than its master says.
    Raises `EnvironmentProblem`: Spark did not start, or Spark Connect is in use. `ConfigError`: what is active cannot be
    changed.
    """
    asked = dict(conf or {})
    if master is not None:
        asked["spark.master"] = master
    _refuse_connect(asked)
    active = SparkSession.getActiveSession()
    if active is None and is_spark_on():
        active = SparkSession.builder.getOrCreate()
    if active is None:
        return _start(app_name, asked, defaults or {}, spare)
    pin_python_of(active.sparkContext)
    differing = {key: value for key, value in asked.items() if active.conf.get(key, None) != value}
    fixed = [key for key in differing if not active.conf.isModifiable(key)]
    if fixed:
        differences = ", ".join(
            f"{key} is {active.conf.get(key, None)!r}, and {asked[key]!r} was asked for" for key in fixed
        )
        raise ConfigError(
            f"a Spark session is active and cannot be changed: {differences}. "
            "Stop it first (`spark.stop()`), or ask for the same settings"
        )
    if not differing:
        return active
    session = active.newSession()
    for key, value in differing.items():
        session.conf.set(key, value)
    return session


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, and hide what its processes print while they end."""
    # A Python worker that is idle when the JVM goes may find its pipe broken and print a traceback that says nothing of the
    # topology. Spark itself sets no limit to its end: after a minute it is left behind, and its JVM ends with this process.
    for output in _jvm_outputs:
        output.hold()
    errors: list[Exception] = []

    def stop() -> None:
        try:
            spark.stop()
        except (Py4JNetworkError, OSError):  # where a signal goes to all processes of a group
            logger.debug("Spark's JVM was gone already", exc_info=True)
        except Exception as error:  # noqa: BLE001  raised below, in the caller's thread
            errors.append(error)

    stopping = threading.Thread(target=stop, name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_S)
    if stopping.is_alive():
        logger.warning("Spark did not stop within %g seconds; it is left behind", _STOP_S)
    if errors:
        raise errors[0]


def _refuse_connect(asked: Mapping[str, str]) -> None:
    """Refuse Spark Connect by name where RDDs are needed. The address is not shown, because it may hold a token."""
    cause = f"a classic session of Spark is needed here, because Spark Connect has no RDDs (what it runs: {PAGE}); "
    wanted = ("spark.master", "sc://"), ("spark.remote", ""), ("spark.api.mode", "connect")
    keys = [key for key, begin in wanted if key in asked and asked[key].startswith(begin)]
    if keys:
        raise ConfigError(
            f"{cause}{keys[0]} asks for Spark Connect. Name a master, as in master='local[*]' or 'spark://host:7077'; or, "
            "for a topology without bolts, the server, as in master='sc://host:15002'"
        )
    if is_remote():
        raise EnvironmentProblem(
            f"{cause}this process has a session of Spark Connect. Stop that and start a classic one "
            "(SparkSession.builder.master(...)), or use a process of its own"
        )
    wishes = "SPARK_REMOTE" in os.environ, os.environ.get("SPARK_API_MODE", "").lower() == "connect"
    if any(wishes) and not is_spark_on():
        name = "SPARK_REMOTE" if wishes[0] else "SPARK_API_MODE"
        raise EnvironmentProblem(f"{cause}the environment variable {name} asks for Spark Connect: unset it")


def _start(app_name: str, asked: dict[str, str], defaults: Mapping[str, str], spare: int) -> SparkSession:
    pin_worker_python(asked.get("spark.pyspark.python"))
    if "spark.master" not in asked and not any(os.environ.get(name) for name in _OUTSIDE):
        asked["spark.master"] = "local[*]"
    if asked.get("spark.master", "").startswith("local"):
        # Otherwise Spark looks up the host's name, and many laptops and containers cannot resolve their own.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOCAL_ADDRESS)
    quiet = "spark.log.level" not in asked and not _user_configures_logging(asked)
    running = SparkContext._gateway  # noqa: SLF001 - a JVM outlives the session that started it, and no call reports it
    output = _jvm_output(quiet, running is not None)
    if not running:
        logger.info("starting Spark, which may take up to a minute")
    try:
        with _sigint_handler_kept():
            gateway = running or _launch(asked, output)
            conf = _configure(gateway, app_name, asked, defaults, spare)
            check_master(conf.get("spark.master") or "")
            context = SparkContext(gateway=gateway, conf=conf)
            if quiet:
                _log_errors_only(context, gateway)
            return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        said = "" if output is None else output.last_lines()
        raise EnvironmentProblem.of_now(f"Spark did not start: {_cause(error)}.{said}") from error
    finally:
        if output is not None:
            output.release()
            _jvm_outputs[:] = [output]


def _jvm_output(quiet: bool, running: bool) -> JvmOutput | None:
    if running:  # what has read its stderr so far, if anything does
        return next(iter(_jvm_outputs), None)
    return JvmOutput() if quiet else None


def _configure(
    gateway: JavaGateway, app_name: str, asked: Mapping[str, str], defaults: Mapping[str, str], spare: int
) -> SparkConf:
    conf = SparkConf(_jvm=gateway.jvm)  # holds what spark-submit and spark-defaults.conf say
    for key, value in {**_REQUIRED, **asked, "spark.app.name": app_name}.items():
        conf.set(key, value)
    for key, value in {**_DEFAULTS, **defaults}.items():
        conf.setIfMissing(key, value)
    heap = int(gateway.jvm.java.lang.Runtime.getRuntime().maxMemory())
    if heap // _OF_HEAP < _MOST_RESULTS:
        conf.setIfMissing("spark.driver.maxResultSize", str(heap // _OF_HEAP))
    master = conf.get("spark.master") or ""
    slots = local_slots(master, gateway.jvm)
    if spare and slots is not None:
        conf.setIfMissing("spark.default.parallelism", str(slots))
        conf.set("spark.master", f"local[{slots + spare}{''.join(master.partition(',')[1:]) or ']'}")
    if master.startswith("local"):
        conf.setIfMissing("spark.driver.host", _LOCAL_ADDRESS)
        conf.setIfMissing("spark.driver.bindAddress", _LOCAL_ADDRESS)
        if os.environ["PYSPARK_PYTHON"] == sys.executable:  # another Python may have no Trident
            conf.setIfMissing("spark.python.daemon.module", _WORKER_DAEMON)
        conf.setIfMissing("spark.sql.shuffle.partitions", str(min(4, max(2, slots or os.cpu_count() or 1))))
    return conf


def _launch(asked: Mapping[str, str], output: JvmOutput | None) -> JavaGateway:
    if not os.environ.get("PYSPARK_GATEWAY_PORT"):  # under spark-submit the JVM runs already
        check_java()
    conf = SparkConf(loadDefaults=False)
    for key, value in asked.items():
        conf.set(key, value)
    kwargs: dict[str, Any] = {} if output is None else {"stderr": output.write_end}
    with warnings.catch_warnings():
        # PySpark forks with a preexec_fn, and newer Pythons warn of that wherever a thread runs.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
        return launch_gateway(conf, popen_kwargs=kwargs)


def _user_configures_logging(asked: Mapping[str, str]) -> bool:
    """Whether the user has configured log4j2; then that configuration decides what is printed."""
    options = asked.get("spark.driver.extraJavaOptions", "") + os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if "log4j" in options or os.environ.get("PYSPARK_GATEWAY_PORT"):
        return True
    where = conf_folder()
    return where is not None and any(where.glob("log4j2.*"))


def _log_errors_only(context: SparkContext, gateway: JavaGateway) -> None:
    context.setLogLevel("ERROR")
    log4j = gateway.jvm.org.apache.logging.log4j
    local = (context.master or "").startswith("local")
    for name in _ECHOING_LOGGERS if local else [_ECHOING_SCHEDULER]:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    if not local:
        log4j.core.config.Configurator.setLevel(_WAITING_LOGGER, log4j.Level.WARN)


@contextmanager
def _sigint_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGINT afterwards. PySpark changes it only in the main thread."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def _cause(error: Exception) -> str:
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else describe(error)
    return text.splitlines()[0].rstrip(".")


class JvmOutput:
    """What the JVM writes to stderr: held back while Spark starts, passed on afterwards."""

    # No setting turns off all lines of a start. A thread of its own reads them, because a full pipe would stop the JVM.

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._lock = threading.Lock()
        self._held: bytearray | None = bytearray()
        self._shown = BrokenPipes()
        self._closed = threading.Event()
        threading.Thread(target=self._pump, name="spark-jvm-stderr", daemon=True).start()
        atexit.register(self._drain, at_exit=True)  # the thread may end with lines unread

    def last_lines(self) -> str:
        self._close_write_end()
        self._closed.wait(timeout=1)  # returns at once if the JVM is gone; a running one has written its message
        with self._lock:
            lines = bytes(self._held or b"").decode(errors="replace").strip().splitlines()[-20:]
        return " The last lines of the JVM:\n" + "\n".join(lines) if lines else " The JVM printed nothing"

    def release(self) -> None:
        """Stop holding output back. Of the held lines, only those that log an error are printed."""
        self._close_write_end()
        with self._lock:
            held, self._held = bytes(self._held or b""), None
            _print(b"".join(line for line in held.splitlines(keepends=True) if b" ERROR " in line))

    def hold(self) -> None:
        with self._lock:
            self._held = bytearray()

    def _close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)  # the JVM has a copy; when the JVM ends, the pipe must end too
            self.write_end = -1

    def _pump(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._read_end, selectors.EVENT_READ)
            while not self._closed.is_set():
                selector.select()
                self._drain()

    def _drain(self, at_exit: bool = False) -> None:
        with self._lock:
            while not self._closed.is_set():
                try:
                    data = os.read(self._read_end, 65536)
                except BlockingIOError:
                    break
                if not data:
                    os.close(self._read_end)
                    self._closed.set()
                elif self._held is None:
                    _print(self._shown(data))
                else:
                    self._held += data
            if at_exit or self._closed.is_set():
                _print(self._shown.end())


class BrokenPipes:
    """Leaves out the traces of Python workers whose pipe broke because their job was cancelled: none is of user code."""

    def __init__(self) -> None:
        self._trace = b""
        self._rest = b""  # of a line that is held back
        self._open = False  # of a line that is shown
        self._follows = False  # on a trace that was left out

    def __call__(self, data: bytes) -> bytes:
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        shown = b"".join(map(self._line, lines))
        beginnings = (*_BEGINS, *_BETWEEN) if self._follows else _BEGINS
        if (
            self._rest
            and not self._trace
            and (self._open or not any(line.startswith(self._rest) for line in beginnings))
        ):
            shown, self._rest, self._open = shown + self._rest, b"", True
        return shown

    def end(self) -> bytes:
        """Return what was held back, as nothing more comes."""
        held, self._trace, self._rest = self._trace + self._rest, b"", b""
        return held

    def _line(self, line: bytes) -> bytes:
        if self._open:
            self._open = self._follows = False
            return line
        if not self._trace:
            self._follows = self._follows and line in _BETWEEN
            if line in _BEGINS:
                self._trace = line
            return b"" if self._trace or self._follows else line
        self._trace += line
        if line.startswith(b" ") or line in _BEGINS:
            return b""
        trace, self._trace = self._trace, b""
        self._follows = line.startswith(_BROKEN) and all(
            _OF_PYSPARK.search(frame) for frame in trace.splitlines() if frame.startswith(b'  File "')
        )
        return b"" if self._follows else trace


_BEGINS = (
    b"Traceback (most recent call last):\n",
    b"PySpark daemon failed to flush the output to the worker process:\n",
)
_BETWEEN = (b"\n", b"During handling of the above exception, another exception occurred:\n")
_BROKEN = (b"BrokenPipeError:", b"ConnectionResetError:", b"ConnectionAbortedError:")
_OF_PYSPARK = re.compile(rb"[/\\]pyspark[/\\]|[/\\]socket\.py")


def _print(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        return  # the terminal is gone, or stderr was closed, so there is no place to print
