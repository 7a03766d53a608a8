"""Settings: each is declared once, as a field of a dataclass; its checks, its errors and its row in docs/ follow from that.

A field has a type, a default, bounds if it is a number (`whole`, `seconds`, `number`), and a sentence in the docstring.
"""

from __future__ import annotations

import difflib
import json
import os
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar

from trident.errors import ConfigError
from trident.redaction import Redacted

T = TypeVar("T")
PORTS = (0, 65_535)
MOST_MS = 10**12
_MOST, _MOST_S = (1 << 63) - 1, MOST_MS // 1000
_NO_LIMIT = (_MOST, _MOST_S, MOST_MS)  # what C can count, and thirty years, which one can wait for: not worth a word
_BOUNDS = "trident.bounds"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "None"}


class Bounds(NamedTuple):
    """From where to where a number may be; `least` None: above 0."""

    kind: type
    unit: str
    least: float | None
    most: float

    def hold(self, value: Any) -> bool:
        return bool((value > 0 if self.least is None else value >= self.least) and value <= self.most)  # no NaN

    def rule(self, value: Any) -> str:
        """Say what to give instead of a value; the greatest number that there can be only if it is above."""
        least = "above 0" if self.least is None else f"of at least {self.least}"
        if self.most not in _NO_LIMIT:
            return f"{self.unit} from {self.least or 0} to {self.most}"
        return f"{self.unit} {least}" + (
            f", at most {self.most}" if _is(value, self.kind) and value > self.most else ""
        )


def whole(default: T, least: int, most: int = _MOST) -> T:
    """Declare a setting that is a whole number from `least` to `most`; it may be None if its type or default says so."""
    return field(default=default, metadata={_BOUNDS: Bounds(int, "a whole number", least, most)})


def number(default: T, unit: str, least: float | None, most: float) -> T:
    """Declare a setting that is a number of a unit, of which errors speak."""
    return field(default=default, metadata={_BOUNDS: Bounds(float, unit, least, most)})


def seconds(default: T, least: float | None = None) -> T:
    """Declare a setting in seconds: above 0, or `least` and more; it may be None as with `whole`."""
    return number(default, "seconds", least, _MOST_S)


class Settings(Redacted):
    """A frozen dataclass of settings; a wrong value is a `ConfigError` that names it, and `repr` shows no secrets."""

    @classmethod
    def subject(cls) -> str:
        """Return what has the settings, for messages: "a Redis state"."""
        return ""

    def __post_init__(self) -> None:
        """Check each value by its type and bounds. An override must call this first."""
        declared: type = type(self)
        for name, (hint, bounds) in _rules(declared).items():
            value = getattr(self, name)
            if not _is(value, hint) or not (value is None or bounds is None or bounds.hold(value)):
                *others, last = _choices(hint, bounds, value)
                raise self.refused(name, f"give {', '.join(others)}{' or ' if others else ''}{last}")

    def refused(self, name: str, rule: str) -> ConfigError:
        """Return the error for a setting; `rule` says what to give."""
        of = f" of {self.subject()}" if self.subject() else ""
        return ConfigError(f"{name}={self.text_of(name)}{of}: {rule}")


@cache
def _rules(declared: Any) -> Mapping[str, tuple[Any, Bounds | None]]:
    """Return the type and the bounds of each setting of a class."""
    try:
        hints = typing.get_type_hints(declared)
    except NameError:  # a user's class with a type that is imported for type checkers only
        hints = {}
    rules = {}
    for each in fields(declared):
        bounds = each.metadata.get(_BOUNDS)
        hint = hints.get(each.name, Any if bounds is None else bounds.kind)
        rules[each.name] = (hint | None if each.default is None and hint is not Any else hint), bounds
    return rules


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as that is made of plain ones; classes have checks of their own."""
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return any(_is(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(each, inner[0]) for each in value)
    if origin in (int, float):
        return isinstance(value, (int, origin)) and not isinstance(value, bool)
    return origin not in (bool, str, NoneType, Mapping) or isinstance(value, origin)


def _choices(hint: Any, bounds: Bounds | None, value: Any) -> list[str]:
    """Say what to give for a setting of a type."""
    inner, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is Literal:
        return [repr(one) for one in inner]
    if origin in (typing.Union, UnionType):
        return list(dict.fromkeys(choice for one in inner for choice in _choices(one, bounds, value)))
    if bounds is not None and hint is not NoneType:
        return [bounds.rule(value)]
    return [_WORDS.get(hint, "a mapping" if origin is Mapping else "several texts")]


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a file has them with Spark's, in tables `spark` and `spark_conf`, as texts under their whole names."""
    tables = {name: values[name] for name in ("spark", "spark_conf") if isinstance(values.get(name), Mapping)}
    found = {name: value for name, value in values.items() if name not in tables}
    if tables:
        named = [*_leaves("spark.", tables.get("spark", {})), *_leaves("", tables.get("spark_conf", {}))]
        found["spark_conf"] = dict(named)
    return found


def _leaves(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def nest_spark_conf(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a command line has them, with Spark's, whose names begin with `spark.`, under one name."""
    values = {name: value for name, value in given.items() if not name.startswith("spark.")}
    if spark := {name: value for name, value in given.items() if name.startswith("spark.")}:
        values["spark_conf"] = {**_mapping("spark_conf", values.get("spark_conf", {})), **spark}
    return values


def read_settings(declared: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, each text (of a command line) read as its type if it can be.

    Raises `ConfigError`: a name is not declared.
    """
    rules = _rules(declared)
    check_names("unknown setting", given, sorted(rules))
    return {name: _read(name, value, rules[name][0]) for name, value in given.items()}


def check_names(said: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `ConfigError` for the first name that is not known, after what is `said` of it."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{said} {name!r}{close_to(name, known)} Known are: {', '.join(known)}")


def close_to(name: str, known: Iterable[str], otherwise: str = ".", cutoff: float = 0.6) -> str:
    """Return `; did you mean …?` for a name that is close to a known one, by so much, else `otherwise`."""
    close = difflib.get_close_matches(str(name), known, 1, cutoff)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def _read(name: str, value: Any, hint: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, str) or _is(value, hint) or typing.get_origin(hint) is Literal:
        return value
    if typing.get_origin(hint) is Mapping:
        return _mapping(name, value)
    if _is(True, hint):
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(value.lower(), value)
    with suppress(ValueError):  # the text stays, and is refused as it is written
        return float(value) if _is(0.5, hint) else int(value)
    return value


def _mapping(name: str, value: Any) -> Any:
    """Turn the text of a mapping into it."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # the text may have passwords anywhere
        raise ConfigError(f'{name}: the text is no JSON object; write it as in {name}=\'{{"name": "value"}}\'')
    return found
