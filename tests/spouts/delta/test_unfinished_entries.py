"""DeltaSpout: an entry of the log that its writer has not written to its end is no version yet, wherever it is met."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from spouts import DeltaSpout
from tests.spouts.delta.test_delta_versions import append, entry_of, ids
from tests.spouts.reading import batches, definitions, rows_of
from trident.errors import SpoutError

CUTS = (0, 0.3, 0.99)
"""Which share of an entry was written: none of it, a part of its first line, all but the end of its last one."""


def begun(path: Path, start: int, end: int, share: float) -> bytes:
    """Append rows as a writer does that is in the middle of writing the entry; return the entry as it will be."""
    append(path, start, end)
    entry = entry_of(path, DeltaTable(path).version())
    whole = entry.read_bytes()
    entry.write_bytes(whole[: int(len(whole) * share)])
    return whole


@pytest.mark.parametrize("share", CUTS)
def test_an_entry_that_is_being_written_is_read_once_it_is_whole(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path)
    coordinator = spout.get_coordinator({})
    made = list(definitions(coordinator))
    whole = begun(tmp_path, 10, 20, share)
    assert list(definitions(coordinator, made[-1], 2)) == []
    assert list(definitions(coordinator, made[-1], 2)) == []
    assert [record.getMessage().partition(" of the Delta table")[0] for record in caplog.records] == [
        "the entry of version 1 in the log"
    ]
    entry_of(tmp_path, 1).write_bytes(whole)
    append(tmp_path, 20, 30)
    made += definitions(coordinator, made[-1], 2)
    assert ids([rows_of(spout, coordinator, one) for one in made]) == [list(range(10)), list(range(10, 30))]


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 1])
def test_a_stream_never_begins_behind_an_entry_that_is_being_written(tmp_path: Path, start: str | int) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path, starting_version=start)
    whole = begun(tmp_path, 10, 20, 0)
    coordinator = spout.get_coordinator({})
    made = list(definitions(coordinator))
    entry_of(tmp_path, 1).write_bytes(whole)
    append(tmp_path, 20, 30)
    made += definitions(spout.get_coordinator({}), made[-1], len(made) + 1)
    found = sorted(row[0] for one in made for row in rows_of(spout, coordinator, one))
    assert found == list(range(0 if start in ("earliest", 0) else 10, 30))


@pytest.mark.parametrize("share", CUTS)
def test_an_entry_that_was_never_finished_is_refused_as_soon_as_there_is_a_later_one(
    tmp_path: Path, share: float
) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path)
    coordinator = spout.get_coordinator({})
    (first,) = definitions(coordinator)
    whole = begun(tmp_path, 10, 20, share)
    entry_of(tmp_path, 2).write_bytes(whole)
    with pytest.raises(
        SpoutError, match="the entry of version 1 in the log .* ends in the middle, and version 2 is th"
    ):
        coordinator.initialize_transaction(2, first)
    entry_of(tmp_path, 1).write_text('{"commitInfo":{}}')  # what the message advises where the version had no rows
    assert ids(batches(spout, first)) == [list(range(10, 20))]


def test_an_entry_that_grew_after_it_was_read_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path)
    coordinator = spout.get_coordinator({})
    (first,) = definitions(coordinator)
    append(tmp_path, 10, 20)
    whole = entry_of(tmp_path, 1).read_bytes()
    entry_of(tmp_path, 1).write_bytes(whole.splitlines()[0] + b"\n")  # whole lines: nothing tells that more are to come
    (second,) = definitions(coordinator, first, 2)
    entry_of(tmp_path, 1).write_bytes(whole)
    for again in (coordinator, spout.get_coordinator({})):
        with pytest.raises(SpoutError, match="a writer that is not atomic had not finished this version"):
            again.initialize_transaction(3, second)
