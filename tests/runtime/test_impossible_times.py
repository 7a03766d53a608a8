"""Times that Python has none for, before year 1 and after 9999, fail their tuple where they enter, and nothing else."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.topology_runs import RowsSpout, keep, run_all, start
from tests.runtime.test_bad_input import Emitting
from trident import BatchFailedError, Fields, TridentTopology
from trident.arrow import arrow_type, beyond_python, python_of
from trident.operations import arrow_function
from trident.runtime.commit.dead_letters import DeadLetters

FAR = 60_000 * 31_556_952 * 10**6  # microseconds: about the year 61970
DAYS = {"date": (-719_162, 2_932_896), "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999)}
DAYS["timestamp_ntz"] = DAYS["timestamp"]


def column(ddl: str, numbers: list[int | None]) -> pa.Array:
    whole = pa.array(numbers, pa.int32() if ddl == "date" else pa.int64())
    return whole.cast(arrow_type(ddl)) if ddl == "date" else whole.view(arrow_type(ddl))


AROUND: dict[str, Callable[[pa.Array], pa.Array]] = {
    "alone": lambda times: times,
    "in an array": lambda times: pa.ListArray.from_arrays(pa.array(range(len(times) + 1), pa.int32()), times),
    "in a struct": lambda times: pa.StructArray.from_arrays([times], ["at"]),
    "in a map": lambda times: pa.MapArray.from_arrays(
        pa.array(range(len(times) + 1), pa.int32()), pa.array(["k"] * len(times)), times
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("ddl", DAYS)
def test_the_first_and_last_times_of_python_pass_and_no_others(ddl: str, around: str) -> None:
    first, last = DAYS[ddl]
    good = AROUND[around](column(ddl, [first, None, last]))
    assert beyond_python(good) is None
    assert len(python_of(good)) == 3
    for wrong in (first - 1, last + 1):
        times = AROUND[around](column(ddl, [first, wrong, None, last]))
        found = beyond_python(pa.chunked_array([times.slice(0, 2), times.slice(2)]))
        assert found is not None
        assert found.to_pylist() == [False, True, False, False]


class FarRows(Emitting):
    """One batch with a row whose time Python has not."""

    def __init__(self, ddl: str) -> None:
        self.ddl = ddl

    def get_output_fields(self) -> Any:
        return Fields(f"at: {self.ddl}, n: bigint")

    def emit(self, part: Any) -> Iterator[Any]:
        number = 10**8 if self.ddl == "date" else FAR
        yield pa.table([column(self.ddl, [0, number, 1]), pa.array([1, 2, 3])], names=["at", "n"])


@pytest.mark.parametrize("ddl", DAYS)
def test_such_a_time_is_a_dead_letter_that_can_be_read(ddl: str, engine: str, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    kept = keep(topology.new_stream("s", FarRows(ddl)).filter("at", lambda at: at.year == 1970).project("n"))
    letters: dict[str, Any] = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path / "letters")}
    with start(topology, engine, **letters, log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        (letter,) = DeadLetters(running.config.dead_letter_folder("t")).all(running.log_state)
    assert kept.rows == [(1,), (3,)]
    assert letter.left_out.values["n"] == 2
    assert letter.left_out.values["at"] == f"<value out of range: {10**8 if ddl == 'date' else FAR}>"
    assert letter.failure.cause.startswith(f"field 'at' is declared {ddl}, but got '<value out of range: ")


def test_without_dead_letters_the_error_names_field_type_and_time(engine: str) -> None:
    topology = TridentTopology("t")
    keep(topology.new_stream("s", FarRows("timestamp")))
    far = f"'<value out of range: {FAR}>'"
    said = rf"in step 's' on tuple \[at={far}, n=2\]: field 'at' is declared timestamp, but got {far} \(times are from year 1 "
    with pytest.raises(BatchFailedError, match=said):
        run_all(topology, engine)


@arrow_function("at: timestamp")
def far(numbers: pa.Array) -> pa.Array:
    return pa.array([FAR if number == 2 else 0 for number in numbers.to_pylist()], pa.timestamp("us", "UTC"))


def test_a_vectorised_function_that_makes_such_a_time_fails_its_tuple(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    kept = keep(topology.new_stream("s", RowsSpout("n: bigint", {1: [(1,), (2,), (3,)]})).each("n", far, "at"))
    letters: dict[str, Any] = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path / "letters")}
    with start(topology, "in_process", **letters, log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        (letter,) = DeadLetters(running.config.dead_letter_folder("t")).all(running.log_state)
    assert [(n, at.replace(tzinfo=None)) for n, at in kept.rows] == [(n, dt.datetime(1970, 1, 1)) for n in (1, 3)]
    assert (letter.left_out.values, letter.failure.cause) == ({"n": 2}, "far gives a time before year 1 or after 9999")
