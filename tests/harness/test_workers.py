"""How a run of tests is shared out among processes."""

from __future__ import annotations

import pytest

from tests.harness.workers import number_of_workers, piece


@pytest.mark.parametrize(
    ("nodeid", "of"),
    [
        ("tests/test_fields.py::test_a[b]", "tests/test_fields.py"),
        ("tests/a/test_b.py::TestC::test_d[tests/x.py::y]", "tests/a/test_b.py"),
        ("tests/states/cassandra/test_cassandra.py::test_a", "cassandra"),
        ("tests/stores/test_campaigns.py::test_a_store_passes_a_campaign[cassandra-kills]", "cassandra"),
        (
            "tests/stores/test_campaigns.py::test_a_store_passes_a_campaign[redis-kills]",
            "tests/stores/test_campaigns.py",
        ),
        ("tests/states/delta/test_delta_spark.py::test_a", "delta on spark"),
    ],
)
def test_a_file_is_a_piece_and_what_shares_something_slow_is_one(nodeid: str, of: str) -> None:
    assert piece(nodeid) == of


def test_there_is_a_process_more_than_cores_within_bounds() -> None:
    assert 1 <= number_of_workers() <= 4
