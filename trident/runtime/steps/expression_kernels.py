"""Expressions computed over Arrow arrays; their types were checked when they were declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import arrow_type
from trident.fields import Fields
from trident.operations.expression_types import type_of
from trident.operations.expressions import Expression, lit

__all__ = ["evaluate"]


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return the values of an expression, one per row.

    Raises
    ------
    pyarrow.ArrowInvalid
        A row that has no result: an overflow, a division by zero, a cast that does not fit.
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
    types = [operand.type for operand in operands]
    if len(set(types)) == 1 or not all(map(_is_number, types)):
        return list(operands)
    return _as_numbers(operands)


def _as_numbers(operands: Sequence[Any]) -> list[Any]:
    """Convert whole numbers to bigint, or all to double if one has a fraction; that rounds, as in Python."""
    whole = all(pa.types.is_integer(operand.type) for operand in operands)
    return [_cast(operand, pa.int64() if whole else pa.float64(), safe=False) for operand in operands]


def _cast(value: Any, type_: pa.DataType, safe: bool = True) -> Any:
    if value.type == type_:
        return value
    if pa.types.is_decimal(type_) and pa.types.is_integer(value.type):  # Arrow would need digits for every whole number
        value = pc.cast(value, pa.decimal128(19, 0))
    return pc.cast(value, type_, safe=safe)


Operands = list[Any]
Options = tuple[Any, ...]
Kernel = Callable[[Operands, Options], Any]


def _arithmetic(function: str) -> Kernel:
    return lambda operands, options: getattr(pc, function)(*_as_numbers(operands))


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
    "negate": _arithmetic("negate_checked"),
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
    "split": lambda operands, options: pc.split_pattern(operands[0], options[0]),
    "coalesce": lambda operands, options: pc.coalesce(*_widened(operands)),
    "if_else": _if_else,
}
