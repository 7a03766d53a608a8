"""Reads and checks the values of settings by the types and the bounds that their dataclass declares.

`whole` and `seconds` declare a number with bounds: of topologies, of bolts, and of stores.
"""

from __future__ import annotations

import difflib
import json
import os
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

from trident.errors import ConfigError

T = TypeVar("T")
PORTS = (0, 65_535)
_BOUNDS = "trident.bounds"


class NumberBounds(NamedTuple):
    """From where to where a number may be; `least` None: above 0. `or_none`: it may be None."""

    kind: type
    least: float | None
    most: float | None
    or_none: bool

    def hold(self, value: Any) -> bool:
        if value is None:
            return self.or_none
        is_number = isinstance(value, int if self.kind is int else (int, float)) and not isinstance(value, bool)
        least, most = self.least, self.most
        return is_number and (value > 0 if least is None else value >= least) and (most is None or value <= most)

    def __str__(self) -> str:
        if self.least is None:
            return "more than 0 seconds"
        return (
            f"a port from {self.least} to {self.most}" if (self.least, self.most) == PORTS else f"at least {self.least}"
        )


def whole(default: T, least: int, most: int | None = None, or_none: bool = False) -> T:
    """Declare an option that is a whole number from `least` to `most`, or None: if that is the default, or with `or_none`."""
    return field(default=default, metadata={_BOUNDS: NumberBounds(int, least, most, or_none or default is None)})


def seconds(default: T, least: float | None = None, or_none: bool = False) -> T:
    """Declare an option in seconds: above 0, or `least` and more; or None, as of `whole`."""
    return field(default=default, metadata={_BOUNDS: NumberBounds(float, least, None, or_none or default is None)})


def out_of_bounds(settings: Any) -> Iterator[tuple[str, NumberBounds]]:
    """Give the names of the settings that are not what `whole` and `seconds` declare, and their bounds."""
    for each in fields(settings):
        bounds = each.metadata.get(_BOUNDS)
        if bounds is not None and not bounds.hold(getattr(settings, each.name)):
            yield each.name, bounds


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
    """Return settings by name with texts (of a command line) read as the declared types.

    Raises
    ------
    ConfigError
        A name is not declared, or a text cannot be read.
    """
    known = _hints(declared)
    check_names("unknown setting", given, sorted(known))
    return {name: _read(name, value, known[name]) for name, value in given.items()}


def check_names(said: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `ConfigError` for the first name that is not known, after what is `said` of it."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{said} {name!r}{close_to(name, known)} Known are: {', '.join(known)}")


def close_to(name: str, known: Iterable[str], otherwise: str = ".", cutoff: float = 0.6) -> str:
    """Return `; did you mean …?` for a name that is close to a known one, by so much, else `otherwise`."""
    close = difflib.get_close_matches(name, known, 1, cutoff)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def check_settings(settings: object) -> None:
    """Compare each value with its declared type and bounds; `ConfigError` names the first that differs."""
    declared: type = type(settings)
    for name, hint in _hints(declared).items():
        _check(name, getattr(settings, name), hint)
    for name, bounds in out_of_bounds(settings):
        rule = "must not be negative" if bounds.least == 0 and bounds.most is None else f"must be {bounds}"
        raise ConfigError(f"{name}={getattr(settings, name)}: {rule}")


@cache
def _hints(declared: type) -> Mapping[str, Any]:
    return typing.get_type_hints(declared)


def _read(name: str, value: Any, hint: Any) -> Any:
    """Turn text (of a command line) into the type of the key."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, str) or typing.get_origin(hint) is Literal:
        return value
    if typing.get_origin(hint) is Mapping:
        return _mapping(name, value)
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
    if str in kinds:
        return value
    try:
        if bool in kinds:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        return float(value) if float in kinds else int(value)
    except (KeyError, ValueError):
        raise ConfigError(f"{name}={value!r}: expected {_words(hint)}") from None


def _mapping(name: str, value: Any) -> Any:
    """Turn the text of a mapping into it."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'{name}={value!r}: expected a JSON object, as in {name}=\'{{"name": "value"}}\'')
    return found


def _check(name: str, value: Any, hint: Any) -> None:
    if typing.get_origin(hint) is Literal:
        allowed: tuple[Any, ...] = typing.get_args(hint)
        fine = value in allowed
    else:
        kinds = (Mapping,) if typing.get_origin(hint) is Mapping else typing.get_args(hint) or (hint,)
        if float in kinds:
            kinds = (*kinds, int)
        fine = isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)
    if not fine:
        raise ConfigError(f"{name}={value!r}: expected {_words(hint)}")


def _words(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    hint = kinds[0] if len(kinds) == 1 else hint
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))
