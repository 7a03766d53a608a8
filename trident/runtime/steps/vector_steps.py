"""Steps that work on Arrow arrays: vectorised functions and filters, and expressions.

Expressions computed over Arrow arrays; their types were checked when they were declared.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import arrow_type, schema_of
from trident.errors import FailedException
from trident.fields import Fields
from trident.graph import EachNode, FilterNode, MapNode, SelectNode
from trident.moment_columns import read_formatted, read_moments
from trident.operations.expression_types import type_of
from trident.operations.expressions import Expression, lit
from trident.operations.metrics import count_again, counting
from trident.operations.vectorised import ArrowFunction
from trident.planner import Step
from trident.runtime.steps.failures import StepFailed, TupleErrors, WrongResult, failure_of
from trident.runtime.steps.local_times import in_zone, to_utc, truncated
from trident.runtime.steps.rows import tuples_of
from trident.runtime.steps.vector_results import checked_times, flattened, mask_of, rows_of


def over_halves(
    step: str, table: pa.Table, fields: Fields, on_error: TupleErrors, call: Callable[[pa.RecordBatch], Any]
) -> Iterator[tuple[int, int, Any]]:
    """Call user code for many rows at once; if it raises, for halves of them, down to the rows that cause it.

    Gives for each piece its first row, its number of rows, and what the call returned; rows that are left out are missing.
    """
    start = 0
    for batch in _batches(table, fields):
        waiting = [(0, batch.num_rows)]
        while waiting:
            at, count = waiting.pop()
            rows = batch.slice(at, count)
            try:
                with counting() as counts:  # a call that raises counts nothing
                    result = call(rows)
            except StepFailed:
                raise
            except Exception as error:
                if isinstance(error, FailedException) or (isinstance(error, WrongResult) and not on_error.capture):
                    raise StepFailed(failure_of(step, error)) from error
                if count > 1:
                    waiting += [(at + count // 2, count - count // 2), (at, count // 2)]
                else:
                    row = next(tuples_of(pa.Table.from_batches([rows]), fields))
                    on_error(step, row, error, table, start + at)
            else:
                count_again(counts)
                yield start + at, count, result
        start += batch.num_rows


def _batches(table: pa.Table, fields: Fields) -> list[pa.RecordBatch]:
    """Return the rows as one batch, or as several if they have more than 2 GiB of text; none if there are no rows."""
    if not table.num_rows:
        return []
    if not len(fields):
        return [pa.RecordBatch.from_pydict({"_": pa.nulls(table.num_rows)})]
    batches: list[pa.RecordBatch] = table.select(list(fields.names)).combine_chunks().to_batches()
    return batches


def each_vectorised(step: str, node: EachNode, table: pa.Table, on_error: TupleErrors) -> tuple[Any, list[Any]]:
    """Run a vectorised function of `each`.

    Returns the parents of its rows (int64, one per row; None: one row per input row), and its columns.
    """
    function, name, outputs = node.function, _name(node.function), _declared(node.function, node.outputs)

    def call(rows: pa.RecordBatch) -> tuple[Any, list[Any]]:
        result = function.apply(*rows.columns)
        if function.flat:
            return flattened(step, name, outputs, result, rows.num_rows, on_error.bounds, parents_needed=True)
        return None, rows_of(step, name, outputs, result, rows.num_rows)

    pieces = list(over_halves(step, table, node.inputs, on_error, call))
    columns = _together(node.outputs, [columns for _, _, (_, columns) in pieces])
    if not function.flat and sum(count for _, count, _ in pieces) == table.num_rows:
        return None, columns
    parents = [np.arange(start, start + count) if own is None else own + start for start, count, (own, _) in pieces]
    return pa.array(np.concatenate([np.array([], np.int64), *parents])), columns


def map_vectorised(step: str, node: MapNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Run a vectorised function of `map` or `flat_map` over record batches."""
    function, name, outputs = node.function, _name(node.function), _declared(node.function, node.fields)

    def call(rows: pa.RecordBatch) -> list[Any]:
        result = function.apply(rows)
        if not node.flat:
            return rows_of(step, name, outputs, result, rows.num_rows)
        return flattened(step, name, outputs, result, rows.num_rows, on_error.bounds, parents_needed=False)[1]

    pieces = [columns for _, _, columns in over_halves(step, table, node.inputs, on_error, call)]
    return pa.table(_together(node.fields, pieces), schema=schema_of(node.fields))


