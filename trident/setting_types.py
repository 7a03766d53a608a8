"""Reads and checks the values of settings by the types that their dataclass declares."""

from __future__ import annotations

import difflib
import json
import os
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from trident.errors import ConfigError

__all__ = ["check_types", "close_to", "flat", "gathered", "read_settings"]


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


def gathered(given: Mapping[str, Any]) -> dict[str, Any]:
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
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}{close_to(name, known)} Known are: {', '.join(sorted(known))}")
    return {name: _read(name, value, known[name]) for name, value in given.items()}


def close_to(name: str, known: Iterable[str], otherwise: str = ".", cutoff: float = 0.6) -> str:
    """Return `; did you mean …?` for a name that is close to a known one, by so much, else `otherwise`."""
    close = difflib.get_close_matches(name, known, 1, cutoff)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def check_types(settings: object) -> None:
    """Compare each value with its declared type; `ConfigError` names the first that differs."""
    declared: type = type(settings)
    for name, hint in _hints(declared).items():
        _check(name, getattr(settings, name), hint)


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
        kinds = tuple(typing.get_origin(kind) or kind for kind in (typing.get_args(hint) or (hint,)))
        if typing.get_origin(hint) is Mapping or typing.get_origin(hint) is typing.get_origin(Mapping[str, str]):
            kinds = (Mapping,)
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
