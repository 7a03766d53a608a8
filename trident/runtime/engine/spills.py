"""What the stages of a job wrote to disk because memory was short, as Spark counted it: a sign that batches are too large."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from trident.errors import describe

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["ASKED_FROM", "bytes_spilled"]

logger = logging.getLogger(__name__)

ASKED_FROM = 32 << 20
"""From so many shuffled bytes the question is worth its few milliseconds; fewer fit into any executor's memory."""

_COUNTED_MS = 1_000  # Spark counts in a thread of its own, which is some milliseconds behind


def bytes_spilled(context: SparkContext, tag: str) -> int:
    """Return the bytes of all jobs with a tag; 0 if Spark does not tell, because no batch depends on it."""
    spark = context._jsc.sc()  # noqa: SLF001 - PySpark has no public question
    try:
        spark.listenerBus().waitUntilEmpty(_COUNTED_MS)
        store, total = spark.statusStore(), 0
        for job in spark.statusTracker().getJobIdsForTag(tag):
            stages = store.job(job).stageIds()
            for at in range(stages.size()):
                total += int(store.lastStageAttempt(stages.apply(at)).diskBytesSpilled())
    except Py4JError as error:
        logger.debug("spilled bytes are unknown: %s", describe(error))
        return 0
    return total
