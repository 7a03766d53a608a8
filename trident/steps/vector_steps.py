"""Steps that work on Arrow arrays: vectorised functions and filters, and expressions."""

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.alignment import read_formatted
from trident.arrow import arrow_type, rows_without_columns, schema_of
from trident.counts import count_again, counting
from trident.errors import FailedException
from trident.fields import Fields
from trident.graph import EachNode, FilterNode, MapNode, SelectNode
from trident.operations.expression_types import EXACT, type_of
from trident.operations.expressions import Expression, lit
from trident.operations.interfaces import ArrowFunction
from trident.plan import Step
from trident.steps import kernels
from trident.steps.failures import StepFailed, TupleErrors, WrongResult, failure_of
from trident.steps.local_times import in_zone, to_utc, truncate_to
from trident.steps.rows import tuples_of
from trident.steps.vector_results import check_possible, mask_of, parents_and_columns, rows_of


def over_halves(
    step: str, table: pa.Table, fields: Fields, on_error: TupleErrors, call: Callable[[pa.RecordBatch], Any]
) -> Iterator[tuple[int, int, Any]]:
    """Call user code for many rows at once; if it raises, for halves of them, down to the rows that cause it."""
    # Of each piece its first row, its number of rows, and what the call returned; rows that are left out are missing.
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
                    on_error(step, next(tuples_of(pa.Table.from_batches([rows]), fields)), error, table, start + at)
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
    """Run a vectorised function of `each`; return the parents of its rows (None: one row per input row), and its columns."""
    function, name, outputs = node.function, str(node.function.name), _function_outputs(node.function, node.outputs)

    def call(rows: pa.RecordBatch) -> tuple[Any, list[Any]]:
        result = function.apply(*rows.columns)
        if function.flat:
            return parents_and_columns(name, outputs, result, rows.num_rows, on_error.bounds, parents_needed=True)
        return None, rows_of(name, outputs, result, rows.num_rows)

    pieces = list(over_halves(step, table, node.inputs, on_error, call))
    columns = _together(node.outputs, [columns for _, _, (_, columns) in pieces])
    if not function.flat and sum(count for _, count, _ in pieces) == table.num_rows:
        return None, columns
    parents = [np.arange(start, start + count) if own is None else own + start for start, count, (own, _) in pieces]
    return pa.array(np.concatenate([np.array([], np.int64), *parents])), columns


