"""The columns of a state: which there are, and keys and values as their parameters and back.

Columns are sent as arrays in PostgreSQL's binary format, which Arrow and NumPy make without a Python object for each value. A
read of opaque numbers of many keys, or of structs of them, is one row of such arrays, too.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.postgres.options import MAX_NAME_BYTES, PostgresOptions, identifier
from trident.arrow import array_of, arrow_type, large_type
from trident.errors import ConfigError
from trident.fields import normal_type, widens
from trident.state.encoding.codec import encode_keys
from trident.state.encoding.equal_keys import canonical
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.number_columns import NumberForm, absent_numbers
from trident.state.table import OpaqueTable
from trident.storekit.plain_columns import (
    BEFORE,
    OWN,
    PlainColumn,
    PlainColumns,
    PlainShape,
    asked_shape,
    plain_type,
    shape_of,
)
from trident.types import TYPES, class_of

AT = f"{OWN}at"  # when a row was written: of a state that expires, and of changes
_SYSTEM = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_NUL, _ESCAPE = "\0", "\ue000"  # text has no NUL; in its place a character that no one uses, and a 0


class Packed(bytes):
    """An array in PostgreSQL's binary format."""


class _Form(NamedTuple):
    """How values of a type are stored, and sent."""

    sql: str  # the type of the column, as `format_type` writes it
    element: int  # the oid of the elements of the array that is sent
    arrow: pa.DataType
    wire: str | None = None  # NumPy's type of the bytes of a number; None: they are bytes
    epoch: int = 0  # PostgreSQL's day or moment 0 in the days or microseconds of Arrow

    @property
    def array_type(self) -> str:
        """The parameter of an array of such values, as SQL."""
        return {17: "bytea[]", 25: "text[]"}.get(self.element, f"{self.sql}[]")


_OIDS = {
    "text": 25, "bytea": 17, "boolean": 16, "smallint": 21, "integer": 23, "bigint": 20, "real": 700, "double precision": 701,
    "date": 1082, "timestamp with time zone": 1184, "timestamp without time zone": 1114,
}  # fmt: skip
_SINCE_2000: dict[type, tuple[str | None, int]] = {dt.date: (">i", 10_957), dt.datetime: (">q", 946_684_800_000_000)}
_PLAIN_NUMBERS = {">?": pa.int8(), ">i": pa.int32(), ">q": pa.int64()}


class Column(PlainColumn[_Form]):
    """One column of the table."""

    __slots__ = ()

    @classmethod
    def form_of(cls, declared: str, is_key: bool) -> _Form | None:
        known = plain_type(declared, is_key)
        if known is None:
            is_json = "<" in declared and not is_key and _fits_json(arrow_type(declared))
            return _Form("jsonb", _OIDS["text"], pa.large_string()) if is_json else None
        if known.python is Decimal:
            return _Form(known.sql, _OIDS["text"], known.arrow)
        stored = TYPES[_DECLARED[known.sql]]  # PostgreSQL has no whole numbers of 8 bits
        wire, epoch = _SINCE_2000.get(stored.python, (f">{stored.wire}" if stored.wire else None, 0))
        return _Form(stored.sql, _OIDS[stored.sql], large_type(stored.arrow), wire, epoch)

    @property
    def quoted_name(self) -> str:
        """The name as SQL; with twice the percent sign, because every statement has arguments."""
        return identifier(self.name).replace("%", "%%")

    def parameter(self, name: str) -> str:
        """Return the parameter `name`, an array of its values, as SQL."""
        stored = f"{self.form.sql}[]"
        return f"%({name})b::{self.form.array_type}" + ("" if self.form.array_type == stored else f"::{stored}")

    def array(self, values: Sequence[Any]) -> Any:
        """Return values as an Arrow array; an error names the column and the value."""
        if self.form.sql == "jsonb":
            plain = array_of(self.name, arrow_type(self.declared), values).to_pylist()
            texts = [
                None if one is None else json.dumps(_to_json(one), ensure_ascii=False, allow_nan=False) for one in plain
            ]
            return pa.array(texts, self.form.arrow)
        array = array_of(self.name, self.form.arrow, values)
        if pa.types.is_decimal(array.type):
            return array.cast(pa.string()).cast(pa.large_string())
        return _escape(array) if self.declared == "string" else array

    def from_driver(self, values: Sequence[Any]) -> Sequence[Any]:
        if self.declared == "string":
            return list(map(_unescape, values)) if _ESCAPE in "".join(filter(None, values)) else values
        if self.declared == "timestamp":
            return [None if one is None else one.astimezone(dt.UTC) for one in values]
        if self.form.sql == "jsonb":
            type_ = arrow_type(self.declared)
            return [None if one is None else _of_json(one, type_) for one in values]
        if self.is_key and not self.form.sql.endswith(("int", "integer", "boolean", "bytea", "date")):
            return list(map(canonical, values))
        return values


