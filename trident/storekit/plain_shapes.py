"""States that a store keeps as their owner would: key fields and values under their own names, each in a form of its type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from trident.fields import free_name, normal_type, struct_fields
from trident.state.interfaces import StateConf

Field = tuple[str, str]
"""A name, and a DDL type in its normal spelling."""

Refusal = Callable[[str, str, bool], str | None]
"""Says why a field, by its name and type, and whether it is of the key, has no plain form; None: it has one."""


_IN_JSON = re.compile(r"(array|struct|string|boolean|bigint|int|smallint|tinyint|double|\w+:|[<>,])+")


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


def shape_of(conf: StateConf, snapshot_key: Any, refusal: Refusal) -> PlainShape | str:
    """Return the fields of a state; if one has no plain form, why."""
    keys = conf.key_fields or ((("key", "string"),) if isinstance(snapshot_key, str) else ())
    if conf.value_type is None or not keys:
        return "its keys and values have no declared type"
    names = [name for name, _ in keys]
    parts = _parts(normal_type(conf.value_type), names, refusal)
    # named as by a reader
    values = parts or ((free_name(conf.value_field or "value", names), normal_type(conf.value_type)),)
    typed = tuple((name, normal_type(type_) if type_ else "") for name, type_ in keys)
    reasons = [*(refusal(*key, True) for key in typed), *(refusal(*one, False) for one in values)]
    return next(filter(None, reasons), PlainShape(typed, values, is_struct=bool(parts)))


def fits_json(type_: str) -> bool:
    """Whether a type is one of arrays and structs whose values JSON keeps as they are."""
    return "<" in type_ and _IN_JSON.fullmatch(type_) is not None


def _parts(type_: str, keys: Sequence[str], refusal: Refusal) -> tuple[Field, ...]:
    """Return the fields of a struct; none if it is no struct, or one of them has no plain form, or the name of a key's."""
    parts = struct_fields(type_)
    return () if any(refusal(*part, False) or part[0] in keys for part in parts) else parts
