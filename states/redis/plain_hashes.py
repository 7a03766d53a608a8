r"""Keys and values that the owner of a Redis can read, for `layout="fields"`: one hash for each key.

The name of a key is a text: P:the, or P:oslo:7 of several fields, joined by ":". In a text a backslash is written twice, and,
so that no two keys have one name, a ":" in one of several fields has a backslash before it; null is `\N`. The fields of the
hash are those of the value, under their names, then `_txid`, `_attempt` and `_before`. A null has no field.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from states.redis.options import RedisOptions
from trident.errors import CorruptValueError
from trident.state.encoding.codec import decode_found, encode
from trident.state.encoding.equal_keys import canonical
from trident.state.interfaces import Key, StateConf
from trident.state.kinds import StateType
from trident.state.values import OpaqueValue, TransactionalValue
from trident.storekit.plain_shapes import PlainShape, fits_json, shape_of

TXID, ATTEMPT, BEFORE, NULL = "_txid", "_attempt", "_before", "_null"
_OWN = {
    StateType.OPAQUE: (TXID, ATTEMPT, BEFORE),
    StateType.TRANSACTIONAL: (TXID,),
    StateType.NON_TRANSACTIONAL: (),
}
_NO_VALUE = "\\N"
_ESCAPED, _BACKSLASH, _QUOTED = re.compile(r"[\\:]"), re.compile(r"\\"), re.compile(r"\\(.)", re.DOTALL)
_UNREADABLE = (ValueError, KeyError, ArithmeticError)
_PARTS = re.compile(r"((?:[^\\:]|\\.)*)(?::|$)", re.DOTALL)

ToText = Callable[[Any], str]
OfText = Callable[[str], Any]


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


_WHOLE = (str, int)
_FORMS: dict[str, tuple[ToText, OfText]] = {
    "string": (str, str),
    "boolean": (lambda value: "true" if value else "false", lambda text: {"true": True, "false": False}[text]),
    "tinyint": _WHOLE,
    "smallint": _WHOLE,
    "int": _WHOLE,
    "bigint": _WHOLE,
    "float": (repr, float),
    "double": (repr, float),
    "date": (dt.date.isoformat, dt.date.fromisoformat),
    "timestamp": (lambda value: value.astimezone(dt.UTC).isoformat(), _moment),
    "timestamp_ntz": (dt.datetime.isoformat, dt.datetime.fromisoformat),
    "binary": (bytes.hex, bytes.fromhex),
}


def _form_of(type_: str, is_key: bool) -> tuple[ToText, OfText] | None:
    """Return how values of a type become text, and back; None if they have no plain form."""
    if type_.startswith("decimal("):
        return (lambda value: format(value, "f"), Decimal)
    if not is_key and fits_json(type_):
        return (lambda value: json.dumps(value, ensure_ascii=False), json.loads)
    return _FORMS.get(type_)


def _refusal(field: str, type_: str, is_key: bool) -> str | None:
    if _form_of(type_, is_key) is None:
        return f"{field!r}, of type {type_ or 'unknown'}, has no plain form {'as a key' if is_key else 'there'}"
    return f"no field can be called {field!r}" if not is_key and field in (TXID, ATTEMPT, BEFORE, NULL) else None


@dataclass(frozen=True)
class PlainHashes:
    """The names and the hashes of one state."""

    kind: StateType
    shape: PlainShape

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields of a hash: those of the value, whether it is null if it is a struct, and what the kind needs."""
        names = tuple(name for name, _ in self.shape.values)
        return (*names, *((NULL,) if self.shape.is_struct else ()), *_OWN[self.kind])

    @cached_property
    def stored_fields(self) -> list[bytes]:
        """The fields, encoded."""
        return [name.encode() for name in self.fields]

    # ---- names of keys ----------------------------------------------------------------------------------------------

    def names(self, keys: Sequence[Key], start: bytes = b"") -> list[bytes]:
        """Return what keys are called, behind `start`."""
        forms, escaped = self._key_forms, _ESCAPED if len(self._key_forms) > 1 else _BACKSLASH
        columns = [
            [_NO_VALUE if part is None else escaped.sub(r"\\\g<0>", to_text(canonical(part))) for part in parts]
            for (to_text, _), parts in zip(forms, zip(*keys, strict=True), strict=bool(keys))
        ]
        texts = columns[0] if len(columns) == 1 else map(":".join, zip(*columns, strict=True))
        return [start + text.encode("utf-8", "surrogatepass") for text in texts] if keys else []

    def keys(self, names: Iterable[bytes]) -> list[Key]:
        """Return the keys of names; `CorruptValueError` for a name that none has."""
        return [self._key(name.decode("utf-8", "surrogatepass")) for name in names]

    @cached_property
    def _key_forms(self) -> list[tuple[ToText, OfText]]:
        return [_known(type_, True) for _, type_ in self.shape.keys]

    def _key(self, name: str) -> Key:
        forms = self._key_forms
        texts = [name] if len(forms) == 1 else [found[1] for found in _PARTS.finditer(name)][: len(forms)]
        try:
            return tuple(
                None if text == _NO_VALUE else of_text(_QUOTED.sub(r"\1", text))
                for (_, of_text), text in zip(forms, texts, strict=True)
            )
        except _UNREADABLE as error:
            wanted = ", ".join(f"{field}: {type_}" for field, type_ in self.shape.keys)
            raise CorruptValueError(
                f"{name!r} is not the name of a key ({wanted}), so another program wrote it: delete it, or give the state "
                "another prefix"
            ) from error

    # ---- hashes -----------------------------------------------------------------------------------------------------

    def encode(self, keys: Sequence[Key], values: Sequence[Any]) -> list[list[bytes]]:
        """Return the fields of each value: "+" and a text, or nothing for a null."""
        own = len(_OWN[self.kind])
        parts = list(zip(*values, strict=True)) if own else [values]
        columns = self._value_texts(parts[-1])
        columns += [[b"+%d" % number for number in numbers] for numbers in parts[: min(own, 2)]]
        if own == len(_OWN[StateType.OPAQUE]):
            coded = [None if one is None else encode(one) for one in parts[2]] if self.shape.is_struct else parts[2]
            columns.append(_texts(bytes if self.shape.is_struct else self._value_forms[0][0], coded))
        return list(map(list, zip(*columns, strict=True)))

    def decode(self, keys: Sequence[Key], stored: Sequence[Sequence[bytes | None]]) -> list[Any]:
        """Return what is stored; None for a key without a hash.

        Raises
        ------
        CorruptValueError
            Another program wrote a hash: it does not say which batch did, or has a text that is no value of the type.
        """
        there = [at for at, row in enumerate(stored) if any(one is not None for one in row)]
        made: list[Any] = [None] * len(stored)
        if there:
            for at, one in zip(
                there, self._stored([keys[at] for at in there], [stored[at] for at in there]), strict=True
            ):
                made[at] = one
        return made

    def keeps_attempts(self) -> bool:
        """Whether an opaque value comes back with its attempt."""
        return True

    decode_current = None
    decode_opaque = None

    @cached_property
    def _value_forms(self) -> list[tuple[ToText, OfText]]:
        return [_known(type_, False) for _, type_ in self.shape.values]

    def _value_texts(self, values: Sequence[Any]) -> list[list[bytes]]:
        if not self.shape.is_struct:
            return [_texts(self._value_forms[0][0], values)]
        parts = zip(self._value_forms, self.shape.columns(values), strict=True)
        columns = [_texts(to_text, column) for (to_text, _), column in parts]
        # A hash has no field for a struct of nulls, nor for a null.
        has_any = map(any, zip(*columns, strict=True))
        nulls = (
            b"" if some else b"+true" if one is None else b"+false" for one, some in zip(values, has_any, strict=True)
        )
        return [*columns, list(nulls)]

    def _stored(self, keys: Sequence[Key], rows: Sequence[Sequence[bytes | None]]) -> list[Any]:
        columns, own = list(zip(*rows, strict=True)), _OWN[self.kind]
        for name, column in zip(own[:2], columns[-len(own) :] if own else (), strict=False):
            if None in column:
                raise self._foreign(keys[column.index(None)], name)
        try:
            return self._loaded(columns)
        except _UNREADABLE as error:
            if len(keys) > 1:  # one after the other, to name the key
                return [self._stored([key], [row])[0] for key, row in zip(keys, rows, strict=True)]
            raise CorruptValueError(f"read key {keys[0]!r}: another program wrote its hash: {error}") from error

    def _loaded(self, columns: Sequence[Sequence[bytes | None]]) -> list[Any]:
        own, width = len(_OWN[self.kind]), len(self.shape.values)
        parts = zip(self._value_forms, columns[:width], strict=True)
        values: Sequence[Any] = [_values(of_text, column) for (_, of_text), column in parts]
        if self.shape.is_struct:
            values = self.shape.structs(values, [one == b"true" for one in columns[width]])
        else:
            (values,) = values
        if not own:
            return list(values)
        numbers = [list(map(int, filter(None, column))) for column in columns[-own:][:2]]
        if own == 1:
            return list(map(TransactionalValue, numbers[0], values))
        befores = columns[-1]
        is_coded, of_text = self.shape.is_struct, self._value_forms[0][1]
        return list(
            map(OpaqueValue, *numbers, decode_found(befores, None) if is_coded else _values(of_text, befores), values)
        )

    def _foreign(self, key: Key, field: str) -> CorruptValueError:
        known = " and ".join(f"{name} to {number}" for name, number in zip(_OWN[self.kind], (0, -1), strict=False))
        return CorruptValueError(
            f"read key {key!r}: its hash has no {field}, so another program wrote it. Delete it; or, to count on from its "
            f"value, set {known}"
        )


def _values(of_text: OfText, texts: Sequence[bytes | None]) -> list[Any]:
    return [None if text is None else of_text(text.decode("utf-8", "surrogatepass")) for text in texts]


def _known(type_: str, is_key: bool) -> tuple[ToText, OfText]:
    form = _form_of(type_, is_key)
    assert form is not None, type_
    return form


def _texts(to_text: Callable[[Any], str | bytes], values: Sequence[Any]) -> list[bytes]:
    texts = ("" if one is None else to_text(one) for one in values)
    coded = (one if isinstance(one, bytes) else one.encode("utf-8", "surrogatepass") for one in texts)
    return [b"" if value is None else b"+" + one for value, one in zip(values, coded, strict=True)]


def hashes_of(conf: StateConf, kind: StateType, options: RedisOptions) -> PlainHashes | str:
    """Return the names and hashes of a state; if it has none, why."""
    if options.layout != "fields":
        return f"layout={options.layout!r}"
    if options.serializer != "codec":
        return "it has a serializer"
    shape = shape_of(conf, options.snapshot_key, _refusal)
    return shape if isinstance(shape, str) else PlainHashes(kind, shape)
