"""Rows of PostgreSQL that expire: when they go, what stays, and that a key that went starts again."""

from pathlib import Path
from typing import Any

import pytest

from spouts import FeederBatchSpout
from states.postgres import PostgresState
from tests.harness.topology_runs import start
from tests.states.postgres.postgres_states import Home, numbers
from trident import TridentTopology
from trident.errors import ConfigError
from trident.operations import Count

pytestmark = pytest.mark.server
DAY = 86_400


class Counts:
    """A topology that counts words in a table, fed batch by batch."""

    def __init__(self, home: Home, folder: Path, **options: Any) -> None:
        self.home, self.folder, self.table = home, folder, f"expiring{next(numbers)}"
        self.options = {"table": self.table, **options}

    def run(self, *batches: list[tuple[Any, ...]], **options: Any) -> None:
        topology, spout = TridentTopology(self.table), FeederBatchSpout("word: string")
        spec = PostgresState.opaque(self.home.url, **{**self.options, **options})
        words = topology.new_stream("words", spout).group_by("word")
        words.persistent_aggregate(spec, Count(), "count", state_name="count").parallelism_hint(2)
        with start(topology, "in_process", log_dir=str(self.folder / "log")) as running:
            for batch in batches:
                spout.feed(batch)
                running.process_all_available()

    def rows(self) -> dict[Any, int]:
        return dict(self.home.sql(f"SELECT word, count FROM {self.table}"))

    def age(self, where: str) -> None:
        self.home.sql(f"UPDATE {self.table} SET trident_at = now() - interval '25 hours' WHERE {where}")


def test_what_was_not_written_for_so_long_goes_and_starts_again(home: Home, tmp_path: Path) -> None:
    counts = Counts(home, tmp_path, ttl_s=DAY)
    counts.run([("old",), ("new",), (None,)], [("old",)], *[[("x",)] for _ in range(60)])
    counts.age("word = 'old' OR word IS NULL")
    counts.run([("x",), ("y",)], [("x",), ("y",)], [("x",), ("y",)])
    assert counts.rows() == {"new": 1, "x": 63, "y": 3}
    counts.run([("old",)])
    assert counts.rows() == {"new": 1, "x": 63, "y": 3, "old": 1}


def test_a_row_that_is_written_in_time_stays(home: Home, tmp_path: Path) -> None:
    counts = Counts(home, tmp_path, ttl_s=DAY)
    counts.run(*[[("x",)] for _ in range(62)])
    counts.age("true")
    counts.run(*[[("x",)] for _ in range(4)])
    assert counts.rows() == {"x": 66}


def test_the_row_that_a_sentinel_names_stays_so_that_no_loss_is_seen(home: Home, tmp_path: Path) -> None:
    counts = Counts(home, tmp_path, ttl_s=DAY)
    words = [(f"w{number}",) for number in range(20)]  # in both partitions
    counts.run(words, *[[("x",)] for _ in range(61)])
    counts.age("word <> 'x'")
    counts.run([("x",)], [("x",)], [("x",)])
    kept = counts.rows()
    assert (kept.pop("x"), len(kept)) == (64, 1)  # of the partition that x is not in
    counts.run([(word,) for word in kept])
    assert set(counts.rows().values()) == {64, 2}


def test_a_table_of_before_gets_the_column(home: Home, tmp_path: Path) -> None:
    counts = Counts(home, tmp_path)
    counts.run([("a",), ("b",)])
    counts.run([("a",)], ttl_s=DAY)
    assert home.sql(f"SELECT count(*) FROM {counts.table} WHERE trident_at IS NULL") == [(0,)]
    counts.run([("a",)])  # without ttl_s again
    assert counts.rows() == {"a": 3, "b": 1}


def test_a_row_that_was_written_while_nothing_expired_is_not_taken_for_an_old_one(home: Home, tmp_path: Path) -> None:
    counts = Counts(home, tmp_path)
    counts.run(*[[("x",)] for _ in range(60)], ttl_s=DAY)
    counts.run([("old",)], ttl_s=DAY)
    counts.age("true")
    counts.run([("old",)])  # nobody notes when
    counts.run(*[[("x",)] for _ in range(4)], ttl_s=DAY)
    assert counts.rows() == {"x": 64, "old": 2}


def test_what_cannot_expire_is_refused(home: Home, tmp_path: Path) -> None:
    counts = Counts(home, tmp_path, ttl_s=DAY, layout="binary")
    with pytest.raises(ConfigError, match=r"ttl_s= of .* needs columns, and there are none: layout='binary'"):
        counts.run([("a",)])
