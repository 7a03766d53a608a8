"""TridentTopology: where a declaration begins."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.base import Declaration, is_name, spec_of
from trident.fluent.combining import JoinType, join, join_within, merge, multi_reduce
from trident.graph import DrpcNode, SpoutNode, StateNode
from trident.spout.rich import AnySpout, fields_of_spout
from trident.state.interfaces import StateFactory, StateSpec
from trident.stream import Stream, TridentState

if TYPE_CHECKING:
    from trident.config import Config
    from trident.explain import Explanation
    from trident.observe.events import TopologyListener
    from trident.run.foreach_batch import ForeachBatch
    from trident.run.running import Page, RunningTopology

_UNNAMED = re.compile(r"static\d+")


class TridentTopology(Declaration):
    """A named topology: streams, states and what connects them. Nothing runs until `start`.

    Parameters
    ----------
    name
        Letters, digits, `_`, `.` and `-`. Names the log and prefixes the keys in shared stores, so a topology keeps its
        name for as long as its state exists.
    config
        Settings of every start; `trident.toml` beside the module, the environment, the command line and `start` override them.
    rename
        New names of aggregates, states, and fields of keys and of sources, by their former names: `{"old": "new"}`. It
        can be removed once a batch is committed under the new names; see [changing a topology](changing-a-job.md).

    Examples
    --------
    >>> from trident import TridentTopology
    >>> from trident.operations import Count, Split
    >>> from spouts import FixedBatchSpout
    >>> from states.memory import MemoryMapState
    >>> topology = TridentTopology("word-count")
    >>> counts = (
    ...     topology.new_stream("lines", FixedBatchSpout("line", 2, ["the cow"], ["the moon"]))
    ...     .each("line", Split(), "word")
    ...     .group_by("word")
    ...     .persistent_aggregate(MemoryMapState(), Count(), "count")
    ... )
    """

    def __init__(
        self, name: str, *, config: Config | Mapping[str, Any] | None = None, rename: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, rename)
        self._memory_log: Any = None
        self._declared_as, self._folder = name, _folder_of_caller()
        self._config = config
        if config is not None:
            self.config  # noqa: B018  what is wrong in it is told where it is written

    def new_stream(self, name: str, spout: AnySpout) -> Stream:
        """Declare a stream from a spout. `name` identifies the spout's progress in the log: keep it across restarts."""
        if not is_name(name):
            raise TopologyError(f"{name!r} cannot name a stream; use letters, digits, '_', '.' and '-'")
        fields = fields_of_spout(name, spout)
        unknown = [field for field, type_ in fields.pairs if type_ is None]
        if unknown:
            raise TopologyError(f"stream {name!r}: the spout does not say the type of its field {unknown[0]!r}")
        return Stream(self, self._add(SpoutNode(name, (), fields, spout=spout)))

    def new_drpc_stream(self, function: str) -> Stream:
        """Declare what answers the requests of a DRPC function: a stream with the one field `args`, a text.

        The answer to a request is the list of the tuples that the last step gives, of all steps after this stream, in
        order of declaration. The stream may query states and be joined or merged with itself; it cannot meet another
        stream, nor feed a state. Ask with `RunningTopology.drpc`, `LocalDRPC` or `DRPCClient` (trident.drpc).
        """
        if not is_name(function):
            raise TopologyError(f"{function!r} cannot name a DRPC function; use letters, digits, '_', '.' and '-'")
        if f"drpc:{function}" in self._nodes:
            raise TopologyError(f"topology {self.name!r} already has a DRPC function {function!r}")
        return Stream(self, self._add(DrpcNode(f"drpc:{function}", (), Fields("args: string"), function=function)))

    def merge(self, *args: Any) -> Stream:
        """Unite streams: `merge(s1, s2, …)` or `merge(streams)`; the fields are those of the first one, in its order.

        Fields are matched by name and must have the same types. `merge(out_fields, …)` gives other names; streams whose names
        differ are then matched by position.

        Different from Storm: it matches by position whatever the names are; and the partitions of a merge are those of all its
        streams, so a step that works partition by partition sees each stream's by themselves.
        """
        return Stream(self, merge(self, args))

    def join(self, *args: Any, null_keys_match: bool = True) -> Stream:
        """Join streams batch by batch: `join(s1, key1, s2, key2, …, out[, join_type[, mode]])`.

        With lists: `join(streams, keys, out[, join_type[, mode]])`. The result has the key once and then the other
        fields of each side (`JoinOutFieldsMode.PRESERVE`: all fields of all sides), under the names `out`. A side with
        `JoinType.OUTER` may be missing: its fields are null then; `JoinType.mixed(…)` says it for each side.

        As in Storm a null key matches a null key; with `null_keys_match=False` it matches nothing, as in SQL.

        Only tuples of the same batch meet. The order of the rows is not defined.
        """
        return Stream(self, join(self, args, null_keys_match))

    def join_within(
        self,
        left: Stream,
        left_key: FieldsLike,
        right: Stream,
        right_key: FieldsLike,
        out: FieldsLike,
        *,
        times: str | Sequence[str],
        within: timedelta | Sequence[timedelta],
        delay: timedelta | Sequence[timedelta] = timedelta(0),
        state: StateFactory | StateSpec | None = None,
        join_type: JoinType | Sequence[JoinType] = JoinType.INNER,
        state_name: str | None = None,
    ) -> Stream:
        """Join two streams over time: rows of the same key whose times lie close together, of any batches.

        Each pair comes exactly once, in the batch in which the later of the two arrives, whichever that is, and however
        batches are cut, replayed or interrupted. The result has the key once and then the other fields of each side,
        under the names `out`. A key with a null meets nothing. The order of the rows is not defined. `parallelism_hint`
        on the result is the number of partitions of the state, by key.

        Parameters
        ----------
        times
            The field with the time of the event, of each side, or one name for both: a timestamp, a timestamp_ntz, or a bigint
            of milliseconds since 1970.
        within
            How far the times may be apart, both bounds included. Of two durations the first is the least and the second the
            most by which the right time may be later: `(timedelta(0), timedelta(minutes=10))`.
        delay
            How far out of order tuples may come, of each side, or one for both. The watermark of a side is its latest time so
            far less `delay`. A tuple is late if its time is before the watermark that its side had after the batch before; it
            is dropped and counted (`<state>/late`), as are those without a time (`<state>/no_event_time`).
        state
            Where rows are kept as long as they may still meet others: until the other side's watermark is beyond. It must be
            opaque; without one they are kept in memory, which is exact while the process runs.
        join_type
            `JoinType.mixed(JoinType.INNER, JoinType.OUTER)` keeps the rows of the left side (SQL's left join): one that met
            none comes with nulls when it is no longer kept.
        state_name
            The left stream's label (`name`), or the first field of `out` and `-join`, unless given.

        Raises
        ------
        TopologyError
            A state that is not opaque, a field that is not there or not a time, keys of different types, a DRPC stream.
        """
        sides, keys = (left, right), (left_key, right_key)
        return Stream(self, join_within(self, sides, keys, out, times, within, delay, state, join_type, state_name))

    def multi_reduce(self, *args: Any) -> Stream:
        """Process several streams together: `multi_reduce(s1, s2, …, reducer, out)`.

        Other forms: `(fields1, s1, fields2, s2, …, reducer, out)`, `([fields of each,] streams, reducer, out)`. Grouped
        streams, all of them, take a `GroupedMultiReducer` and are brought together by key.

        Different from Storm: streams that are not grouped are brought into one partition.
        """
        return Stream(self, multi_reduce(self, args))

    def new_static_state(self, state: StateFactory | StateSpec, name: str | None = None) -> TridentState:
        """Declare a state that no stream updates, for `state_query`."""
        unnamed = sum(bool(_UNNAMED.fullmatch(one)) for one in self._states)  # whatever else is declared
        node = StateNode(f"static{unnamed}" if name is None else name, spec_of(state), static=True)
        return TridentState(self, self._add_state(node), None)

    @property
    def config(self) -> Config:
        """The settings that it is declared with."""
        from trident.config import Config

        return Config.of(self._config)

    def settings(
        self, conf: Config | Mapping[str, Any] | None = None, *, origin: str = "argument", **settings: Any
    ) -> Config:
        """Return the settings of a start, or of a reader, that is given these; `origins` says where each comes from.

        What is given overrides environment variables (`TRIDENT_HISTORY=7d`), these override `trident.toml` in the
        folder of the module that declares the topology, and that overrides `config`. `origin` says what gives `conf`. A
        `ConfigError` says which setting is wrong, and where it is.
        """
        from trident.config import Config, resolve

        names = dict.fromkeys((self._declared_as, self.name))  # it may be submitted under another one
        return resolve(self.config, list(names), self._folder, Config.of(conf, **settings), origin)

    def start(
        self,
        conf: Config | Mapping[str, Any] | None = None,
        *,
        listeners: Sequence[TopologyListener] = (),
        active: bool = True,
        **settings: Any,
    ) -> RunningTopology:
        """Check the whole declaration, open the log, recover, and begin to run batches.

        Parameters
        ----------
        conf
            A `Config` or a mapping of its keys; `settings` override single keys. Unknown keys are refused. What is not given
            is as `settings()` says.
        listeners
            Are told what happens, from the start on; see `TopologyListener` (trident.observe).
        active
            False: no batch begins before `activate()` is called on what this returns.

        Raises
        ------
        InexactPairingError, DirtyReadError
            A spout, or a query that may read what a failed attempt wrote, feeds a state that cannot be exact then, and
            `allow_inexact` is not set.
        TopologyChangedError
            A state or a stream is not what the log was written with, and `allow_changed_topology` is not set.
        LogError, StateMismatchError
            The log cannot be taken, or log and store do not belong together.
        ConfigError, EnvironmentProblem
            A setting is wrong, or a port is taken; no Java, or one that is too old; or an extra is missing.
        """
        from trident.run.running import new_memory_log, start

        self._memory_log = self._memory_log or new_memory_log(self.name)
        config = self.settings(conf, **settings)
        return start(self.graph(), config, self._memory_log, listeners=listeners, active=active, open_page=_open_page)

    def foreach_batch(
        self,
        conf: Config | Mapping[str, Any] | None = None,
        *,
        adopt_checkpoint: bool = False,
        listeners: Sequence[TopologyListener] = (),
        **settings: Any,
    ) -> ForeachBatch:
        """Return the topology as a function for `writeStream.foreachBatch`, in place of `start`.

        Its one stream is `new_stream(name, QueryBatches(schema))`. Spark owns the loop and the source; nothing is opened before
        the first batch. Settings that say how batches are made and where they run are not for it.

        Parameters
        ----------
        adopt_checkpoint
            Take the query's first batch as the next one, although its checkpoint and the log do not belong together.
            For one start, if you know what the states have.
        """
        from trident.run.foreach_batch import ForeachBatch

        return ForeachBatch(
            self.name, self.graph(), conf, settings, adopt_checkpoint=adopt_checkpoint, listeners=listeners,
            resolve=self.settings,
        )  # fmt: skip

    def explain(self, placements: Mapping[str, str] | None = None) -> Explanation:
        """Return what runs where, as text: `print(topology.explain())`, or as the last line of a notebook's cell.

        The stages of a batch with what fused in them; of each step whether it is an Arrow kernel or runs row by row in
        Python, and which columns are kept after it; what is exchanged, by what, into how many partitions; the order in
        which queries and states commit; the states with their guarantees; the settings that are not left at their defaults,
        and where each comes from. Nothing is opened and no engine is started.

        `placements` says where states are committed, by name (`"driver"` or `"executors"`), in place of what was declared;
        `running.explain()` shows where they are.
        """
        from trident.explain import explain

        return explain(self.graph(), placements, self.settings())

    def describe(self) -> list[dict[str, Any]]:
        """Return a mapping for each state, as plain data.

        `state`, `kind` (None for a state of your own), `store`, `partitions`, `static`, `key` and `value` (fields with
        types), and `streams`: for each stream that feeds it `spout` (what that promises), `cell` of the guarantee matrix,
        `exact` (None: unknown), `guarantee` and `why`. Of a window's state also `window`, in words.
        """
        from trident.explain import describe

        return describe(self.graph())

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, stage by stage."""
        from trident.drawing import to_mermaid

        return to_mermaid(self.graph())

    def _repr_html_(self) -> str:
        try:
            return self.explain()._repr_html_()
        except TopologyError as error:  # it is not complete yet
            return f"<pre>{escape(f'{self!r}: {error}')}</pre>"

    def __repr__(self) -> str:
        return f"TridentTopology({self.name!r}: {len(self._nodes)} steps, states {list(self._states)})"


def _folder_of_caller() -> str:
    """Return the folder of the module that declares a topology; if it has no file, as in a notebook, the working directory."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "trident":
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return str(Path.cwd() if file is None else Path(file).absolute().parent)


def _open_page(host: str, port: int) -> Page:
    from trident.web.running_pages import TopologyPage

    return TopologyPage(host, port)