class Columns(PlainColumns[Column]):
    """The columns of one state; `is_bytes`: `key` and `value`, of a state without columns of its own."""

    is_bytes: ClassVar[bool] = False

    def lacking(self, found: Mapping[str, str]) -> list[Column]:
        """Return what a table with these columns and types lacks of those of values: it was made by a former declaration."""
        own = (*self.values, *self.befores)
        return [one for one in own if one.name not in found or not gives(found[one.name], one.form.sql)]

    def alterations(self, found: Mapping[str, str], lacking: Sequence[Column]) -> str:
        """Return the changes of the table, as SQL, by which it has the columns that it lacks."""
        return ", ".join(
            f"ALTER COLUMN {one.quoted_name} TYPE {one.form.sql}"
            if one.name in found
            else f"ADD COLUMN IF NOT EXISTS {one.quoted_name} {one.form.sql}"
            for one in lacking
        )

    def by_nulls(self, keys: Sequence[Key]) -> list[tuple[tuple[bool, ...], Sequence[Key]]]:
        """Return keys by which of their parts are null."""
        if not any(None in part for part in zip(*keys, strict=True)):
            return [((False,) * len(keys[0]), keys)] if keys else []
        found: dict[tuple[bool, ...], list[Key]] = {}
        for key in keys:
            found.setdefault(tuple(part is None for part in key), []).append(key)
        return list(found.items())

    def asked_keys(self, nulls: Sequence[bool], keys: Sequence[Key], name: str) -> tuple[str, str, dict[str, Packed]]:
        """Return keys, all with the same nulls, as a table `asked`, the test whether a row `own` has one, and the arguments."""
        parts = zip(self.keys, zip(*keys, strict=True), nulls, strict=True)
        return self.asked_arrays(nulls, [column.array(part) for column, part, is_null in parts if not is_null], name)

    def asked_arrays(self, nulls: Sequence[bool], arrays: list[Any], name: str) -> tuple[str, str, dict[str, Packed]]:
        """Return the same of keys as arrays, one for each field that is not null."""
        columns = [column for column, is_null in zip(self.keys, nulls, strict=True) if not is_null]
        given = {
            f"{name}{at}": pack_array(column.form, array)
            for at, (column, array) in enumerate(zip(columns, arrays, strict=True))
        }
        tests = [
            f"own.{column.quoted_name} IS NULL" for column, is_null in zip(self.keys, nulls, strict=True) if is_null
        ]
        tests += [f"own.{column.quoted_name} = asked.{place}" for column, place in zip(columns, given, strict=True)]
        sent = ", ".join(column.parameter(place) for column, place in zip(columns, given, strict=True))
        table = f"unnest({sent}) AS asked ({', '.join(given)})" if given else "(SELECT) AS asked"
        return table, " AND ".join(tests), given

    def arrays_of(self, keys: Sequence[Key], values: Sequence[Any]) -> list[Any]:
        """Return keys and what is stored for them as an Arrow array for each column of `read`."""
        parts = zip(self.read, self.parts(keys, values), strict=True)
        return [column.array(part) for column, part in parts]

    def _advice(self) -> str:
        known = ", ".join(f"{one.name} = {value}" for one, value in zip(self.own, (0, -1), strict=False))
        return f"Delete the row; or, to count on from its value, set {known}"


