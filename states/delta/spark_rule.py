"""The value rules as column expressions of Spark; a test compares them with `trident.state.values`, which has the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trident.errors import ConfigError
from trident.state.interfaces import StateType
from trident.state.txid import Snapshot, Txid
from trident.state.values import UNKNOWN_ATTEMPT
from trident.state.winners import EVERYTHING_WON, Winners

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["COMBINERS", "PARTIAL", "STORED", "by_rule", "combiner", "value_at"]

COMBINERS = ("count", "max", "min", "sum")
"""Names that `merge_dataframe` accepts in place of an expression."""

STORED, PARTIAL = "_stored", "_partial"
"""The columns that the expressions are made of: a struct of what is stored, null for nothing, and the partial result."""


def by_rule(kind: StateType, value_type: str, txid: Txid, combine: Callable[[Column, Column], Column]) -> list[Column]:
    """Return what batch `txid` stores: the value columns of the kind, then `_stored_txid` and `_write`."""
    from pyspark.sql import functions as sf

    partial = sf.col(PARTIAL)

    def combined(base: Column) -> Column:
        return sf.when(base.isNull(), partial).otherwise(combine(base, partial)).cast(value_type)

    always = sf.lit(True).alias("_write")
    if kind is StateType.NON_TRANSACTIONAL:
        new = combined(sf.col(f"{STORED}.value")).alias("value")
        return [new, sf.lit(None).cast("bigint").alias("_stored_txid"), always]
    number, written_by = sf.lit(int(txid)).cast("bigint"), sf.col(f"{STORED}.txid")
    stored_txid = written_by.alias("_stored_txid")
    if kind is StateType.TRANSACTIONAL:
        new = combined(sf.col(f"{STORED}.value")).alias("value")
        return [number.alias("txid"), new, stored_txid, (~written_by.eqNullSafe(number)).alias("_write")]
    stands = _stand_before(written_by, sf.col(f"{STORED}.attempt"), int(txid), txid.winners)
    base = sf.when(stands, sf.col(f"{STORED}.curr")).otherwise(sf.col(f"{STORED}.prev"))
    head = [number.alias("txid"), sf.lit(txid.attempt).cast("bigint").alias("attempt")]
    return [*head, base.alias("prev"), combined(base).alias("curr"), stored_txid, always]


def value_at(snapshot: Snapshot) -> Column:
    """Return the value of an opaque row as of a committed batch: `trident.state.values.OpaqueValue.at`."""
    from pyspark.sql import functions as sf

    stands = _stand_before(sf.col("txid"), sf.col("attempt"), snapshot.txid + 1, snapshot.winners)
    return sf.when(stands, sf.col("curr")).otherwise(sf.col("prev"))


def _stand_before(txids: Column, attempts: Column, txid: int, winners: Winners) -> Column:
    """`trident.state.values.stand_before`."""
    return (txids < txid) & (_won(txids, attempts, winners) | (attempts == UNKNOWN_ATTEMPT))


def _won(txid: Column, attempt: Column, winners: Winners) -> Column:
    from pyspark.sql import functions as sf

    if winners is EVERYTHING_WON:
        return sf.lit(True)
    adopted = txid <= winners.adopted
    if not winners.ranges:
        return adopted
    ranges = sf.array(
        *(
            sf.struct(sf.lit(t).cast("bigint").alias("t"), sf.lit(a).cast("bigint").alias("a"))
            for t, a in winners.ranges
        )
    )
    # The last range that starts at or before txid: structs compare by their first field first.
    winner = sf.array_max(sf.filter(ranges, lambda one: one["t"] <= txid))["a"]
    return sf.coalesce(winner == attempt, sf.lit(False)) | adopted


def combiner(combine: str | Callable[[Column, Column], Column]) -> Callable[[Column, Column], Column]:
    """Return how a stored value and a partial one become the new one."""
    from pyspark.sql import functions as sf

    if callable(combine):
        return combine
    known: dict[str, Callable[[Column, Column], Column]] = {
        "count": lambda stored, partial: stored + partial,
        "sum": lambda stored, partial: stored + partial,
        "min": lambda stored, partial: sf.least(stored, partial),
        "max": lambda stored, partial: sf.greatest(stored, partial),
    }
    if combine not in known:
        raise ConfigError(f"combine={combine!r} is unknown; use one of {', '.join(COMBINERS)}, or an expression")
    return known[combine]
