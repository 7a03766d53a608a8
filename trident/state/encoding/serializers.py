"""Serializers: turn what the maps store (`OpaqueValue`, `TransactionalValue` or the bare value) into bytes and back.

`CodecSerializer`, the default, keeps every type; `JSONOpaqueSerializer` and its like are for other programs that read the
store. Each writes `[txid, attempt, prev, curr]`, `[txid, value]` or the bare value, and of any kind a sentinel `[incarnation,
txid, attempt, place, sealed, run]`.

In JSON a tuple comes back as a list; a Decimal, a time, bytes, a set, a dict with a key that is not text, NaN and the
infinities are refused. int and float stay different, and an int keeps all of its digits here (other programs may read it as a
double).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from trident.errors import ConfigError, CorruptValueError
from trident.roles import has
from trident.state.encoding.codec import decode, decode_columns, decode_many, encode, encode_columns, encode_many
from trident.state.interfaces import Key, StateType, kind_of
from trident.state.table import KeyColumns, OpaqueTable
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue, TransactionalValue
from trident.types import TYPES, plain_number

if TYPE_CHECKING:
    from trident.state.number_columns import PackedStructs


@runtime_checkable
class Serializer(Protocol):
    """Turns what a map stores into bytes and back.

    It may have a `kind`, that of the values that it writes; and both `serialize_many` and `deserialize_many`, which take a list
    and return one, if it is faster with many at once. A trial shows whether it keeps the attempt of an opaque value.
    """

    def serialize(self, obj: Any) -> bytes:
        """Return the bytes of `obj`; raise `CorruptValueError` if it has none."""

    def deserialize(self, data: bytes) -> Any:
        """Return the object of `data`; raise `CorruptValueError` if it is damaged or foreign."""


@dataclass(frozen=True)
class StoredForm:
    """The stored form of a kind: its class, the number of fields, and how many of them, from the first on, are ints."""

    stored: type[Any]
    width: int
    ints: int
    text: str


STORED_FORMS: dict[StateType, StoredForm] = {
    StateType.OPAQUE: StoredForm(OpaqueValue, 4, 2, "[txid, attempt, prev, curr] of an opaque state"),
    StateType.TRANSACTIONAL: StoredForm(TransactionalValue, 2, 1, "[txid, value] of a transactional state"),
}
"""The kinds that store more than the bare value."""
_INT = frozenset({int})  # not bool


def fields_of(obj: Any, kind: StateType) -> Any:
    """Return what is encoded: the list of the fields, or the bare value."""
    if isinstance(obj, _WITH_FIELDS):
        return list(obj)
    if kind in STORED_FORMS:
        raise _misfit(obj, STORED_FORMS[kind].stored.__name__)
    return obj


def from_fields(fields: Any, kind: StateType) -> Any:
    """Return the object of what was decoded; raise `CorruptValueError` if it is of another kind."""
    form = STORED_FORMS.get(kind)
    if form is None:
        return fields
    if isinstance(fields, list):
        if len(fields) == form.width and _INT.issuperset(map(type, fields[: form.ints])):
            return form.stored(*fields)
        if (
            len(fields) == len(Sentinel._fields)
            and isinstance(fields[0], str)
            and _INT.issuperset(map(type, fields[1:3]))
        ):
            return Sentinel(*fields)
    raise _misfit(fields, form.text)


def _misfit(found: Any, wanted: str) -> CorruptValueError:
    text = repr(found)
    return CorruptValueError(
        f"a stored value is {text if len(text) <= 80 else text[:80] + '…'}, not {wanted}: it was written by a state of "
        "another kind or by another program; use the kind it was written with, or another key prefix"
    )


class CodecSerializer:
    """The codec (`trident.state.encoding.codec`) for one kind of map; the fields of a stored value are one list."""

    def __init__(self, kind: StateType = StateType.OPAQUE) -> None:
        self.kind = kind

    def serialize(self, obj: Any) -> bytes:
        return encode(fields_of(obj, self.kind))

    def deserialize(self, data: bytes) -> Any:
        return from_fields(decode(data), self.kind)

    def serialize_many(self, objs: Sequence[Any]) -> list[bytes]:
        """Return the bytes of each object."""
        if type(objs) is OpaqueTable and self.kind is StateType.OPAQUE:
            heads = objs.heads()  # of most values one attempt of one batch is the writer
            if len(heads) == 1:
                return encode_columns(heads.pop(), (objs.prevs, objs.currs))
            return encode_columns((), objs.columns)
        types = set(map(type, objs))
        if self.kind in STORED_FORMS and types == {STORED_FORMS[self.kind].stored}:
            return encode_many(objs, as_lists=True)
        if self.kind not in STORED_FORMS and not any(issubclass(found, _WITH_FIELDS) for found in types):
            return encode_many(objs)
        return list(map(self.serialize, objs))

    def deserialize_many(self, data: Sequence[bytes]) -> list[Any]:
        """Return the object of each value."""
        form = STORED_FORMS.get(self.kind)
        if form is None:
            return decode_many(data)
        columns = _columns(data, form)
        if columns is None:
            return list(map(self.deserialize, data))
        # tuple.__new__: a NamedTuple's own __new__ takes twice as long, and this runs once per key of a batch.
        return list(map(tuple.__new__, repeat(form.stored), zip(*columns, strict=True)))


def _columns(data: Sequence[bytes], form: StoredForm) -> list[Any] | None:
    """Return the fields of many stored values, column by column; None if one of them does not have the usual form."""
    columns = decode_columns(data, form.width)
    is_usual = columns is not None and _INT.issuperset(map(type, chain.from_iterable(columns[: form.ints])))
    return columns if is_usual else None


class _JSONSerializer:
    kind: StateType

    def serialize(self, obj: Any) -> bytes:
        """Write a stored value or a sentinel as UTF-8 JSON."""
        fields = fields_of(obj, self.kind)
        try:
            _check_names(fields)
            return _ENCODER.encode(fields).encode("utf-8")
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptValueError(
                f"write {type(obj).__name__} as JSON: {error}. JSON has None, bool, int, finite float, text, list and "
                "dict; use CodecSerializer to store any other type"
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Read a stored value or a sentinel from UTF-8 JSON."""
        try:
            fields = _DECODER.decode(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CorruptValueError(
                f"read {bytes(data[:32])!r} as JSON: {error}; the value is damaged, or another serializer wrote it"
            ) from error
        return from_fields(fields, self.kind)


class JSONOpaqueSerializer(_JSONSerializer):
    """`[txid, attempt, prev, curr]`."""

    kind = StateType.OPAQUE


class JSONTransactionalSerializer(_JSONSerializer):
    """`[txid, value]`."""

    kind = StateType.TRANSACTIONAL


class JSONNonTransactionalSerializer(_JSONSerializer):
    """The bare value."""

    kind = StateType.NON_TRANSACTIONAL


def _check_names(fields: Any) -> None:
    """Refuse a dict with a key that is not text: read back it would be, and 1 and "1" would be one key."""
    if isinstance(fields, dict):
        for key, part in fields.items():
            if not isinstance(key, str):
                raise TypeError(f"JSON has no dict with the key {key!r}, only with text")
            _check_names(part)
    elif isinstance(fields, (list, tuple)):
        for part in fields:
            _check_names(part)


def _plain(obj: object) -> object:
    number = plain_number(obj)
    if number is None:
        raise TypeError(f"JSON has no {type(obj).__name__}")
    return number


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)

