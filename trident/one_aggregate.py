"""`exactly_once`: one aggregate as a function for `writeStream.foreachBatch`, declared when the columns are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trident.config import Config
from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.base import spec_of
from trident.graph import Graph
from trident.operations import Last
from trident.operations.several import fields_read
from trident.read.views import StateView
from trident.roles import has
from trident.run.foreach_batch import ForeachBatch
from trident.spout.query_batches import QueryBatches, fields_of_schema, names_of_schema
from trident.state.interfaces import StateFactory, StateSpec
from trident.stream import TridentState
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident.observe.events import TopologyListener

_STREAM = "query"


def exactly_once(
    name: str,
    state: StateFactory | StateSpec,
    *,
    group_by: str | Sequence[str] = (),
    aggregate: Any,
    of: str | Sequence[str] = (),
    value: str,
    schema: FieldsLike | Any = None,
    deterministic: bool = False,
    rows_are: Literal["events", "totals"] | None = None,
    rename: Mapping[str, str] | None = None,
    adopt_checkpoint: bool = False,
    listeners: Sequence[TopologyListener] = (),
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> ExactlyOnce:
    """Return a function for `foreachBatch` that keeps one aggregate of all rows of a query, each of them counted once.

    Parameters
    ----------
    name
        Names the log, and the keys in a shared store; keep it as long as the state exists.
    state
        Where the values are, such as `PostgresState(dsn)`.
    group_by
        The columns of the key; none: one value for all rows.
    aggregate, of, value
        The aggregator, the columns that it is given, and the name of its result: `aggregate=Sum(), of="euros",
        value="total"`. Or several by name, `aggregate={"revenue": Sum("euros"), "orders": Count()}, value="sales"`.
    schema
        The columns and their types, as `orders.schema` or `"shop: string, euros: bigint"`; without it those of the first batch.
    deterministic
        Promise that a batch that Spark repeats has the same rows, so that the state may be transactional; see
        `QueryBatches`.
    rows_are
        What the rows are if the query aggregates in output mode `update` or `complete`, see `QueryBatches`; `"totals"`
        with `Last()`, the only aggregator that takes them.
    adopt_checkpoint
        Take the query's first batch as the next one, although checkpoint and log do not belong together: for one start.
    rename, listeners, conf, settings
        As for `TridentTopology` and its `start`; `log_dir` names the log.

    Examples
    --------
    ::

        totals = exactly_once("orders", PostgresState(dsn), group_by="shop", aggregate=Sum(), of="euros", value="total")
        query = orders.writeStream.foreachBatch(totals).option("checkpointLocation", "checkpoint").start()

        totals.write(spark.read.parquet("orders/2026-11-25"), batch="2026-11-25")  # or by a job that a scheduler starts
    """
    keys, inputs = ([one] if isinstance(one, str) else list(one) for one in (group_by, of))
    declared = OneAggregate(
        name, state, tuple(keys), aggregate, tuple(inputs), value, deterministic, rows_are, rename or {}
    )
    return ExactlyOnce(declared, schema, conf, settings, adopt_checkpoint=adopt_checkpoint, listeners=listeners)


@dataclass(frozen=True)
class OneAggregate:
    """What `exactly_once` was given, see there."""

    name: str
    state: Any
    group_by: tuple[str, ...]
    aggregate: Any
    of: tuple[str, ...]
    value: str
    deterministic: bool
    rows_are: Literal["events", "totals"] | None
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse to add up what is said to be totals; what keeps the last of them says so itself."""
        several = self.aggregate.values() if isinstance(self.aggregate, Mapping) else [self.aggregate]
        aggregators = [one[-1] if isinstance(one, tuple) else one for one in several]
        spec_of(self.state)  # refused at the call: the rest is declared in the first batch, inside of Spark
        if wrong := [one for one in aggregators if not _is_aggregator(one)]:
            raise TopologyError(
                f"exactly_once({self.name!r}): {wrong[0]!r} is not an aggregator; give one, such as Count()"
            )
        others = [one for one in aggregators if not isinstance(one, Last)]
        if self.rows_are is None and not others:
            object.__setattr__(self, "rows_are", "totals")
        if self.rows_are == "totals" and others:
            raise TopologyError(
                f"exactly_once({self.name!r}): rows_are='totals' and aggregate={type(others[0]).__name__}() may count again "
                "what an earlier total had. Keep the newest total with Last(), or aggregate the rows before Spark does"
            )

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys((*self.group_by, *self.of, *fields_read(self.aggregate))))

    def topology(self, schema: Any) -> TridentTopology:
        """Declare it for these columns; `TopologyError` if they do not fit."""
        names = names_of_schema(schema)
        lacking = [repr(name) for name in self.columns if name not in names]
        if lacking or not names:
            why = "the query has no columns, and rows without any are lost: select one"
            if lacking:
                why = f"no column {lacking[0]} in the query, which has {', '.join(names) or 'none'}"
            raise TopologyError(f"exactly_once({self.name!r}): {why}")
        columns = self.columns or names[:1]
        topology = TridentTopology(self.name, rename=self.rename)
        read = fields_of_schema(schema, columns).select(columns, _STREAM)
        rows = topology.new_stream(
            _STREAM, QueryBatches(read, deterministic=self.deterministic, rows_are=self.rows_are)
        )
        inputs = [Fields.named(self.of)] if self.of else []
        grouped: Any = rows.group_by(Fields.named(self.group_by)) if self.group_by else rows
        grouped.persistent_aggregate(self.state, *inputs, self.aggregate, self.value, state_name=self.value)
        return topology


def _is_aggregator(given: Any) -> bool:
    return not isinstance(given, type) and (has(given, "combine") or has(given, "reduce"))


class ExactlyOnce(ForeachBatch):
    """A function for `foreachBatch` that keeps one aggregate; made by `exactly_once`."""

    def __init__(
        self,
        declared: OneAggregate,
        schema: Any,
        conf: Config | Mapping[str, Any] | None,
        settings: Mapping[str, Any],
        **more: Any,
    ) -> None:
        self._declared = declared
        TridentTopology(declared.name)  # refuses what cannot be a name, now
        self._topology = None if schema is None else declared.topology(schema)
        graph = None if self._topology is None else self._topology.graph()
        super().__init__(declared.name, graph, conf, settings, **more)

    @property
    def topology(self) -> TridentTopology:
        """What is declared, for `open_state` and `trident get`; `TopologyError` if the columns are not known yet."""
        if self._topology is None:
            raise TopologyError(
                f"{self!r} does not know its columns before its first batch: give them, as in exactly_once(…, "
                "schema=orders.schema)"
            )
        return self._topology

    @property
    def graph(self) -> Graph:
        """The graph of `topology`."""
        return self.topology.graph()

    def state(self, state: TridentState | str | None = None) -> StateView:
        """Return the state for reading, at the snapshot of the last committed batch."""
        return super().state(self._declared.value if state is None else state)

    def _repr_html_(self) -> str:
        rows = "" if self._run is None else self.state()._repr_html_()
        return super()._repr_html_() + rows

    def _graph_of(self, df: DataFrame) -> Graph:
        if self._topology is None:
            self._topology = self._declared.topology(df.schema)
        return self.graph
