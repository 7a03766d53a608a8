"""States that a store keeps as their owner would: key fields and values under their own names, each in a form of its type."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from trident.fields import free_name, normal_type, struct_fields
from trident.state.interfaces import StateConf
from trident.storekit.store_options import MapOptions
from trident.types import TYPES, FieldType, simple_type

Field = tuple[str, str]
"""A name, and a DDL type in its normal spelling."""

FormOf = Callable[[str, bool], Any]
"""Says how a store keeps values of a type, and whether of a key; None: it has no plain form for them."""

Misnamed = Callable[[str, bool], str | None]
"""Says why a field, of a key or not, cannot have its name in a store; None: it can."""

Refusal = Callable[[str, str, bool], str | None]

_KEPT_BY_JSON = [row.name for row in TYPES.values() if row.python in (str, bool, int) or row.name == "double"]
_IN_JSON = re.compile(rf"(array|struct|{'|'.join(_KEPT_BY_JSON)}|decimal\(\d+,\d+\)|\w+:|[<>,])+")


class PlainShape(NamedTuple):
    """The fields of one state.

    `keys`: the fields of the key.
    `values`: the value under the name of its field; or, if `is_struct`, the fields of a value that is a struct.
    """

    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    is_struct: bool

    def structs(self, columns: Sequence[Sequence[Any]], nulls: Sequence[Any]) -> list[Any]:
        """Return values that are structs, of a column for each field; `nulls` is true where a value is null itself."""
        names = [name for name, _ in self.values]
        made: list[Any] = list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))
        return [None if is_null else one for one, is_null in zip(made, nulls, strict=True)] if True in nulls else made

    def columns(self, structs: Sequence[Any]) -> list[list[Any]]:
        """Return a column for each field of values that are structs."""
        if None in structs:
            return [[None if one is None else one[name] for one in structs] for name, _ in self.values]
        return [list(map(itemgetter(name), structs)) for name, _ in self.values]


def plain_type(declared: str, is_key: bool) -> FieldType | None:
    """Return the type of the values of a field, None as `simple_type`.

    A float that is no key is a double: what was aggregated in Python has more digits; a cache would keep them, a column not.
    """
    return TYPES["double"] if declared == "float" and not is_key else simple_type(declared)


def asked_shape(conf: StateConf, options: MapOptions, form_of: FormOf, misnamed: Misnamed) -> PlainShape:
    """Return the fields of a state whose options ask for a plain layout.

    Raises `ConfigError`: it cannot have that; the error says why, and names the field and its type.
    """
    shape = shape_of(conf, options, form_of, misnamed)
    if isinstance(shape, str):
        advice = "Give it what has a plain form (see the page of the store), or leave layout out"
        raise options.refused("layout", f"state {conf.state!r} cannot have it: {shape}. {advice}")
    return shape


def shape_of(conf: StateConf, options: MapOptions, form_of: FormOf, misnamed: Misnamed) -> PlainShape | str:
    """Return the fields of a state; if one has no plain form, why."""

    def refusal(field: str, type_: str, is_key: bool) -> str | None:
        if form_of(type_, is_key) is None:
            return f"{field!r}, of type {type_ or 'unknown'}, has no plain form {'as a key' if is_key else 'there'}"
        return misnamed(field, is_key)

    if options.serializer != "codec":
        return "it has a serializer"
    keys = conf.key_fields or ((("key", "string"),) if isinstance(options.snapshot_key, str) else ())
    if conf.value_type is None or not keys:
        return "its keys and values have no declared type"
    names = [name for name, _ in keys]
    value_type = normal_type(conf.value_type)
    parts = _parts(value_type, names, refusal)
    values = parts or ((free_name(conf.value_field or "value", names), value_type),)  # named as by a reader
    typed = tuple((name, normal_type(type_) if type_ else "") for name, type_ in keys)
    return _reason(typed, values, value_type, refusal) or PlainShape(typed, values, is_struct=bool(parts))


def _reason(keys: Sequence[Field], values: Sequence[Field], value_type: str, refusal: Refusal) -> str | None:
    """Return why a field has no plain form: of a struct as a whole, one of its own."""
    reasons = [refusal(*key, True) for key in keys]
    if any(refusal(*one, False) for one in values):
        reasons += [refusal(*one, False) for one in (*struct_fields(value_type), *values)]
    return next(filter(None, reasons), None)


def json_form(type_: str) -> tuple[Callable[[Any], str], Callable[[str], Any]] | None:
    """Return how values of a type of arrays and structs become JSON, and back; None if JSON does not keep them as they are.

    Decimals are texts there: what reads a number of JSON may read a float.
    """
    if "<" not in type_ or _IN_JSON.fullmatch(type_) is None:
        return None
    made = _decimals(type_)
    if made is None:
        return _to_json, json.loads
    return _to_json, lambda text: made(json.loads(text))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda decimal: format(decimal, "f"))


def _decimals(type_: str) -> Callable[[Any], Any] | None:
    """Return what makes the decimals of a value that JSON has read; None if a type has none."""
    if type_.startswith("decimal("):
        return lambda text: None if text is None else Decimal(str(text))
    if type_.startswith("array<"):
        one = _decimals(type_[len("array<") : -1])
        return one and (lambda values: None if values is None else list(map(one, values)))
    members = {name: made for name, of in struct_fields(type_) if (made := _decimals(of))}
    if not members:
        return None
    return lambda value: value and {**value, **{name: made(value[name]) for name, made in members.items()}}


def _parts(type_: str, keys: Sequence[str], refusal: Refusal) -> tuple[Field, ...]:
    """Return the fields of a struct; none if it is no struct, or one of them has no plain form, or the name of a key's."""
    parts = struct_fields(type_)
    return () if any(refusal(*part, False) or part[0] in keys for part in parts) else parts