class ByteColumns(Columns):
    """The columns `key` and `value`, which are bytes, and so are keys and values here."""

    is_bytes = True

    @classmethod
    def of_bytes(cls) -> ByteColumns:
        key, value = Column.of("key", "binary", True), Column.of("value", "binary")
        shape = PlainShape((("key", "binary"),), (("value", "binary"),), is_struct=False)
        return cls(StateType.NON_TRANSACTIONAL, (key,), (value,), shape)

    def names(self, keys: Sequence[Key]) -> list[Any]:
        return encode_keys(keys)

    def by_nulls(self, keys: Sequence[Any]) -> list[tuple[tuple[bool, ...], Sequence[Any]]]:
        return [((False,), keys)] if keys else []

    def asked_keys(self, nulls: Sequence[bool], keys: Sequence[Any], name: str) -> tuple[str, str, dict[str, Packed]]:
        place = f"{name}0"
        return (
            f"unnest(%({place})b::bytea[]) AS asked ({place})",
            f"own.key = asked.{place}",
            {place: packed_bytes(keys)},
        )

    def values_by_key(self, rows: Sequence[Any]) -> dict[Any, Any]:
        return dict(rows)


_DECLARED = {row.sql: row.name for row in TYPES.values()}


def holds(wide: str, narrow: str) -> bool:
    """Whether each value of one type of PostgreSQL's is a value of the other."""
    return wide == narrow or widens(_declared_type(narrow), _declared_type(wide))


def gives(found: str, own: str) -> bool:
    """Whether a column of a type gives values of another one as that gives them: a wider whole number, a wider decimal."""
    kinds = {found.partition("(")[0], own.partition("(")[0]}
    return found == own or (holds(found, own) and (kinds == {"numeric"} or kinds <= {"smallint", "integer", "bigint"}))


def _declared_type(sql: str) -> str:
    return _DECLARED.get(sql, sql.replace("numeric(", "decimal("))


def column_list(columns: Iterable[Column], of: str = "") -> str:
    return ", ".join(of + column.quoted_name for column in columns)


def columns_of(conf: StateConf, kind: StateType, options: PostgresOptions) -> Columns | str:
    """Return the columns of a state; if it has none, why. `ConfigError`: its options ask for them, or need them."""
    shape: PlainShape | str = "layout='binary'"
    if options.layout != "binary":
        shape = (shape_of if options.layout == "auto" else asked_shape)(conf, options, Column.form_of, _why_misnamed)
    if isinstance(shape, str):
        for name, given in {"changes": options.kept_changes, "ttl_s": options.ttl_s}.items():
            if given is not None:
                raise ConfigError(
                    f"{name}= of {conf.prefix!r} in PostgreSQL needs columns, and there are none: {shape}. Leave {name} out, "
                    "or give the state what has columns (see the page of the store)"
                )
        return shape
    keys = tuple(Column.of(*field, True) for field in shape.keys)
    return Columns(kind, keys, tuple(Column.of(*field, False) for field in shape.values), shape)


def _why_misnamed(field: str, is_key: bool) -> str | None:
    most, is_free = MAX_NAME_BYTES, not field.lower().startswith(OWN) and field not in _SYSTEM
    size = len(field.encode(errors="replace")) + (0 if is_key else len(f"{BEFORE}_"))
    return None if is_free and field and size <= most and _NUL not in field else f"no column can be called {field!r}"


def packed_bytes(values: Sequence[bytes]) -> Packed:
    """Return bytes as an array of PostgreSQL's; of a few values this is faster than through Arrow."""
    head, lengths = struct.pack("!5i", 1, 0, 17, len(values), 1), map(struct.Struct("!i").pack, map(len, values))
    return Packed(head + b"".join(chain.from_iterable(zip(lengths, values, strict=True))))


