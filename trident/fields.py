"""Fields: the names of a tuple's values, in order, and their types.

A type is a Spark DDL type string (`string`, `bigint`, `array<string>`, `decimal(10,2)` …); None means that it is
not declared yet. `Fields("word: string", "n: int")`, `Fields("word", "n")` and `Fields("word, n")` are all accepted.
A name with spaces or marks is in backquotes, as in Spark: "`unit price`: double"; a backquote in it is doubled.
"""

from __future__ import annotations

import decimal
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from trident.errors import TopologyError
from trident.types import TYPES, simple_type

FieldsLike = Union[str, Sequence[str], "Fields"]

_ALIASES = {alias: row.name for row in TYPES.values() for alias in row.aliases}
_HINTS: dict[Any, str] = {row.python: row.name for row in TYPES.values()} | {decimal.Decimal: "decimal(38,18)"}
_NAME = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:,`][^\s:,]*)\s*(?::\s*(.+?)\s*)?$", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # any other is no name to Spark
_MARKS = re.compile(r"(?:(?<=[\s,<])|^)`(?:[^`]|``)+`|[,<>()]")


@dataclass(frozen=True)
class Fields(Sequence[str]):
    """Names of values, in order, with their types where known. A repeated name is refused."""

    names: tuple[str, ...]
    types: tuple[str | None, ...]

    def __init__(self, *fields: FieldsLike) -> None:
        pairs = [pair for one in fields for pair in _parse(one)]
        self._set([name for name, _ in pairs], [type_ for _, type_ in pairs])

    @staticmethod
    def of(names: Sequence[str], types: Sequence[str | None]) -> Fields:
        """Build from names and types that are already known to be right; a repeated name is refused here as well."""
        made = object.__new__(Fields)
        made._set(names, types)
        return made

    def _set(self, names: Sequence[str], types: Sequence[str | None]) -> None:
        if len(names) != len(types):
            raise ValueError(f"{len(names)} names and {len(types)} types")
        if len(set(names)) < len(names):
            at = next(at for at, name in enumerate(names) if name in names[:at])
            raise TopologyError(f"duplicate field {names[at]!r} in {list(names[: at + 1])}")
        vars(self).update(names=tuple(names), types=tuple(types))

    @staticmethod
    def named(names: Iterable[str]) -> Fields:
        """Build from names as they are, without types."""
        known = list(names)
        return Fields.of(known, [None] * len(known))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, index: Any) -> Any:
        return self.names[index]

    def position(self, name: str) -> int:
        """Return the place of a field; KeyError if there is none of that name."""
        try:
            return self.names.index(name)
        except ValueError:
            raise KeyError(f"no field {name!r} among {list(self.names)}") from None

    def type_of(self, name: str) -> str | None:
        """Return the DDL type of a field, None if unknown."""
        return self.types[self.position(name)]

    @property
    def pairs(self) -> list[tuple[str, str | None]]:
        """Each name with its type."""
        return list(zip(self.names, self.types, strict=True))

    @property
    def typed(self) -> list[str]:
        """Each name with its type, as a text."""
        return [f"{name}: {type_}" for name, type_ in self.pairs]

    def select(self, names: Sequence[str], stream: str = "") -> Fields:
        """Return the named fields in the order named; `TopologyError` for a name that is not there."""
        for name in names:
            if name not in self.names:
                where = f" of stream {stream!r}" if stream else ""
                raise TopologyError(f"no field {name!r}{where}; it has {names_shown(self.names, name)}")
        return Fields.of(list(names), [self.type_of(name) for name in names])

    def concat(self, other: Fields, stream: str = "") -> Fields:
        """Return these fields followed by `other`; a name that occurs in both is refused."""
        both = [name for name in other.names if name in self.names]
        if both:
            where = f" to stream {stream!r}" if stream else ""
            raise TopologyError(f"cannot add field {both[0]!r}{where}: it has {list(self.names)}; choose another name")
        return Fields.of(self.names + other.names, self.types + other.types)

    def __str__(self) -> str:
        parts = ((quote_if_needed(name), type_) for name, type_ in self.pairs)
        return ", ".join(name if type_ is None else f"{name}: {type_}" for name, type_ in parts)


def _parse(one: FieldsLike) -> Iterator[tuple[str, str | None]]:
    if isinstance(one, Fields):
        yield from one.pairs
    elif isinstance(one, str):
        for part in split_commas(one):
            match = _NAME.match(part)
            if match is None:
                raise TopologyError(
                    f"cannot read {part!r} as a field; write 'name' or 'name: type', and a name with spaces or marks in "
                    "backquotes, '`unit price`: double'"
                )
            yield unquote(match[1]), None if match[2] is None else normal_type(match[2])
    elif isinstance(one, Sequence) and all(isinstance(name, str) for name in one):
        for name in one:
            yield from _parse(name)
    else:
        raise TopologyError(f"cannot read {one!r} as fields; write 'name', 'name: type' or a list of them")


def unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name[1:] and name[0] == name[-1] == "`" else name


def quote(name: str) -> str:
    """Return a name in backquotes, as Spark reads it whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def quote_if_needed(name: str) -> str:
    """Return a name as it is written in a list of fields: in backquotes unless it is plain."""
    return name if _PLAIN.fullmatch(name) else quote(name)


def names_shown(names: Sequence[str], sought: str) -> str:
    """Return the names that there are, for a message; of a name that is not among them the one that differs only in case."""
    near = [name for name in names if name.casefold() == sought.casefold()]
    return f"{list(names) or 'no fields'}" + (f"; did you mean {near[0]!r}?" if near else "")


def split_commas(text: str) -> list[str]:
    """Split at the commas that are outside of <>, () and backquotes."""
    parts, depth, start = [], 0, 0
    for mark in _MARKS.finditer(text):
        depth += (mark[0] in "<(") - (mark[0] in ">)")
        if mark[0] == "," and depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def fields_of_struct(type_: str | None) -> Fields:
    if type_ is None or not type_.startswith("struct<"):
        return Fields()
    return Fields(split_commas(type_[len("struct<") : -1]))


def struct_fields(type_: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, declared or "") for name, declared in fields_of_struct(type_).pairs)


def struct_type(names: Sequence[str], types: Sequence[str]) -> str:
    return f"struct<{','.join(f'{quote_if_needed(name)}:{type_}' for name, type_ in zip(names, types, strict=True))}>"


def type_of_json(type_: Any, leaf: Callable[[str], str]) -> str:
    """Return the type of a column of a schema in Delta's JSON; `leaf` gives that of one with no others inside."""
    if isinstance(type_, str):
        return leaf(type_)
    if type_["type"] == "array":
        return f"array<{type_of_json(type_['elementType'], leaf)}>"
    if type_["type"] == "map":
        return f"map<{type_of_json(type_['keyType'], leaf)},{type_of_json(type_['valueType'], leaf)}>"
    fields = type_["fields"]
    return struct_type([one["name"] for one in fields], [type_of_json(one["type"], leaf) for one in fields])


def free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def is_nested(type_: str | None) -> bool:
    return type_ is not None and type_.startswith(("array<", "map<", "struct<"))


def normal_type(ddl: str) -> str:
    """Return a DDL type in its normal spelling (`long` → `bigint`); `TopologyError` if it is not a DDL type."""
    if not isinstance(ddl, str):
        raise TopologyError(f"{ddl!r} is not a Spark type, which is written as a text: 'bigint'")
    text = ddl.strip()
    head, _, rest = text.partition("<")
    if rest:
        inner = rest.rstrip()
        if not inner.endswith(">"):
            raise TopologyError(f"{ddl!r} is not a Spark type: '>' is missing")
        return _nested_type(head.strip().lower(), split_commas(inner[:-1]), ddl)
    match = re.fullmatch(r"([a-zA-Z_]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", text)
    name = "" if match is None else _ALIASES.get(match[1].lower(), match[1].lower())
    if match is None or name not in TYPES:
        raise TopologyError(
            f"{ddl!r} is not a Spark type; known are {', '.join(sorted(TYPES))}, array<>, map<>, struct<>"
        )
    if name == "decimal":
        digits, scale = int(match[2] or 10), int(match[3] or 0)
        if not max(1, scale) <= digits <= 38:
            raise TopologyError(
                f"{ddl!r} is no type of decimals: they have 1 to 38 digits, of which none to all are behind the point"
            )
        return f"decimal({digits},{scale})"
    return name


def widens(old: str, new: str) -> bool:
    """Whether each value of one type is a value of the other: more digits, or further fields that are null."""
    if old == new:
        return True
    narrow, wide = simple_type(old), simple_type(new)
    if narrow is None or wide is None:
        return _widens_within(old, new)
    if wide.name == "double":
        return narrow.name == "float" or (narrow.python is int and narrow.digits[0] <= 10)
    taken = {int: (int,), decimal.Decimal: (int, decimal.Decimal)}.get(wide.python, ())
    return narrow.python in taken and all(map(operator.le, narrow.digits, wide.digits))


def _widens_within(old: str, new: str) -> bool:
    (head, _, before), (other, _, now) = old.partition("<"), new.partition("<")
    if head == other == "array":
        return widens(before[:-1], now[:-1])
    if not head == other == "struct":
        return False
    there, types = (dict(struct_fields(type_)) for type_ in (old, new))
    return all(name in types and widens(type_, types[name]) for name, type_ in there.items())


def _nested_type(head: str, parts: list[str], ddl: str) -> str:
    if head == "array" and len(parts) == 1:
        return f"array<{normal_type(parts[0])}>"
    if head == "map" and len(parts) == 2:
        return f"map<{normal_type(parts[0])},{normal_type(parts[1])}>"
    if head == "struct":
        fields = Fields(parts)
        return struct_type(fields.names, [normal_type(type_ or "") for type_ in fields.types])
    raise TopologyError(f"{ddl!r} is not a Spark type")


def type_of_hint(hint: Any) -> str | None:
    """Return the DDL type of a Python type hint, None if Spark has no type for it."""
    if hint in _HINTS:
        return _HINTS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        return type_of_hint(rest[0]) if len(rest) == 1 else None
    if origin is list and args:
        inner = type_of_hint(args[0])
        return None if inner is None else f"array<{inner}>"
    if origin is dict and len(args) == 2:
        key, value = type_of_hint(args[0]), type_of_hint(args[1])
        return None if key is None or value is None else f"map<{key},{value}>"
    return None
