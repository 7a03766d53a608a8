"""Several aggregates of the same tuples as one: `{"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros")}`.

The value is a struct with a field for each aggregate, under its name. An aggregate that must remember more than its result,
as a mean its sum and its count, has fields of its own for that behind it: `mean_sum`, `mean_count`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from itertools import repeat
from operator import add, itemgetter, truediv
from typing import Any

from trident.errors import TopologyError
from trident.extras import needs_package
from trident.fields import Fields, is_nested, struct_type, unquote
from trident.graph import Aggregation
from trident.operations.builtin import Count, Min, Sum, at_least, sums
from trident.operations.interfaces import CombinerAggregator
from trident.roles import has
from trident.setting_types import Limit, check_arguments
from trident.tuples import TridentTuple
from trident.types import total_type

Values = Sequence[Any]


class WideAggregator(CombinerAggregator[Values]):
    """An aggregate whose value is several fields: the result, then what it remembers. Only for use among several.

    `init`, `combine` and `zero` give all of them, in order. `of`: the fields that it is given.
    """

    of: tuple[str, ...] = ()

    def combine_all(self, ones: Sequence[Values], others: Sequence[Values]) -> Sequence[Values]:
        """Combine many, each side a list for each field, as is what it returns."""
        combined = map(self.combine, zip(*ones, strict=True), zip(*others, strict=True))
        return list(zip(*combined, strict=True)) or ones

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        """Return the fields of its value, which is called `name`; `TypeError` says what it cannot take."""
        raise NotImplementedError


def _numeric(what: Any, inputs: Fields) -> str:
    total = total_type(inputs.types[0])
    if total is None:
        raise TypeError(f"{type(what).__name__} needs a number, but field {inputs.names[0]!r} is {inputs.types[0]}")
    return total


class Avg(WideAggregator):
    """The mean of one numeric field, nulls skipped; null if there is none.

    A double; of decimals a decimal with four more digits behind the point, rounded half to even. Its sum has the type that
    `Sum` gives, so the mean of whole numbers and of decimals does not depend on how a stream is cut into batches. A sum that
    is beyond that type is remembered less a multiple of 2^64, of decimals of its 38 digits: the mean and the count tell of
    which, so the mean stays exact for any number of values.
    """

    @check_arguments
    def __init__(self, field: str) -> None:
        self.of = (field,)
        self._digits: Decimal | None = None
        self._nothing: float = 0
        self._turn: Any = _TURN  # a sum beyond its type is remembered less a multiple of it

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        total = _numeric(self, inputs)
        mean, self._nothing = "double", 0.0 if total == "double" else 0
        if total.startswith("decimal"):
            digits = int(total[:-1].partition(",")[2])
            scale = min(38, digits + 4)
            mean, self._digits = f"decimal(38,{scale})", Decimal(1).scaleb(-scale)
            self._turn = Decimal(1).scaleb(38 - digits)
        return Fields.of([name, f"{name}_sum", f"{name}_count"], [mean, total, "bigint"])

    def init(self, tuple: TridentTuple) -> Values:
        return self.zero() if tuple[0] is None else self._with(tuple[0], 1)

    def combine(self, val1: Values, val2: Values) -> Values:
        return self._with(_SUM.combine(self._whole(*val1), self._whole(*val2)), val1[2] + val2[2])

    def combine_all(self, ones: Sequence[Values], others: Sequence[Values]) -> Sequence[Values]:
        totals, counts = sums(ones[1], others[1]), list(map(add, ones[2], others[2]))
        is_float = isinstance(self._nothing, float)
        if self._digits is None and 0 not in counts and (is_float or (_are_small(ones) and _are_small(others))):
            return [list(map(truediv, totals, counts)), totals, counts]
        return super().combine_all(ones, others)

    def zero(self) -> Values:
        return (None, self._nothing, 0)

    def _with(self, total: Any, count: int) -> Values:
        if not count:
            return self.zero()
        if self._digits is None:
            return (total / count, total if isinstance(total, float) else self._wrap_around(total), count)
        mean = _DIVIDING.divide(total, Decimal(count)) if total else Decimal(0)
        try:
            return (_DIGITS.quantize(mean, self._digits), self._wrap_around(total), count)
        except InvalidOperation:
            raise ValueError(
                f"Avg({self.of[0]!r}): the mean {mean:f} does not fit its 38 digits, of which {-self._digits.adjusted()} are "
                "behind the point; make the field a decimal with fewer digits behind the point before it"
            ) from None

    def _wrap_around(self, total: Any) -> Any:
        """Return a sum as it is remembered, within its type."""
        if -self._turn <= 2 * total < self._turn:
            return total
        return _SUM.combine(total, -self._turn * math.floor(Fraction(total) / Fraction(self._turn) + _HALF))

    def _whole(self, mean: Any, total: Any, count: int) -> Any:
        """Return the sum of a value whose sum may be beyond its type: near the mean as often as there are values."""
        if not count or isinstance(total, float):
            return total
        near = mean * count if self._digits is None else _DIVIDING.multiply(mean, count)
        if -self._turn < 4 * (near - total) < self._turn:
            return total
        apart = Fraction(mean) * count - Fraction(total)
        return _SUM.combine(total, self._turn * math.floor(apart / Fraction(self._turn) + _HALF))


def _are_small(values: Sequence[Values]) -> bool:
    """Whether sums of whole numbers, of means, sums and counts, are far from the bounds of 64 bits."""
    means, counts = [mean for mean in values[0] if mean is not None], values[2]
    return not means or max(max(means), -min(means)) * max(counts) < _TURN >> 2


_SUM, _TURN, _HALF = Sum(), 1 << 64, Fraction(1, 2)
_DIVIDING = Context(prec=80)  # more than the digits of a sum and of its mean
_DIGITS = Context(prec=38)


class StdDev(WideAggregator):
    """The standard deviation of a sample, over one numeric field, nulls skipped; null for fewer than two values.

    It remembers the count, the mean and the sum of squared differences, and adds parts as Chan, Golub and LeVeque do.
    """

    @check_arguments
    def __init__(self, field: str) -> None:
        self.of = (field,)

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        _numeric(self, inputs)
        names = [name, f"{name}_count", f"{name}_mean", f"{name}_squares"]
        return Fields.of(names, ["double", "bigint", "double", "double"])

    def init(self, tuple: TridentTuple) -> Values:
        return self.zero() if tuple[0] is None else (None, 1, float(tuple[0]), 0.0)

    def combine(self, val1: Values, val2: Values) -> Values:
        (_, count, mean, squares), (_, other, at, more) = val1, val2
        if not other or not count:
            return val1 if count else val2
        together, apart = count + other, at - mean
        mean += apart * other / together
        squares += more + apart * apart * count * other / together
        if not math.isfinite(mean + squares):  # else infinite or NaN by how the values were cut into batches
            return (math.nan, together, math.nan, math.nan)
        return (math.sqrt(squares / (together - 1)), together, mean, squares)

    def zero(self) -> Values:
        return (None, 0, 0.0, 0.0)


class ArgMax(WideAggregator):
    """The value of one field where another is greatest; of several such values the one that comes last.

    `ArgMax("item", by="price")`. Tuples in which `by` is null are skipped; a NaN is greater than any number.
    """

    @check_arguments
    def __init__(self, field: str, by: str) -> None:
        self.of = _distinct(field, by)

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        _refuse_nested(self, inputs, -1)
        return Fields.of([name, f"{name}_by"], [inputs.types[0], inputs.types[-1]])

    def init(self, tuple: TridentTuple) -> Values:
        value, by = tuple[0], tuple[-1]
        return self.zero() if by is None else (value, by)

    def combine(self, val1: Values, val2: Values) -> Values:
        if val1[1] is None or val2[1] is None:
            return val2 if val1[1] is None else val1
        return val2 if self._replaces(val1[1], val2[1]) else val1

    def zero(self) -> Values:
        return (None, None)

    def _replaces(self, before: Any, by: Any) -> bool:
        return at_least(by, before)


class ArgMin(ArgMax):
    """The value of one field where another is least; of several such values the one that comes first."""

    def _replaces(self, before: Any, by: Any) -> bool:
        return not at_least(by, before)


class CountDistinct(WideAggregator):
    """How many different values one field has, nulls skipped.

    It remembers every value, so its size grows with them: up to `most`, beyond which a batch fails. Count more of them with
    `CountDistinct(field, approximate=True)`, whose sketch (HyperLogLog, of the Apache library DataSketches, an extra:
    `trident-spark[sketches]`) has at most 2.1 kB and is off by 1.6 % in two of three cases; few values are counted exactly.
    """

    @check_arguments
    def __init__(self, field: str, approximate: bool = False, most: Limit = 10_000) -> None:
        self.of, self.approximate, self.most = (field,), approximate, most

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        _refuse_nested(self, inputs, 0)
        if self.approximate:
            _sketches()
        kept = "binary" if self.approximate else f"array<{inputs.types[0]}>"
        return Fields.of([name, f"{name}_{'sketch' if self.approximate else 'values'}"], ["bigint", kept])

    def init(self, tuple: TridentTuple) -> Values:
        if tuple[0] is None:
            return self.zero()
        if not self.approximate:
            return (1, [_canonical(tuple[0])])
        sketch = _sketches().hll_sketch(_LG_K)
        sketch.update(_sketch_form(tuple[0]))
        return (1, sketch.serialize_compact())

    def combine(self, val1: Values, val2: Values) -> Values:
        if not val1[0] or not val2[0]:
            return val1 if val1[0] else val2
        if self.approximate:
            library = _sketches()
            union = library.hll_union(_LG_K)
            for data in (val1[1], val2[1]):
                union.update(library.hll_sketch.deserialize(bytes(data)))
            sketch = union.get_result()
            return round(sketch.get_estimate()), sketch.serialize_compact()
        # One object for every NaN, which a set finds again.
        distinct = {math.nan if value != value else value for value in (*val1[1], *val2[1])}
        values = sorted(distinct, key=lambda value: _in_order((value,)))
        if len(values) > self.most:
            raise ValueError(
                f"CountDistinct({self.of[0]!r}) has met {len(values)} values of one key and remembers {self.most}; count them "
                "with approximate=True, or raise most="
            )
        return (len(values), values)

    def zero(self) -> Values:
        return (0, b"" if self.approximate else [])


_LG_K = 12


class TopN(WideAggregator):
    """The `n` greatest values of one field as an array, greatest first; equal ones as often as they come.

    Nulls are skipped; a NaN is greater than any number. `TopN(3, "item", by="price")`: the values of a field where another one
    is greatest, of equal ones the earlier.
    """

    @check_arguments
    def __init__(self, n: Limit, field: str, by: str | None = None) -> None:
        self.n, self.of = n, _distinct(field, field if by is None else by)

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        _refuse_nested(self, inputs, -1)
        names = [name] if len(inputs) == 1 else [name, f"{name}_by"]
        return Fields.of(names, [f"array<{type_}>" for type_ in inputs.types])

    def init(self, tuple: TridentTuple) -> Values:
        return self.zero() if tuple[-1] is None else [[value] for value in tuple]

    def combine(self, val1: Values, val2: Values) -> Values:
        columns = [[*one, *other] for one, other in zip(val1, val2, strict=True)]
        rows = sorted(zip(*columns, strict=True), key=_in_order, reverse=True)[: self.n]  # stable
        return [list(column) for column in zip(*rows, strict=True)] or self.zero()

    def zero(self) -> Values:
        return [[] for _ in self.of]


class Collect(WideAggregator):
    """The values of one field as an array, in the order in which they come, nulls skipped: the first `most` of them."""

    @check_arguments
    def __init__(self, field: str, most: Limit = 1_000) -> None:
        self.of, self.most = (field,), most

    def fields_of(self, name: str, inputs: Fields) -> Fields:
        return Fields.of([name], [f"array<{inputs.types[0]}>"])

    def init(self, tuple: TridentTuple) -> Values:
        return ([] if tuple[0] is None else [tuple[0]],)

    def combine(self, val1: Values, val2: Values) -> Values:
        return ([*val1[0], *val2[0][: max(0, self.most - len(val1[0]))]],)

    def zero(self) -> Values:
        return ([],)


def _in_order(row: tuple[Any, ...]) -> tuple[bool, Any]:
    is_nan = row[-1] != row[-1]
    return is_nan, 0 if is_nan else row[-1]


def _distinct(field: str, by: str) -> tuple[str, ...]:
    return (field,) if by == field else (field, by)


def _canonical(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value  # no -0.0


def _sketch_form(value: Any) -> str | int | float:
    """Return a value as a sketch takes it; of values that are equal always the same."""
    if isinstance(value, Decimal):
        return repr(_DIGITS.normalize(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return repr(value.astimezone(UTC))  # not as the zone that a release of Arrow gives it calls itself
    if isinstance(value, bool | bytes) or not isinstance(value, str | int | float):
        return repr(value)
    if value == "":  # which a sketch passes over; no text has the bytes of a NaN
        return math.nan
    return math.nan if value != value else _canonical(value)


def _refuse_nested(aggregator: WideAggregator, inputs: Fields, at: int) -> None:
    if is_nested(inputs.types[at]):
        raise TypeError(f"{type(aggregator).__name__} cannot compare {inputs.names[at]!r}, which is {inputs.types[at]}")


def _sketches() -> Any:
    with needs_package("CountDistinct(approximate=True)", "sketches"):
        import datasketches
    return datasketches


class Part(Aggregation):
    """One of several aggregates: what it is given, and its fields of the value."""

    @property
    def is_wide(self) -> bool:
        return isinstance(self.aggregator, WideAggregator)

    def combine_many(self, ones: Sequence[Values], others: Sequence[Values]) -> Sequence[Values]:
        """Combine many values of it, each side a list for each field."""
        if self.is_wide:
            wide: WideAggregator = self.aggregator
            return wide.combine_all(self._fill_beginnings(ones), self._fill_beginnings(others))
        combine, (one,), (other,) = self.aggregator.combine, ones, others
        if type(self.aggregator) in (Sum, Count) and None not in one and None not in other:
            return [sums(one, other)]
        if None not in one and None not in other:
            return [list(map(combine, one, other))]
        return [[b if a is None else a if b is None else combine(a, b) for a, b in zip(one, other, strict=True)]]

    def _fill_beginnings(self, values: Sequence[Values]) -> Sequence[Values]:
        """Return values of which none lacks what is remembered: a key that is older than the aggregate begins with nothing."""
        if None not in values[-1]:
            return values
        rows = (self.aggregator.zero() if row[-1] is None else row for row in zip(*values, strict=True))
        return list(zip(*rows, strict=True))


class MultiAggregate(CombinerAggregator[dict[str, Any]]):
    """Several aggregators as one, whose value is a dict with the fields of all."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)

    @property
    def name(self) -> str:
        shown = ((type(part.aggregator).__name__, ", ".join(part.inputs.names)) for part in self.parts)
        return ", ".join(f"{name}({of})" if of else name for name, of in shown)

    def init(self, tuple: TridentTuple) -> dict[str, Any]:
        return self._value_of_parts(
            part.aggregator.init(TridentTuple(part.inputs, (*(tuple[name] for name in part.inputs.names),)))
            for part in self.parts
        )

    def combine(self, val1: dict[str, Any], val2: dict[str, Any]) -> dict[str, Any]:
        """Combine each by itself; where one has no value yet, the other's is taken."""
        return self.combine_all([val1], [val2])[0]

    def combine_all(self, vals1: Sequence[dict[str, Any]], vals2: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Combine many, field by field, which takes a tenth of the time."""
        columns: list[Sequence[Any]] = []
        for part in self.parts:
            sides = [[list(map(itemgetter(name), values)) for name in part.outputs.names] for values in (vals1, vals2)]
            columns += part.combine_many(*sides)
        return structs([name for part in self.parts for name in part.outputs.names], columns)

    def zero(self) -> dict[str, Any]:
        return self._value_of_parts(part.aggregator.zero() for part in self.parts)

    def prepare(self, conf: Mapping[str, Any], context: Any) -> None:
        for part in self.parts:
            if has(part.aggregator, "prepare"):
                part.aggregator.prepare(conf, context)

    def cleanup(self) -> None:
        for part in self.parts:
            if has(part.aggregator, "cleanup"):
                part.aggregator.cleanup()

    def _value_of_parts(self, given: Any) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for part, one in zip(self.parts, given, strict=True):
            value.update(zip(part.outputs.names, one if part.is_wide else [one], strict=True))
        return value


def structs(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return values that are structs, of a column for each field."""
    return list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))