def pack_array(form: _Form, array: Any) -> Packed:
    """Return an Arrow array as one of PostgreSQL: one dimension from index 1, each element after its length."""
    rows, valid = len(array), None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    head = struct.pack("!5i", 1, valid is not None, form.element, rows, 1)
    if form.wire is None:
        return Packed(head + _bytes_after_lengths(array, valid))
    plain = array.cast(_PLAIN_NUMBERS.get(form.wire, array.type))
    numbers = (plain if valid is None else plain.fill_null(0)).to_numpy(zero_copy_only=False)
    size = np.dtype(form.wire).itemsize
    made = np.empty(rows, [("length", ">i4"), ("value", form.wire)])
    made["length"], made["value"] = size, numbers - form.epoch if form.epoch else numbers
    if valid is None:
        return Packed(head + made.tobytes())
    made["length"][~valid] = -1
    kept = np.ones((rows, 4 + size), np.bool_)
    kept[~valid, 4:] = False
    return Packed(head + made.view(np.uint8).reshape(rows, 4 + size)[kept].tobytes())


def offsets_of(array: Any) -> Any:
    """Return where each text or bytes of an array begins, and the last one ends."""
    return np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]


def _bytes_after_lengths(array: Any, valid: Any) -> bytes:
    rows, data, offsets = len(array), array.buffers()[2], offsets_of(array)
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    lengths, at = np.diff(offsets).astype(">i4"), offsets[:-1] - offsets[0] + 4 * np.arange(rows)
    if valid is not None:
        lengths[~valid] = -1
    made, is_content = np.empty(len(content) + 4 * rows, np.uint8), np.ones(len(content) + 4 * rows, np.bool_)
    for byte, column in enumerate(lengths.view(np.uint8).reshape(rows, 4).T):
        made[at + byte], is_content[at + byte] = column, False
    made[is_content] = content
    return made.tobytes()


def _fits_json(type_: pa.DataType) -> bool:
    if pa.types.is_list(type_):
        return _fits_json(type_.value_type)
    if pa.types.is_struct(type_):
        return all(_fits_json(field.type) for field in type_)
    return any(row.arrow == type_ for row in TYPES.values() if row.python in (str, bool, int, float))


def _escape(array: Any) -> Any:
    data = array.buffers()[2]
    text = b"" if data is None else data.to_pybytes()
    if _NUL.encode() not in text and _ESCAPE.encode() not in text:
        return array
    return pc.replace_substring(pc.replace_substring(array, _ESCAPE, _ESCAPE * 2), _NUL, f"{_ESCAPE}0")


def _unescape(text: str | None) -> str | None:
    return None if text is None else re.sub(f"{_ESCAPE}(.)", lambda found: _NUL if found[1] == "0" else _ESCAPE, text)


def _to_json(value: Any) -> Any:
    """Return what JSON and `jsonb` can hold: texts without NUL, and texts in place of the floats that are no numbers there."""
    if isinstance(value, dict):
        return {name: _to_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_to_json, value))
    if isinstance(value, str):
        return value.replace(_ESCAPE, _ESCAPE * 2).replace(_NUL, f"{_ESCAPE}0")
    is_number = not isinstance(value, float) or (math.isfinite(value) and (value != 0 or math.copysign(1, value) > 0))
    return value if is_number else repr(value)