_NAMES = re.compile(r"(\w+|`(``|[^`])*`):")  # of a struct's fields
_NO_JSON = (row.name for row in TYPES.values() if row.family not in ("boolean", "number", "string"))
_NOT_IN_JSON = re.compile(rf"({'|'.join(_NO_JSON)})(\(.*?\))?|map<(?!string,)\w+")
_WITH_FIELDS = (OpaqueValue, TransactionalValue, Sentinel)

_JSON = {
    each.kind: each for each in (JSONOpaqueSerializer, JSONTransactionalSerializer, JSONNonTransactionalSerializer)
}
_NAMED: dict[str, Callable[[StateType], Serializer]] = {"codec": CodecSerializer, "json": lambda kind: _JSON[kind]()}


def serializer_for(name: str | Serializer, kind: StateType) -> Serializer:
    """Return the serializer of a name for a kind of map, or the serializer given, if it is one for that kind."""
    if isinstance(name, str):
        if name not in _NAMED:
            known = ", ".join(map(repr, _NAMED))
            raise ConfigError(f"serializer {name!r} is unknown; use one of {known}, or a serializer of your own")
        return _NAMED[name](kind)
    if not isinstance(name, Serializer):
        raise ConfigError(f"serializer {name!r} has no serialize(obj) and deserialize(data); use an object that has")
    own = kind_of(name) or kind
    if own is not kind:
        raise ConfigError(
            f"a {type(name).__name__} of kind {own.value} was given to a state that is {kind.value}; "
            "give it one of that kind"
        )
    return name


def name_of_serializer(serializer: Serializer) -> str:
    """Return the name by which an option calls a serializer, of one of a user's own that of its class."""
    kind = type(serializer)
    return "codec" if kind is CodecSerializer else "json" if kind in _JSON.values() else kind.__name__


def keeps_attempts(serializer: Serializer) -> bool:
    """Whether an opaque value keeps its attempt. Without it, a value of an attempt that lost looks committed."""
    # Tried and not declared, because a replay finds what the serializer really wrote.
    probe = OpaqueValue(1, 1, None, None)  # the stored value of a removed key
    try:
        return bool(serializer.deserialize(serializer.serialize(probe))[:2] == probe[:2])
    except Exception:  # noqa: BLE001 - of a user's: one that cannot write None is trusted
        return True


