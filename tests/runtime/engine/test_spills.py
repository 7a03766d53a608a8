from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SPILLING = """
import sys
from states.memory import MemoryMapState
from tests.benchmarks._drawn import DrawnKeys
from trident import TridentTopology
from trident.operations import Count
from trident.runtime.engine import spark_runner as spills
from trident.spark.session import spark_session, stop_session

spills.ASKED_FROM = 1
spark = spark_session("spills", "local[2]", {
    "spark.shuffle.sort.bypassMergeThreshold": "0", "spark.shuffle.spill.numElementsForceSpillThreshold": sys.argv[1],
})

class Throttled(DrawnKeys):
    def throttle(self, share):
        print("told", share)

topology = TridentTopology("t")
stream = topology.new_stream("words", Throttled(batches=2, rows=4_000, distinct=4_000))
stream.partition_by("word").parallelism_hint(4).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
with topology.start(max_spout_pending=1, target_batch_s=3600) as running:
    running.process_all_available()
    print([batch["bytesSpilled"] > 0 for batch in running.recent_progress], running.status["share"])
stop_session(spark)
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows_in_memory", "told"), [(1, ["told 0.5", "told 0.25", "[True, True] 0.25"]), (1 << 30, ["[False, False] 1.0"])]
)
def test_a_batch_that_spills_is_told_and_the_next_is_half_as_large(rows_in_memory: int, told: list[str]) -> None:
    command = [sys.executable, "-c", SPILLING, str(rows_in_memory)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == told, ran.stderr
