"""`trident demo`: count the words of real text, and compare every count with a plain Python program's.

With `--crash` the job is in a process of its own, killed in the middle of commits and started again.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.cli.console import LiveLines, results, say, show, unwinding_on_signals
from trident.cli.demo_folder import DemoFolder, DemoText, count_words, find_text, standard_library
from trident.cli.run import drive
from trident.cli.target import load_topology
from trident.config import Config
from trident.errors import EnvironmentProblem, TridentError
from trident.extras import check_pyspark
from trident.log.log_reader import LogReader, exists
from trident.log.log_state import LogState
from trident.naming import amount, counted
from trident.plan import make_plan
from trident.read.open_partitions import make_state
from trident.reading import open_state
from trident.servers.local_processes import kill_job
from trident.spark.environment import check_java
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from trident.run.running import RunningTopology

_LOOK_S = 0.005


def demo(paths: Sequence[Path], state_dir: Path, engine: str, kills: int, fresh: bool) -> int:
    """Count, show and check; returns the exit code. With kills an earlier demo is always forgotten."""
    _check_environment(engine)
    folder = DemoFolder(state_dir.absolute())
    text = find_text(paths or standard_library())
    if fresh or kills:
        folder.clear()
    batch_bytes = folder.prepare([str(path.resolve()) for path in paths], text)
    what = "the Python standard library" if not paths else ", ".join(map(str, paths))
    left_out = f" ({text.skipped} that are not UTF-8 text were left out)" if text.skipped else ""
    say(f"counting the words of {counted(len(text.files), 'file')}, {amount(text.size, 'bytes')}, of {what}{left_out}")
    before = folder.log()
    topology = load_topology(f"{folder.module}:topology")
    begun = time.monotonic()
    lines = _Lines(folder, text.lines, _tuples(before))
    made, seconds = 0, None
    if kills:
        with lines:
            made = _run_with_kills(folder, topology, engine, kills, lines, text.size // batch_bytes)
    else:
        config = Config.of(engine=engine, log_dir=str(folder.log_dir))
        running, stopped = drive(lambda: topology.start(config), True, lines)
        if stopped:
            say("stopped; run it again to continue from there")
            return stopped
        seconds = running.seconds
    after = folder.log()
    assert after is not None, "a topology that ran has a log"
    with open_state(topology, "count", log_dir=str(folder.log_dir)) as state:  # whole, as any process can
        counts = dict(state.get_tuples())
    code = _show(folder, counts, text, before, after, time.monotonic() - begun if seconds is None else seconds)
    if made < kills:
        say(
            f"not shown: only {made} of {kills} kills, because the job finished before the next one. Give it "
            "more text, or fewer --crashes",
            "bold red",
        )
    return code or int(made < kills)


class _Lines(LiveLines):
    """How many lines of the text are counted."""

    def __init__(self, folder: DemoFolder, lines: int, before: int) -> None:
        super().__init__(results(), "demo")
        self._lines, self._before = lines, before
        self.folder, self._log = folder, LogReader(folder.log_dir)
        self.txid = self._shown = 0

    def update(self, running: RunningTopology) -> None:
        status = running.status
        self._show(status["txid"], self._before + status["tuples"])

    def look(self) -> int:
        """Show the progress of a topology in another process, by its log; return the last batch there."""
        if exists(self.folder.log_dir):
            log = self._log.refresh()
            self.txid = log.txid
            self._show(log.txid, _tuples(log))
        return self.txid

    def _show(self, txid: int, lines: int) -> None:
        if self.is_due() and txid != self._shown:
            self._shown = txid
            self.tell(f"batch {txid}: {lines:,} of {self._lines:,} lines")


def kill_line(number: int, recorded: int, stored: int | None) -> str:
    """Say after which batch's record a SIGKILL came, and how far the store was by then."""
    where = "the batch under way had not reached the store: it is processed again"
    if stored is not None and stored > recorded:
        where = f"batch {stored} was in the store but not in the log: its counts are undone and written again"
    return f"kill {number}: SIGKILL after the record of batch {recorded}; {where}"


class DemoJob:
    """A run of the demo's topology in a session of its own, which a kill ends with Spark, however the context is left.

    If this process is killed itself, the job ends too: it reads from a pipe whose other end is here.
    """

    def __init__(self, folder: DemoFolder, engine: str, scratch: Path) -> None:
        script = "from trident.cli import demo, main; demo.end_with_parent(); main()"
        command = [sys.executable, "-c", script, "run", f"{folder.module.absolute()}:topology", "--once"]
        command += ["--log-dir", str(folder.log_dir), "--conf", f"engine={engine}"]
        # All that a killed Spark leaves behind is in one folder then.
        short = len(str(scratch)) <= 60  # Spark refuses more characters: the path of a socket is of a limited length
        sockets = f"dir={scratch}" if short else "enabled=false"
        command += ["--conf", f"spark.python.unix.domain.socket.{sockets}"]
        command += ["--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={scratch}"]
        environment = {**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        self._output = (scratch / "output").open("w+b")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )

    def __enter__(self) -> DemoJob:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._output.close()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the job has come to its end by itself; raises what it said if that was an error."""
        code = self._process.poll()
        if code is None:
            return False
        if code != 0:
            self._output.seek(0)
            said = self._output.read().decode(errors="replace").strip()
            raise TridentError(f"the job ended with exit code {code}; it said:\n{said}")
        return True

    def kill(self) -> None:
        kill_job(self._process)


def end_with_parent() -> None:
    """Let this process group end, with Spark's JVM in it, when standard input ends: the system closes it with the parent."""

    def watch() -> None:
        while os.read(0, 1 << 10):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="trident-with-parent", daemon=True).start()


