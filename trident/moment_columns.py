"""Columns of texts as columns of moments and dates, by the rules of `trident.moments`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.alignment import Convert, ddl_of, rebuild, replace_leaves
from trident.moments import IN_SPARK, moment_of
from trident.strict_columns import beyond_python


def moments_as_text(type_: pa.DataType) -> pa.DataType:
    """Return the type as which a parser reads a column: texts in place of moments and dates."""
    return replace_leaves(type_, lambda one: pa.string() if pa.types.is_temporal(one) else one)


def read_moments(column: Any, type_: pa.DataType, name: str, read: Convert | None = None) -> Any:
    """Return a column whose texts, also within lists and structs, are moments and dates; others stay as they are.

    `read`: makes what is neither list nor struct; by default moments and dates.
    Raises `pa.ArrowInvalid` that names the column and the first text that is none.
    """
    if column.type == type_:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([rebuild(chunk, type_, name, read or _read) for chunk in column.chunks], type_)
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


_VARIANTS = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y", "%e": "%d", "%-": "%"}


def read_formatted(texts: Any, formats: Sequence[str], type_: pa.DataType, name: str) -> Any:
    """Return the moments that texts say in the first of some formats of `strptime` that fits; else as `read_moments`."""
    made = pa.nulls(len(texts), type_)
    for format_ in formats:
        found = pc.if_else(pc.is_null(made), pc.strptime(texts, format_, "us", error_is_null=True), None)
        if (found.type.tz is None) == (type_.tz is None):
            _check_formatted(texts, found, format_, name)
            made = pc.coalesce(made, found.cast(type_))
    lacking = texts.filter(pc.and_(pc.is_valid(texts), pc.is_null(made)))
    if len(lacking):
        raise pa.ArrowInvalid(
            f"{name}: {lacking[0].as_py()!r} is not a {ddl_of(type_)} in {' or '.join(map(repr, formats))}"
        )
    return made


def _check_formatted(texts: Any, made: Any, format_: str, name: str) -> None:
    """Refuse what strptime bends: the 30th of February to the 1st of March, second 60 to the next minute, zones to none."""
    at = pc.is_valid(made)
    if not any(one in format_ for one in ("%Z", "%z", "%j")):  # else only where it would have led
        at = pc.fill_null(pc.or_(pc.less_equal(pc.day(made), 3), pc.less_equal(pc.second(made), 1)), False)
    distinct = texts.filter(at).unique()
    plain = reduce(lambda text, one: text.replace(*one), _VARIANTS.items(), format_)
    for text, moment in zip(distinct.to_pylist(), pc.strptime(distinct, format_, "us"), strict=True):
        try:
            said = dt.datetime.strptime(text.strip(), plain)  # aware with %z
            problem = "" if pa.scalar(said, made.type) == moment else ": it would be another one"
        except ValueError as error:
            if "bad directive" in str(error):
                return
            problem = f": {error}"
            if "match" in problem and "%Z" not in format_:  # Arrow takes other words and spaces, for the same
                continue
        if problem:
            raise pa.ArrowInvalid(f"{name}: {text!r} is not a time in {format_!r}{problem}")
