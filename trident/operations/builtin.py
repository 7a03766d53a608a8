"""The built-in operations. Most also have an Arrow kernel that gives equal results, in `trident.steps`."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from operator import add
from typing import Any

from trident.fields import unquote
from trident.operations.interfaces import (
    Aggregator,
    BaseQueryFunction,
    CombinerAggregator,
    Filter,
    Function,
    TridentOperationContext,
)
from trident.roles import has
from trident.setting_types import check_arguments
from trident.tuples import TridentCollector, TridentTuple

logger = logging.getLogger(__name__)

Comparator = Callable[[Any, Any], int]
Kept = tuple[Any, TridentTuple] | None

# Python's default context rounds to 28 digits; a decimal has up to 38.
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


class Split(Function):
    """Splits a text into words at single separators; empty words are dropped, None gives no word.

    Parameters
    ----------
    separator
        One or more characters, one space by default. `each("line", Split(), "word")`.
    """

    output_types = ("string",)

    @check_arguments
    def __init__(self, separator: str = " ") -> None:
        if not separator:
            raise ValueError("Split needs a separator of at least one character")
        self.separator = separator

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        for word in (tuple[0] or "").split(self.separator):
            if word:
                collector.emit([word])


class FilterNull(Filter):
    """Drops tuples in which any of the input fields is None."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        return all(value is not None for value in tuple)


class Debug(Filter):
    """Logs every tuple (INFO, logger `trident.operations.builtin`) and keeps it.

    Parameters
    ----------
    name
        Written before each tuple.
    """

    def __init__(self, name: str = "DEBUG") -> None:
        self.name = name

    def is_keep(self, tuple: TridentTuple) -> bool:
        logger.info("%s: %r", self.name, tuple)
        return True


class Count(CombinerAggregator[int]):
    """The number of tuples (bigint)."""

    output_types = ("bigint",)

    def init(self, tuple: TridentTuple) -> int:
        return 1

    def combine(self, val1: int, val2: int) -> int:
        return val1 + val2

    def zero(self) -> int:
        return 0


class Sum(CombinerAggregator[Any]):
    """The sum of one numeric field: bigint for whole numbers, double for floating point, decimal for decimals.

    A batch after which the sum of a key does not fit the declared type fails. Declare the output `double` or a wide `decimal`
    where sums may become large.

    Different from Storm: None counts as nothing (Storm fails on it), and float is not cut to whole numbers.

    Parameters
    ----------
    field
        The field to sum, if it is not named before the aggregator: `Sum("euros")` is `"euros", Sum()`.
    """

    @check_arguments
    def __init__(self, field: str | None = None) -> None:
        self.of = () if field is None else (field,)

    def init(self, tuple: TridentTuple) -> Any:
        return 0 if tuple[0] is None else tuple[0]

    def combine(self, val1: Any, val2: Any) -> Any:
        """Add; a decimal and a float give a float."""
        if not isinstance(val1, Decimal) and not isinstance(val2, Decimal):
            return val1 + val2
        if isinstance(val1, float) or isinstance(val2, float):
            return float(val1) + float(val2)
        return _EXACT.add(val1, val2)

    def zero(self) -> int:
        return 0


_SUM, _PLAIN = Sum(), frozenset({int, float})


