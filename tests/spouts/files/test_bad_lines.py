"""Lines that are no rows as dead letters: a step that raises for them hands them over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spouts import CsvFileSpout
from states.memory import MemoryMapState
from tests.spouts.files.test_text_files import write
from trident import TridentTopology
from trident.operations import Filter, Sum
from trident.tuples import TridentTuple


class RefuseBad(Filter):
    def is_keep(self, tuple: TridentTuple) -> bool:
        if tuple[0] is not None:
            raise ValueError(f"no row: {tuple[0]}")
        return True


def test_a_step_that_raises_for_bad_lines_makes_them_dead_letters(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", b"id,name\n1,x\ntwo,y\n3,z\n4\n")
    topology = TridentTopology("bad")
    stream = topology.new_stream("rows", CsvFileSpout(tmp_path / "in", "id: bigint", bad_lines="bad", with_file=True))
    total = stream.each("bad", RefuseBad()).persistent_aggregate(MemoryMapState(), "id", Sum(), "sum")
    settings: dict[str, Any] = {"log_dir": tmp_path / "log", "on_poison": "dead_letter", "max_batch_attempts": 1}
    with topology.start(engine="in_process", **settings) as running:
        running.process_all_available()
        assert running.state(total).get() == 4
    (file,) = (tmp_path / "log" / "dead_letters").glob("*.jsonl")
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [letter["error"] for letter in letters] == ["ValueError: no row: two,y", "ValueError: no row: 4"]
