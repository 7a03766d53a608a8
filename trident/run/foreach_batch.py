"""ForeachBatch: the function that `writeStream.foreachBatch` calls with one batch after the other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import cloudpickle

from trident.config import Config
from trident.engine.dataframe_runner import DataFrameRunner
from trident.engine.runners import cores
from trident.errors import (
    AlreadyRunningError,
    CheckpointMismatchError,
    ConfigError,
    LogHeldError,
    TopologyError,
    TridentError,
)
from trident.graph import Graph, SpoutNode
from trident.log.log_interface import TransactionLog
from trident.log.log_state import LogState
from trident.notebook import table
from trident.observe.events import TopologyListener
from trident.observe.monitoring import Monitoring
from trident.read.views import StateView
from trident.redaction import redacted
from trident.roles import Closes, close_on_error
from trident.run.batch import Observer
from trident.run.drive import Drive, opened_to_last
from trident.run.handed_batches import (
    BEGIN_AGAIN,
    HandedBatches,
    QueryBatch,
    check_columns,
    check_rows,
    definition_of,
    definition_of_name,
    plan_of_query,
    query_batch_of,
)
from trident.run.placements import DRIVER, EXECUTORS, States, is_all_in_memory, open_log
from trident.run.running import new_memory_log
from trident.spark.connect import check_lasting, connect_problem, is_connect, unpickled, width_of
from trident.spark.job_errors import QueryStopped
from trident.spout.interfaces import Definition, OnNewLog
from trident.spout.query_batches import QueryBatches
from trident.stream import TridentState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_SPARK = (
    "auto_bytes", "batch_emit_interval_ms", "engine", "master", "max_spout_pending", "poll_interval_ms", "spark_conf",
    "state_placement", "target_batch_s", "workers",
)  # fmt: skip
_ENDS_WITHIN_S = 30.0
_LOOK_S = 0.1
_FIXED: dict[str, Any] = {
    "engine": "spark", "max_spout_pending": 1, "state_placement": DRIVER, "ui_port": None, "workers": "jobs",
}  # fmt: skip

# Defines the batch that was given, for the last txid, the last definition, and one that was begun.
Define = Callable[[int, Definition | None, Definition | None], dict[str, Any] | None]

_open_runs: dict[str, ForeachBatch] = {}  # by the place of the log: what holds it in this process
_opening = threading.Lock()


class ForeachBatch(Closes):
    """A function for `writeStream.foreachBatch`: Spark owns the loop and the sources, Trident the states and the log.

    Made by `TridentTopology.foreach_batch` and `exactly_once`. It is opened by the first batch and stays open while this
    process runs, or until an error; it holds no session of Spark. One query uses it.
    """

    def __init__(
        self,
        name: str,
        graph: Graph | None,  # None: `_graph_of` makes it of the first DataFrame
        conf: Config | Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        adopt_checkpoint: bool = False,  # whatever the log says, the first batch is the next one
        listeners: Sequence[TopologyListener] = (),
        resolve: Callable[..., Config] = Config.of,
    ) -> None:
        self.name, self._graph = name, graph
        self.config = _config(conf, settings or {}, resolve)
        self._adopts, self._listeners = adopt_checkpoint, listeners
        self._observer: Observer | None = None
        self._run: Drive | None = None
        self._handed = HandedBatches()
        self._memory_log: Any = None
        self._spout: SpoutNode | None = None
        self._columns: Any = None  # the schema that was checked last
        self._checked: str | None = None  # the run of a query whose rows are known to count
        self._given: tuple[QueryBatch, DataFrame] | None = None  # what a query gave last, and its rows
        self._calls = threading.Lock()
        if graph is not None:
            _check_graph(graph)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Process and commit a batch of a query, for `foreachBatch`; returns when the log has it, raises if it cannot have it.

        Raises `CheckpointMismatchError`: the checkpoint of the query and the log do not belong together, or two queries use the
        function.
        Raises `TopologyError`: the DataFrame does not have the columns that are read, or its rows may be totals (`rows_are`).
        Raises `BatchFailedError`: the batch failed as often as it may. Spark stops the query; its next start replays the batch.
        """
        with self._alone(f"batch {batch_id}"):
            found, adopts = query_batch_of(df, batch_id), self._adopts
            self._refuse_other_rows(df, found)
            begins: OnNewLog = "behind" if adopts and found.batch else "checkpoint"
            self._lead(df, lambda txid, last, begun: definition_of(found, txid, last, begun, adopts), begins, found.run)
            self._adopts, self._given = False, (found, df)  # for one start

    def _refuse_other_rows(self, df: DataFrame, found: QueryBatch) -> None:
        """Raise `CheckpointMismatchError` for more rows of a batch that this run of the query gave: they would not count."""
        if found.run is not None and self._given and self._given[0] == found and not df.sameSemantics(self._given[1]):
            raise CheckpointMismatchError(
                f"{self!r} was given batch {found.batch} twice in one run of a query, with other rows each time, and only the "
                "first ones are recorded. Give it all rows of a batch at once, as in first.unionByName(second), or give each "
                f"part a function and a log_dir of its own. {BEGIN_AGAIN}, because the other rows are missing"
            )

    def write(self, df: DataFrame, *, batch: str) -> bool:
        """Process and commit a batch DataFrame under a name, once, however often it is repeated; whether it was done now.

        For a job that a scheduler starts. A batch that failed may be written again with other rows, or be left out. Names are
        best given in increasing order, as by their date: the log remembers the 400 greatest.

        Raises `SpoutError`: the name is smaller than all that the log remembers, so it cannot be known whether it was written.
        Raises `CheckpointMismatchError`: the batches of this log come from a query.
        Raises `TopologyError`, `BatchFailedError`: as for a query.
        """
        if not isinstance(batch, str) or not batch:
            raise ValueError(f"batch={batch!r}: name the batch by a text, such as the date that its rows are of")
        with self._alone(f"batch {batch!r}"):
            return self._lead(df, lambda _, last, begun: definition_of_name(batch, last, begun), "elsewhere")

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if not self._calls.acquire(blocking=False):
            raise TridentError(
                f"{self!r} was given {what} while it processes another batch: two queries use one function. Give each query a "
                "function and a log_dir of its own"
            )
        try:
            yield
        finally:
            self._calls.release()

    def _lead(self, df: DataFrame, define: Define, begins: OnNewLog, query_run: str | None = None) -> bool:
        """Lead a batch to its record, in this thread; False if the log has it already."""
        try:
            run = self._open_drive(df, define, begins, query_run)
            definition = self._next(run.opened.log.state, define)
            if definition is not None:
                self._handed.hand_over(df, definition)
                try:
                    run.loop.run_one()
                finally:
                    self._handed.hand_over(None)
        except QueryStopped as stopped:
            self._end()
            raise (stopped.__cause__ or stopped) from None  # as Spark knows it
        except BaseException as error:
            self._end(error)
            if type(error).__module__.startswith("pyspark.") and (problem := connect_problem(str(error))):
                raise problem from error
            raise
        return definition is not None

    def _open_drive(self, df: DataFrame, define: Define, begins: OnNewLog, query_run: str | None) -> Drive:
        if self._spout is None:
            (self._spout,) = self._graph_of(df).spouts()
        if df.isStreaming or df.schema != self._columns:
            check_columns(df, self._spout.fields, self.name)
            self._columns = df.schema
        if query_run is None or query_run != self._checked:
            check_rows(df, self._spout.spout, self.name)
            self._checked = query_run
        if self._run is None:
            graph = self.graph
            # A notebook's cell runs twice: another function of this process may hold the log, and is not called.
            place = os.path.abspath(self.config.log_folder(self.name))  # noqa: PTH100  it may be an address
            with _opening:
                other, _open_runs[place] = _open_runs.get(place), self
            if other is not None and other is not self:
                with suppress(TridentError):  # it is called just now: the log refuses a second one
                    other.close()
            check_lasting(self.config.log_folder(self.name))
            self._handed = HandedBatches(begins)
            plan = plan_of_query(graph, self._handed)
            if is_all_in_memory(plan) and self._memory_log is None:
                self._memory_log = new_memory_log(self.name)

            def open_checked(states: States) -> TransactionLog:
                log = _when_free(lambda: open_log(plan, self.config, self._memory_log), is_connect(df))
                with close_on_error(log.close):
                    self._next(log.state, define)  # before anything is written
                return log

            width = self.config.parallelism or width_of(df.sparkSession, cores())
            runner_of = lambda program, *_: DataFrameRunner(program, width)  # noqa: E731
            monitoring = Monitoring(self.name, self._listeners, self.config.metrics_port, self.config.metrics_host)
            with close_on_error(monitoring.close):
                opened = opened_to_last(graph, plan, self.config, open_checked, runner_of)
            self._run = Drive(graph, opened, monitoring, observer=self._observer)
        return self._run

    def _next(self, log: LogState, define: Define) -> Definition | None:
        """Return the definition of the batch that was given; None if the log has it."""
        assert self._spout is not None
        begun = log.definitions.get(log.txid + 1, {}).get(self._spout.id)
        return define(log.txid, log.spouts.get(self._spout.id), begun)

    def _end(self, error: BaseException | None = None) -> None:
        run, self._run, self._given = self._run, None, None
        if run is not None:
            run.end(error)

    def close(self) -> None:
        """Close states and log; the next batch opens them again. Not needed before a process ends."""
        with self._alone("close()"):
            self._end()

    def _graph_of(self, df: DataFrame) -> Graph:
        return self.graph

    @property
    def graph(self) -> Graph:
        assert self._graph is not None
        return self._graph

    @property
    def run(self) -> Drive:
        """What is open; `TridentError` before the first batch and after an error."""
        if self._run is None:
            raise TridentError(
                f"{self!r} is not open: it is opened by its first batch, and closed by an error. Read its states with "
                "trident.open_state(…), as any process can"
            )
        return self._run

    @property
    def txid(self) -> int:
        """The last committed batch, as the log counts."""
        return self.run.txid

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last committed batch of this run; None before the first."""
        return self.run.last_progress

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last `progress_kept` committed batches of this run, oldest first."""
        return self.run.recent_progress

    def state(self, state: TridentState | str) -> StateView:
        """Return a state for reading, at the snapshot of the last committed batch."""
        return self.run.state(state)

    def explain(self) -> str:
        """Return what runs where, as `TridentTopology.explain`."""
        from trident.explain import explain

        graph = self.graph
        text = explain(graph, dict.fromkeys(plan_of_query(graph).partitions, DRIVER))
        return (
            f"{text}\nbatches\n  come from a query, by foreachBatch, or from write(df, batch=…)\n"
            "  an attempt evaluates the DataFrame once: its partitions are the tasks of stage 1 (mapInArrow), exchanges are "
            "repartition by a column\n  the process that calls the function commits, and records in the log before it returns\n"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A server of Spark Connect, where the function then runs, may lack Trident.
        return unpickled, (cloudpickle.dumps((_revive, type(self), self.__getstate__())),)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None, "_handed": None, "_memory_log": None, "_calls": None, "_given": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _calls=threading.Lock())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _repr_html_(self) -> str:
        run = self._run
        if run is not None:
            return run._repr_html_()
        log = redacted(str(self.config.log_folder(self.name)))
        return table((), {"topology": self.name, "state": "not open: a batch opens it", "log": log}.items())


