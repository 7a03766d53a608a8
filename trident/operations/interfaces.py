"""What users implement to process tuples. A plain function or generator is accepted wherever one method is enough.

Every operation may have `prepare(conf, context)`, called once in each process before its first tuple, and `cleanup()`,
called in the driver, and where a topology runs in process, when the topology ends. Spark keeps its workers for the next
topology and ends them by a signal, so there `cleanup` is called only if the topology makes room for others: leave nothing to
it that must happen. Operations are pickled to workers; connections belong into `prepare`.

An operation over Arrow arrays is called once for many tuples instead of once for each. It must treat every tuple by itself: how
many tuples it is given at once is not defined, and where it raises it is called again with halves of them, down to the tuples
that are to blame.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trident.counts import Counter
from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.tuples import TridentCollector, TridentTuple

T = TypeVar("T")
S = TypeVar("S")
PlainFunction = Callable[..., Any]


@dataclass(frozen=True)
class TridentOperationContext:
    """Where an operation runs, and its counters.

    Attributes
    ----------
    partition_index, num_partitions
        -1: an operation is prepared once in a process, and may see any partition of any batch there.
    operation
        The class of the operation, which names its counters.
    """

    partition_index: int = -1
    num_partitions: int = -1
    operation: str = ""

    def register_counter(self, name: str) -> Counter:
        """Return a counter. Its values are in `RunningTopology.recent_progress` and `status` as `operation/name`.

        Operations of the same class count together. Only the committed attempt of a batch counts: what failed attempts and
        lost tasks counted is dropped. The totals in `status` begin at 0 with every start.
        """
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"{name!r} cannot name a counter of {self.operation}; use a text without '/'")
        return Counter(f"{self.operation}/{name}")


class Operation:
    """Base of every operation: its life cycle, and the types of what it emits where the object knows them.

    Attributes
    ----------
    output_types
        DDL type of each output field (`("string",)`); None if the declaration in the topology has to say it.
    """

    output_types: Sequence[str] | None = None

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        """Called once per process, before the first tuple."""

    def cleanup(self) -> None:
        """Called when the topology ends normally; not after a crash, and in Spark's workers not reliably (see above)."""


class Function(Operation):
    """Per tuple, emits 0 … n value lists; each is appended to the tuple. No emit drops the tuple."""

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        """Process one tuple of the input fields."""
        raise NotImplementedError


class Filter(Operation):
    """Keeps or drops whole tuples."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Whether to keep the tuple."""
        raise NotImplementedError


class MapFunction(Operation):
    """One tuple in, exactly one value list out, which replaces the tuple."""

    def execute(self, tuple: TridentTuple) -> Any:
        """Return the new values: a tuple or list, or the bare value where there is one field."""
        raise NotImplementedError


class FlatMapFunction(Operation):
    """One tuple in, any number of value lists out, which replace the tuple."""

    def execute(self, tuple: TridentTuple) -> Iterable[Any]:
        """Return the new value lists."""
        raise NotImplementedError


class Consumer(Operation):
    """Sees every tuple and changes none."""

    def accept(self, tuple: TridentTuple) -> None:
        """Look at one tuple."""
        raise NotImplementedError


class CombinerAggregator(Operation, Generic[T]):
    """An aggregate that can be computed in parts: `combine` is associative and commutative, `zero` its identity.

    Different from Storm only in that the type must be known: `output_types`, a return hint of `combine`, or DDL in the
    output field.
    """

    def init(self, tuple: TridentTuple) -> T:
        """Return the aggregate of one tuple."""
        raise NotImplementedError

    def combine(self, val1: T, val2: T) -> T:
        """Return the aggregate of both parts. Must not change its arguments."""
        raise NotImplementedError

    def zero(self) -> T | None:
        """Return the identity of `combine`; None if there is none (the first value is then taken as it is)."""
        raise NotImplementedError


class ReducerAggregator(Operation, Generic[T]):
    """A fold over tuples, in the order in which they come (undefined across partitions)."""

    def init(self) -> T:
        """Return the value to start with."""
        raise NotImplementedError

    def reduce(self, curr: T, tuple: TridentTuple) -> T:
        """Return the value after one more tuple. Must not change `curr`."""
        raise NotImplementedError


class Aggregator(Operation, Generic[T]):
    """The most general aggregate: may emit at any time, any number of value lists."""

    def init(self, batch_id: Any, collector: TridentCollector) -> T:
        """Return the value to start with."""
        raise NotImplementedError

    def aggregate(self, val: T, tuple: TridentTuple, collector: TridentCollector) -> T:
        """Return the value after one more tuple."""
        raise NotImplementedError

    def complete(self, val: T, collector: TridentCollector) -> None:
        """All tuples of the batch partition were seen."""
        raise NotImplementedError


class BaseQueryFunction(Operation, Generic[S, T]):
    """Base of functions that look tuples up in a state, in bulk (see `trident.state.QueryFunction`)."""

    def batch_retrieve(self, state: S, args: Sequence[TridentTuple]) -> Sequence[T]:
        raise NotImplementedError

    def execute(self, tuple: TridentTuple, result: T, collector: TridentCollector) -> None:
        """Emit 0 … n value lists for one tuple and its result; each is appended to the tuple."""
        raise NotImplementedError


