"""Runs in each Python process of a job under test: wraps the functions that it gives to `foreachBatch`, and kills it there.

Nothing of Trident is imported, for the job may have a Python of its own. What the job does is told to `trident crashtest` in a
file, a line of JSON each; where to die is in the environment variable `TRIDENT_CRASHTEST`:

=============  ============================================================================================================
`events`       the file
`folder`       the copy that the job runs in: its checkpoints must be in it, and lines of code in it are counted
`parent`       `[descriptor, inode]` of a pipe that ends when `trident crashtest` ends; the job ends with it
`measure`      whether to tell which lines each call of a function runs
`kill`         where to die, see `KillPoint` in `trident/crashtest/job_run.py`; null: nowhere
=============  ============================================================================================================
"""

import contextlib
import copy
import functools
import importlib.machinery
import importlib.util
import json
import linecache
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

_ASKED = "TRIDENT_CRASHTEST"
_CLASSIC = "pyspark.sql.streaming.readwriter"
_CONNECT = "pyspark.sql.connect.streaming.readwriter"
_CHECKPOINT = "spark.sql.streaming.checkpointLocation"
_NO_CODE_OF_THE_JOB = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MOST_LINES = 5_000
_LOOK_S = 0.001


class _Test:
    """What `trident crashtest` asks for, and what it is told."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.folder = os.path.realpath(given["folder"])
        self.measures: bool = given["measure"]
        self.kill: dict[str, Any] | None = given["kill"]
        self._events: str = given["events"]
        self._parent: list[int] = given["parent"]
        self._queries: dict[str, int] = {}  # by their checkpoints: a job that starts a failed query again has but one

    def number_of(self, checkpoint: str) -> int:
        return self._queries.setdefault(checkpoint, len(self._queries))

    def tell(self, event: str, **more: Any) -> None:
        """Write a line; it is there also if the process dies at once."""
        with Path(self._events).open("ab", buffering=0) as file:
            file.write((json.dumps({"event": event, **more}) + "\n").encode())

    def die(self, where: str, batch: int | None = None) -> None:
        """SIGKILL the process group: this process and Spark's JVM."""
        self.tell("kill", where=where, batch=batch)
        os.killpg(0, signal.SIGKILL)
        time.sleep(60)  # the signal is on its way

    def refuse(self, why: str) -> None:
        self.tell("refused", why=why)
        raise RuntimeError(f"trident crashtest: {why}")

    def end_with_parent(self) -> None:
        """From now on, end this process group when `trident crashtest` has ended, however it ended."""
        descriptor, inode = self._parent
        try:
            if os.fstat(descriptor).st_ino != inode:
                return  # the job was started by another program, which has not passed the pipe on
        except OSError:
            return
        threading.Thread(target=_end_with, args=(descriptor,), name="trident-crashtest-parent", daemon=True).start()


def _end_with(descriptor: int) -> None:
    while os.read(descriptor, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)


class _Watched:
    """The function of a query, which dies where it shall."""

    def __init__(self, test: _Test, function: Callable[..., Any]) -> None:
        self._test, self._function = test, function
        self.query, self.checkpoint = 0, ""  # until it is started
        self._dies_soon: threading.Thread | None = None
        code = getattr(function, "__code__", None)
        self._file = code.co_filename if code is not None else ""
        self._name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, batch: Any, batch_id: int) -> Any:
        if self._dies_soon is not None:
            self._dies_soon.join()  # else a slow machine would run a batch that comes after the kill
        test, kill = self._test, self._kill_in(batch_id)
        moment = kill.get("moment")
        test.tell("begin", query=self.query, batch=batch_id)
        if moment == "before":
            test.die(f"{self._name}() had been called and had done nothing")
        counted = _Lines(test, self._file, kill["line"] if moment == "line" else None, self._name, batch_id)
        begun = time.monotonic()
        try:
            with self._kill_timer(kill), counted if test.measures or moment == "line" else contextlib.nullcontext():
                answer = self._function(batch, batch_id)
        except BaseException:
            test.tell("failed")
            raise
        seconds = time.monotonic() - begun
        if moment == "after":
            test.die(f"{self._name}() had returned, Spark had not written commits/{batch_id}")
        test.tell("end", query=self.query, batch=batch_id, seconds=seconds, lines=counted.seen, name=self._name)
        if moment in ("committed", "uncommitted", "older"):
            self._dies_soon = threading.Thread(target=self._die_when_committed, args=(batch_id,), daemon=True)
            self._dies_soon.start()
        return answer

    def _kill_in(self, batch_id: int) -> dict[str, Any]:
        """Return where to die in this batch, nothing in others; in the one before it may be time for a copy."""
        asked = self._test.kill or {}
        if asked.get("query") != self.query:
            return {}
        if asked["copy_batch"] == batch_id:
            shutil.copytree(self.checkpoint, asked["copy_to"])
        if batch_id == asked["batch"]:
            return asked
        if asked["moment"] not in ("line", "time") or batch_id < asked["batch"]:
            return {}
        # A call that ended earlier than the undisturbed one did, or went another way, was not killed; this one may be.
        halves = 2 ** (batch_id - asked["batch"])
        sooner = (
            {"line": asked["line"] // halves} if asked["moment"] == "line" else {"after_s": asked["after_s"] / halves}
        )
        return {**asked, **sooner, "batch": batch_id}

    @contextlib.contextmanager
    def _kill_timer(self, kill: dict[str, Any]) -> Iterator[None]:
        if kill.get("moment") != "time":
            yield
            return
        where = f"within {self._name}(), after {kill['after_s']:.2f} s of some {kill['of_s']:.2f} s"
        timer = threading.Timer(kill["after_s"], self._test.die, [where, kill["batch"]])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _die_when_committed(self, batch_id: int) -> None:
        mark = Path(self.checkpoint, "commits", str(batch_id))
        while not mark.exists():
            time.sleep(_LOOK_S)
        self._test.die(f"Spark had written commits/{batch_id}")


class _Lines:
    """Counts the lines of the job's own code that a call runs, and dies before one of them."""

    def __init__(self, test: _Test, file: str, dies_at: int | None, name: str, batch: int) -> None:
        self._test, self._file, self._dies_at, self._name, self._batch = test, file, dies_at, name, batch
        self._own: dict[str, bool] = {}
        self._before: Any = None
        self._count = 0
        self.seen: list[str] = []

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._of_call)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _of_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._of_line if self._is_own(frame.f_code.co_filename) else None

    def _of_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            file, line = frame.f_code.co_filename, frame.f_lineno
            if self._count == self._dies_at:
                text = linecache.getline(file, line).strip()
                self._test.die(f"within {self._name}(), before {Path(file).name}:{line}: {text}", self._batch)
            if self._count < _MOST_LINES:
                self.seen.append(f"{Path(file).name}:{line}")
            self._count += 1
        return self._of_line

    def _is_own(self, file: str) -> bool:
        known = self._own.get(file)
        if known is None:
            path = os.path.realpath(file)
            known = file == self._file or path.startswith(self._test.folder + os.sep)
            known = known and not file.startswith("<") and not any(part in path for part in _NO_CODE_OF_THE_JOB)
            self._own[file] = known
        return known


