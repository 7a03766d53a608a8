r"""The names of the keys of a Redis state, on one server and in a cluster, and its hashes. Nothing here talks to a server.

P being the prefix, `P:<key>` is a string with the value; `<key>` is the key's encoding, whose first byte is a control
character. The hash `P:sentinels` has for each partition JSON `[incarnation, txid, attempt, renewal, sealed, place, run]`,
and, while a commit is under way, `<partition>:calls`, the number of its writes. The stream `P:changes` has what batches have
changed.

With `layout="fields"` `P:<text of the key>` is a hash of texts: the fields of the value, `_batch` ("txid/attempt") and
`_before`, or `_txid`; a null has no field. Fields of a key are joined by ":"; in a text a backslash is written twice, and a
":" in one of several fields has a backslash before it; null is `\N`. So `P:\sentinels` and `P:\changes` are no keys.

In a cluster there are these keys for each bucket b, with the hash tag `{P:b}`, and so a slot of its own, in place of P. The
sentinels are copied to each bucket, because a write is fenced in the slot where it happens, with the number of buckets in the
field "buckets".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from states.redis.options import RedisOptions
from trident.errors import CorruptValueError
from trident.state.encoding.codec import decode_found, decode_keys, encode, encode_keys
from trident.state.encoding.equal_keys import canonical_keys
from trident.state.encoding.serializers import STORED_FORMS, DecodeOpaque
from trident.state.interfaces import Key, StateConf
from trident.state.kinds import StateType
from trident.state.table import OpaqueTable
from trident.storekit import FieldsCodec
from trident.storekit.plain_columns import PlainShape, as_declared, asked_shape, json_form
from trident.types import simple_type

SENTINEL = FieldsCodec(("incarnation", "txid", "attempt", "renewal", "sealed", "place", "run"))
"""The record of a sentinel, with the number of its renewal as a note."""

_PLAIN_SENTINELS, _PLAIN_CHANGES = b":\\sentinels", b":\\changes"
_GLOB = re.compile(rb"([\\*?\[\]^-])")


class RedisLayout:
    """The names of one state's keys, which begin with its prefix; in so many buckets of a cluster, None on one server."""

    def __init__(self, prefix: str, buckets: int | None = None, plain: PlainHashes | None = None) -> None:
        tag = prefix.replace("%", "%25").replace("}", "%7D")  # a closing brace would end the tag too early
        if buckets is None:
            stems, before, tags = [prefix.encode()], f"{prefix}:".encode(), b""
        else:
            stems = [f"{{{tag}:{bucket}}}".encode() for bucket in range(buckets)]
            before, tags = f"{{{tag}:".encode(), b"*}:"
        # Recorded with each sentinel, so that no other number of buckets is used; one server records nothing.
        self.recorded_buckets = b"" if buckets is None else b"%d" % buckets
        own, other, changes, glob = b":sentinels", _PLAIN_SENTINELS, b":changes", b"[\x01-\x1f]*"
        if plain is not None:
            own, other, changes, glob = other, own, _PLAIN_CHANGES, b"*"
        self.stems, self.buckets, self.plain, self._before = stems, len(stems), plain, len(before)
        self.starts = [stem + b":" for stem in stems]  # of the names of a bucket's keys
        self._bucket_of = {start: bucket for bucket, start in enumerate(self.starts)}
        self.sentinel_keys = [stem + own for stem in stems]
        self.other_sentinels = [stem + other for stem in stems]
        self.change_keys = [stem + changes for stem in stems]
        self.named: Callable[..., list[bytes]] = encode_keys if plain is None else plain.names
        # Not the strings of a state whose prefix begins with this one.
        types = () if plain is None else (b"TYPE", b"hash")
        self.scan = (b"MATCH", _GLOB.sub(rb"\\\1", before) + tags + glob, *types)
        """What SCAN is given: the glob that the names of all keys match, and few others."""

    def place_of(self, name: bytes) -> tuple[int, bytes] | None:
        """Return the bucket and the encoded key of a name that a scan found; None if it is something else."""
        end = name.find(b"}:", self._before) + 2 if self.recorded_buckets else self._before
        bucket, key = self._bucket_of.get(name[:end]), name[end:]
        own = (_PLAIN_SENTINELS, _PLAIN_CHANGES)
        is_key = b"" < key[:1] < b" " if self.plain is None else b":" + key not in own
        return None if bucket is None or not is_key else (bucket, key)

    def keys(self, encoded: Sequence[bytes]) -> list[Key]:
        return decode_keys(encoded) if self.plain is None else self.plain.keys(encoded)


