"""Settings: each is declared once, as a field of a dataclass; its checks, its errors and its row in docs/ follow from that.

A field has a type, a default, bounds if it is a number (`whole`, `seconds`, `number`), and a sentence in the docstring.
"""

import difflib
import functools
import inspect
import json
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields
from operator import index
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, SupportsIndex, TypeVar

from trident.errors import ConfigError
from trident.redaction import Redacted, shown_configuration

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
MOST_MS = 10**12
MOST, MOST_S = (1 << 63) - 1, MOST_MS // 1000
_NO_LIMIT = (MOST, MOST_S, MOST_MS)  # what C can count, and thirty years, which one can wait for: not worth a word
_BOUNDS = "trident.bounds"
_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "None", Mapping: "a mapping",
    Sequence: "a list", Callable: "a function", os.PathLike: "a path", tuple: "a tuple",
}  # fmt: skip


class NumberBounds(NamedTuple):
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


# The types of arguments: a number of rows, bytes and the like; a number from 0 on; a time; a time above 0.
Limit = Annotated[int, NumberBounds(int, "a whole number", 1, MOST)]
Whole = Annotated[int, NumberBounds(int, "a whole number", 0, MOST)]
Seconds = Annotated[float, NumberBounds(float, "seconds", 0, MOST_S)]
Pause = Annotated[float, NumberBounds(float, "seconds", None, MOST_S)]


def whole(default: T, least: int, most: int = MOST) -> T:
    """Declare a setting that is a whole number from `least` to `most`; it may be None if its type or default says so."""
    return field(default=default, metadata={_BOUNDS: NumberBounds(int, "a whole number", least, most)})


def number(default: T, unit: str, least: float | None, most: float) -> T:
    return field(default=default, metadata={_BOUNDS: NumberBounds(float, unit, least, most)})


def seconds(default: T, least: float | None = None) -> T:
    """Declare a setting in seconds: above 0, or `least` and more; it may be None as with `whole`."""
    return number(default, "seconds", least, MOST_S)


def count_of(name: str, value: Any) -> int:
    """Return a number of rows or batches that a call is given, also of NumPy's; `ConfigError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or (count := index(value)) < 0:
        raise ConfigError(f"{name}={value!r}: give a whole number of at least 0")
    return count


class Settings(Redacted):
    """A frozen dataclass of settings; a wrong value is a `ConfigError` that names it, and `repr` shows no secrets."""

    @classmethod
    def subject(cls) -> str:
        """Return what has the settings, for messages: "a Redis state"."""
        return ""

    def __post_init__(self) -> None:
        """Check each value by its type and bounds. An override must call this first."""
        declared: type = type(self)
        for name, hint in _rules(declared).items():
            value = getattr(self, name)
            if not _is(value, hint):
                raise self.refused(name, f"give {_choices(hint, value)}")

    @staticmethod
    def of_mapping(conf: Any) -> dict[str, Any]:
        if not isinstance(conf or {}, Mapping):
            raise ConfigError(
                f"settings are a mapping, not a {type(conf).__name__}; give one by name, master='local[2]'"
            )
        return dict(conf or {})

    def refused(self, name: str, rule: str) -> ConfigError:
        of = f" of {self.subject()}" if self.subject() else ""
        return ConfigError(f"{name}={self.text_of(name)}{of}: {rule}")


def check_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """Check what the `__init__` of a class with settings of its own is given, by the types of its arguments."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        settings, of, types = dict[str, Any](), type(args[0]).__name__, _hints(call)
        check_names(f"{of} has no option", given, list(types))
        with suppress(TypeError):  # the call itself says what is missing
            settings = {**signature.bind(*args, **given).arguments, **given}
        for name, value in settings.items():
            if name in types and not _is(value, types[name]):
                shown = shown_configuration({name: value})[name]
                raise ConfigError(f"{name}={shown!r} of {of}: give {_choices(types[name], value)}")
        return call(*args, **given)

    return checked


@functools.cache
def _hints(declared: Any) -> Mapping[str, Any]:
    """Return the types that a class or function declares, with bounds; one that is imported for type checkers only is Any."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            hints = typing.get_type_hints(declared, None, unknown or None, include_extras=True)
        except NameError as error:
            unknown[str(error.name)] = Any
            continue
        hints.pop("return", None)
        several = [name for name, hint in hints.items() if typing.get_origin(hint) is typing.Unpack]
        return hints | {
            name: hint for each in several for name, hint in _hints(*typing.get_args(hints.pop(each))).items()
        }


@functools.cache
def _rules(declared: Any) -> Mapping[str, Any]:
    rules, hints = {}, _hints(declared)
    for each in fields(declared):
        hint, bounds = hints[each.name], each.metadata.get(_BOUNDS)
        made: Any = hint if bounds is None else Annotated[bounds.kind, bounds]
        rules[each.name] = made | None if bounds is not None and (each.default is None or _is(None, hint)) else made
    return rules


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as it is known when it is given."""
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return any(_is(value, one) for one in inner)
    if origin is Annotated:
        return _is(value, inner[0]) and all(each.hold(value) for each in inner[1:])
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    return _are(value, origin, inner) if origin in (tuple, Sequence) and inner else _is_plain(value, origin)


def _is_plain(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    try:
        return kind is Any or isinstance(value, kind)
    except TypeError:  # a protocol that is for type checkers only, a type variable
        return True


def _are(values: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    """Whether values are a tuple or list of a type; what can be read once only is not looked into."""
    if origin is tuple:
        return isinstance(values, tuple) and (inner[1:] != (...,) or all(_is(each, inner[0]) for each in values))
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):  # a text is not its letters
        return False
    return not isinstance(values, Collection) or all(_is(each, inner[0]) for each in values)


def _choices(hint: Any, value: Any) -> str:
    *others, last = dict.fromkeys(_choice(hint, value))
    return f"{', '.join(others)}{' or ' if others else ''}{last}"


def _choice(hint: Any, value: Any) -> list[str]:
    inner, origin = typing.get_args(hint), typing.get_origin(hint) or hint
    if origin is Literal:
        return [repr(one) for one in inner]
    if origin in (typing.Union, UnionType):
        return [choice for one in inner for choice in _choice(one, value)]
    if origin is Annotated:
        return [bounds.rule(value) for bounds in inner[1:]]
    if inner == (str, ...):
        return ["a tuple of texts"]
    return [_WORDS.get(origin) or f"{'an' if origin.__name__[0] in 'AEIOU' else 'a'} {origin.__name__}"]


def nest_spark_conf(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in given.items() if not name.startswith("spark.")}
    if spark := {name: value for name, value in given.items() if name.startswith("spark.")}:
        values["spark_conf"] = {**_mapping("spark_conf", values.get("spark_conf", {})), **spark}
    return values


def read_settings(declared: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, each text read as its type if it can be; `ConfigError` for an unknown name."""
    check_names("unknown setting", given, sorted(_rules(declared)))
    types = _hints(declared)  # without bounds: what is beyond them is read as well, and then refused as it is
    return {name: _read(name, value, types[name]) for name, value in given.items()}


def check_names(said: str, given: Iterable[str], known: Sequence[str]) -> None:
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
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # the text may have passwords anywhere
        raise ConfigError(f'{name}: the text is no JSON object; write it as in {name}=\'{{"name": "value"}}\'')
    return found
