"""Delta's types as Spark's, and the values of partition columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from trident.errors import SpoutError
from trident.fields import Fields

__all__ = ["fields_of_table", "partition_value"]

_ESCAPED = re.compile(r"(?:\\u00[0-9A-Fa-f]{2})+")
_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def fields_of_table(schema: Mapping[str, Any]) -> Fields:
    """Return the fields of the schema of a Delta table."""
    return Fields.of([one["name"] for one in schema["fields"]], [_ddl(one["type"]) for one in schema["fields"]])


def partition_value(text: str | None, type_: pa.DataType, column: str) -> pa.Scalar:
    """Return the value of a partition column. Nothing is null, as Delta's protocol has it; a time without an offset is UTC."""
    if not text:
        return pa.scalar(None, type_)
    if pa.types.is_binary(type_):
        return pa.scalar(_bytes_of(text), type_)
    try:
        if isinstance(type_, pa.TimestampType) and type_.tz is not None:
            plain = text.removesuffix("Z").removesuffix("+00:00").replace("T", " ")
            return pa.scalar(plain).cast(pa.timestamp("us")).cast(type_)
        return pa.scalar(text).cast(type_)
    except (pa.ArrowException, ValueError) as error:
        raise SpoutError(f"the value {text!r} of partition column {column!r} is no {type_}: {error}") from error


def _bytes_of(text: str) -> bytes:
    """Return the bytes that a text stands for: delta-rs escapes each of them, Spark takes them for UTF-8."""
    return bytes.fromhex(text.replace("\\u00", "")) if _ESCAPED.fullmatch(text) else text.encode()


def _ddl(type_: Any) -> str:
    if isinstance(type_, str):
        return _NAMES.get(type_, type_)
    if type_["type"] == "array":
        return f"array<{_ddl(type_['elementType'])}>"
    if type_["type"] == "map":
        return f"map<{_ddl(type_['keyType'])},{_ddl(type_['valueType'])}>"
    return "struct<" + ",".join(f"{one['name']}:{_ddl(one['type'])}" for one in type_["fields"]) + ">"