def several(aggregates: Mapping[str, Any], fields: Fields, stream: str, typed: Callable[..., Fields]) -> MultiAggregate:
    """Return aggregates by name as one, over the fields of a stream; `typed` returns the output field of an aggregator.

    Raises `TopologyError`: there is none, or one is no combiner, or does not fit its fields, or two have fields of one name.
    """
    if not aggregates:
        raise TopologyError(f"stream {stream!r}: no aggregate is named; give them by name, as in {_EXAMPLE}")
    parts = [_part(name, given, fields, stream, typed) for name, given in aggregates.items()]
    names = [name for part in parts for name in part.outputs.names]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise TopologyError(
                f"stream {stream!r}: two of the aggregates have a field {name!r} (an aggregate that remembers more than its "
                f"result has fields for it: {', '.join(names)}); give one of them another name"
            )
    return MultiAggregate(parts)


_EXAMPLE = '{"revenue": Sum("euros"), "orders": Count()}'


def _part(name: str, given: Any, fields: Fields, stream: str, typed: Callable[..., Fields]) -> Part:
    read, aggregator = (
        given if isinstance(given, tuple) and len(given) == 2 else (Fields.named(fields_read(given)), given)
    )
    inputs = fields.select(Fields(read).names, stream)
    refuse_other_fields(aggregator, inputs, stream)
    if isinstance(aggregator, (type, MultiAggregate)) or not has(aggregator, "combine"):
        raise TopologyError(
            f"stream {stream!r}: aggregate {name!r} is {aggregator!r}; several aggregates in one value are combiners, as in "
            f'{_EXAMPLE}, or fields and a combiner, as in {{{name!r}: ("town, at", Last(by="at"))}}'
        )
    if not isinstance(aggregator, WideAggregator):
        return Part(inputs, aggregator, typed(aggregator, inputs, Fields(name), stream))
    try:
        aggregator = copy(aggregator)  # it learns types of this stream
        return Part(inputs, aggregator, aggregator.fields_of(Fields(name).names[0], inputs))
    except TypeError as error:
        raise TopologyError(f"stream {stream!r}: aggregate {name!r}: {error}") from None