def map_vectorised(step: str, node: MapNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    function, name, outputs = node.function, str(node.function.name), _function_outputs(node.function, node.fields)

    def call(rows: pa.RecordBatch) -> list[Any]:
        result = function.apply(rows)
        if not node.flat:
            return rows_of(name, outputs, result, rows.num_rows)
        return parents_and_columns(name, outputs, result, rows.num_rows, on_error.bounds, parents_needed=False)[1]

    pieces = [columns for _, _, columns in over_halves(step, table, node.inputs, on_error, call)]
    return pa.table(_together(node.fields, pieces), schema=schema_of(node.fields))


def filter_vectorised(step: str, node: FilterNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    def call(rows: pa.RecordBatch) -> Any:
        if isinstance(node.filter, Expression):
            return evaluate(node.filter, rows)
        mask = node.filter.mask(rows) if node.whole else node.filter.mask(*rows.columns)
        return mask_of(str(node.filter.name), mask, rows.num_rows)

    pieces = over_halves(step, table, node.inputs, on_error, call)
    kept = [table.slice(start, count).filter(mask) for start, count, mask in pieces]
    return pa.concat_tables([table.slice(0, 0), *kept])


def select(step: Step, node: SelectNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Compute the columns that later steps need; an exploded one has a row per element."""
    wanted = node.expressions_for(step.keep)
    fields = node.fields.select(list(wanted))
    exploded = next((name for name, expression in wanted.items() if expression.kind == "explode"), None)

    def call(rows: pa.RecordBatch) -> list[Any]:
        columns = {
            name: check_possible(name, evaluate(one.operands[0] if one.kind == "explode" else one, rows))
            for name, one in wanted.items()
        }
        if exploded is None:
            return list(columns.values())
        own, count = node.fields.select([exploded]), rows.num_rows
        parents, (elements,) = parents_and_columns("explode", own, columns.pop(exploded), count, on_error.bounds, True)
        at = pa.array(parents)
        return [elements if name == exploded else columns[name].take(at) for name in wanted]

    read = Fields.named(dict.fromkeys(name for expression in wanted.values() for name in expression.fields()))
    pieces = list(over_halves(step.id, table, read, on_error, call))
    if not wanted:
        return rows_without_columns(table.num_rows)
    together = _together(fields, [columns for _, _, columns in pieces])
    return pa.table(together, schema=schema_of(fields)).select(list(step.keep))


def _together(fields: Fields, pieces: list[list[Any]]) -> list[Any]:
    types = schema_of(fields).types
    return [pa.chunked_array([piece[at] for piece in pieces], type_) for at, type_ in enumerate(types)]


def _function_outputs(function: ArrowFunction, outputs: Fields) -> Fields:
    """Return the outputs under the function's own names, which the columns of the batch that it returns have."""
    return Fields.of(function.output.names, outputs.types)


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return the values of an expression, one per row; `pyarrow.ArrowInvalid`: one has no result."""
    try:
        result = _value(expression, batch)
    except pa.ArrowInvalid:
        result = _value(expression, batch, lazily=True)
    return pa.repeat(result, batch.num_rows) if isinstance(result, pa.Scalar) else result


def _value(expression: Expression, batch: pa.RecordBatch, lazily: bool = False) -> Any:
    if expression.kind == "col":
        return batch.column(expression.options[0])
    if expression.kind == "lit":
        (value,) = expression.options
        ddl = type_of(lit(value), Fields(), "")
        made = pa.scalar(value, pa.null() if ddl == "void" else arrow_type(ddl))
        return made if batch.num_rows else pa.repeat(made, 0)  # for no rows nothing fails
    if lazily and len(expression.operands) > 1:
        operands = _operands_where_needed(expression, batch)
    else:
        operands = [_value(operand, batch, lazily) for operand in expression.operands]
    operands = _exact(expression, operands)
    kernel = _KERNELS[expression.kind]
    if any(not isinstance(operand, pa.Scalar) for operand in operands):
        return kernel(*operands, *expression.options)
    return kernel(*(pa.repeat(operand, 1) for operand in operands), *expression.options)[0]


def _operands_where_needed(expression: Expression, batch: pa.RecordBatch) -> list[Any]:
    """Compute operands for those rows only that need them, so that `if(n = 0, 0, 6 / n)` divides by no zero."""
    needs = _NEEDED.get(expression.kind)
    first, *others = expression.operands[:: -1 if expression.kind in ("/", "%") else 1]  # a divisor comes first
    values = [evaluate(first, batch)]
    for operand in others:
        rows = pc.is_valid(values[0]) if needs is None else needs(values)
        found = evaluate(operand, batch.filter(rows))
        values.append(pc.replace_with_mask(pa.nulls(batch.num_rows, found.type), rows, found))
    return values[:: -1 if expression.kind in ("/", "%") else 1]


_NEEDED: dict[str, Callable[[list[Any]], Any]] = {
    "&": lambda values: pc.fill_null(values[0], True),
    "|": lambda values: pc.invert(pc.fill_null(values[0], False)),
    "if_else": lambda values: pc.equal(pc.fill_null(values[0], False), len(values) == 1),
    "coalesce": lambda values: pc.is_null(pc.coalesce(*kernels.as_common_type(values))),
    **dict.fromkeys(("greatest", "least"), lambda values: pa.repeat(True, len(values[0]))),
}
"""Which rows need the next operand, by the values of those before; else those where the first is not null."""


def _exact(expression: Expression, operands: list[Any]) -> list[Any]:
    """Return the operands of arithmetic with decimals as decimals; others as they are."""
    types = [operand.type for operand in operands]
    if (
        expression.kind not in EXACT
        or not any(map(pa.types.is_decimal, types))
        or any(map(pa.types.is_floating, types))
    ):
        return operands
    literals = [len(str(abs(one.options[0]))) if one.kind == "lit" else None for one in expression.operands]
    return [kernels.as_decimal(one, digits) for one, digits in zip(operands, literals, strict=True)]


def _date_part(value: Any, part: str) -> Any:
    value = kernels.without_zone(value)
    if part == "day_of_week":
        return pc.add(pc.day_of_week(value, week_start=7), 1).cast(pa.int32())
    return getattr(pc, "iso_week" if part == "week" else part)(value).cast(pa.int32())


def _date_trunc(value: Any, unit: str, zone: str | None) -> Any:
    if zone is not None:
        return truncate_to(value, unit, zone)
    return pc.floor_temporal(kernels.without_zone(value), unit=unit, week_starts_monday=True).cast(value.type)


def _format_reader(call: str, ddl: str) -> kernels.Kernel:
    """Read texts in a format; without an offset in it they are in UTC."""

    def kernel(given: Any, format_: str, shape: str = "") -> Any:
        if not _is_shaped(given, format_, shape):
            strange = given.filter(pc.invert(pc.match_substring_regex(given, shape)))
            if len(strange):
                raise pa.ArrowInvalid(f"{call}: {strange[0].as_py()!r} is not a {ddl} in {format_!r}")
        as_ = pa.timestamp("us", "UTC" if "%z" in format_ else None)
        return read_formatted(given, [format_], as_, call).cast(arrow_type(ddl))

    return kernel


def _is_shaped(texts: Any, format_: str, shape: str) -> bool:
    """Whether texts that have a format are certain to have its shape: they are as long as a time in it, with as many blanks."""
    if not shape or "?" in shape or "%b" in format_:  # of no pattern of SQL; one digit or two; names of any length
        return not shape
    like, lengths = datetime(2010, 10, 10, 10).strftime(format_), pc.min_max(pc.binary_length(texts)).as_py()
    blanks = np.count_nonzero(np.frombuffer(texts.buffers()[2] or b"", np.uint8) <= ord(" "))  # of slices all: more
    return {*lengths.values()} == {len(like)} and blanks == like.count(" ") * (len(texts) - texts.null_count)


_KERNELS: dict[str, kernels.Kernel] = {
    "+": kernels.arithmetic(pc.add_checked),
    "-": kernels.arithmetic(pc.subtract_checked),
    "*": kernels.arithmetic(pc.multiply_checked),
    "/": kernels.quotient,
    "%": kernels.remainder,
    "negate": kernels.arithmetic(pc.negate_checked),
    "abs": pc.abs_checked,
    "round": kernels.round_number,
    "floor": kernels.to_whole(pc.floor),
    "ceil": kernels.to_whole(pc.ceil),
    "isin": kernels.is_in,
    "date_part": _date_part,
    "date_trunc": _date_trunc,
    "in_zone": lambda value, zone: in_zone(value, zone, pa.timestamp("us")),
    "from_utc_timestamp": lambda value, zone: in_zone(value, zone, value.type),
    "to_utc_timestamp": to_utc,
    "to_date": _format_reader("to_date", "date"),
    "to_timestamp": _format_reader("to_timestamp", "timestamp"),
    "like": pc.match_like,
    "rlike": pc.match_substring_regex,
    "regexp_extract": kernels.regexp_extract,
    "regexp_replace": pc.replace_substring_regex,
    "replace": kernels.replace,
    "json": kernels.json_path,
    "concat": lambda *parts: pc.binary_join_element_wise(*parts, "", null_handling="emit_null"),
    "greatest": kernels.extreme("greater"),
    "least": kernels.extreme("less"),
    "==": kernels.comparison("equal"),
    "!=": kernels.comparison("not_equal"),
    "<": kernels.comparison("less"),
    "<=": kernels.comparison("less_equal"),
    ">": kernels.comparison("greater"),
    ">=": kernels.comparison("greater_equal"),
    "&": pc.and_kleene,
    "|": pc.or_kleene,
    "not": pc.invert,
    "is_null": pc.is_null,
    "is_not_null": pc.is_valid,
    "cast": lambda value, ddl, *session: kernels.cast(value, arrow_type(ddl), *session),
    "upper": kernels.upper,
    "lower": kernels.lower,
    "trim": kernels.trim,
    "length": lambda text: kernels.cast(pc.utf8_length(text), pa.int64()),
    "contains": pc.match_substring,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "substring": lambda text, start, size: pc.utf8_slice_codeunits(
        text, min(start, sys.maxsize), None if size is None else min(start + size, sys.maxsize)
    ),
    "field": lambda value, name: pc.struct_field(value, [name]),
    "split": pc.split_pattern,
    "coalesce": lambda *values: pc.coalesce(*kernels.as_common_type(values)),
    "if_else": lambda condition, *values: pc.if_else(pc.fill_null(condition, False), *kernels.as_common_type(values)),
}
