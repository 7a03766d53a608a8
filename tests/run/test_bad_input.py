"""What users get wrong: refused before anything runs if possible, else named with batch, step, tuple and cause."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import (
    Keep,
    OneSpout,
    RowsSpout,
    RowsState,
    keep,
    operation,
    run_all,
    start,
    topology_of,
)
from trident import BatchFailedError, Fields, Stream, TopologyError, TridentTopology
from trident.errors import LogError
from trident.operations import (
    BaseAggregator,
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Count,
    Function,
    ReducerAggregator,
    Sum,
    arrow_function,
)


def lines(topology: TridentTopology, *texts: str) -> Stream:
    return topology.new_stream("lines", FixedBatchSpout("line: string, n: int", 10, *([text, 1] for text in texts)))


def three(line: str) -> Iterator[Any]:
    yield (1, 2, 3)


@arrow_function("b: string")
def upper(numbers: Any) -> Any:
    return pc.utf8_upper(numbers)


@arrow_function("b: bigint")
def as_text(numbers: Any) -> Any:
    return numbers.cast(pa.string())


def no_answer(args: Any) -> Any:
    raise OSError("no answer")


def query(
    name: str,
    retrieve: Callable[[Any], Any],
    emitted: Callable[[Any], Any] = lambda result: [result],
    output: str | None = "string",
) -> Any:
    return operation(
        name, BaseQueryFunction, output,
        batch_retrieve=lambda state, args: retrieve(args),
        execute=lambda row, result, collector: collector.emit(emitted(result)),
    )  # fmt: skip


def cannot_combine(left: int, right: int) -> int:
    raise ArithmeticError("cannot combine")


Short = query("Short", lambda args: [1])
Silent = query("Silent", lambda args: None)
Long = query("Long", lambda args: [1, 2, 3])
Broken = query("Broken", no_answer)
Right = query("Right", lambda args: ["text"] * len(args), output=None)
Doubling = query("Doubling", lambda args: ["text"] * len(args), lambda result: [1, 1], "bigint")
Bare = operation("Bare", Function, "string", execute=lambda row, collector: collector.emit("word"))
Fat = operation("Fat", BaseStateUpdater, "string", update_state=lambda state, rows, out: out.emit(["a", "b"]))
Worse = operation("Worse", CombinerAggregator, init=lambda row: 1, combine=cannot_combine, zero=lambda: None)
TextOfAll = operation(
    "TextOfAll", CombinerAggregator, None, init=lambda row: 1, combine=lambda a, b: "text", zero=lambda: None
)
Joined = operation("Joined", ReducerAggregator, None, init=str, reduce=lambda curr, row: curr + str(row[0]))
Emitting3 = operation(  # an aggregator, and a multi-reducer
    "Emitting3", BaseAggregator, None,
    init=lambda *_: None, aggregate=lambda *_: None, execute=lambda *_: None,
    complete=lambda val, collector: collector.emit([1, 2, 3]),
)  # fmt: skip


class Nowhere:
    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        raise ConnectionError("nobody there")


def counts(stream: Stream) -> Any:
    return stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")


# name -> (declaration, attempts, expected text)
WRONG: dict[str, tuple[Callable[[Stream], object], int, str]] = {
    "too many values": (
        lambda s: keep(s.each("line", three, "a: int, b: int")), 1,
        r"batch 1 failed once in step 'lines/three' on tuple \[line='a'\]: emitted 3 values \(1, 2, 3\) for the 2 "
        r"output fields \['a', 'b'\]; emit one value per field, as a tuple or list",
    ),
    "a bare value where two are due": (
        lambda s: keep(s.each("line", lambda line: line, "a: string, b: int")), 1,
        r"emitted 1 value \('a',\) for the 2 output fields \['a', 'b'\]",
    ),
    "a bare value to the collector": (
        lambda s: keep(s.each("line", Bare(), "a")), 1,
        r"emitted 1 value 'word' for the 1 output field \['a'\]; emit one value per field, as a tuple or list",
    ),
    "a map with too few values": (
        lambda s: keep(s.map(lambda row: row[0])), 1,
        r"in step 'lines/map' on tuple \[line='a', n=1\]: emitted 1 value \('a',\) for the 2 output fields",
    ),
    "a value of another type": (
        lambda s: keep(s.each("line", lambda line: line, "a: int")), 1,
        r"in step 'lines/each' on tuple \[line='a'\]: field 'a' is declared int, but got 'a' ",
    ),
    "a number that does not fit": (
        lambda s: keep(s.map(lambda row: 300, "a: tinyint")), 1, "field 'a' is declared tinyint, but got 300 ",
    ),
    "a function that raises": (
        lambda s: keep(s.each("line", lambda line: 1 // 0, "a: int")), 1,
        r"batch 1 failed once in step 'lines/each' on tuple \[line='a'\]: ZeroDivisionError: integer division",
    ),
    "a filter that raises": (
        lambda s: keep(s.filter("n", lambda n: n.no)), 1,
        r"in step 'lines/filter' on tuple \[n=1\]: AttributeError: 'int' object has no attribute 'no'",
    ),
    "a consumer that raises": (
        lambda s: s.peek(lambda row: row["x"]), 1, r"in step 'lines/peek' on tuple \[line='a', n=1\]: KeyError: .*'x'",
    ),
    "a kernel that has no answer": (
        lambda s: keep(s.each("n", upper)), 1, r"in step 'lines/upper' on tuple \[n=1\]: ArrowNotImplementedError: ",
    ),
    "a vectorised function of another type": (
        lambda s: keep(s.each("n", as_text)), 1,
        "in step 'lines/as_text': as_text returned string for field 'b', which is declared bigint",
    ),
    "a generator that yields something else": (
        lambda s: keep(s.each("line", three, "a: int")), 1,
        r"in step 'lines/three' on tuple \[line='a'\]: emitted 3 values \(1, 2, 3\) for the 1 output field \['a'\]",
    ),
    "a flat_map of nothing": (
        lambda s: keep(s.flat_map(lambda row: None)), 1,
        r"in step 'lines/flat_map' on tuple \[line='a', n=1\]: TypeError: 'NoneType' object is not iterable",
    ),
    "a query without an answer": (
        lambda s: s.state_query(counts(s), "line", Silent(), "a"), 1,
        "in step 'lines/Silent@count': batch_retrieve of Silent returned None for 2 tuples; it must return one per tuple",
    ),
    "a query with too many results": (
        lambda s: s.state_query(counts(s), "line", Long(), "a"), 1,
        "in step 'lines/Long@count': batch_retrieve of Long returned 3 results for 2 tuples; it must return one ",
    ),
    "a query that emits too much": (
        lambda s: s.state_query(counts(s), "line", Doubling(), "a"), 1,
        r"in step 'lines/Doubling@count' on tuple \[line='a'\]: emitted 2 values \[1, 1\] for the 1 output field \['a'\]",
    ),
    "a query that emits another type": (
        lambda s: s.state_query(counts(s), "line", Right(), "a: int").peek(print), 1,
        r"in step 'lines/Right@count' on tuple \[line='a'\]: field 'a' is declared int, but got 'text' ",
    ),
    "an aggregator that emits too much": (
        lambda s: keep(s.aggregate("line", Emitting3(), "a: int")), 1,
        r"in step 'lines/Emitting3': emitted 3 values \[1, 2, 3\] for the 1 output field \['a'\]",
    ),
    "a reducer of another type": (
        lambda s: keep(s.aggregate("line", Joined(), "a: int")), 1,
        "in step 'lines/Joined': field 'a' is declared int, but got 'ab' ",
    ),
    "a multi-reducer that emits too much": (
        lambda s: keep(topology_of(s).multi_reduce(s, s.project("line"), Emitting3(), "a: int")), 1,
        r"in step 'lines/multi_reduce': emitted 3 values \[1, 2, 3\] for the 1 output field \['a'\]",
    ),
    "a sum of what no sum can hold": (
        lambda s: keep(s.map(lambda row: 2**62, "n: bigint").aggregate("n", Sum(), "x")), 1,
        "in step 'lines/map/Sum:part': field 'x' is declared bigint, but got 9223372036854775808 ",
    ),
    "a kernel of a sum that has no answer": (
        lambda s: s.map(lambda row: 99, "n: int").persistent_aggregate(MemoryMapState(), "n", Sum(), "a: tinyint"), 1,
        "in step 'lines/map/Sum@a': field 'a' is declared tinyint, but got 198 ",
    ),
    "a combiner that raises": (
        lambda s: s.persistent_aggregate(MemoryMapState(), "line", Worse(), "a"), 1,
        r"in step 'lines/Worse@a' on tuple \[line='b'\]: ArithmeticError: cannot combine",
    ),
    "an updater that emits too much": (
        lambda s: s.partition_persist(RowsState(), Fat(), "a"), 1,
        r"in step 'lines/Fat@lines-persist': emitted 2 values \['a', 'b'\] for the 1 output field \['a'\]",
    ),
    "an updater that emits unasked": (
        lambda s: s.partition_persist(RowsState(), Keep()), 1,
        r"in step 'lines/Keep@lines-persist': emitted 2 values \('a', 1\) for the 0 output fields \[\]",
    ),
    "a query with too few results": (
        lambda s: s.state_query(counts(s), "line", Short(), "a"), 1,
        "in step 'lines/Short@count': batch_retrieve of Short returned 1 results for 2 tuples; it must return one ",
    ),
    "a query that raises": (
        lambda s: s.state_query(counts(s), "line", Broken(), "a"), 2, "in step 'lines/Broken@count': OSError: no answer",
    ),
    "a static state that is not there": (
        lambda s: keep(s.state_query(topology_of(s).new_static_state(Nowhere()), "line", Short(), "a")), 2,
        "in step 'lines/Short@static0': ConnectionError: nobody there",
    ),
    "a step after new values that raises": (
        lambda s: keep(counts(s).new_values_stream().filter("count", lambda count: 1 // 0)), 1,
        r"in step 'lines/Count@count/filter' on tuple \[count=1\]: ZeroDivisionError",
    ),
    "new values of another type": (
        lambda s: keep(s.persistent_aggregate(MemoryMapState(), "line", TextOfAll(), "a: int").new_values_stream()), 1,
        "in step 'lines/TextOfAll@a': field 'a' is declared int, but got ",
    ),
}  # fmt: skip


@pytest.mark.sample(24)
@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_cannot_pass_names_step_tuple_and_cause(case: str, engine: str, topology: TridentTopology) -> None:
    declare, attempts, text = WRONG[case]
    declare(lines(topology, "a", "b"))
    with pytest.raises(BatchFailedError, match=text) as caught:
        run_all(topology, engine, max_batch_attempts=2)
    assert (caught.value.txid, caught.value.attempts) == (1, attempts)


def test_a_long_tuple_is_cut_in_the_message(engine: str, topology: TridentTopology) -> None:
    keep(lines(topology, "x" * 10_000).each("line", lambda line: 1 // 0, "a: int"))
    with pytest.raises(BatchFailedError) as caught:
        run_all(topology, engine, max_batch_attempts=1)
    assert caught.value.row == "[line='" + "x" * 293 + "…"


class Emitting(OneSpout):
    """A spout and its emitter: one batch, given by a function."""

    fields = Fields("a: string, n: bigint")

    def __init__(self, emit: Callable[[], Any]) -> None:
        self.function = emit

    def emit(self, part: Any) -> Iterator[Any]:
        yield self.function()


@pytest.mark.parametrize(
    ("emit", "text"),
    [
        (
            lambda: pa.table({"a": ["x"], "m": [1]}),
            r"in step 's': emitted the columns \['a', 'm'\], but the fields are ",
        ),
        (lambda: pa.table({"a": ["x"], "n": ["y"]}), "in step 's': field 'n' is declared bigint, but got 'y' "),
        (lambda: 1 // 0, "in step 's': ZeroDivisionError"),
        (lambda: {"a": "x"}, "in step 's': AttributeError: 'dict' object"),
    ],
)
def test_a_spout_that_does_not_give_its_fields_is_named(
    emit: Callable[[], Any], text: str, engine: str, topology: TridentTopology
) -> None:
    keep(topology.new_stream("s", Emitting(emit)))
    with pytest.raises(BatchFailedError, match=text):
        run_all(topology, engine, max_batch_attempts=1)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("row", "text"),
    [
        (["x", 1, 2], r"\(a: string, n: bigint\): a row has 3 values, \('x', 1, 2\); give one value per field"),
        (["x"], r"a row has 1 values, \('x',\); give one value per field"),
        ("xy", "a row is a tuple or list with one value per field, not 'xy'"),
        ({"a": "x", "n": 1}, "a row is a tuple or list with one value per field, not {'a': 'x', 'n': 1}"),
        (5, "a row is a tuple or list with one value per field, not 5"),
    ],
)
def test_a_row_of_a_spout_without_a_value_per_field_is_refused(row: Any, text: str, topology: TridentTopology) -> None:
    keep(topology.new_stream("s", RowsSpout("a: string, n: bigint", {1: [row]})))
    with pytest.raises(BatchFailedError, match=text):
        run_all(topology, "in_process", max_batch_attempts=1)


def test_another_encoding_of_the_declared_types_is_taken(engine: str, topology: TridentTopology) -> None:
    def emit() -> pa.RecordBatch:
        columns: dict[str, Any] = {"a": pa.array(["x", "y"], pa.large_string()), "n": pa.array([1, None], pa.int16())}
        return pa.record_batch(columns)

    stream = topology.new_stream("s", Emitting(emit))
    rows = keep(stream)
    state = stream.group_by("a").persistent_aggregate(MemoryMapState(), "n", Sum(), "sum")
    running = run_all(topology, engine)
    assert rows.rows == [("x", 1), ("y", None)]
    assert running.state(state).multi_get(["x", "y"]) == [1, 0]


def test_a_function_that_cannot_be_pickled_is_named_at_the_start(engine: str, topology: TridentTopology) -> None:
    lock = threading.Lock()

    def guarded(line: str) -> str:
        with lock:
            return line

    keep(lines(topology, "a").each("line", guarded, "copy"))
    with pytest.raises(
        TopologyError,
        match=r"step 'lines/guarded': guarded cannot be sent to Spark workers \(TypeError: cannot pickle '_thread.lock' "
        r"object\). "
        r"It or something it closes over holds a lock, a connection or an open file: open such things in prepare",
    ):
        start(topology, engine)


def locked(thing: Any) -> Any:
    """Return it with something in it that cannot be sent anywhere."""
    vars(thing)["lock"] = threading.Lock()
    return thing


def test_what_else_cannot_be_pickled_is_named(engine: str, topology: TridentTopology) -> None:
    keep(topology.new_stream("s", locked(Emitting(dict))))
    with pytest.raises(TopologyError, match=r"the spout of stream 's' cannot be sent to Spark workers \(TypeError"):
        start(topology, engine)
    other = TridentTopology("u")
    lines(other, "a").persistent_aggregate(MemoryMapState(), locked(Count()), "count")
    with pytest.raises(TopologyError, match="step 'lines': Count cannot be sent to Spark workers"):
        start(other, engine)
    third = TridentTopology("v")
    asked = lines(third, "a").state_query(third.new_static_state(locked(Nowhere())), "line", Short(), "x")
    keep(asked)
    with pytest.raises(TopologyError, match="the topology cannot be sent to Spark workers: TypeError: cannot pickle"):
        start(third, engine)


def test_a_start_that_fails_closes_what_it_opened(engine: str, tmp_path: Path) -> None:
    topology, spout, lock = TridentTopology("t"), RowsSpout("x: string", {}), threading.Lock()
    stream = topology.new_stream("s", spout)
    stream.filter("x", lambda x: lock is not x).partition_persist(RowsState(), Keep(), "y: string")
    for _ in range(2):  # the log is free again
        with pytest.raises(TopologyError, match="step 's/filter': <lambda> cannot be sent to Spark workers"):
            start(topology, engine, log_dir=tmp_path)
    assert spout.calls == ["open", "close"] * 2


def poisonous(line: str) -> str:
    if line == "bad":
        raise ValueError(f"cannot read {line!r} ü")
    return line


def test_poisoned_tuples_are_put_aside_on_the_last_try(engine: str, topology: TridentTopology, tmp_path: Path) -> None:
    feeder = FeederBatchSpout("line: string")
    words = topology.new_stream("lines", feeder).each("line", poisonous, "word").group_by("word")
    state = words.persistent_aggregate(MemoryMapState(), Count(), "count")
    conf: dict[str, Any] = {
        "on_poison": "dead_letter",
        "dead_letter_dir": tmp_path / "letters",
        "max_batch_attempts": 2,
    }
    with start(topology, engine, **conf) as running:
        feeder.feed([["good"], ["bad"], ["bad"], ["fine"]])
        feeder.feed([["good"]])
        assert sorted(running.state(state).get_tuples()) == [("fine", 1), ("good", 2)]
        assert running.status["failures"] == 1
        assert running.log_state.totals["dead_letters"] == 2
    (file,) = (tmp_path / "letters").iterdir()
    letters = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    expected = {
        "txid": 1,
        "step": "lines/poisonous",
        "tuple": "[line='bad']",
        "error": "ValueError: cannot read 'bad' ü",
    }
    assert [{name: letter[name] for name in expected} for letter in letters] == [expected] * 2


def test_dead_letters_are_beside_the_log_by_default(topology: TridentTopology, tmp_path: Path) -> None:
    keep(lines(topology, "bad").each("line", poisonous, "word"))
    run_all(topology, "in_process", log_dir=tmp_path, on_poison="dead_letter")
    (file,) = (tmp_path / "dead_letters").iterdir()
    assert file.name.startswith("000000000001.")
    run_all(topology, "in_process", log_dir=tmp_path, on_poison="dead_letter")


def test_dead_letters_that_cannot_be_written_stop_the_topology(topology: TridentTopology, tmp_path: Path) -> None:
    rows = keep(lines(topology, "bad", "good").each("line", poisonous, "word").project("word"))
    (tmp_path / "file").write_text("in the way")
    conf: dict[str, Any] = {"on_poison": "dead_letter", "dead_letter_dir": tmp_path / "file"}
    running = start(topology, "in_process", **conf)
    with pytest.raises(
        LogError, match="cannot write 1 dead letters of batch 1 to .*make room or change dead_letter_dir"
    ):
        running.process_all_available()
    assert (running.txid, rows.rows) == (0, [("good",)])
