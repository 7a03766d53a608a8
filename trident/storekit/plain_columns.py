"""States that a store keeps as their owner would: key fields and values under their own names, each in a form of its type."""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Self, TypeVar

from trident.errors import CorruptValueError
from trident.fields import free_name, normal_type, quote, struct_fields
from trident.state.encoding.equal_keys import canonical
from trident.state.encoding.serializers import STORED_FORMS
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.table import OpaqueTable
from trident.storekit.store_state import MapOptions
from trident.types import TYPES, FieldType, class_of, simple_type

Field = tuple[str, str]  # a name, and a DDL type in its normal spelling
FormOf = Callable[[str, bool], Any]
"""Says how a store keeps values of a type, and whether of a key; None: it has no plain form for them."""
Misnamed = Callable[[str, bool], str | None]
"""Says why a field, of a key or not, cannot have its name in a store; None: it can."""

_KEPT_BY_JSON = [row.name for row in TYPES.values() if row.python in (str, bool, int) or row.name == "double"]
_NO_NUMBER = re.compile('"(nan|-?inf)"')
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=lambda decimal: format(decimal, "f")).encode
_IN_JSON = re.compile(rf"(array|struct|{'|'.join(_KEPT_BY_JSON)}|decimal\(\d+,\d+\)|\w+:|[<>,])+")

OWN = "trident_"  # what the names of the framework's own columns and tables begin with
TXID, ATTEMPT, BEFORE = f"{OWN}txid", f"{OWN}attempt", f"{OWN}before"
NULL, BEFORE_NULL = f"{OWN}null", f"{BEFORE}_null"
"""Whether a value of several columns is null, and the value before; where only its fields are, it is false."""
_NUMBERS = {StateType.OPAQUE: (TXID, ATTEMPT), StateType.TRANSACTIONAL: (TXID,), StateType.NON_TRANSACTIONAL: ()}

F = TypeVar("F")


class PlainShape(NamedTuple):
    """The fields of the key, and the value under the name of its field; or, if `is_struct`, the fields of the value."""

    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    is_struct: bool

    def structs(self, columns: Sequence[Sequence[Any]], nulls: Sequence[Any]) -> list[Any]:
        """Return values that are structs, of a column for each field; `nulls` is true where a value is null itself."""
        names = [name for name, _ in self.values]
        made: list[Any] = list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))
        return [None if is_null else one for one, is_null in zip(made, nulls, strict=True)] if True in nulls else made

    def columns(self, structs: Sequence[Any]) -> list[list[Any]]:
        """Return the columns of structs; `CorruptValueError`: one lacks a field, or has one more."""
        try:
            if not {len(self.values)}.issuperset(map(len, filter(None, structs))):
                raise KeyError
            if None in structs:
                return [[None if one is None else one[name] for one in structs] for name, _ in self.values]
            return [list(map(itemgetter(name), structs)) for name, _ in self.values]
        except (KeyError, TypeError):  # user code gave a tuple, or not all fields
            made = as_declared(
                "value", f"struct<{','.join(f'{quote(name)}:{type_}' for name, type_ in self.values)}>", structs
            )
            return self.columns(made)