def type_not_written(serializer: Serializer | None, declared: str | None) -> str | None:
    """Return a type, the declared one or one within it, that JSON does not have, if that is what values are written as."""
    is_plain = type(serializer) in _JSON.values()  # a class of a user's own that is based on one may write more
    found = is_plain and _NOT_IN_JSON.search(_NAMES.sub("", declared or ""))
    return found[0] if found else None


DecodeOpaque = Callable[[Sequence[Key], Sequence[bytes | None]], OpaqueTable]
Decode = Callable[[Sequence[Key], Sequence[bytes | None]], list[Any]]
"""Makes objects of the bytes of some keys; None stays None."""
_FEWEST_IN_ARRAYS = 200  # of fewer structs, dicts are faster


class StoredValues:
    """A serializer applied to the values of many keys.

    `decode_opaque`: like `decode`, for opaque values as columns; None if the serializer cannot do that.
    `structs`: packs opaque structs of numbers, if that is the declared type; None: it is not, or a stored value is another.
    """

    def __init__(self, serializer: Serializer, value_type: str | None = None) -> None:
        self._serializer, many = serializer, cast("Any", serializer)
        self._serialize_many, self._deserialize_many = None, None
        if has(serializer, "serialize_many", "deserialize_many"):
            self._serialize_many, self._deserialize_many = many.serialize_many, many.deserialize_many
        is_codec = type(serializer) is CodecSerializer and serializer.kind is StateType.OPAQUE
        self.decode_opaque: DecodeOpaque | None = self._decoded_columns if is_codec else None
        self.structs = _packed_structs(value_type) if is_codec else None

    def structs_of(self, keys: KeyColumns, read: Callable[[list[Key]], Sequence[bytes | None]]) -> OpaqueTable | None:
        """Return what `read` gives for the keys as arrays; None if rows are faster, or fit better."""
        if self.structs is None or len(keys) < _FEWEST_IN_ARRAYS:
            return None
        found = self.structs.decode(read(list(keys)))
        if found is None:
            self.structs = None  # or each commit would read twice
        return found

    def encode(self, keys: Sequence[Key], values: Sequence[Any]) -> list[bytes]:
        """Serialize; a value that cannot be serialized raises `CorruptValueError` with its key."""
        if self.structs is not None and isinstance(values, OpaqueTable) and not isinstance(values.txids, list):
            return self.structs.encode(values)
        return apply_by_key("write", keys, values, self._serializer.serialize, self._serialize_many)

    def decode(self, keys: Sequence[Key], stored: Sequence[bytes | None]) -> list[Any]:
        """Deserialize, None stays None; a value that cannot be read raises `CorruptValueError` with its key."""
        if None in stored:
            there = [(key, data) for key, data in zip(keys, stored, strict=True) if data is not None]
            values = iter(self.decode([key for key, _ in there], [data for _, data in there]))
            return [None if data is None else next(values) for data in stored]
        return apply_by_key("read", keys, stored, self._serializer.deserialize, self._deserialize_many)

    def _decoded_columns(self, keys: Sequence[Key], stored: Sequence[bytes | None]) -> OpaqueTable:
        given: Sequence[Any] = stored
        there: Sequence[int] = range(len(stored))
        if None in stored:
            there = [at for at, data in enumerate(stored) if data is not None]
            given = [stored[at] for at in there]
        columns = _columns(given, STORED_FORMS[StateType.OPAQUE])
        if columns is None:  # a few values, or some that are not as usual
            return OpaqueTable.of(self.decode(keys, stored))
        return OpaqueTable.spread(len(stored), there, columns)


def _packed_structs(value_type: str | None) -> PackedStructs | None:
    if value_type is None or not value_type.startswith("struct<"):
        return None
    # These import NumPy and Arrow, so only where a store has such values.
    from trident.state.number_columns import NumberForm, PackedStructs

    form = NumberForm.of(value_type)
    return PackedStructs(form) if form is not None and form.names else None


def apply_by_key(
    what: str,
    keys: Sequence[Key],
    items: Sequence[Any],
    one: Callable[[Any], Any],
    many: Callable[[Sequence[Any]], list[Any]] | None,
) -> list[Any]:
    """Apply `many` to the items or, where there is none or it fails, `one` to each, to find the bad key."""
    if many is not None:
        with suppress(CorruptValueError):
            return many(items)
    done: list[Any] = []
    for key, item in zip(keys, items, strict=True):
        try:
            done.append(one(item))
        except CorruptValueError as error:
            raise CorruptValueError(f"{what} key {key!r}: {error}") from error
    return done
