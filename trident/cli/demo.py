"""`trident demo`: count the words of real text, and compare every count with a plain Python program's.

With `--crash` the job is in a process of its own, killed in the middle of commits and started again.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.cli.console import LineDisplay, problems, say, show, unwinding_on_signals
from trident.cli.run import drive
from trident.cli.target import load_topology
from trident.errors import EnvironmentProblem, LogHeldError, SpoutError, StateError, TridentError
from trident.extras import check_pyspark, needs_package
from trident.log.log_reader import LogReader, exists
from trident.naming import amount, counted
from trident.plan import make_plan
from trident.read.open_partitions import make_state
from trident.reading import open_state
from trident.servers.local_processes import kill_job, scratch_environment, write_whole
from trident.spark.environment import check_java
from trident.topology import TridentTopology

KILLS = 3
_BATCHES, _LEAST_BYTES, _MOST_BYTES = 32, 1 << 10, 8 << 20
_LOOK_S = 0.005
_GIVEN, _MODULE = "demo.json", "word_count.py"
_MADE = ("count", "log", "__pycache__", _MODULE, _GIVEN)
_NOT_SHOWN = {"site-packages", "dist-packages", "__pycache__"}

_TOPOLOGY = '''\
"""The topology that `trident demo` runs. `demo.json` beside this file names the text; `count` is a Delta table."""

import json
from pathlib import Path

from spouts import TextFileSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Split

here = Path(__file__).resolve().parent
demo = json.loads((here / "demo.json").read_text(encoding="utf-8"))

topology = TridentTopology("word-count", config={"log_dir": str(here / "log")})
word_counts = (
    topology.new_stream("lines", TextFileSpout(demo["files"], max_batch_bytes=demo["max_batch_bytes"], tail=0))
    .each("line", Split(), "word")
    .group_by("word")
    .persistent_aggregate(DeltaState(here / "count"), Count(), "count")
)
'''


def demo(paths: Sequence[Path], state_dir: Path, engine: str, crash: bool) -> int:
    """Forget an earlier demo; count, show and check; returns the exit code."""
    _check_environment(engine)
    folder, library = DemoFolder(state_dir.absolute()), Path(sysconfig.get_path("stdlib"))
    files = find_text(paths or [library], "*" if paths else "*.py", without=folder.path if folder.is_made else None)
    size = sum(file.stat().st_size for file in files)
    batches = folder.prepare(files, size)
    what = ", ".join(map(str, paths)) or "the Python standard library"
    say(f"counting the words of {counted(len(files), 'file')}, {amount(size, 'bytes')}, of {what}")
    topology, begun = load_topology(f"{folder.module}:topology"), time.monotonic()
    if crash:
        _run_with_kills(folder, topology, engine, batches)
        seconds = time.monotonic() - begun
    else:
        running, stopped = drive(
            lambda: topology.start(engine=engine, log_dir=str(folder.log_dir)), True, LineDisplay(problems(), "demo")
        )
        if stopped:
            say("stopped before all was counted")
            return stopped
        seconds = running.seconds
    with open_state(topology, "count", log_dir=str(folder.log_dir)) as state:  # whole, as any process can
        counts = dict(state.get_tuples())
    _show(folder, counts, seconds)
    return _compare(counts, count_words(files))


@dataclass(frozen=True)
class DemoFolder:
    """The folder of a demo; nothing outside of `path` is written."""

    path: Path

    @property
    def module(self) -> Path:
        return self.path / _MODULE

    @property
    def log_dir(self) -> Path:
        return self.path / "log"

    @property
    def is_made(self) -> bool:
        return (self.path / _GIVEN).is_file()

    def prepare(self, files: Sequence[Path], size: int) -> int:
        """Put a new demo in place of an earlier one, but keep what else is there; return about how many batches it has.

        Raises `StateError`: the folder is one of something else. `LogHeldError`: the earlier demo runs.
        """
        if wrong := self._not_made_here():
            raise StateError(f"{_near(self.path)} {wrong}; nothing was changed. Name another with --state-dir")
        if (holder := LogReader(self.log_dir).holder()) is not None:
            raise LogHeldError(str(self.log_dir), holder)
        for made in (self.path / name for name in _MADE):
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        batch = min(max(size // _BATCHES, _LEAST_BYTES), _MOST_BYTES)
        self.path.mkdir(parents=True, exist_ok=True)
        given = {"files": list(map(str, files)), "max_batch_bytes": batch}
        write_whole(self.path / _GIVEN, json.dumps(given, indent=1))
        self.module.write_text(_TOPOLOGY, encoding="utf-8")
        return size // batch

    def _not_made_here(self) -> str:
        """Say why a folder may not be cleared: it is not a demo's, or its topology was edited."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return ""
        try:
            if "max_batch_bytes" in json.loads((self.path / _GIVEN).read_bytes()):
                is_edited = self.module.exists() and self.module.read_text(encoding="utf-8") != _TOPOLOGY
                return f"has another {_MODULE} than a demo makes" if is_edited else ""
        except (OSError, ValueError, TypeError):  # there is none, or it is no JSON, or a number
            pass
        return "is not the folder of a demo"

    def command(self, *words: str) -> list[str]:
        called = Path(sys.argv[0])
        on_path = called.name != "trident" or shutil.which("trident") is not None
        log = (
            ["--log-dir", _near(self.log_dir)] if "TRIDENT_LOG_DIR" in os.environ else []
        )  # which goes before the topology's
        return ["trident" if on_path else _near(called), "get", f"{_near(self.module)}:topology", "count", *words, *log]

    def commits(self) -> int:
        """Return how many commits the Delta table of the state's changes has recorded."""
        with suppress(FileNotFoundError):
            names = (entry.name for entry in os.scandir(self.path / "count" / "_trident" / "changes" / "_delta_log"))
            return sum(name.endswith(".json") for name in names)
        return 0