def fields_read(aggregator: Any) -> tuple[str, ...]:
    """Return the fields that an aggregator, or one of several, names itself; none if it names none."""
    if isinstance(aggregator, Mapping):
        read = [
            Fields(one[0]).names if isinstance(one, tuple) and one else fields_read(one) for one in aggregator.values()
        ]
        return tuple(dict.fromkeys(name for names in read for name in names))
    return tuple(map(unquote, aggregator.of)) if isinstance(aggregator, Sum | Min | WideAggregator) else ()


def refuse_other_fields(aggregator: Any, inputs: Fields, stream: str) -> None:
    """Refuse an aggregator that names its fields where it is given others, or the same in another order."""
    own = () if isinstance(aggregator, Mapping) else fields_read(aggregator)
    if own and own != inputs.names:
        raise TopologyError(
            f"stream {stream!r}: {type(aggregator).__name__} is given the fields ({', '.join(inputs.names)}), and names "
            f"({', '.join(own)}) itself; leave one of them out"
        )


def value_of(several: MultiAggregate, name: str) -> Fields:
    fields, types = zip(*(pair for part in several.parts for pair in part.outputs.pairs), strict=True)
    return Fields.of([name], [struct_type(fields, [type_ or "" for type_ in types])])


def result_fields(several: MultiAggregate) -> Fields:
    """Return the fields of the results, without what is remembered."""
    firsts = [part.outputs for part in several.parts]
    return Fields.of([one.names[0] for one in firsts], [one.types[0] for one in firsts])
