"""`trident demo`: count the words of real text, and compare every count with a plain Python program's."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from trident.cli.console import results, say, show
from trident.cli.demo_crash import Kill, run_with_kills
from trident.cli.demo_folder import DemoFolder, DemoText, count_words, find_text, standard_library
from trident.cli.run import drive
from trident.cli.target import load_topology
from trident.config import Config
from trident.coordination.log_state import LogState
from trident.errors import EnvironmentProblem
from trident.extras import check_pyspark
from trident.naming import amount, counted
from trident.planner import make_plan
from trident.reading import open_state
from trident.runtime.reading.open_partitions import make_state
from trident.spark.environment import check_java
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from trident.runtime.running import RunningTopology

_TOP = 10
_DIFFERENCES = 5
_LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Demo:
    """One run of the demo.

    `paths`: text files and folders; none: the standard library.
    `state_dir`: the folder of the demo.
    `engine`: `"spark"` or `"in_process"`.
    `kills`: how often the job is killed.
    `fresh`: whether to forget an earlier demo first; one whose job is killed always does.
    """

    paths: Sequence[Path]
    state_dir: Path
    engine: str
    kills: int
    fresh: bool

    def run(self) -> int:
        """Count, show and check; returns the exit code: 0 exact, 1 not exact or not killed, 130 and 143 interrupted."""
        _check_environment(self.engine)
        folder = DemoFolder(self.state_dir.absolute())
        text = find_text(self.paths or standard_library())
        if self.fresh or self.kills:
            folder.clear()
        batch_bytes = folder.prepare([str(path.resolve()) for path in self.paths], text)
        self._introduce(text)
        before = folder.log()
        topology = load_topology(f"{folder.module}:topology")
        begun = time.monotonic()
        bar = _Bar(text.lines)
        made, seconds = 0, None
        if self.kills:
            made = self._run_with_kills(folder, topology, bar, text.size // batch_bytes)
        else:
            code, seconds = self._run_once(folder, topology, bar)
            if code:
                say("stopped; run it again to continue from there")
                return code
        after = folder.log()
        assert after is not None, "a topology that ran has a log"
        seconds = time.monotonic() - begun if seconds is None else seconds
        code = _show(folder, _counts(folder, topology), text, before, after, seconds)
        if made < self.kills:
            say(
                f"not shown: only {made} of {self.kills} kills, because the job finished before the next one. Give it "
                "more text, or fewer --crashes",
                "bold red",
            )
        return code or int(made < self.kills)

    def _introduce(self, text: DemoText) -> None:
        what = "the Python standard library" if not self.paths else ", ".join(map(str, self.paths))
        left_out = f" ({text.skipped} that are not UTF-8 text were left out)" if text.skipped else ""
        say(f"counting the words of {len(text.files):,} files, {amount(text.size, 'bytes')}, of {what}{left_out}")

    def _run_once(self, folder: DemoFolder, topology: TridentTopology, bar: _Bar) -> tuple[int, float]:
        log = folder.log()
        bar.before = _tuples(log)
        outcome = drive(topology, _config(folder, self.engine), True, bar)
        return outcome.exit_code, outcome.seconds

    def _run_with_kills(self, folder: DemoFolder, topology: TridentTopology, bar: _Bar, batches: int) -> int:
        def stored() -> int | None:
            return _stored(folder, topology)

        with bar:
            made = run_with_kills(folder, self.engine, self.kills, batches, bar.tell_kill, bar.show, stored)
        return len(made)


class _Bar:
    """A bar over the lines of the text; where there is no terminal, a plain line every few seconds."""

    def __init__(self, lines: int) -> None:
        self.before = 0
        self._lines = lines
        self._console = results()
        columns = (TextColumn("batch {task.fields[txid]}"), BarColumn(), MofNCompleteColumn(), TextColumn("lines"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console)
        self._task: TaskID | None = None
        self._shown_at, self._shown = time.monotonic(), 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._task = self._progress.add_task("lines", total=self._lines, txid=0)
            self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._task is not None:
            self._progress.stop()

    def update(self, running: RunningTopology) -> None:
        """Show the progress of a topology in this process."""
        status = running.status
        self._set(status["txid"], self.before + status["tuples"])

    def show(self, log: LogState) -> None:
        """Show the progress that the log records."""
        self._set(log.txid, _tuples(log))

    def tell_kill(self, kill: Kill) -> None:
        """Print a line about a kill."""
        say(str(kill), "yellow", self._console)

    def _set(self, txid: int, lines: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=lines, txid=txid)
        elif time.monotonic() - self._shown_at >= _LINE_EVERY_S and txid != self._shown:
            say(f"batch {txid}: {lines:,} of {self._lines:,} lines", console=self._console)
            self._shown_at, self._shown = time.monotonic(), txid


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


def _config(folder: DemoFolder, engine: str) -> Config:
    return Config.of(engine=engine, log_dir=str(folder.log_dir))


def _tuples(log: LogState | None) -> int:
    return 0 if log is None else log.totals.get("tuples", 0)


def _counts(folder: DemoFolder, topology: TridentTopology) -> dict[str, int]:
    """Read the whole state, as any process can."""
    with open_state(topology, "count", log_dir=str(folder.log_dir)) as state:
        return dict(state.get_tuples())


def _stored(folder: DemoFolder, topology: TridentTopology) -> int | None:
    """Return the last batch that the store has, whatever the log says."""
    plan = make_plan(topology.graph())
    state: Any = make_state(plan, Config.of(log_dir=str(folder.log_dir)), "count", 0, 1, read_only=True)
    with closing(state):
        sentinel = state.read_sentinel()
    return None if sentinel is None else int(sentinel.txid)


def _show(
    folder: DemoFolder, counts: dict[str, int], text: DemoText, before: LogState | None, after: LogState, seconds: float
) -> int:
    """Print the result and compare it; returns the exit code."""
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_TOP]
    say(f"the {len(top)} most frequent of {len(counts):,} words")
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
    for word in different[:_DIFFERENCES]:
        say(f"  {word!r}: the state has {counts.get(word, 0):,}, a plain Python count has {expected[word]:,}")
    say(
        "Text that was changed or removed since it was counted makes such a difference; --fresh counts everything again"
    )
    return 1