def _near(path: Path) -> str:
    """Return a path relative to the working directory, if it is within."""
    absolute = path.absolute()
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def find_text(roots: Sequence[Path], pattern: str = "*", *, without: Path | None = None) -> list[Path]:
    """Find the UTF-8 text files among `roots` and in folders of them, but not what is hidden, installed, or in `without`."""
    found = set[Path]()
    for root in roots:
        if not root.exists():
            raise SpoutError(f"cannot count the words of {root}: there is no such file or folder")
        for path in root.rglob(pattern) if root.is_dir() else [root]:
            names = path.relative_to(root).parts
            is_shown = path.is_file() and not any(name.startswith(".") or name in _NOT_SHOWN for name in names)
            if is_shown and not _is_within(path, without) and _is_text(path):
                found.add(path.resolve())
    if not found:
        raise SpoutError(f"no text to count in {', '.join(map(str, roots))}: no file there is UTF-8 text")
    return sorted(found)


def _is_within(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.resolve().is_relative_to(folder.resolve())


def _is_text(path: Path) -> bool:
    try:
        data = path.read_bytes()
        return len(data) > 0 and b"\0" not in data and data.decode() != ""
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise SpoutError(f"cannot read {path}: {error.strerror}. Leave it out, or make it readable") from error


def count_words(files: Sequence[Path]) -> Counter[str]:
    """Count the words of files: lines are split at single spaces, and an empty text is not a word."""
    counts: Counter[str] = Counter()
    for file in files:
        for line in file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode().split("\n"):
            counts.update(line.removesuffix("\r").split(" "))
    counts.pop("", None)
    return counts


class DemoJob:
    """A run of the demo's topology in a session of its own, which a kill ends with Spark, however the context is left."""

    def __init__(self, folder: DemoFolder, engine: str, scratch: Path) -> None:
        target = f"{folder.module.absolute()}:topology"
        command = [sys.executable, "-m", "trident.cli", "run", target, "--once", "--engine", engine]
        command += ["--log-dir", str(folder.log_dir)]
        self._output = scratch / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **scratch_environment(scratch)},
            )  # fmt: skip

    def __enter__(self) -> DemoJob:
        return self

    def __exit__(self, *error: object) -> None:
        kill_job(self.process)

    def waits_for(self, is_there: Callable[[], bool], pause_s: float = _LOOK_S) -> bool:
        """Wait until something is there; False if the job came to its end before. Raises what it said if that was an error."""
        while not is_there():
            if (code := self.process.poll()) is not None:
                if code != 0:
                    said = self._output.read_text(encoding="utf-8", errors="replace").strip()
                    raise TridentError(f"the job ended with exit code {code}; it said:\n{said}")
                return False
            time.sleep(pause_s)
        return True


