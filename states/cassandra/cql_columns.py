"""The columns of a state whose fields are declared: which there are, and keys and values as the bytes of CQL and back."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from states.cassandra.options import CassandraOptions
from trident.arrow import array_of, arrow_type, large_type
from trident.errors import BackendError, CorruptValueError
from trident.state.encoding.equal_keys import canonical
from trident.state.interfaces import Key, StateConf, StateType
from trident.storekit.plain_columns import OWN, PlainColumn, PlainColumns, asked_shape, json_form, plain_type

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_DAY = dt.date(1970, 1, 1).toordinal()
_MS = dt.timedelta(milliseconds=1)
_LENGTH = struct.Struct(">i").pack
_ESCAPE = "\ue000"  # a character that no one uses, for the text that no partition key can be


class CqlForm(NamedTuple):
    """How values of a type are stored.

    `cql`: the type of the column.
    `arrow`: the type of Arrow that checks values.
    `to_bytes`, `of_driver`: a value as the bytes of its cell; what the driver read as a value, None: it is one.
    """

    cql: str
    arrow: pa.DataType
    to_bytes: Callable[[Any], bytes]
    of_driver: Callable[[Any], Any] | None = None


def _of_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return _LENGTH(-exponent) + whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)


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
_ONLY_KEY = CqlForm(
    "text",
    pa.large_string(),
    lambda text: (_ESCAPE + text if not text or text[0] == _ESCAPE else text).encode(),
    lambda text: text.removeprefix(_ESCAPE),
)


class CqlColumn(PlainColumn[CqlForm]):
    """One column of the table."""

    __slots__ = ()

    @classmethod
    def form_of(cls, declared: str, is_key: bool) -> CqlForm | None:
        """Return how the store keeps values of a type; None if it has no plain form there."""
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
        return CqlForm(known.cql, large_type(known.arrow), to_bytes, _OF_DRIVER.get(known.python))

    @property
    def quoted(self) -> str:
        return quote_name(self.name)

    def cells(self, values: Sequence[Any]) -> list[bytes | None]:
        """Return values as the bytes of their cells; an error names the column and the value that does not fit."""
        plain = array_of(self.name, self.form.arrow, values).to_pylist()
        if self.declared == "timestamp":
            self._refuse_microseconds(plain)
        to_bytes = self.form.to_bytes
        return [None if value is None else to_bytes(value) for value in plain]

    def from_driver(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values that the driver has read in their one form."""
        if self.form.of_driver is not None:
            values = [None if value is None else self.form.of_driver(value) for value in values]
        return list(map(canonical, values)) if self.is_key else values

    def _refuse_microseconds(self, values: Iterable[dt.datetime | None]) -> None:
        bad = next((value for value in values if value is not None and value.microsecond % 1000), None)
        if bad is not None:
            raise CorruptValueError(
                f"cannot write {bad} into column {self.name!r}: a Cassandra timestamp has milliseconds. Round it to "
                "milliseconds, or give layout='binary'"
            )


class CqlColumns(PlainColumns[CqlColumn]):
    """The columns of one state.

    `lists`: no two rows have a partition in common, so all are listed together, in the order of their tokens.
    """

    lists: ClassVar[Sequence[tuple[bytes, ...]]] = [()]

    @property
    def names_of_key(self) -> list[str]:
        """The columns of the key, as CQL."""
        return [column.quoted for column in self.keys]

    @property
    def names_of_rest(self) -> list[str]:
        """The other columns of `read`, as CQL."""
        return [column.quoted for column in self.read[len(self.keys) :]]

    def there(self, names: Sequence[Any]) -> Sequence[Any]:
        """Return the names that a row may have, each once."""
        return [key for key in dict.fromkeys(names) if not self.has_no_row(key)]

    def keys_of(self, rows: Sequence[Sequence[Any]]) -> list[Key]:
        parts = zip(self.keys, zip(*rows, strict=True), strict=True)
        return list(zip(*(key.from_driver(part) for key, part in parts), strict=True))

    def cells(self, keys: Sequence[Key], values: Sequence[Any]) -> list[tuple[bytes | None, ...]]:
        """Return keys and what is stored for them as rows of cells, in the order of `read`."""
        parts = zip(self.read, self.parts(keys, values), strict=True)
        return list(zip(*(column.cells(part) for column, part in parts), strict=True))

    def key_cells(self, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """Return the cells of keys without nulls."""
        parts = zip(self.keys, zip(*keys, strict=True), strict=True)
        return list(zip(*(column.cells(part) for column, part in parts), strict=True))

    def refuse_keys(self, keys: Sequence[Key]) -> None:
        """Refuse keys that no row can have: Cassandra takes no null in a primary key, and no key of no bytes."""
        bad = next(filter(self.has_no_row, keys), None)
        if bad is not None:
            raise BackendError(
                f"write key {bad!r}: Cassandra takes no null in a primary key, nor an empty blob as the whole key. Leave "
                "such rows out, or give layout='binary'",
                retryable=False,
            )

    def has_no_row(self, key: Key) -> bool:
        """Whether no row can have a key."""
        return None in key or key == (b"",)

    def _advice(self) -> str:
        return (
            "Its timestamp hides later writes of this key, so delete the row, and move the state to another table "
            "(trident state move)"
        )


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def cells_of_list(cells: Sequence[bytes]) -> bytes:
    """Return the cell of a list that is asked for with IN."""
    return _LENGTH(len(cells)) + b"".join(_LENGTH(len(cell)) + cell for cell in cells)


def columns_of(conf: StateConf, kind: StateType, options: CassandraOptions) -> CqlColumns | None:
    """Return the columns of a state; None if its layout is bytes.

    Raises `ConfigError`: it cannot have the columns that its options ask for.
    """
    if options.layout == "binary":
        return None

    def why_misnamed(field: str, is_key: bool) -> str | None:
        return f"no column can be called {field!r}" if field.lower().startswith(OWN) or not field else None

    shape = asked_shape(conf, options, CqlColumn.form_of, why_misnamed)
    keys = tuple(CqlColumn.of(*field, True) for field in shape.keys)
    if [key.declared for key in keys] == ["string"]:
        keys = (keys[0]._replace(form=_ONLY_KEY),)
    return CqlColumns(kind, keys, tuple(CqlColumn.of(*field, False) for field in shape.values), shape)