BATCH, TXID, BEFORE, NULL = "_batch", "_txid", "_before", "_null"
_OWN = {StateType.OPAQUE: (BATCH, BEFORE), StateType.TRANSACTIONAL: (TXID,), StateType.NON_TRANSACTIONAL: ()}
NO_TEXT = b"\xff"
"""In place of the text of a null; no text in UTF-8 has this byte, and no encoded value begins with it."""

_NO_VALUE = "\\N"
_ESCAPED, _BACKSLASH, _QUOTED = re.compile(r"[\\:]"), re.compile(r"\\"), re.compile(r"\\(.)", re.DOTALL)
_UNREADABLE = (ValueError, KeyError, ArithmeticError)
_PARTS = re.compile(r"((?:[^\\:]|\\.)*)(?::|$)", re.DOTALL)

ToText = Callable[[Any], str]
OfText = Callable[[str], Any]


def _form_of(type_: str, is_key: bool) -> tuple[ToText, OfText] | None:
    """Return how values of a type become text, and back; None if they have no plain form."""
    known = simple_type(type_)
    if known is not None:
        return known.to_text, known.of_text
    return None if is_key else json_form(type_)


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
        return [name.encode() for name in self.fields]

    def names(self, keys: Sequence[Key], start: bytes = b"") -> list[bytes]:
        """Return what keys are called, behind `start`."""
        if not keys:
            return []
        escaped = _ESCAPED if len(self._key_forms) > 1 else _BACKSLASH
        by_field = zip(self._key_forms, zip(*canonical_keys(keys), strict=True), strict=True)
        columns = [_key_texts(parts, to_text, escaped) for (to_text, _), parts in by_field]
        texts = columns[0] if len(columns) == 1 else list(map(":".join, zip(*columns, strict=True)))
        return [start + text for text in _encode_texts(texts)]

    def keys(self, names: Iterable[bytes]) -> list[Key]:
        """Return the keys of names; `CorruptValueError` for a name that none has."""
        return [self._key(name.decode("utf-8", "surrogatepass")) for name in names]

    @cached_property
    def _key_forms(self) -> list[tuple[ToText, OfText]]:
        return [_text_form(type_, True) for _, type_ in self.shape.keys]

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

    def common(self, values: Sequence[Any]) -> dict[bytes, bytes]:
        """Return the field of the batch and the attempt that wrote all the values; nothing if they differ."""
        width = self._ints
        heads = values.heads() if type(values) is OpaqueTable else {value[:width] for value in values if width}
        return {_OWN[self.kind][0].encode(): _head_text(heads.pop())} if len(heads) == 1 else {}

    def encode(
        self, keys: Sequence[Key], values: Sequence[Any], common: Collection[bytes] = ()
    ) -> list[Sequence[bytes]]:
        """Return the fields of each value but the common one: texts, and `NO_TEXT` for a null."""
        ints = self._ints
        by_field = (
            values.columns if type(values) is OpaqueTable else list(zip(*values, strict=True)) if ints else [values]
        )
        columns = self._value_texts(by_field[-1])
        if ints and not common:
            columns.append(list(map(_head_text, zip(*by_field[:ints], strict=True))))
        if self.kind is StateType.OPAQUE:
            befores = by_field[2]
            if self.shape.is_struct:
                columns.append([NO_TEXT if one is None else encode(one) for one in befores])
            else:
                columns += self._value_texts(befores)
        return list(zip(*columns, strict=True))

    def decode(self, keys: Sequence[Key], stored: Sequence[Sequence[bytes | None]]) -> list[Any]:
        """Return what is stored in hashes, of which the fields are given; None for a key without one.

        Raises `CorruptValueError`: another program wrote a hash.
        """
        there, columns = self._present_columns(keys, stored)
        made: list[Any] = [None] * len(keys)
        stored_form = STORED_FORMS.get(self.kind)
        rows = columns[0] if stored_form is None else map(stored_form.stored, *columns)
        for at, one in zip(there, rows, strict=True):
            made[at] = one
        return made

    @property
    def decode_opaque(self) -> DecodeOpaque | None:
        """Like `decode`, for opaque values as columns; None for values of another kind."""
        return self._decode_opaque if self.kind is StateType.OPAQUE else None

    def _decode_opaque(self, keys: Sequence[Key], stored: Sequence[Any]) -> OpaqueTable:
        return OpaqueTable.spread(len(keys), *self._present_columns(keys, stored))

    @cached_property
    def _value_forms(self) -> list[tuple[ToText, OfText]]:
        return [_text_form(type_, False) for _, type_ in self.shape.values]

    def _value_texts(self, values: Sequence[Any]) -> list[list[bytes]]:
        parts = self.shape.columns(values) if self.shape.is_struct else [values]
        columns = [
            _texts(to_text, as_declared(*field, column))
            for field, (to_text, _), column in zip(self.shape.values, self._value_forms, parts, strict=True)
        ]
        if not self.shape.is_struct:
            return columns
        # A hash has no field for a struct of nulls, nor for a null.
        nothing = (NO_TEXT,) * len(columns)
        nulls = [
            NO_TEXT if row != nothing else b"true" if one is None else b"false"
            for one, row in zip(values, zip(*columns, strict=True), strict=True)
        ]
        return [*columns, nulls]

    def _present_columns(
        self, keys: Sequence[Key], stored: Sequence[Sequence[bytes | None]]
    ) -> tuple[Sequence[int], Sequence[list[Any]]]:
        """Return the places of the hashes that are there, and the fields of what they hold, column by column."""
        columns: list[Sequence[bytes | None]] = list(zip(*stored, strict=True)) or [()] * len(self.fields)
        there: Sequence[int] = range(len(keys))
        if all(None in column for column in columns):
            there = [at for at, row in enumerate(zip(*columns, strict=True)) if row.count(None) < len(row)]
            keys, columns = [keys[at] for at in there], [[column[at] for at in there] for column in columns]
        return there, self._columns(keys, columns)

    def _columns(self, keys: Sequence[Key], columns: Sequence[Sequence[bytes | None]]) -> Sequence[list[Any]]:
        own = _OWN[self.kind]
        if own and None in columns[-len(own)]:
            key, known = keys[columns[-len(own)].index(None)], _head_text((0, -1)[: self._ints]).decode()
            raise CorruptValueError(
                f"read key {key!r}: its hash has no {own[0]}, so another program wrote it. Delete it; or, to count on from "
                f"its value, set {own[0]} to {known}"
            )
        try:
            return self._decode_columns(columns)
        except _UNREADABLE as error:
            if len(keys) > 1:  # one after the other, to name the key
                for at, key in enumerate(keys):
                    self._columns([key], [column[at : at + 1] for column in columns])
            raise CorruptValueError(f"read key {keys[0]!r}: another program wrote its hash: {error}") from error

    def _decode_columns(self, columns: Sequence[Sequence[bytes | None]]) -> Sequence[list[Any]]:
        own, width = len(_OWN[self.kind]), len(self.shape.values)
        parts = zip(self._value_forms, columns[:width], strict=True)
        values: list[Any] = [_values(of_text, column) for (_, of_text), column in parts]
        if self.shape.is_struct:
            values = self.shape.structs(values, [one == b"true" for one in columns[width]])
        else:
            (values,) = values
        if not own:
            return [values]
        numbers = _heads(columns[-own], self._ints)
        if own == 1:
            return [*numbers, values]
        befores, is_coded, of_text = columns[-1], self.shape.is_struct, self._value_forms[0][1]
        return [*numbers, decode_found(befores, None) if is_coded else _values(of_text, befores), values]

    @cached_property
    def _ints(self) -> int:
        """How many numbers say who wrote a value."""
        return STORED_FORMS[self.kind].ints if self.kind in STORED_FORMS else 0