def _of_json(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(type_):
        return [_of_json(one, type_.value_type) for one in value]
    if pa.types.is_struct(type_):
        return {field.name: _of_json(value.get(field.name), field.type) for field in type_}
    if pa.types.is_string(type_):
        return _unescape(value)
    return float(value) if pa.types.is_floating(type_) else value


def number_form(columns: Columns, conf: StateConf) -> NumberForm | None:
    """Return the form of the values, if they are opaque numbers of 64 bits and the keys texts and whole numbers."""
    is_opaque = columns.kind is StateType.OPAQUE and conf.value_type is not None
    form = NumberForm.of(normal_type(conf.value_type)) if is_opaque else None  # type: ignore[arg-type]
    fits = {class_of(column.declared) for column in columns.keys} <= {str, int}
    return form if fits and form is not None and bool(form.names) == columns.shape.is_struct else None


def select_list(columns: Columns) -> str:
    """Return what a read selects: how many rows are foreign, the keys (of texts the lengths, too), the values."""
    txid, attempt, *befores = [f"own.{column.quoted_name}" for column in columns.own]
    values = [f"own.{column.quoted_name}" for column in columns.read[len(columns.keys) + len(columns.own) :]]
    parts = [f"count(*) FILTER (WHERE {txid} IS NULL OR {attempt} IS NULL)"]
    for key in columns.keys:
        name = f"own.{key.quoted_name}"
        if key.declared == "string":  # bytes as they are sent: those of the database may be in another encoding
            parts += [f"array_agg(octet_length(convert_to({name}, 'UTF8')))", f"string_agg({name}, '')"]
        else:
            parts.append(f"array_agg({name}::{key.form.sql})")  # a table of the user's may have a wider number
    fields, width = [txid, attempt], len(columns.values)
    for side, is_there in ((befores, "IS FALSE"), (values, "IS NOT TRUE")):
        tests = [f"{name} IS NOT NULL" for name in side[:width]] + [f"{name} {is_there}" for name in side[width:]]
        fields.append(" + ".join(f"({test})::int4 * {1 << at}" for at, test in enumerate(tests)))
        fields += [f"coalesce({name}, 0)" for name in side[:width]]
    return ", ".join([*parts, *(f"array_agg({field})" for field in fields)])


def found_table(
    columns: Columns, form: NumberForm, keys: Sequence[pa.Array], answers: Sequence[Sequence[bytes]]
) -> OpaqueTable | None:
    """Return what the answers of reads have for keys; None if a row does not say which batch wrote it."""
    if any(any(foreign) for foreign, *_ in answers):
        return None
    made = absent_numbers(form, len(keys[0]))
    found = [list(part) for part in zip(*(cells for _, *cells in answers if cells[0] is not None), strict=True)]
    if found:
        parts = iter(found)
        places = _places(keys, [_keys(parts, key) for key in columns.keys])
        there = places >= 0
        places = places[there]
        for head in (made.txids, made.attempts):
            head[there] = _numbers(next(parts), ">i8")[places]
        for side in (made.prevs, made.currs):
            side.flags[there] = _numbers(next(parts), ">i4")[places]
            for at, type_ in enumerate(form.types):
                wire, dtype = (">f8", np.float64) if type_ == "double" else (">i8", np.int64)
                side.numbers[there, at] = _numbers(next(parts), wire)[places].astype(dtype).view(np.int64)
    return made


def value_arrays(table: OpaqueTable) -> list[pa.Array]:
    """Return the values of each column of `Columns.read` behind the keys."""
    txids, attempts, *sides = table.columns
    values = ([*side.arrays(), *([pa.array(side.are_none())] if side.form.names else ())] for side in sides)
    return [pa.array(txids), pa.array(attempts), *chain(*values)]


def _numbers(arrays: Sequence[bytes], wire: str) -> npt.NDArray[Any]:
    """Return the elements of arrays in PostgreSQL's binary format, none of which is null."""
    form = [("length", ">i4"), ("value", wire)]
    return np.concatenate([np.frombuffer(array, form, offset=20)["value"] for array in arrays])


def _keys(parts: Iterator[Sequence[bytes]], column: Column) -> pa.Array:
    if column.form.wire is not None:
        return pa.array(_numbers(next(parts), column.form.wire).astype(column.form.arrow.to_pandas_dtype()))
    lengths, texts = next(parts), next(parts)
    offsets = np.concatenate([[0], np.cumsum(_numbers(lengths, ">i4"), dtype=np.int64)])
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))


def _places(keys: Sequence[pa.Array], found: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the place of each key among those that were found; -1: it was not."""
    if len(keys) == 1:
        return np.asarray(pc.fill_null(pc.index_in(keys[0], value_set=found[0]), -1), np.int64)
    asked, there = (zip(*(part.to_pylist() for part in parts), strict=True) for parts in (keys, found))
    places = {key: at for at, key in enumerate(there)}
    return np.fromiter((places.get(key, -1) for key in asked), np.int64, len(keys[0]))
