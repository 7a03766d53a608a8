"""Avro: schemas as fields, and the decoding of one value."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from trident.errors import ConfigError, EnvironmentProblem, SpoutError, describe
from trident.fields import Fields

__all__ = ["Registry", "ddl_fields", "decoder_of", "parsed_schema"]

_SIMPLE = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "bytes": "binary",
    "string": "string", "enum": "string", "fixed": "binary",
}  # fmt: skip
_LOGICAL = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "uuid": "string",
    "local-timestamp-millis": "timestamp_ntz", "local-timestamp-micros": "timestamp_ntz",
}  # fmt: skip
_MAGIC = 0

Registry = Callable[[int], str]
"""Returns the schema with a number, as JSON."""


def parsed_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of a record as a dictionary; `ConfigError` if it is none."""
    try:
        parsed = dict(json.loads(schema) if isinstance(schema, str) else schema)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Avro({schema!r}): not the JSON of a schema: {error}") from error
    if parsed.get("type") != "record":
        raise ConfigError(f"Avro: the schema is of type {parsed.get('type')!r}; it must be a record")
    return parsed


def ddl_fields(schema: Mapping[str, Any]) -> Fields:
    """Return the fields of a record's schema, with Spark types."""
    return Fields(*(f"{each['name']}: {_ddl(each['type'])}" for each in schema["fields"]))


def _ddl(type_: Any) -> str:
    if isinstance(type_, list):
        others = [each for each in type_ if each != "null"]
        if len(others) != 1:
            raise ConfigError(f"Avro: the union {type_} has no Spark type; decode it with ByRecord")
        return _ddl(others[0])
    if isinstance(type_, str):
        type_ = {"type": type_}
    kind = type_["type"]
    if type_.get("logicalType") == "decimal":
        return f"decimal({type_['precision']},{type_.get('scale', 0)})"
    if type_.get("logicalType") in _LOGICAL:
        return _LOGICAL[type_["logicalType"]]
    if kind == "array":
        return f"array<{_ddl(type_['items'])}>"
    if kind == "map":
        return f"map<string,{_ddl(type_['values'])}>"
    if kind == "record":
        return f"struct<{','.join(each['name'] + ':' + _ddl(each['type']) for each in type_['fields'])}>"
    if not isinstance(kind, str):  # a type within a type
        return _ddl(kind)
    if kind not in _SIMPLE:
        raise ConfigError(f"Avro: the type {kind!r} has no Spark type; decode it with ByRecord")
    return _SIMPLE[kind]


def decoder_of(schema: Mapping[str, Any], registry: Registry | None) -> Callable[[bytes], dict[str, Any]]:
    """Return what decodes one value."""
    return _decoder(json.dumps(schema), registry)


@lru_cache(maxsize=64)
def _decoder(schema: str, registry: Registry | None) -> Callable[[bytes], dict[str, Any]]:
    try:
        import fastavro
    except ImportError as error:
        raise EnvironmentProblem(
            f"Avro needs the package fastavro ({error}); pip install 'trident-spark[kafka]'"
        ) from error
    own: Any = fastavro.parse_schema(json.loads(schema))
    if registry is None:
        return lambda value: _record(fastavro, value, own, None)
    fetch = registry

    @lru_cache(maxsize=256)
    def written(number: int) -> Any:
        try:
            return fastavro.parse_schema(json.loads(fetch(number)))
        except Exception as error:
            raise SpoutError(f"registry({number}) gave no schema: {describe(error)}") from error

    def decode(value: bytes) -> dict[str, Any]:
        if len(value) < 5 or value[0] != _MAGIC:
            raise ValueError("it does not begin with the number of a schema; leave registry out if values have none")
        return _record(fastavro, value[5:], written(int.from_bytes(value[1:5], "big")), own)

    return decode


def _record(fastavro: Any, value: bytes, writer: Any, reader: Any) -> dict[str, Any]:
    data = io.BytesIO(value)
    record: dict[str, Any] = fastavro.schemaless_reader(data, writer, reader)
    if data.read(1):
        raise ValueError(f"the record ends at byte {data.tell() - 1} of {len(value)}: it has another schema")
    return record
