"""The columns of a state: key and value as bytes, or a column for each declared field; as the bytes of CQL and back."""

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from states.cassandra.options import CassandraOptions
from trident.arrow import array_of, arrow_type, large_type
from trident.errors import BackendError, CorruptValueError
from trident.state.encoding.codec import decode_keys, encode_keys
from trident.state.encoding.equal_keys import canonical
from trident.state.interfaces import Key, StateConf, StateType
from trident.storekit.plain_columns import OWN, PlainColumn, PlainColumns, asked_shape, json_form, plain_type

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_DAY = dt.date(1970, 1, 1).toordinal()
_MS = dt.timedelta(milliseconds=1)
LENGTH = struct.Struct(">i").pack

Cells = tuple[bytes | None, ...]  # values of a statement or of a row, as they are sent


class BytesColumns:
    """A key and a value that are bytes, as the columns of a table; the first `width` columns, in `types`, are the key's."""

    layout, width = "binary", 1
    types: ClassVar[Mapping[str, str]] = {"key": "blob", "value": "blob"}

    def names(self, keys: Sequence[Key]) -> list[Any]:
        """Return keys in the one form in which rows have them."""
        return encode_keys(keys)

    def there(self, names: Sequence[Any]) -> Sequence[Any]:
        return list(dict.fromkeys(names))

    def key_cells(self, names: Sequence[Any]) -> list[Cells]:
        return list(zip(names, strict=True))

    def cells(self, names: Sequence[Any], values: Sequence[bytes]) -> list[Cells]:
        return list(zip(names, values, strict=True))

    def values_by_key(self, rows: Sequence[Any]) -> dict[Any, Any]:
        return dict(rows)

    def keys_of(self, rows: Sequence[Sequence[Any]]) -> list[Key]:
        return decode_keys([key for (key,) in rows])


class CqlForm(NamedTuple):
    """How values of a type are stored."""

    cql: str
    arrow: pa.DataType  # which checks values
    to_bytes: Callable[[Any], bytes]  # of a cell
    of_driver: Callable[[Any], Any] | None = None  # makes a value of what the driver has read
    checked: type | None = None  # the class of which `to_bytes` itself refuses a value that does not fit


def _of_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return LENGTH(-exponent) + whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)


_TO_BYTES: dict[type, Callable[[Any], bytes]] = {
    str: str.encode,
    bytes: bytes,
    Decimal: _of_decimal,
    dt.date: lambda day: struct.pack(">I", day.toordinal() - _FIRST_DAY + (1 << 31)),
    dt.datetime: lambda moment: struct.pack(">q", (moment - _EPOCH) // _MS),
}
_OF_DRIVER: dict[type, Callable[[Any], Any]] = {
    dt.date: lambda day: dt.date.fromordinal(day.days_from_epoch + _FIRST_DAY),
    # The driver reads it through a float.
    dt.datetime: lambda read: _EPOCH + round((read.replace(tzinfo=dt.UTC) - _EPOCH) / _MS) * _MS,
}
_ONE_FORM = (str, bytes, bool, int)
_CHECKED = (*_ONE_FORM, float)


class CqlColumn(PlainColumn[CqlForm]):
    """One column of the table."""

    __slots__ = ()

    @classmethod
    def form_of(cls, declared: str, is_key: bool) -> CqlForm | None:
        known = plain_type(declared, is_key)
        if known is None:
            form = None if is_key else json_form(declared)
            if form is None:
                return None
            to_json, of_json = form
            return CqlForm("text", arrow_type(declared), lambda value: to_json(value).encode(), of_json)
        if known.cql is None:
            return None
        to_bytes = struct.Struct(f">{known.wire}").pack if known.wire else _TO_BYTES[known.python]
        checked = known.python if known.python in _CHECKED and known.wire != "f" else None
        return CqlForm(known.cql, large_type(known.arrow), to_bytes, _OF_DRIVER.get(known.python), checked)

    def cells(self, values: Sequence[Any]) -> list[bytes | None]:
        """Return values as the bytes of their cells; an error names the column and the value that does not fit."""
        if self.form.checked is not None and {self.form.checked, type(None)}.issuperset(map(type, values)):
            with suppress(struct.error, UnicodeEncodeError):
                return self._encode(values)
        plain = array_of(self.name, self.form.arrow, values).to_pylist()
        if self.declared == "timestamp":
            bad = next((value for value in plain if value is not None and value.microsecond % 1000), None)
            if bad is not None:
                raise CorruptValueError(
                    f"cannot write {bad} into column {self.name!r}: a Cassandra timestamp has milliseconds. Round it to "
                    "milliseconds, or give layout='binary'"
                )
        return self._encode(plain)

    def from_driver(self, values: Sequence[Any]) -> Sequence[Any]:
        if self.form.of_driver is not None:
            values = [None if value is None else self.form.of_driver(value) for value in values]
        return list(map(canonical, values)) if self.is_key and self.form.checked not in _ONE_FORM else values

    def _encode(self, values: Sequence[Any]) -> list[bytes | None]:
        to_bytes = self.form.to_bytes
        if None in values:
            return [None if value is None else to_bytes(value) for value in values]
        return list(map(to_bytes, values))


class CqlColumns(PlainColumns[CqlColumn]):
    """The columns of one state whose fields are declared."""

    layout: ClassVar[str] = "columns"

    @property
    def width(self) -> int:
        return len(self.keys)

    @cached_property
    def types(self) -> Mapping[str, str]:
        return {column.name: column.form.cql for column in self.read}

    def there(self, names: Sequence[Any]) -> Sequence[Any]:
        return [key for key in dict.fromkeys(names) if None not in key]

    def keys_of(self, rows: Sequence[Sequence[Any]]) -> list[Key]:
        parts = zip(self.keys, zip(*rows, strict=True), strict=True)
        return list(zip(*(key.from_driver(part) for key, part in parts), strict=True))

    def cells(self, names: Sequence[Key], values: Sequence[Any]) -> list[Cells]:
        """Return keys and what is stored for them as rows of cells, in the order of `read`."""
        bad = next((key for key in names if None in key), None)
        if bad is not None:
            raise BackendError(
                f"write key {bad!r}: Cassandra takes no null in a primary key. Leave such rows out, or give layout='binary'",
                retryable=False,
            )
        parts = zip(self.read, self.parts(names, values), strict=True)
        return list(zip(*(column.cells(part) for column, part in parts), strict=True))

    def key_cells(self, names: Sequence[Key]) -> list[Cells]:
        parts = zip(self.keys, zip(*names, strict=True), strict=bool(names))
        return list(zip(*(column.cells(part) for column, part in parts), strict=True))

    def _advice(self) -> str:
        return (
            "Its timestamp hides later writes of this key, so delete the row, and move the state to another table "
            "(trident state move)"
        )


def columns_of(conf: StateConf, kind: StateType, options: CassandraOptions) -> CqlColumns:
    """Return the columns of a state with `layout="columns"`; `ConfigError`: it cannot have them."""

    def why_misnamed(field: str, is_key: bool) -> str | None:
        return f"no column can be called {field!r}" if field.lower().startswith(OWN) or not field else None

    shape = asked_shape(conf, options, CqlColumn.form_of, why_misnamed)
    keys = tuple(CqlColumn.of(*field, True) for field in shape.keys)
    return CqlColumns(kind, keys, tuple(CqlColumn.of(*field, False) for field in shape.values), shape)
