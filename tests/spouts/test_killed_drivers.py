"""Drivers that are killed while they read files, tables or a rate: each row counts once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.spouts.delta.test_delta_versions import append
from tests.spouts.files.test_parquet import parquet, table
from tests.spouts.files.test_text_files import write
from tests.spouts.killed_driver import run_killed

DRIVER = """
import sys
from spouts import CsvFileSpout, DeltaSpout, JsonFileSpout, ParquetFileSpout, RateSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Filter, Sum

class Tell(Filter):
    def __init__(self, every):
        self.every = every

    def is_keep(self, tuple):
        if tuple[0] % self.every == 0:
            print(tuple[0], flush=True)
        return True

folder, rows, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
topology, found = TridentTopology("killed"), []
for name, spout in eval(sys.argv[4]).items():
    stream = topology.new_stream(name, spout).each(spout.get_output_fields()[:1], Tell(every))
    total, count = (DeltaState.opaque(f"{folder}/{name}-{what}") for what in ("sum", "count"))
    found.append(stream.persistent_aggregate(count, Count(), "count", state_name=name + "-count"))
    found.append(stream.persistent_aggregate(total, spout.get_output_fields()[:1], Sum(), "sum", state_name=name + "-sum"))
with topology.start(engine="in_process", log_dir=folder + "/log") as running:
    while (running.state(found[0]).get() or 0) < rows:
        running.process_all_available()
    print(*(running.state(one).get() for one in found), flush=True)
"""