def as_declared(name: str, type_: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a field in the classes of its type: user code may give NumPy's numbers, or tuples."""
    known = plain_type(type_, False)
    if known is not None and {known.python, type(None)}.issuperset(map(type, values)):
        return values
    from trident.arrow import array_of, arrow_type, python_of

    return python_of(array_of(name, arrow_type(type_ if known is None else known.name), values))


def plain_type(declared: str, is_key: bool) -> FieldType | None:
    """Return the type of the values of a field, None as `simple_type`."""
    return TYPES["double"] if declared == "float" and not is_key else simple_type(declared)


def asked_shape(conf: StateConf, options: MapOptions, form_of: FormOf, why_misnamed: Misnamed) -> PlainShape:
    """Return the fields of a state whose options ask for a plain layout; `ConfigError`: it cannot have that."""
    shape = shape_of(conf, options, form_of, why_misnamed)
    if isinstance(shape, str):
        advice = "Give it what has a plain form (see the page of the store), or leave layout out"
        raise options.refused("layout", f"state {conf.state!r} cannot have it: {shape}. {advice}")
    return shape


def shape_of(conf: StateConf, options: MapOptions, form_of: FormOf, why_misnamed: Misnamed) -> PlainShape | str:
    """Return the fields of a state; if one has no plain form, why."""

    def refusal(field: str, type_: str, is_key: bool) -> str | None:
        if form_of(type_, is_key) is None:
            return f"{field!r}, of type {type_ or 'unknown'}, has no plain form {'as a key' if is_key else 'there'}"
        return why_misnamed(field, is_key)

    if options.serializer != "codec":
        return "it has a serializer"
    keys = conf.key_fields or ((("key", "string"),) if isinstance(options.snapshot_key, str) else ())
    if conf.value_type is None or not keys:
        return "its keys and values have no declared type"
    return _shape(conf, keys, normal_type(conf.value_type), refusal)


def _shape(
    conf: StateConf, keys: Sequence[Field], value_type: str, refusal: Callable[[str, str, bool], str | None]
) -> PlainShape | str:
    names, parts = list(dict(keys)), struct_fields(value_type)
    if any(refusal(*part, False) or part[0] in names for part in parts):
        parts = ()  # not columns of its own
    values = parts or ((free_name(conf.value_field or "value", names), value_type),)  # named as by a reader
    typed = tuple((name, normal_type(type_) if type_ else "") for name, type_ in keys)
    reasons = [refusal(*key, True) for key in typed]
    if any(refusal(*one, False) for one in values):  # of a struct as a whole, one of its fields' own
        reasons += [refusal(*one, False) for one in (*struct_fields(value_type), *values)]
    return next(filter(None, reasons), None) or PlainShape(typed, values, is_struct=bool(parts))


def json_form(type_: str) -> tuple[Callable[[Any], str], Callable[[str], Any]] | None:
    """Return how values of a type of arrays and structs become JSON, and back; None if JSON does not keep them as they are.

    Decimals are texts there: what reads a number of JSON may read a float. So are NaN and infinities, which JSON does not have.
    """
    if "<" not in type_ or _IN_JSON.fullmatch(type_) is None:
        return None
    made, has_decimals = _of_texts(type_), "decimal(" in type_
    if made is None:
        return _to_json, json.loads

    def of_json(text: str) -> Any:
        read = json.loads(text)
        return made(read) if has_decimals or _NO_NUMBER.search(text) is not None else read

    return _to_json, of_json


def _to_json(value: Any) -> str:
    try:
        return _dumps(value)
    except ValueError:
        return _dumps(_finite(value))


def _finite(value: Any) -> Any:
    """Return a value with texts in place of the floats that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_finite, value))
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _of_texts(type_: str) -> Callable[[Any], Any] | None:
    """Return what makes of a value that JSON has read the numbers that are texts there; None if a type has none."""
    if type_.startswith("decimal("):
        return lambda text: None if text is None else Decimal(str(text))
    if type_ == "double":
        return lambda number: None if number is None else float(number)
    if type_.startswith("array<"):
        one = _of_texts(type_[len("array<") : -1])
        return one and (lambda values: None if values is None else list(map(one, values)))
    members = {name: made for name, of in struct_fields(type_) if (made := _of_texts(of))}
    if not members:
        return None
    return lambda value: value and {**value, **{name: made(value[name]) for name, made in members.items()}}


class PlainColumn(NamedTuple, Generic[F]):
    """One column of the table: of a field of the `declared` type, in the `form` in which the store keeps its values."""

    name: str
    form: F
    declared: str
    is_key: bool = False

    @classmethod
    def of(cls, name: str, declared: str, is_key: bool = False) -> Self:
        """Return the column of a field whose type has a plain form."""
        form = cls.form_of(declared, is_key)
        assert form is not None, (name, declared)
        return cls(name, form, declared, is_key)

    @classmethod
    def form_of(cls, declared: str, is_key: bool) -> F | None:
        """Return how the store keeps values of a type; None if it has no plain form there."""
        raise NotImplementedError

    def from_driver(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values that the driver has read in their one form."""
        raise NotImplementedError


C = TypeVar("C", bound=PlainColumn[Any])


@dataclass(frozen=True)
class PlainColumns(ABC, Generic[C]):
    """The columns of one state of a `kind`: of `keys`, and of the value, or of each field of one that is a struct."""

    kind: StateType
    keys: tuple[C, ...]
    values: tuple[C, ...]
    shape: PlainShape

    @cached_property
    def own(self) -> tuple[C, ...]:
        """The framework's columns, in the order of the fields of what is stored."""
        numbers = tuple(self._own_column(name, "bigint") for name in _NUMBERS[self.kind])
        return (*numbers, *self.befores) if self.kind is StateType.OPAQUE else numbers

    @cached_property
    def befores(self) -> tuple[C, ...]:
        """The columns of the value before, as those of the value."""
        if not self.shape.is_struct:
            return (self.values[0]._replace(name=BEFORE),)
        fields = (column._replace(name=f"{BEFORE}_{column.name}") for column in self.values)
        return (*fields, self._own_column(BEFORE_NULL, "boolean"))

    @property
    def ours(self) -> set[str]:
        """The names of the columns that no owner of the table knows of."""
        return {column.name for column in self.all if column.name.startswith(OWN)}

    @cached_property
    def _value(self) -> tuple[C, ...]:
        return (*self.values, *((self._own_column(NULL, "boolean"),) if self.shape.is_struct else ()))

    @cached_property
    def all(self) -> tuple[C, ...]:
        """All columns, in the order of the table."""
        return (*self.keys, *self._value, *self.own)

    @cached_property
    def read(self) -> tuple[C, ...]:
        """The columns of a read or a write: the key, then the fields of what is stored, in their order."""
        return (*self.keys, *self.own, *self._value)

    def names(self, keys: Sequence[Key]) -> list[Key]:
        """Return keys in their one form; `CorruptValueError`: one has too many parts or too few."""
        wanted = len(self.keys)
        if {wanted}.issuperset(map(len, keys)):
            return [tuple(map(canonical, key)) for key in keys] if self._has_forms else list(map(tuple, keys))
        key = next(key for key in keys if len(key) != wanted)
        names = [column.name for column in self.keys]
        raise CorruptValueError(f"key {key!r} has {len(key)} parts, the table has key columns {names}")

    @cached_property
    def _has_forms(self) -> bool:
        return not {str, int, bool}.issuperset(class_of(column.declared) for column in self.keys)

    def values_by_key(self, rows: Sequence[Sequence[Any]]) -> dict[Key, Any]:
        """Return what is stored, by key, of the rows of a read; `CorruptValueError`: another program wrote one."""
        if not rows:
            return {}
        loaded = [column.from_driver(part) for column, part in zip(self.read, zip(*rows, strict=True), strict=True)]
        width = len(self.keys)
        keys, fields = zip(*loaded[:width], strict=True), loaded[width:]
        if self.shape.is_struct:
            fields = self._structs(fields)
        form = STORED_FORMS.get(self.kind)
        if form is None:
            return dict(zip(keys, fields[0], strict=True))
        for column, part in zip(self.own[:2], fields, strict=False):
            if None in part:
                key = tuple(rows[part.index(None)][:width])
                raise CorruptValueError(
                    f"read key {key!r}: its row has no {column.name}, so another program wrote it. {self._advice()}"
                )
        return dict(zip(keys, map(tuple.__new__, repeat(form.stored), zip(*fields, strict=True)), strict=True))

    def parts(self, keys: Sequence[Key], values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return keys and what is stored for them as the values of each column of `read`."""
        fields: list[Sequence[Any]] = [values]
        if self.kind in STORED_FORMS:
            fields = list(values.columns if type(values) is OpaqueTable else zip(*values, strict=True))
        if self.shape.is_struct:
            numbers = len(_NUMBERS[self.kind])
            columns = ([*self.shape.columns(one), [each is None for each in one]] for one in fields[numbers:])
            fields = [*fields[:numbers], *chain.from_iterable(columns)]
        return [*zip(*keys, strict=True), *fields]

    def _structs(self, fields: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the columns of what is stored, structs in place of the columns of their fields."""
        numbers, width = len(_NUMBERS[self.kind]), len(self.values)
        value = self.shape.structs(fields[-width - 1 : -1], fields[-1])
        if self.kind is not StateType.OPAQUE:
            return [*fields[:numbers], value]
        *befores, nulls = fields[numbers : -width - 1]
        return [*fields[:numbers], self.shape.structs(befores, [one is not False for one in nulls]), value]

    def _own_column(self, name: str, declared: str) -> C:
        return type(self.keys[0]).of(name, declared)

    @abstractmethod
    def _advice(self) -> str:
        """Return what to do about a row of another program."""