def _run_with_kills(folder: DemoFolder, topology: TridentTopology, engine: str, batches: int) -> None:
    """Run the demo's topology to its end, and kill it on the way as a batch comes to the store."""
    log = LogReader(folder.log_dir)
    with (
        unwinding_on_signals(),
        tempfile.TemporaryDirectory(prefix="trident-demo-", ignore_cleanup_errors=True) as scratch,
    ):
        for number in range(1, KILLS + 1):
            txid = batches * number // (KILLS + 1)
            with DemoJob(folder, engine, Path(scratch)) as job:
                is_under_way = job.waits_for(lambda: exists(folder.log_dir) and log.refresh().txid >= txid)  # noqa: B023
                before = folder.commits()
                is_killed = is_under_way and job.waits_for(lambda: folder.commits() > before, 0.0)  # noqa: B023
            if not is_killed:
                raise TridentError(f"not shown: the job finished before kill {number} of {KILLS}. Give it more text")
            say(kill_line(number, log.refresh().txid, _stored_txid(folder, topology)), "yellow")
        with DemoJob(folder, engine, Path(scratch)) as job:
            job.waits_for(lambda: False)


def kill_line(number: int, recorded: int, stored: int | None) -> str:
    """Say after which batch's record a SIGKILL came, and how far the store was by then."""
    where = "the batch under way had not reached the store: it is processed again"
    if stored is not None and stored > recorded:
        where = f"batch {stored} was in the store but not in the log: its counts are undone and written again"
    return f"kill {number}: SIGKILL after the record of batch {recorded}; {where}"


def _stored_txid(folder: DemoFolder, topology: TridentTopology) -> int | None:
    config = topology.settings(log_dir=str(folder.log_dir))
    state: Any = make_state(make_plan(topology.graph()), config, "count", 0, 1, read_only=True)
    with closing(state):
        sentinel = state.read_sentinel()
    return None if sentinel is None else int(sentinel.txid)


def _check_environment(engine: str) -> None:
    with needs_package("the Delta table of the demo", "delta"):
        import states.delta  # noqa: F401 - only to see whether it can be
    if engine == "spark":
        check_pyspark("--engine in_process")
        try:
            check_java()
        except EnvironmentProblem as error:
            raise EnvironmentProblem(f"{error}. The demo also runs without Java: --engine in_process") from error


def _show(folder: DemoFolder, counts: Mapping[str, int], seconds: float) -> None:
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
    say(f"the {len(top)} most frequent of {counted(len(counts), 'word')}")
    show([(word, f"{count:,}") for word, count in top], "word", "count", right=[1])
    totals = LogReader(folder.log_dir).refresh().totals
    batches, tuples = counted(totals["batches"], "batch", "batches"), counted(totals["tuples"], "tuple")
    say(f"{batches} with {tuples} (lines) in {seconds:.1f} s: {totals['tuples'] / max(seconds, 1e-9):,.0f} tuples/s")
    words = [word for word, _ in top if word.isalpha()][:2] or [top[0][0]]
    say(f"ask for more: {shlex.join(folder.command(*words))}")


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
    return 1