def filter_vectorised(step: str, node: FilterNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Keep the rows for which a vectorised filter, or a condition, gives true."""

    def call(rows: pa.RecordBatch) -> Any:
        if isinstance(node.filter, Expression):
            return evaluate(node.filter, rows)
        mask = node.filter.mask(rows) if node.whole else node.filter.mask(*rows.columns)
        return mask_of(step, _name(node.filter), mask, rows.num_rows)

    pieces = over_halves(step, table, node.inputs, on_error, call)
    kept = [table.slice(start, count).filter(mask) for start, count, mask in pieces]
    return pa.concat_tables([table.slice(0, 0), *kept])


def select(step: Step, node: SelectNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Compute the columns that later steps need; an exploded one has a row per element."""
    wanted = node.needed(step.keep)
    fields = node.fields.select(list(wanted))
    exploded = next((name for name, expression in wanted.items() if expression.kind == "explode"), None)

    def call(rows: pa.RecordBatch) -> list[Any]:
        columns = {name: checked_times(name, evaluate(_unpacked(one), rows)) for name, one in wanted.items()}
        if exploded is None:
            return list(columns.values())
        parents, (elements,) = flattened(
            step.id,
            "explode",
            node.fields.select([exploded]),
            columns.pop(exploded),
            rows.num_rows,
            on_error.bounds,
            True,
        )
        at = pa.array(parents)
        return [elements if name == exploded else columns[name].take(at) for name in wanted]

    read = Fields.named(dict.fromkeys(name for expression in wanted.values() for name in expression.fields()))
    pieces = list(over_halves(step.id, table, read, on_error, call))
    if not wanted:
        return pa.table({"_": pa.nulls(table.num_rows)}).select([])
    together = _together(fields, [columns for _, _, columns in pieces])
    return pa.table(together, schema=schema_of(fields)).select(list(step.keep))


def _unpacked(expression: Expression) -> Expression:
    return expression.operands[0] if expression.kind == "explode" else expression


def _together(fields: Fields, pieces: list[list[Any]]) -> list[Any]:
    """The columns of all pieces, one after the other."""
    types = schema_of(fields).types
    return [pa.chunked_array([piece[at] for piece in pieces], type_) for at, type_ in enumerate(types)]


def _declared(function: ArrowFunction, outputs: Fields) -> Fields:
    """Return the outputs under the function's own names, which the columns of the batch that it returns have."""
    return Fields.of(function.output.names, outputs.types)


def _name(operation: Any) -> str:
    return str(operation.name)


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return the values of an expression, one per row.

    Raises `pyarrow.ArrowInvalid`: a row that has no result: an overflow, a division by zero, a cast that does not fit.
    """
    result = _value(expression, batch)
    return pa.repeat(result, batch.num_rows) if isinstance(result, pa.Scalar) else result


def _value(expression: Expression, batch: pa.RecordBatch) -> Any:
    if expression.kind == "col":
        return batch.column(expression.options[0])
    if expression.kind == "lit":
        (value,) = expression.options
        ddl = type_of(lit(value), Fields(), "")
        return pa.scalar(value, pa.null() if ddl == "void" else arrow_type(ddl))
    operands = [_value(operand, batch) for operand in expression.operands]
    return _KERNELS[expression.kind](operands, expression.options)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _widened(operands: Sequence[Any]) -> list[Any]:
    """Convert numbers of several types to the type of their result; leave other values as they are."""
    types = [operand.type for operand in operands if not pa.types.is_null(operand.type)]
    decimals = [one for one in types if pa.types.is_decimal(one)]
    if len(set(types)) < 2 or not all(_is_number(one) or one in decimals for one in types):
        return list(operands)
    if not decimals:
        return _as_numbers(operands)
    if any(map(pa.types.is_floating, types)):
        return [_cast(operand, pa.float64(), safe=False) for operand in operands]
    return [_cast(one, pa.decimal128(19, 0)) if pa.types.is_integer(one.type) else one for one in operands]


def _as_numbers(operands: Sequence[Any]) -> list[Any]:
    """Convert whole numbers to bigint, or all to double if one has a fraction; that rounds, as in Python."""
    whole = all(pa.types.is_integer(one.type) or pa.types.is_null(one.type) for one in operands)
    return [_cast(operand, pa.int64() if whole else pa.float64(), safe=False) for operand in operands]


def _cast(value: Any, type_: pa.DataType, safe: bool = True) -> Any:
    if value.type == type_:
        return value
    if pa.types.is_temporal(type_) and pa.types.is_string(value.type):
        return _of_texts(value, lambda texts: read_moments(texts, type_, "cast"))
    if pa.types.is_date(type_):
        value = _without_zone(value)
    if pa.types.is_decimal(type_) and pa.types.is_integer(value.type):  # Arrow would need digits for every whole number
        value = pc.cast(value, pa.decimal128(19, 0))
    return pc.cast(value, type_, safe=safe)


Operands = list[Any]
Options = tuple[Any, ...]
Kernel = Callable[[Operands, Options], Any]


def _arithmetic(function: str) -> Kernel:
    def kernel(operands: Operands, options: Options) -> Any:
        if any(pa.types.is_decimal(operand.type) for operand in operands):
            return getattr(pc, function)(*_widened(operands))
        return getattr(pc, function)(*_as_numbers(operands))

    return kernel


def _remainder(operands: Operands, options: Options) -> Any:
    """The rest that has the sign of the dividend."""
    left, right = (
        _widened(operands) if any(pa.types.is_decimal(one.type) for one in operands) else _as_numbers(operands)
    )
    times = pc.divide_checked(left, right)
    whole = pc.trunc(times) if not pa.types.is_integer(times.type) else times
    return pc.subtract_checked(left, pc.multiply_checked(whole, right))


def _isin(operands: Operands, options: Options) -> Any:
    (value,) = operands
    wanted = [one for one in (_scalar_of(option, value.type) for option in options) if one is not None]
    found = pc.is_in(value, value_set=pa.array([one.as_py() for one in wanted], value.type))
    return pc.if_else(pc.is_valid(value), found, None)


def _scalar_of(value: Any, type_: pa.DataType) -> pa.Scalar | None:
    """Return a value as one of a type; None if there is no equal one."""
    if pa.types.is_decimal(type_) and isinstance(value, float):
        value = Decimal(repr(value))
    try:
        made = pa.scalar(value, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    return made if made.as_py() == value else None


def _round(operands: Operands, options: Options) -> Any:
    return pc.round(operands[0], options[0], round_mode="half_towards_infinity").cast(operands[0].type)


def _to_whole(function: str) -> Kernel:
    return lambda operands, options: getattr(pc, function)(operands[0]).cast(pa.int64())


def _date_part(operands: Operands, options: Options) -> Any:
    value, (part,) = _without_zone(operands[0]), options
    if part == "day_of_week":
        return pc.add(pc.day_of_week(value, week_start=7), 1).cast(pa.int32())
    return getattr(pc, "iso_week" if part == "week" else part)(value).cast(pa.int32())


def _date_trunc(operands: Operands, options: Options) -> Any:
    (value,), (unit, zone) = operands, options
    if zone is not None:
        return truncated(value, unit, zone)
    return pc.floor_temporal(_without_zone(value), unit=unit, week_starts_monday=True).cast(value.type)


def _without_zone(value: Any) -> Any:
    """Return moments as what clocks show in UTC: else Arrow asks for a zone database of the machine, which may have none."""
    return value.cast(pa.timestamp("us")) if pa.types.is_timestamp(value.type) else value


def _formatted(call: str, ddl: str) -> Kernel:
    """Read texts in a format; without an offset in it they are in UTC."""

    def kernel(operands: Operands, options: Options) -> Any:
        zone = "UTC" if "%z" in options[0] else None
        as_ = pa.timestamp("us", zone)
        return _of_texts(operands[0], lambda texts: read_formatted(texts, options, as_, call).cast(arrow_type(ddl)))

    return kernel


def _of_texts(value: Any, read: Callable[[Any], Any]) -> Any:
    return read(pa.array([value.as_py()], pa.string()))[0] if isinstance(value, pa.Scalar) else read(value)


def _regexp_extract(operands: Operands, options: Options) -> Any:
    (text,), (pattern, group) = operands, options
    found = pc.struct_field(pc.extract_regex(text, f"(?P<whole>{_named_groups(pattern)})"), [group])
    return pc.if_else(pc.is_valid(text), pc.fill_null(found, ""), None)


def _named_groups(pattern: str) -> str:
    """Return a regular expression with a name for each of its groups, which Arrow asks for."""
    numbers = itertools.count(1)

    def named(part: re.Match[str]) -> str:
        return f"(?P<group{next(numbers)}>" if part[0] == "(" else part[0]

    return _GROUPS.sub(named, pattern)


_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|\(", re.DOTALL)
"""What is escaped, a class of characters, and both kinds of parentheses that open."""


def _json(operands: Operands, options: Options) -> Any:
    return pa.array([_at_path(text, options) for text in operands[0].to_pylist()], pa.string())


def _at_path(text: str | None, path: Options) -> str | None:
    try:
        value = None if text is None else json.loads(text)
        for step in path:
            value = value[step] if isinstance(value, dict if isinstance(step, str) else list) else None
    except (ValueError, KeyError, IndexError):
        return None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _divide(operands: Operands, options: Options) -> Any:
    left, right = (_cast(operand, pa.float64(), safe=False) for operand in operands)
    return pc.divide_checked(left, right)


def _compare(function: str) -> Kernel:
    return lambda operands, options: getattr(pc, function)(*_widened(operands))


def _substring(operands: Operands, options: Options) -> Any:
    start, length = options
    return pc.utf8_slice_codeunits(operands[0], start, None if length is None else start + length)


def _if_else(operands: Operands, options: Options) -> Any:
    condition, *values = operands
    return pc.if_else(pc.fill_null(condition, False), *_widened(values))


_KERNELS: dict[str, Kernel] = {
    "+": _arithmetic("add_checked"),
    "-": _arithmetic("subtract_checked"),
    "*": _arithmetic("multiply_checked"),
    "/": _divide,
    "%": _remainder,
    "negate": _arithmetic("negate_checked"),
    "abs": lambda operands, options: pc.abs_checked(operands[0]),
    "round": _round,
    "floor": _to_whole("floor"),
    "ceil": _to_whole("ceil"),
    "isin": _isin,
    "date_part": _date_part,
    "date_trunc": _date_trunc,
    "in_zone": lambda operands, options: in_zone(operands[0], options[0], pa.timestamp("us")),
    "from_utc_timestamp": lambda operands, options: in_zone(operands[0], options[0], operands[0].type),
    "to_utc_timestamp": lambda operands, options: to_utc(operands[0], options[0]),
    "to_date": _formatted("to_date", "date"),
    "to_timestamp": _formatted("to_timestamp", "timestamp"),
    "like": lambda operands, options: pc.match_like(operands[0], options[0]),
    "rlike": lambda operands, options: pc.match_substring_regex(operands[0], options[0]),
    "regexp_extract": _regexp_extract,
    "regexp_replace": lambda operands, options: pc.replace_substring_regex(operands[0], *options),
    "replace": lambda operands, options: pc.replace_substring(operands[0], *options),
    "json": _json,
    "concat": lambda operands, options: pc.binary_join_element_wise(*operands, "", null_handling="emit_null"),
    "greatest": lambda operands, options: pc.max_element_wise(*_widened(operands)),
    "least": lambda operands, options: pc.min_element_wise(*_widened(operands)),
    "==": _compare("equal"),
    "!=": _compare("not_equal"),
    "<": _compare("less"),
    "<=": _compare("less_equal"),
    ">": _compare("greater"),
    ">=": _compare("greater_equal"),
    "&": lambda operands, options: pc.and_kleene(*operands),
    "|": lambda operands, options: pc.or_kleene(*operands),
    "not": lambda operands, options: pc.invert(operands[0]),
    "is_null": lambda operands, options: pc.is_null(operands[0]),
    "is_not_null": lambda operands, options: pc.is_valid(operands[0]),
    "cast": lambda operands, options: _cast(operands[0], arrow_type(options[0])),
    "upper": lambda operands, options: pc.utf8_upper(operands[0]),
    "lower": lambda operands, options: pc.utf8_lower(operands[0]),
    "trim": lambda operands, options: pc.utf8_trim_whitespace(operands[0]),
    "length": lambda operands, options: _cast(pc.utf8_length(operands[0]), pa.int64()),
    "contains": lambda operands, options: pc.match_substring(operands[0], options[0]),
    "starts_with": lambda operands, options: pc.starts_with(operands[0], options[0]),
    "ends_with": lambda operands, options: pc.ends_with(operands[0], options[0]),
    "substring": _substring,
    "field": lambda operands, options: pc.struct_field(operands[0], [options[0]]),
    "split": lambda operands, options: pc.split_pattern(operands[0], options[0]),
    "coalesce": lambda operands, options: pc.coalesce(*_widened(operands)),
    "if_else": _if_else,
}