def sums(ones: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Add many as `Sum` and `Count` do; plain numbers without a call of Python's for each."""
    are_plain = _PLAIN.issuperset(map(type, ones)) and _PLAIN.issuperset(map(type, others))
    return list(map(add if are_plain else _SUM.combine, ones, others))


class Min(CombinerAggregator[Any]):
    """The smallest value of one field, None skipped; a NaN is greater than any number. `field`: as for `Sum`."""

    @check_arguments
    def __init__(self, field: str | None = None) -> None:
        self.of = () if field is None else (field,)

    def init(self, tuple: TridentTuple) -> Any:
        return tuple[0]

    def combine(self, val1: Any, val2: Any) -> Any:
        if val1 is None or val2 is None:
            return val2 if val1 is None else val1
        return val1 if at_least(val2, val1) else val2

    def zero(self) -> None:
        """There is none."""


class Max(Min):
    """The largest value of one field, None skipped; a NaN is greater than any number."""

    def combine(self, val1: Any, val2: Any) -> Any:
        if val1 is None or val2 is None:
            return val2 if val1 is None else val1
        return val1 if at_least(val1, val2) else val2


def at_least(one: Any, other: Any) -> bool:
    """Whether a value is the other one or greater, as Spark orders them: a NaN is greater than any number."""
    return bool(one >= other or one != one)  # only a NaN differs from itself


class Last(CombinerAggregator[Any]):
    """The last value of one field, None skipped; of several fields or with `by`, the last tuple as a struct of the fields.

    `persistent_aggregate(state, "town", Last(), "town")` keeps the newest town of each key,
    `persistent_aggregate(state, "town, at", Last(by="at"), "latest")` the one with the greatest `at`.

    Parameters
    ----------
    by
        One of the input fields: the tuple with the greatest value in it is the last; of equal ones the one that comes last.
        Tuples in which it is None or NaN are skipped. Without it the order is that in which tuples come: batch by batch,
        in a batch part by part, in a part as the spout gives them. A batch's parts (the partitions of a source) have no
        order of their own, so give `by` where one key may be in several.
    """

    def __init__(self, by: str | None = None) -> None:
        if by is not None and (not isinstance(by, str) or not by):
            raise TypeError(f"{type(self).__name__}(by={by!r}): by is the name of one of the input fields")
        self.by = by and unquote(by)

    def init(self, tuple: TridentTuple) -> Any:
        """Return the value, or the fields as a dict; None where the tuple is skipped."""
        if self.by is None:
            return tuple[0] if len(tuple) == 1 else dict(zip(tuple.fields, tuple, strict=True))
        at = tuple[self.by]
        return None if at is None or at != at else dict(zip(tuple.fields, tuple, strict=True))

    def combine(self, val1: Any, val2: Any) -> Any:
        """Return the later one; `val1` came before `val2`."""
        if val1 is None or val2 is None:
            return val2 if val1 is None else val1
        return val2 if self.by is None or val2[self.by] >= val1[self.by] else val1

    def zero(self) -> None:
        """There is none."""


class First(Last):
    """The first value of one field; as `Last`, but the least value of `by`, and of equal ones the one that comes first."""

    def combine(self, val1: Any, val2: Any) -> Any:
        """Return the earlier one; `val1` came before `val2`."""
        if val1 is None or val2 is None:
            return val2 if val1 is None else val1
        return val1 if self.by is None or val1[self.by] <= val2[self.by] else val2


class MinWithComparator(Aggregator[Kept]):
    """Emits the least tuple by a comparator, nothing where there is none; of equal ones the last, as in Storm.

    A null of the compared field is skipped.

    Parameters
    ----------
    comparator
        `comparator(a, b)` is negative, zero or positive, as `a` is less than, equal to or greater than `b`.
    field
        The field whose values it compares; None: it compares whole tuples.
    """

    def __init__(self, comparator: Comparator, field: str | None = None) -> None:
        if not callable(comparator):
            raise TypeError(
                f"{type(self).__name__} takes a function of two values that returns a number; got {comparator!r}"
            )
        self.comparator, self.field = comparator, field

    def init(self, batch_id: Any, collector: TridentCollector) -> Kept:
        return None

    def aggregate(self, val: Kept, tuple: TridentTuple, collector: TridentCollector) -> Kept:
        """Return the tuple to keep, and its value."""
        value = tuple if self.field is None else tuple[self.field]
        if value is None:
            return val
        return (value, tuple) if val is None or self._replaces(value, val[0]) else val

    def complete(self, val: Kept, collector: TridentCollector) -> None:
        if val is not None:
            collector.emit(val[1].values)

    def _replaces(self, value: Any, current: Any) -> bool:
        return self.comparator(value, current) <= 0


class MaxWithComparator(MinWithComparator):
    """Emits the greatest tuple by a comparator, nothing where there is none; parameters as for `MinWithComparator`."""

    def _replaces(self, value: Any, current: Any) -> bool:
        return self.comparator(value, current) >= 0


class MinBy(MinWithComparator):
    """Emits the tuple with the least value of a field. A NaN is greater than any number."""

    def __init__(self, field: str) -> None:
        self.field = field

    def _replaces(self, value: Any, current: Any) -> bool:
        return at_least(current, value)


class MaxBy(MinBy):
    """Emits the tuple with the greatest value of a field. A NaN is greater than any number."""

    def _replaces(self, value: Any, current: Any) -> bool:
        return at_least(value, current)


class MapGet(BaseQueryFunction[Any, Any]):
    """Looks the input fields up as a key of a map state; emits the value, None where the key is absent."""

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        """Read all keys at once, each distinct key once."""
        keys = [tuple_.values for tuple_ in args]
        distinct = list(dict.fromkeys(keys))
        values = dict(zip(distinct, state.multi_get(distinct), strict=True))
        return [values[key] for key in keys]

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        collector.emit([result])


class SnapshotGet(BaseQueryFunction[Any, Any]):
    """Reads a single-valued state once per batch; emits the value for every tuple."""

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        return [state.get()] * len(args)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        collector.emit([result])


class TupleCollectionGet(BaseQueryFunction[Any, Any]):
    """Lists a state: emits one tuple per row (the fields of the key, then the value) for every tuple.

    The rows are read once per batch. A store that cannot list its keys raises `UnsupportedOperation`.
    """

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        return [list(state.get_tuples())] * len(args)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        for row in result:
            collector.emit(list(row))


class Equals(Filter):
    """Keeps tuples whose input fields are all equal: `each(["a", "b"], Equals())`.

    Different from Storm: two nulls are equal (Storm fails on them), and whole numbers of any width compare by value.
    """

    def is_keep(self, tuple: TridentTuple) -> bool:
        return all(value == tuple[0] for value in tuple)


class Negate(Filter):
    """Keeps what another filter drops: `each("word", Negate(FilterNull()))`."""

    def __init__(self, filter: Filter) -> None:
        if not has(filter, "is_keep") or isinstance(filter, type):
            raise TypeError(f"Negate takes a filter, an object with is_keep; got {filter!r}")
        self.filter = filter

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        if has(self.filter, "prepare"):
            self.filter.prepare(conf, context)

    def cleanup(self) -> None:
        if has(self.filter, "cleanup"):
            self.filter.cleanup()

    def is_keep(self, tuple: TridentTuple) -> bool:
        return not self.filter.is_keep(tuple)


class StringLength(Function):
    """The number of characters of a text.

    Different from Storm: null gives null (Storm fails on it), and characters beyond U+FFFF count once, not twice.
    """

    output_types = ("int",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([None if tuple[0] is None else len(tuple[0])])


class TrueFilter(Filter):
    """Keeps every tuple."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        return True


class TuplifyArgs(Function):
    """Reads a text as JSON, a list of lists, and emits each of them: `[["a", 1], ["b", 2]]`.

    The output fields declare the types: `each("args", TuplifyArgs(), "word: string, n: int")`.
    """

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        lists: Any = json.loads(tuple[0])
        if not isinstance(lists, list) or not all(isinstance(values, list) for values in lists):
            raise ValueError(f"{tuple[0]!r} is not a JSON list of lists")
        for values in lists:
            collector.emit(values)


class CountAsAggregator(Aggregator[int]):
    """`Count` as an `Aggregator`: emits the number of tuples, 0 for an empty batch."""

    output_types = ("bigint",)

    def init(self, batch_id: Any, collector: TridentCollector) -> int:
        return 0

    def aggregate(self, val: int, tuple: TridentTuple, collector: TridentCollector) -> int:
        return val + 1

    def complete(self, val: int, collector: TridentCollector) -> None:
        collector.emit([val])
