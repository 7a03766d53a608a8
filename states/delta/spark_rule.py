"""The rule of an opaque value as a column of Spark; a test compares it with `trident.state.values`, which has the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.state.txid import Snapshot
from trident.state.values import UNKNOWN_ATTEMPT
from trident.state.winners import EVERYTHING_WON, Winners

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["value_at"]


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