def _run_with_kills(
    folder: DemoFolder, topology: TridentTopology, engine: str, kills: int, lines: _Lines, batches: int
) -> int:
    """Run the demo's topology to its end and kill it on the way; returns how often. `batches`: about how many there are."""
    made, chance = 0, random.Random()
    with (
        unwinding_on_signals(),
        tempfile.TemporaryDirectory(prefix="trident-demo-", ignore_cleanup_errors=True) as scratch,
    ):
        while True:
            with DemoJob(folder, engine, Path(scratch)) as job:
                txid = lines.look() + chance.randint(1, max(1, min(3, (batches - lines.txid) // (kills - made + 1))))
                if made == kills or not _moment(job, lines, txid, made % 2 == 0, chance):
                    while not job.has_ended():
                        lines.look()
                        time.sleep(_LOOK_S)
                    lines.look()
                    return made
            made += 1
            say(kill_line(made, lines.look(), _stored_txid(folder, topology)), "yellow")


def _moment(job: DemoJob, lines: _Lines, txid: int, in_commit: bool, chance: random.Random) -> bool:
    """Wait until `txid` is recorded, then for the next commit of the store or any moment of a batch; False if the job ended."""
    start, begun = lines.txid, time.monotonic()

    def is_recorded() -> bool:
        nonlocal begun
        if lines.look() == start:
            begun = time.monotonic()  # nothing is committed yet
        return lines.txid >= txid

    if not _until(job, is_recorded):
        return False
    if in_commit:
        newest = _newest(lines.folder.delta_log)
        return _until(job, lambda: _newest(lines.folder.delta_log) != newest, 0.0)
    each = (time.monotonic() - begun) / (txid - start)
    deadline = time.monotonic() + chance.uniform(0, min(each, 2.0))
    return _until(job, lambda: time.monotonic() >= deadline)


def _until(job: DemoJob, is_over: Callable[[], bool], pause_s: float = _LOOK_S) -> bool:
    while not is_over():
        if job.has_ended():
            return False
        time.sleep(pause_s)
    return True


def _newest(delta_log: Path) -> str:
    names = (entry.name for entry in os.scandir(delta_log))
    return max((name for name in names if name.endswith(".json")), default="")


def _check_environment(engine: str) -> None:
    try:
        import states.delta  # noqa: F401 - only to see whether it can be
    except ImportError as error:
        raise EnvironmentProblem(
            f"the demo keeps its counts in a Delta table, and that cannot be loaded: {error}. Install the extra "
            "`delta`, as in `pip install 'trident-spark[delta]'`"
        ) from error
    if engine == "spark":
        check_pyspark("--engine in_process")
        try:
            check_java()
        except EnvironmentProblem as error:
            raise EnvironmentProblem(f"{error}. The demo also runs without Java: --engine in_process") from error


def _tuples(log: LogState | None) -> int:
    return 0 if log is None else log.totals.get("tuples", 0)


def _stored_txid(folder: DemoFolder, topology: TridentTopology) -> int | None:
    plan = make_plan(topology.graph())
    state: Any = make_state(plan, Config.of(log_dir=str(folder.log_dir)), "count", 0, 1, read_only=True)
    with closing(state):
        sentinel = state.read_sentinel()
    return None if sentinel is None else int(sentinel.txid)


def _show(
    folder: DemoFolder, counts: dict[str, int], text: DemoText, before: LogState | None, after: LogState, seconds: float
) -> int:
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
    say(f"the {len(top)} most frequent of {counted(len(counts), 'word')}")
    show([(word, f"{count:,}") for word, count in top], "word", "count", right=[1])
    _show_speed(before, after, sum(counts.values()), seconds)
    words = [word for word, _ in top if word.isalpha()][:2] or [top[0][0]]
    say(f"ask for more: {shlex.join(folder.command(*words))}")
    return _compare(counts, count_words(text.files))


def _show_speed(before: LogState | None, after: LogState, words: int, seconds: float) -> None:
    done = 0 if before is None else before.txid
    batches, tuples = after.txid - done, _tuples(after) - _tuples(before)
    if batches == 0:
        say(f"nothing new to count: everything was counted up to batch {done} before (--fresh counts it again)")
        return
    went_on = f" (continued after batch {done})" if done else ""
    speed = f"{tuples / max(seconds, 1e-9):,.0f} tuples/s"
    if not done:  # otherwise the words of this run are unknown
        speed += f", {words / max(seconds, 1e-9):,.0f} words/s"
    say(
        f"{counted(batches, 'batch', 'batches')} with {counted(tuples, 'tuple')} (lines) in {seconds:.1f} s{went_on}: {speed}"
    )


def _compare(counts: Mapping[str, int], expected: Counter[str]) -> int:
    if counts == expected:
        say(
            f"exact: yes – {len(counts):,} words that occur {sum(counts.values()):,} times; a plain Python count of "
            "the same files has the same number for each",
            "green",
        )
        return 0
    different = sorted(word for word in {*counts, *expected} if counts.get(word, 0) != expected[word])
    say(f"exact: NO – {len(different):,} of {len({*counts, *expected}):,} words differ", "bold red")
    for word in different[:5]:
        say(f"  {word!r}: the state has {counts.get(word, 0):,}, a plain Python count has {expected[word]:,}")
    say(
        "Text that was changed or removed since it was counted makes such a difference; --fresh counts everything again"
    )
    return 1