class BaseStateUpdater(Operation, Generic[S]):
    """Base of updaters for `partition_persist` (see `trident.state.StateUpdater`)."""

    def update_state(self, state: S, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        """Apply the tuples of one batch partition to the state."""
        raise NotImplementedError


BaseOperation = Operation
BaseFunction = Function
BaseFilter = Filter
BaseAggregator = Aggregator


class MultiReducer(Operation, Generic[T]):
    """Sees all tuples of several streams, batch by batch, also of an empty batch; may emit at any time.

    The tuples of the first stream come first, then the tuples of the second, and so on.
    """

    def init(self, collector: TridentCollector) -> T:
        """Return the value to start with."""
        raise NotImplementedError

    def execute(self, state: T, stream_index: int, input: TridentTuple, collector: TridentCollector) -> T | None:
        """Take one tuple; returns the value to go on with, None to go on with `state` itself."""
        raise NotImplementedError

    def complete(self, state: T, collector: TridentCollector) -> None:
        """All tuples of the batch were seen."""
        raise NotImplementedError


class GroupedMultiReducer(Operation, Generic[T]):
    """As `MultiReducer`, once for each key that occurs in any of the streams.

    `group` is the key as a tuple; what is emitted is the whole output, the key is not added to it.
    """

    def init(self, collector: TridentCollector, group: TridentTuple) -> T:
        """Return the value to start with."""
        raise NotImplementedError

    def execute(
        self, state: T, stream_index: int, group: TridentTuple, input: TridentTuple, collector: TridentCollector
    ) -> T | None:
        """Take one tuple; returns the value to go on with, None to go on with `state` itself."""
        raise NotImplementedError

    def complete(self, state: T, group: TridentTuple, collector: TridentCollector) -> None:
        """All tuples of the key were seen."""
        raise NotImplementedError


BaseMultiReducer = MultiReducer


def function_name(function: Any) -> str:
    """Return a function's name; for a callable object without one, its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


class ArrowFunction(Operation):
    """A function over Arrow arrays; subclass it where it needs `prepare`, else write a function with `arrow_function`.

    Attributes
    ----------
    output
        What it gives: names and types.
    flat
        False: one output row per input row, in order. True: any number.
    """

    output: Fields = Fields()
    flat: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def apply(self, *columns: Any) -> Any:
        """Process many tuples.

        Parameters
        ----------
        columns
            In `each` a `pyarrow.Array` per input field; in `map` and `flat_map` one `pyarrow.RecordBatch`.

        Returns
        -------
        An array, or for several fields a tuple of arrays, a struct array or a record batch. If `flat`: a list array with a
        list per tuple, or `(parents, columns)` where `parents` says for each output row which input row it comes from; in
        `flat_map` also plain columns of any length.
        """
        raise NotImplementedError


class ArrowFilter(Operation):
    """A filter over Arrow arrays; subclass it where it needs `prepare`, else write a function with `arrow_filter`."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def mask(self, *columns: Any) -> Any:
        """Return a boolean array with a value per tuple; false and null drop it.

        `columns` are arrays of the given fields; in `filter(predicate)`, without fields, one `pyarrow.RecordBatch`.
        """
        raise NotImplementedError


class _Decorated(Operation):
    """A decorated function, which may still be called as if it were not."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return function_name(self.function)

    def __call__(self, *columns: Any) -> Any:
        return self.function(*columns)


class _PlainArrowFunction(_Decorated, ArrowFunction):
    def __init__(self, function: Callable[..., Any], output: Fields, flat: bool) -> None:
        self.function, self.output, self.flat = function, output, flat

    apply = _Decorated.__call__


class _PlainArrowFilter(_Decorated, ArrowFilter):
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    mask = _Decorated.__call__


def arrow_function(output: FieldsLike, flat: bool = False) -> Callable[[Callable[..., Any]], ArrowFunction]:
    """Make a function over Arrow arrays an operation for `each`, `map` and `flat_map`.

    Parameters
    ----------
    output
        The fields that it gives, with types: `"length: int"`. The names may be changed where it is used.
    flat
        Whether it gives any number of rows per tuple; see `ArrowFunction.apply`.
    """
    fields = Fields(output) if not callable(output) else Fields()
    if not len(fields) or None in fields.types:
        raise TopologyError(
            f"arrow_function takes the fields that the function gives, each with its type, got {output!r}; "
            'write @arrow_function("length: int")'
        )
    return lambda function: _PlainArrowFunction(_check_function("arrow_function", function), fields, flat)


def arrow_filter(function: Callable[..., Any]) -> ArrowFilter:
    """Make a function that returns a boolean array a filter: `@arrow_filter`, without parentheses."""
    return _PlainArrowFilter(_check_function("arrow_filter", function))


def _check_function(decorator: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function) or isinstance(function, type):
        raise TopologyError(f"{decorator} decorates a function, got {function!r}")
    return function