def _key_texts(parts: Sequence[Any], to_text: ToText, escaped: re.Pattern[str]) -> Sequence[str]:
    """Return the parts of one field of keys as texts, what separates parts escaped."""
    is_text = {str}.issuperset(map(type, parts))
    texts = parts if is_text else ["" if part is None else to_text(part) for part in parts]
    if escaped.search("".join(texts)) is not None:
        texts = [escaped.sub(r"\\\g<0>", text) for text in texts]
    if None in parts:
        texts = [_NO_VALUE if part is None else text for part, text in zip(parts, texts, strict=True)]
    return texts


def _head_text(head: tuple[int, ...]) -> bytes:
    return b"/".join([b"%d" % number for number in head])


def _heads(texts: Sequence[bytes | None], width: int) -> list[list[int]]:
    """Return the batches, and the attempts if there are any, of their texts, of which there are few."""
    read = {text: tuple(map(int, (text or b"").split(b"/"))) for text in set(texts)}
    bad = [text for text, head in read.items() if len(head) != width]
    if bad:
        raise ValueError(f"{bad[0]!r} in place of {'a batch and its attempt' if width > 1 else 'a batch'}")
    if len(read) == 1:
        return [[number] * len(texts) for (head,) in [read.values()] for number in head]
    heads = [read[text] for text in texts]
    return [[head[at] for head in heads] for at in range(width)]


