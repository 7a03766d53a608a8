"""Columns of others as the types of fields, without a loss: each value is that of the file or table, or is refused.

The one place where Arrow data that another program wrote gets its declared types. Members of structs are found by name.
"""

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.errors import BadDataError, TopologyError
from trident.fields import Fields, struct_type
from trident.moments import IN_SPARK, moment_of
from trident.strict_columns import beyond_python
from trident.types import NO_VALUE, TYPES, decimal_type

Convert = Callable[[pa.Array, pa.DataType, str], pa.Array]

_DDL = {row.arrow: row.name for row in TYPES.values()}
_AS = {
    pa.null(): pa.string(),  # which has nulls, as any type
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.date64(): pa.date32(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary(),
}  # fmt: skip
if hasattr(pa, "string_view"):  # since Arrow 16
    _AS |= {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


def _spark_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that a column is read as if none is declared; one that Spark does not have stays as it is."""
    if isinstance(type_, pa.BaseExtensionType):
        return _spark_type(type_.storage_type)
    if isinstance(type_, pa.DictionaryType):
        return _spark_type(type_.value_type)
    if isinstance(type_, (*_LISTS, pa.MapType, pa.StructType)):
        return replace_leaves(type_, _spark_type)
    if isinstance(type_, pa.TimestampType):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if pa.types.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    return pa.binary() if pa.types.is_fixed_size_binary(type_) else _AS.get(type_, type_)


def _parts(type_: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types within a list, map or struct, by how they are shown in the path of a value; none of another type."""
    if isinstance(type_, _LISTS):
        return {"[]": type_.value_type}
    if isinstance(type_, pa.MapType):
        return {"[key]": type_.key_type, "[value]": type_.item_type}
    return {f".{one.name}": one.type for one in type_} if isinstance(type_, pa.StructType) else {}


def replace_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what `leaf` makes of each type that is no list, map or struct."""
    parts = [replace_leaves(part, leaf) for part in _parts(type_).values()]
    if isinstance(type_, pa.StructType):
        return pa.struct([pa.field(one.name, part) for one, part in zip(type_, parts, strict=True)])
    if isinstance(type_, pa.MapType):
        return pa.map_(*parts)
    return pa.list_(*parts) if parts else leaf(type_)


def ddl_of(type_: pa.DataType) -> str | None:
    """Return the DDL type that a column is read as if none is declared; None if Spark has no type for it."""
    found = _spark_type(type_)
    if isinstance(found, pa.Decimal128Type):
        return f"decimal({found.precision},{found.scale})"
    inner = [ddl for ddl in map(ddl_of, _parts(found).values()) if ddl is not None]
    if not inner or len(inner) < len(_parts(found)):
        return _DDL.get(found)
    if isinstance(found, pa.StructType):
        return struct_type([one.name for one in found], inner)
    return f"{'map' if isinstance(found, pa.MapType) else 'array'}<{','.join(inner)}>"


def fields_of_schema(schema: pa.Schema) -> Fields:
    """Return the fields of an Arrow schema; `TopologyError` naming a column that Spark has no type for."""
    types = [ddl_of(column.type) for column in schema]
    for column, type_ in zip(schema, types, strict=True):
        if type_ is None:
            others = ", ".join(repr(one) for one, ddl in zip(schema.names, types, strict=True) if ddl is not None)
            raise TopologyError(
                f"column {column.name!r} is of Arrow type {column.type}, for which Spark has no type; cast it where it "
                f"is written, or leave it out: name the fields to read, of {others or 'which there are no others'}"
            )
    return Fields.of(schema.names, types)


def reads_as(type_: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a column may be values of a declared type."""
    if isinstance(type_, (pa.DictionaryType, pa.BaseExtensionType)):
        return reads_as(type_.value_type if isinstance(type_, pa.DictionaryType) else type_.storage_type, wanted)
    found = _spark_type(type_)
    if pa.types.is_null(type_) or found == wanted:
        return True
    mine, theirs = _parts(type_), _parts(wanted)
    if mine or theirs:
        both = mine.keys() & theirs.keys()  # of a struct the members of one may be more; if of both, one was renamed
        return len(both) in {len(mine), len(theirs)} - {0} and all(reads_as(mine[part], theirs[part]) for part in both)
    kinds = {_kind(found), _kind(wanted)}
    return kinds <= {"whole", "decimal"} or kinds <= {"whole", "float"}


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "whole"
    return "decimal" if pa.types.is_decimal(type_) else "float" if pa.types.is_floating(type_) else str(type_)


def check_readable(type_: pa.DataType, wanted: pa.DataType, name: str, what: str) -> None:
    """Raise `BadDataError` if values of a column of `what` cannot be of a declared type."""
    if reads_as(type_, wanted):
        return
    ddl = ddl_of(type_)
    way_out = (
        f"Declare it as {ddl}, cast it where it is written, or leave it out"
        if ddl is not None
        else "Spark has no type for it: cast it where it is written, as to a string or a bigint, or leave it out"
    )
    raise BadDataError(
        f"column {name!r} of {what} is of type {type_}, and the field is declared as {ddl_of(wanted)}. {way_out}"
    )


def align(column: Any, wanted: pa.DataType, name: str, what: str) -> Any:
    """Return a column of `what` as one of a declared type; `BadDataError` naming a value that would lose something."""
    if column.type == wanted:
        return column
    check_readable(column.type, wanted, name, what)
    return rebuild(column, wanted, name, partial(_convert, what))


def _convert(what: str, array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    try:
        return lossless_cast(array, wanted)
    except pa.ArrowInvalid as error:
        if len(array) > 1:
            half = len(array) // 2
            return pa.concat_arrays([_convert(what, one, wanted, path) for one in (array[:half], array[half:])])
        ddl, declared = ddl_of(array.type), ddl_of(wanted)
        way_out = (
            f"Declare it as {ddl}" if ddl != declared else f"Cast it where it is written, to what a {declared} holds"
        )
        raise BadDataError(
            f"the value {array[0]} of column {path!r} of {what} cannot be read: {error}. The column is of type {array.type}, "
            f"and the field is declared as {declared}. {way_out}, or leave it out"
        ) from error


def lossless_cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_decimal(wanted) and pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))  # Arrow would need digits for every whole number
    may_round = pa.types.is_floating(wanted) and (pa.types.is_integer(array.type) or array.type == pa.float64())
    made = array.cast(wanted, safe=not may_round)
    if may_round:  # Arrow rounds without an error, and refuses large whole numbers that are exact
        same = pc.or_kleene(pc.equal(made.cast(array.type), array), pc.is_nan(made))
        if not pc.all(same, min_count=0).as_py():
            lost = array.filter(pc.invert(same))[0]
            raise pa.ArrowInvalid(f"Casting {lost} from {array.type} to {wanted} would lose data")
    return made


def rebuild(array: Any, wanted: pa.DataType, path: str, convert: Convert) -> Any:
    """Return an array as one of another type; `convert` makes what is no list, map or struct, of its values and its path."""
    if array.type == wanted:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([rebuild(chunk, wanted, path, convert) for chunk in array.chunks], wanted)
    if isinstance(array.type, pa.BaseExtensionType):
        return rebuild(array.storage, wanted, path, convert)
    if isinstance(array.type, pa.DictionaryType):
        return rebuild(array.dictionary_decode(), wanted, path, convert)
    if isinstance(array.type, pa.MapType):
        array = array.take(pa.array(range(len(array)), pa.int64()))  # with offsets from 0, and nothing under a null
    if (columns := _columns(array, wanted)) is None:
        return convert(array, wanted, path)
    made = [
        rebuild(columns[part], type_, path + part, convert) if part in columns else pa.nulls(len(array), type_)
        for part, type_ in _parts(wanted).items()
    ]
    if isinstance(wanted, pa.StructType):
        return pa.StructArray.from_arrays(made, fields=list(wanted), mask=array.is_null())
    if isinstance(wanted, pa.MapType):
        return pa.MapArray.from_arrays(_offsets_with_nulls(array, array.offsets), *made).cast(wanted)
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pa.ListArray.from_arrays(_offsets_with_nulls(array, offsets), *made).cast(wanted)


def _columns(array: pa.Array, wanted: pa.DataType) -> dict[str, pa.Array] | None:
    """Return the parts of a struct, a list or a map by their paths; None of what is none, or is to be another."""
    if isinstance(array.type, pa.StructType) and isinstance(wanted, pa.StructType):
        return {f".{one.name}": column for one, column in zip(array.type, array.flatten(), strict=True)}
    if isinstance(array.type, _LISTS) and isinstance(wanted, pa.ListType):
        return {"[]": array.flatten()}
    if isinstance(array.type, pa.MapType) and isinstance(wanted, pa.MapType):
        return {"[key]": array.keys, "[value]": array.items}
    return None


def _offsets_with_nulls(array: pa.Array, offsets: pa.Array) -> pa.Array:
    if not array.null_count:
        return offsets
    return pc.if_else(pa.concat_arrays([array.is_valid(), pa.array([True])]), offsets, None)


def moments_as_text(type_: pa.DataType) -> pa.DataType:
    """Return the type as which a parser reads a column: texts in place of moments and dates."""
    return replace_leaves(type_, lambda one: pa.string() if pa.types.is_temporal(one) else one)


def read_moments(column: Any, type_: pa.DataType, name: str, read: Convert | None = None) -> Any:
    """Return a column whose texts, also within lists and structs, are moments and dates; `read` makes what is neither."""
    return rebuild(column, type_, name, read or _read)


def read_in_spark(column: Any, type_: pa.DataType, name: str) -> Any:
    """Return the same of texts that Spark reads as these, in a session in UTC: there a timestamp needs no offset."""
    strange = column.filter(pc.invert(pc.match_substring_regex(column, IN_SPARK)))
    if len(strange):
        like = "2024-03-31 or 2024-03-31 02:30:00.5, with Z or +02:00 after it if it has an offset"
        raise pa.ArrowInvalid(f"{name}: {strange[0].as_py()!r} is not a {ddl_of(type_)}, written here as {like}")
    return read_moments(column, type_, name, partial(_read, in_utc=True))


def _read(texts: pa.Array, type_: pa.DataType, path: str, in_utc: bool = False) -> pa.Array:
    has_zone = pa.types.is_timestamp(type_) and type_.tz is not None
    for read_as in (type_, pa.timestamp("us")) if in_utc and has_zone else (type_,):
        try:
            made = texts.cast(read_as).cast(type_)
            if beyond_python(made) is None:  # Arrow reads a year 0, and an offset may lead beyond
                return made
        except pa.ArrowInvalid:
            pass
    ddl = ddl_of(type_) or ""
    try:  # one is no moment, or has white space around it, or zeros behind its microseconds
        return pa.array([None if one is None else moment_of(one, ddl, in_utc) for one in texts.to_pylist()], type_)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{path}: {error}") from None


def read_decimals(texts: Any, type_: pa.DataType, where: str) -> Any:
    """Return the decimals that texts say; raises `pa.ArrowInvalid` that names the column and the first text that is none."""
    try:
        made = texts.cast(type_)
    except pa.ArrowInvalid:
        stripped = pc.ascii_trim(texts, " \t")
        if not stripped.equals(texts):
            return read_decimals(stripped, type_, where)
        for text in texts.drop_null().to_pylist():
            _check_decimal(text, type_, where)
        raise
    check_decimals(texts, made, where)
    return made


def check_decimals(texts: Any, made: Any, where: str) -> None:
    """Raise `pa.ArrowInvalid` for a text that Arrow reads as another decimal: beyond 38 digits it wraps, and 1e-39 is 0."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest + made.type.scale <= 38 and not _has_exponents(texts):
        return
    for text, value in zip(texts.to_pylist(), made.to_pylist(), strict=True):
        is_doubted = value is not None and (len(text) + made.type.scale > 38 or "e" in text or "E" in text)
        if is_doubted and _check_decimal(text, made.type, where) != value:
            raise pa.ArrowInvalid(f"{where}: {text!r} is not a {ddl_of(made.type)}")


def _has_exponents(texts: Any) -> bool:
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    data = [bytes(one.buffers()[2] or b"") for one in chunks]  # of slices all, which is faster
    return any(mark in one for one in data for mark in (b"e", b"E"))


def _check_decimal(text: str, type_: pa.DataType, where: str) -> Any:
    """Return the decimal that a text is; raises `pa.ArrowInvalid` if it is none of a type."""
    try:
        value = decimal_type(type_.precision, type_.scale).form(Decimal(text))
    except InvalidOperation:
        raise pa.ArrowInvalid(f"{where}: {text!r} is not a number") from None
    if value is NO_VALUE:
        raise pa.ArrowInvalid(f"{where}: a number has more digits than {type_}: {text!r}")
    return value


_YEAR_1000 = -30_610_224_000_000_000  # in microseconds
_VARIANTS = {
    "%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y", "%r": "%I:%M:%S %p", "%e": "%d", "%k": "%H",
    "%l": "%I", "%h": "%b", "%n": " ", "%t": " ", "%-": "%",
}  # fmt: skip
_HOURS, _numbers = re.compile(r"([+-]\d\d)$"), re.compile(r"0*(\d+)").findall


def read_formatted(texts: Any, formats: Sequence[str], type_: pa.DataType, name: str) -> Any:
    """Return the moments that texts say in the first of some formats of `strptime` that fits; else as `read_moments`."""
    made = pa.nulls(len(texts), type_)
    for format_ in formats:
        found = pc.if_else(pc.is_null(made), pc.strptime(texts, format_, "us", error_is_null=True), None)
        if (found.type.tz is None) == (type_.tz is None):
            made = pc.coalesce(made, _without_short_years(texts, found, format_, name).cast(type_))
    lacking = texts.filter(pc.and_(pc.is_valid(texts), pc.is_null(made)))
    if len(lacking):
        raise pa.ArrowInvalid(
            f"{name}: {lacking[0].as_py()!r} is not a {ddl_of(type_)} in {' or '.join(map(repr, formats))}"
        )
    return made


def _without_short_years(texts: Any, made: Any, format_: str, name: str) -> Any:
    """Return the moments without those whose year has fewer than four digits, as `24` has with `%Y`: another format may fit.

    Refuse what strptime bends: the 30th of February to the 1st of March, second 60 to the next minute, zones to none.
    """
    at, short = pc.is_valid(made), []
    if not any(one in format_ for one in ("%Z", "%z", "%j")):  # else only where it would have led
        at = pc.fill_null(pc.or_(pc.less_equal(pc.day(made), 3), pc.less_equal(pc.second(made), 1)), False)
        if (pc.min(made).value or 0) < _YEAR_1000:
            at = pc.or_(at, pc.fill_null(pc.less(made, pa.scalar(_YEAR_1000, pa.int64()).cast(made.type)), False))
    distinct = texts.filter(at).unique()
    plain = reduce(lambda known, one: known.replace(*one), _VARIANTS.items(), format_)
    for text, moment in zip(distinct.to_pylist(), pc.strptime(distinct, format_, "us"), strict=True):
        problem = _misread(text, moment, plain)
        if problem and "bad directive" in problem:
            break  # only Arrow knows the format, so Python cannot check any text
        if problem:
            raise pa.ArrowInvalid(f"{name}: {text!r} is not a time in {format_!r}: {problem}")
        short += [text] * (problem is None)
    return pc.if_else(pc.is_in(texts, pa.array(short, texts.type)), None, made) if short else made


def _misread(text: str, moment: pa.Scalar, format_: str) -> str | None:
    """Return what is wrong with a moment that a text was read as, in a format of Python's; None: only its year is short."""
    try:
        padded = _HOURS.sub(r"\1:00", text.strip()) if format_.endswith("%z") else text.strip()
        is_same = pa.scalar(dt.datetime.strptime(padded, format_), moment.type) == moment  # aware with %z
    except ValueError as error:
        if "match" not in str(error) or "%Z" in format_:
            return str(error)
        if moment.value < _YEAR_1000:
            return None
        # Arrow takes other words and spaces, for the same.
        is_same = "%z" in format_ or _numbers(text) == _numbers(moment.as_py().strftime(format_))
    return "" if is_same else "it would be another one"