def _wrap_writer(test: _Test, writer: Any) -> None:
    for_each_batch, option, options, start = writer.foreachBatch, writer.option, writer.options, writer.start

    def note(self: Any, given: dict[str, Any]) -> None:
        found = [value for name, value in given.items() if name.lower() == "checkpointlocation"]
        if found and found[-1] is not None:
            self.__dict__["trident_checkpoint"] = str(found[-1])

    def with_option(self: Any, key: str, value: Any) -> Any:
        note(self, {key: value})
        return option(self, key, value)

    def with_options(self: Any, **given: Any) -> Any:
        note(self, given)
        return options(self, **given)

    def with_function(self: Any, func: Callable[..., Any]) -> Any:
        test.end_with_parent()
        watched = _Watched(test, func)
        self.__dict__["trident_function"] = watched
        return for_each_batch(self, watched)

    def begin(self: Any, *words: Any, **given: Any) -> Any:
        note(self, given)
        watched = self.__dict__.get("trident_function")
        if watched is not None:
            watched.checkpoint = _checkpoint(test, self.__dict__.get("trident_checkpoint"), given.get("queryName"))
            watched.query = test.number_of(watched.checkpoint)
            test.tell("started", query=watched.query, checkpoint=watched.checkpoint)
        return start(self, *words, **given)

    writer.option, writer.options, writer.foreachBatch, writer.start = with_option, with_options, with_function, begin


def _checkpoint(test: _Test, given: str | None, query: str | None) -> str:
    """Return the folder of a checkpoint; what is none of the copy's is refused before the query starts."""
    if given is None and query is not None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        root = None if session is None else session.conf.get(_CHECKPOINT, None)
        given = None if root is None else f"{root}/{query}"
    if given is None:
        test.refuse(
            "the query has no checkpoint, so each start begins again and every row counts again: give it "
            ".option('checkpointLocation', 'checkpoint')"
        )
        return ""
    url = urlsplit(given)
    path = os.path.realpath(unquote(url.path) if url.scheme == "file" else given)
    if url.scheme not in ("", "file") or not path.startswith(test.folder + os.sep):
        test.refuse(
            f"the checkpoint {given!r} is not in the copy of the folder that the job runs in, and a test must not touch the "
            "real one: let the job take a relative path, such as 'checkpoint', or one from an argument or the environment"
        )
    return path


def _wrap_connect(test: _Test, writer: Any) -> None:
    def refuse(self: Any, func: Callable[..., Any]) -> None:
        test.refuse(
            "the job runs on Spark Connect, where the server calls its function: kill the server instead, or run the "
            "job with a Spark of its own (without SPARK_REMOTE and .remote())"
        )

    writer.foreachBatch = refuse


_WRAPPERS = {_CLASSIC: _wrap_writer, _CONNECT: _wrap_connect}


class _Finder:
    """Wraps the two writers of PySpark when, and only when, the process imports them."""

    def __init__(self, test: _Test) -> None:
        self._test = test

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Find one of the two modules as Python does, and wrap its class when it is loaded."""
        if name not in _WRAPPERS:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader = loader = copy.copy(spec.loader)  # it may be that of other modules too
            loader.exec_module = functools.partial(self._exec_module, loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _exec_module(self, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        exec_module(module)
        self._test.tell("loaded", module=module.__name__)
        os.environ.pop(_ASKED, None)  # what this process starts, Spark's workers among it, is left alone
        _WRAPPERS[module.__name__](self._test, module.DataStreamWriter)


def main() -> None:
    given = os.environ.get(_ASKED)
    if given:
        sys.meta_path.insert(0, _Finder(_Test(json.loads(given))))
    # The one that this file stands in front of runs too.
    here = Path(__file__).parent.resolve()
    elsewhere = [each for each in sys.path if Path(each).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    main()