def _values(of_text: OfText, texts: Sequence[bytes | None]) -> list[Any]:
    if of_text is int and None not in texts:
        return list(map(int, texts))  # type: ignore[arg-type]
    return [None if text is None else of_text(text.decode("utf-8", "surrogatepass")) for text in texts]


def _text_form(type_: str, is_key: bool) -> tuple[ToText, OfText]:
    form = _form_of(type_, is_key)
    assert form is not None, type_
    return form


def _texts(to_text: ToText, values: Sequence[Any]) -> list[bytes]:
    if values and type(values[0]) is int and None not in values:  # as the declared type has it, so are the others
        return list(map(b"%d".__mod__, values))
    texts = [to_text(value) for value in values if value is not None]
    coded = _encode_texts(texts)
    if len(texts) == len(values):
        return coded
    some = iter(coded)
    return [NO_TEXT if value is None else next(some) for value in values]


def _encode_texts(texts: Sequence[str]) -> list[bytes]:
    together = "\n".join(texts).encode("utf-8", "surrogatepass").split(b"\n") if texts else []
    if len(together) == len(texts):
        return together
    return [text.encode("utf-8", "surrogatepass") for text in texts]  # one of them has line breaks


def hashes_of(conf: StateConf, kind: StateType, options: RedisOptions) -> PlainHashes | None:
    """Return the names and hashes of a state; None if its layout is strings. `ConfigError`: it cannot have hashes."""
    if options.layout != "fields":
        return None

    def why_misnamed(field: str, is_key: bool) -> str | None:
        return f"no field can be called {field!r}" if not is_key and field in (BATCH, TXID, BEFORE, NULL) else None

    return PlainHashes(kind, asked_shape(conf, options, _form_of, why_misnamed))
