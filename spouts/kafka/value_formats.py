"""What becomes of the value of a record: bytes, text, JSON or Avro; or of all of it, by a function of the user's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spouts.files.parsed_columns import bad_ones, json_error, read_objects
from trident.arrow import UNFIT, arrow_type, python_of, row_of, schema_of, strict_column, table_of
from trident.errors import ConfigError, TridentError
from trident.fields import Fields, FieldsLike
from trident.servers.avro import Avro

_HINT = 'on_bad="null" would read it as None'


class BadValue(Exception):
    """The values of some rows cannot be read: by row what is wrong, and what a function of the user's raised at it."""

    def __init__(self, rows: Mapping[int, str], causes: Mapping[int, Exception] | None = None) -> None:
        super().__init__(rows)
        self.rows, self.causes = rows, causes or {}
        self.at, self.why = next(iter(rows.items()))


class Format(ABC):
    """Turns values into columns, or, if it `replaces_all`, whole records. Subclasses are pickled to the workers."""

    name = "value"
    replaces_all = False

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """The fields that take the place of the value, with their types."""

    def read(self, values: pa.Array) -> Sequence[pa.Array]:
        """Return the columns of an array of bytes, null where the value is null; not of one that replaces all columns.

        Raises an error of any kind if any value cannot be read; `columns` then finds out which.
        """
        raise NotImplementedError

    def columns(
        self, values: pa.Array, bad_is_null: bool, what: str = "value", hint: str = _HINT
    ) -> Sequence[pa.Array]:
        """Return the columns; bad values become null, or raise `BadValue`, which says `what` is bad and gives a `hint`."""
        try:
            return self.read(values)
        except TridentError:  # not the values' fault
            raise
        except Exception:  # noqa: BLE001  whatever a decoder raises
            bad = {at: self._why(error) for at, error in bad_ones(self.read, values)}
        if not bad_is_null or not bad:
            told = bad or {0: "it cannot be read with the others"}
            raise BadValue({at: f"its {what} is not {self.name}: {why}; {hint}" for at, why in told.items()})
        # Read once more without them: a format gives all columns of a row or none.
        mask = pa.array([at in bad for at in range(len(values))])
        return self.read(pc.if_else(mask, pa.scalar(None, values.type), values))

    def lists(self, values: Sequence[bytes | None], what: str = "value", hint: str = _HINT) -> list[list[Any]]:
        """Do what `columns` does with lists of plain values; a bad value raises."""
        return [python_of(array) for array in self.columns(pa.array(values, pa.binary()), False, what, hint)]

    def _why(self, error: Exception) -> str:
        return " ".join(str(error).split())


@dataclass(frozen=True)
class Plain(Format):
    """The value as it is, or as UTF-8."""

    type: str
    name = "text in UTF-8"

    @property
    def fields(self) -> Fields:
        return Fields(f"value: {self.type}")

    def read(self, values: pa.Array) -> Sequence[pa.Array]:
        return [values.cast(arrow_type(self.type))]  # checks the encoding; the bytes are not copied

    def lists(self, values: Sequence[bytes | None], what: str = "value", hint: str = _HINT) -> list[list[Any]]:
        """Do it without Arrow, which takes longer for a single value; a bad one is told by Arrow."""
        try:
            return [list(values) if self.type == "binary" else [one if one is None else one.decode() for one in values]]
        except UnicodeDecodeError:
            return super().lists(values, what, hint)


@dataclass(frozen=True)
class _Declared(Format):
    declared: FieldsLike

    @property
    def fields(self) -> Fields:
        fields = Fields(self.declared)
        without = [name for name, type_ in fields.pairs if type_ is None]
        if without:
            said = f"{type(self).__name__}({self.declared!r})"
            raise ConfigError(f'{said}: field {without[0]!r} needs a type, such as "{without[0]}: string"')
        return fields


