"""Values as Avro: the fields of a schema, and how one value is read and written."""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from trident.errors import ConfigError, SpoutError, describe
from trident.extras import needs_package
from trident.fields import Fields

_SIMPLE = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "bytes": "binary",
    "string": "string", "enum": "string", "fixed": "binary",
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): "date", ("long", "timestamp-millis"): "timestamp", ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz", ("long", "local-timestamp-micros"): "timestamp_ntz",
}  # fmt: skip
"""What Spark reads of kinds that are meant as something else; a time of day is its number there, a UUID its text."""
_WITH_TYPES = frozenset({"type", "items", "values", "fields"})
_MOST_DIGITS = 38
_MAGIC = 0

Registry = Callable[[int], str]
"""Returns the schema with a number, as JSON."""


@dataclass(frozen=True)
class Avro:
    """Values as Avro, in records that are read and in those that are written.

    Attributes
    ----------
    schema
        A dictionary, or its JSON text. For records that are read, the writer's schema; with a registry, the reader's.
        Its fields become fields.
    registry
        For reading: returns the JSON of the schema with a number, as a schema registry does; each value then begins with a
        zero byte and the number of its writer's schema, in four bytes. None: values begin with the record.
    schema_id
        For writing: the number of the schema in a registry, which then precedes each value in that way. None: the value alone.
    """

    schema: Any
    registry: Registry | None = None
    schema_id: int | None = field(default=None, kw_only=True)

    @property
    def fields(self) -> Fields:
        """The fields of a record, with Spark types; `ConfigError` if the schema is not a record's, or has other types."""
        try:
            schema = dict(_plain(self.schema))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Avro({self.schema!r}): not the JSON of a schema: {error}") from error
        if schema.get("type") != "record":
            raise ConfigError(f"Avro: the schema is of type {schema.get('type')!r}; it must be a record")
        names: dict[str, str | None] = {_full_name(schema, ""): None}
        types = [_ddl(each["type"], names, schema.get("namespace", "")) for each in schema["fields"]]
        return Fields.of([each["name"] for each in schema["fields"]], types)

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Return a function that decodes the value of one record."""
        return _decoder(json.dumps(_plain(self.schema)), self.registry)

    def encoder(self) -> Callable[[Any], bytes | None]:
        """Return a function that encodes one value."""
        fastavro = _package()
        schema = fastavro.parse_schema(_plain(self.schema))
        head = b"" if self.schema_id is None else b"\0" + self.schema_id.to_bytes(4, "big")

        def encode(value: Any) -> bytes | None:
            if value is None:
                return None
            out = io.BytesIO()
            out.write(head)
            fastavro.schemaless_writer(out, schema, value)
            return out.getvalue()

        return encode


def _package() -> Any:
    with needs_package("Avro", "kafka", "fastavro"):
        import fastavro
    return fastavro


def _plain(schema: Any) -> Any:
    return json.loads(schema) if isinstance(schema, str) else schema


def _ddl(type_: Any, names: dict[str, str | None], space: str) -> str:
    """Return the Spark type of a type in the namespace `space`.

    `names`: what the types are that were named before, None within one of its own.
    """
    if isinstance(type_, list):
        others = [each for each in type_ if each != "null"]
        if len(others) != 1:
            raise ConfigError(f"Avro: the union {type_} has no Spark type; decode it with ByRecord")
        return _ddl(others[0], names, space)
    if isinstance(type_, str):
        return _SIMPLE.get(type_) or _named_type(type_, names, space)
    kind, name = type_["type"], _full_name(type_, space)
    if kind == "record":
        names[name], within = None, name.rpartition(".")[0]
        parts = ",".join(f"{each['name']}:{_ddl(each['type'], names, within)}" for each in type_["fields"])
        names[name] = f"struct<{parts}>"
        return f"struct<{parts}>"
    if kind == "array":
        return f"array<{_ddl(type_['items'], names, space)}>"
    if kind == "map":
        return f"map<string,{_ddl(type_['values'], names, space)}>"
    made = _meant(type_) or (_SIMPLE.get(kind) if isinstance(kind, str) else None)
    if made is None:  # a type within a type, or the name of one
        return _ddl(kind, names, space)
    names[name] = made  # a type without a name is asked for by none
    return made


def _full_name(type_: Any, space: str) -> str:
    name, own = str(type_.get("name", "?")), type_.get("namespace", space)
    return name if "." in name or not own else f"{own}.{name}"


def _named_type(name: str, names: dict[str, str | None], space: str) -> str:
    known = names.get(f"{space}.{name}", names.get(name, ""))
    if known is None:
        raise ConfigError(f"Avro: {name!r} contains itself, which no Spark type does; decode it with ByRecord")
    if not known:
        raise ConfigError(f"Avro: the type {name!r} has no Spark type; decode it with ByRecord")
    return known


def _meant(type_: Any) -> str | None:
    """Return the Spark type that a logical type says; None: it has none, or one that Spark reads as what it is made of."""
    kind, logical = type_.get("type"), type_.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        if type_["precision"] > _MOST_DIGITS:
            raise ConfigError(
                f"Avro: a decimal of {type_['precision']} digits has no Spark type; decode it with ByRecord"
            )
        return f"decimal({type_['precision']},{type_.get('scale', 0)})"
    return _LOGICAL.get((kind, logical)) if isinstance(kind, str) else None


def _as_spark_reads(schema: Any) -> Any:
    """Return a schema without the logical types that Spark passes over, which fastavro would decode."""
    if isinstance(schema, list):
        return list(map(_as_spark_reads, schema))
    if not isinstance(schema, dict):
        return schema
    made = {name: _as_spark_reads(part) if name in _WITH_TYPES else part for name, part in schema.items()}
    if _meant(schema) is None:
        made.pop("logicalType", None)
    return made


@lru_cache(maxsize=64)
def _decoder(schema: str, registry: Registry | None) -> Callable[[bytes], dict[str, Any]]:
    fastavro = _package()
    own: Any = fastavro.parse_schema(_as_spark_reads(json.loads(schema)))
    _decode_defaults(fastavro, own)
    if registry is None:
        return lambda value: _record(fastavro, value, own, None)
    fetch = registry

    @lru_cache(maxsize=256)
    def writer_schema(number: int) -> Any:
        try:
            return fastavro.parse_schema(_as_spark_reads(json.loads(fetch(number))))
        except Exception as error:
            raise SpoutError(f"registry({number}) gave no schema: {describe(error)}") from error

    def decode(value: bytes) -> dict[str, Any]:
        if len(value) < 5 or value[0] != _MAGIC:
            raise ValueError("it does not begin with the number of a schema; leave registry out if values have none")
        return _record(fastavro, value[5:], writer_schema(int.from_bytes(value[1:5], "big")), own)

    return decode


def _decode_defaults(fastavro: Any, type_: Any) -> None:
    """Let the defaults of fields be values as the decoder gives them: fastavro gives them as JSON has them."""
    for part in type_ if isinstance(type_, list) else (type_.get(name) for name in _WITH_TYPES - {"fields"}):
        if isinstance(part, (dict, list)):
            _decode_defaults(fastavro, part)
    for each in type_.get("fields", ()) if isinstance(type_, dict) else ():
        _decode_defaults(fastavro, {"type": each["type"]})
        if each.get("default") is not None:
            of = next(one for one in each["type"] if one != "null") if isinstance(each["type"], list) else each["type"]
            record = {"type": "record", "name": "default", "fields": [{"name": "default", "type": of}]}
            with suppress(
                Exception
            ):  # it is no value of the type, which its reader says, or the type was named elsewhere
                text = io.StringIO(json.dumps({"default": each["default"]}))
                (each["default"],) = next(fastavro.json_reader(text, record)).values()


def _record(fastavro: Any, value: bytes, writer: Any, reader: Any) -> dict[str, Any]:
    data = io.BytesIO(value)
    record: dict[str, Any] = fastavro.schemaless_reader(data, writer, reader)
    if data.read(1):
        raise ValueError(f"the record ends at byte {data.tell() - 1} of {len(value)}: it has another schema")
    return record