def _revive(kind: type[ForeachBatch], state: dict[str, Any]) -> ForeachBatch:
    function = kind.__new__(kind)
    function.__setstate__(state)
    return function


def _when_free(open_it: Callable[[], TransactionLog], waits: bool) -> TransactionLog:
    """Return the opened log; if another process holds it, and `waits`, for a while try again."""
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while True:
        try:
            return open_it()
        except LogHeldError as held:
            # Spark Connect starts a process for each run of a query, and ends that of the run before later.
            if isinstance(held, AlreadyRunningError) or not waits or time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_S)


def _config(
    conf: Config | Mapping[str, Any] | None, settings: Mapping[str, Any], resolve: Callable[..., Config]
) -> Config:
    refused = [name for name in _OF_SPARK if name in settings or (isinstance(conf, Mapping) and name in conf)]
    if refused:
        raise ConfigError(
            f"{refused[0]} is not set here: a query of Spark's gives the batches, one at a time, its session runs them, and "
            "the process that calls the function commits them"
        )
    given = Config.of(conf, **settings)
    if given.ui_port is not None:
        raise ConfigError(
            f"ui_port={given.ui_port}: a function for foreachBatch has no page. Its figures are in recent_progress, with "
            "listeners and at metrics_port; leave ui_port out"
        )
    return resolve(given, **_FIXED)


def _check_graph(graph: Graph) -> None:
    spouts = graph.spouts()
    others = [spout.id for spout in spouts if not isinstance(spout.spout, QueryBatches)]
    if others or len(spouts) != 1:
        found = f"it has {len(spouts)} streams of queries"
        if others:
            found = f"the stream {others[0]!r} has a source of its own"
        raise TopologyError(
            f"topology {graph.name!r} cannot be a function for foreachBatch, because {found}: one query gives the batches of "
            "one stream, new_stream(name, QueryBatches(schema)). Join or union the other sources in the query itself"
        )
    elsewhere = [name for name, where in graph.placements.items() if where == EXECUTORS]
    if elsewhere:
        raise ConfigError(
            f'state {elsewhere[0]!r} asks for placement "executors", and the process that calls foreachBatch commits the '
            'states of a query: use "auto" or "driver" for it'
        )
    plan_of_query(graph)
