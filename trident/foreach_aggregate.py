"""`exactly_once`: one aggregate as a function for `writeStream.foreachBatch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trident.config import Config
from trident.fields import FieldsLike
from trident.state.interfaces import StateFactory, StateSpec

if TYPE_CHECKING:
    from trident.observe.events import TopologyListener
    from trident.one_aggregate import ExactlyOnce


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
    from trident.one_aggregate import ExactlyOnce, OneAggregate

    keys, inputs = ([one] if isinstance(one, str) else list(one) for one in (group_by, of))
    declared = OneAggregate(
        name, state, tuple(keys), aggregate, tuple(inputs), value, deterministic, rows_are, rename or {}
    )
    return ExactlyOnce(declared, schema, conf, settings, adopt_checkpoint=adopt_checkpoint, listeners=listeners)