@dataclass(frozen=True)
class Json(_Declared):
    """The value as a JSON object, whose members become fields; others are ignored, a missing one is None.

    `declared`: the fields with their types: `"account: string, amount: bigint"`.
    """

    name = "JSON of the declared fields"

    def __post_init__(self) -> None:
        try:
            self.read(pa.array([b"{}"], pa.binary()))
        except pa.ArrowException as error:
            raise ConfigError(f"Json({self.declared!r}): {error}") from error

    def read(self, values: pa.Array) -> Sequence[pa.Array]:
        # All in one call, each on a line of its own. The cast checks the encoding, which the parser does not look at.
        lines = values.cast(pa.string()).fill_null("{}")
        text = _join_lines(lines)
        if text.count(b"\n") > len(lines):  # JSON has line ends, and tabs, only around what is in it
            text = _join_lines(pc.replace_substring(pc.utf8_trim(lines, " \t\r\n"), "\n", "\t"))
        table = read_objects(text, schema_of(self.fields))
        if table.num_rows != len(values):
            raise ValueError("it is empty")
        return [column.combine_chunks() for column in table.columns]

    def _why(self, error: Exception) -> str:
        return json_error(error)


@dataclass(frozen=True)
class AvroRecords(Format):
    """The value as an Avro record, whose fields become fields."""

    avro: Avro
    name = "Avro"

    def __post_init__(self) -> None:
        self.fields  # noqa: B018

    @property
    def fields(self) -> Fields:
        return self.avro.fields

    def read(self, values: pa.Array) -> Sequence[pa.Array]:
        decode, schema = self.avro.decoder(), schema_of(self.fields)
        rows = [{} if value is None else decode(value) for value in values.to_pylist()]
        return [strict_column(each.name, None, each.type, [row.get(each.name) for row in rows]) for each in schema]


class KafkaRecord(NamedTuple):
    """A record as `ByRecord` passes it on; None where the record has no value or key."""

    value: bytes | None
    key: bytes | None
    timestamp: datetime
    partition: int
    offset: int
    topic: str
    headers: list[dict[str, Any]]


@dataclass(frozen=True)
class ByRecord(_Declared):
    """What a function makes of each record.

    `declared`: the fields that are emitted, with their types.
    `function`: gets a `KafkaRecord` and returns a tuple with the values of the fields, or None to leave the record out.
    """

    function: Callable[[KafkaRecord], Sequence[Any] | None]
    replaces_all = True

    def translate(self, table: pa.Table) -> pa.Table:
        """Call the function for each record; `BadValue` for those where it raises, or gives what does not fit the fields."""
        return self.fit(self.call(map(KafkaRecord, *(table[name].to_pylist() for name in KafkaRecord._fields))))

    def call(self, records: Iterable[KafkaRecord]) -> dict[int, tuple[Any, ...]]:
        """Return what the function gives for the records that it does not leave out, by their number."""
        rows, causes = dict[int, tuple[Any, ...]](), dict[int, Exception]()
        for at, record in enumerate(records):
            try:
                row = self.function(record)
                if row is not None:
                    rows[at] = row if type(row) is tuple else row_of(row)
            except Exception as error:  # noqa: BLE001  whatever it raises
                causes[at] = error
        if causes:
            said = "the function of ByRecord raised"
            raise BadValue({at: f"{said} {type(error).__name__}: {error}" for at, error in causes.items()}, causes)
        return rows

    def fit(self, rows: Mapping[int, tuple[Any, ...]]) -> pa.Table:
        fields = self.fields
        try:
            return table_of(fields, list(rows.values()))
        except UNFIT:
            numbers, given = list(rows), list(rows.values())
            unfit = {numbers[at]: str(error) for at, error in bad_ones(partial(table_of, fields), given)}
            if not unfit:
                raise
        raise BadValue(
            {at: f"what the function of ByRecord gave does not fit ({fields}): {why}" for at, why in unfit.items()}
        )


@dataclass(frozen=True)
class ByColumns(_Declared):
    """What a function makes of many records at once; much faster than `ByRecord`.

    `declared`: the fields that are emitted, with their types.
    `function`: gets a PyArrow table with the columns of `KafkaRecord` and returns one whose columns are the fields, in order.
    It may have other rows.
    """

    function: Callable[[pa.Table], pa.Table]
    replaces_all = True

    def translate(self, table: pa.Table) -> pa.Table:
        return self.function(table)


def format_of(value: Literal["bytes", "text"] | Avro | Format) -> Format:
    if isinstance(value, Avro):
        return AvroRecords(value)
    return value if isinstance(value, Format) else Plain("binary" if value == "bytes" else "string")


def _join_lines(lines: pa.StringArray) -> bytes:
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines.cast(pa.binary()))
    text: bytes = pc.binary_join(whole, b"\n")[0].as_py()
    return text + b"\n"
