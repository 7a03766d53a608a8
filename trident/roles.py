"""Roles: base classes of what users write, whose optional methods have defaults; and of what a `with` block closes.

A class of a user need not inherit from the base class: where an object comes in, `adapt` makes it one of the role, once. So
the rest of the framework calls methods and reads facts, and asks nothing. Where one of several kinds of objects may be given,
as with operations, `has` tells them apart by their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from inspect import get_annotations
from typing import Any, Protocol, Self, TypeVar

from trident.errors import UnsupportedOperation

F = TypeVar("F")


class Role:
    """Base of the roles. Each has its optional methods, with what they do in a class that does not write them."""

    @property
    def given(self) -> Any:
        """What the user wrote: this object, or the one that was adapted."""
        return self

    def offers(self, method: str) -> bool:
        """Whether this object has a method of its own in place of the default."""
        member = getattr(type(self), method)
        defaults = (base for base in type(self).__mro__ if base is Role or Role in base.__bases__)
        return not any(vars(base).get(method) is member for base in defaults)

    def close(self) -> None:
        """Release everything that it holds, such as connections."""

    def _lacks(self, method: str) -> UnsupportedOperation:
        return UnsupportedOperation(f"a {type(self).__name__} has no {method}")


class Closes:
    """A context manager: leaving it closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what it holds; harmless when it is closed already."""
        raise NotImplementedError


@contextmanager
def close_on_error(close: Callable[[], object]) -> Iterator[None]:
    """Call `close` if anything inside raises: nothing that is only half open is left behind."""
    try:
        yield
    except BaseException:
        close()
        raise


def adapt(role: type, given: Any) -> Any:
    """Return an object as one of a role: itself if it inherits from the base class, else one that does.

    It has what the object has of the role's methods and facts, and the defaults for the rest. What is None is not there. Its
    facts have what only some of the role can do.
    """
    record: Any = type(role.facts) if hasattr(role, "facts") else None
    if isinstance(given, role):
        if record is not None and (can := abilities_of(record, given)):
            object.__setattr__(given, "facts", replace(facts_of(record, given), **can))  # also of one that is frozen
        return given
    names = (name for name in dir(role) if not name.startswith("_") and name not in ("given", "offers"))
    own = {name: getattr(given, name, None) for name in names}
    made = {name: staticmethod(value) if callable(value) else value for name, value in own.items() if value is not None}
    if record is not None:
        made["facts"] = replace(facts_of(record, given), **abilities_of(record, given))
    return type(type(given).__name__, (role,), {**made, "given": given})()


def abilities_of(record: Any, given: Any) -> dict[str, Any]:
    """Return what an object has of the facts that are not yes or no: methods, and things, that only some have."""
    names = (each.name for each in fields(record) if not isinstance(each.default, bool))
    return {name: found for name in names if (found := getattr(given, name, None)) is not None}


def lacking(role: Any, given: object) -> list[str]:
    """Return the methods that one of a role must have and an object does not."""
    return [name for name in sorted(role.__abstractmethods__) if getattr(given, name, None) is None]


def has(given: object, *names: str) -> bool:
    """Whether an object has all of these methods, in any way, and none of them is None."""
    return all(getattr(given, name, None) is not None for name in names)


def missing(given: object, interface: type) -> list[str]:
    """Return the members of a protocol that an object does not have, in the order in which they are declared."""
    declaring = [base for base in reversed(interface.__mro__) if Protocol in base.__bases__]
    names = dict.fromkeys(name for base in declaring for name in (*vars(base), *get_annotations(base)))
    return [name for name in names if not name.startswith("_") and not has(given, name)]


def facts_of(record: type[F], given: Any) -> F:
    """Return the facts that an object declares: as `facts`, or each as an attribute of its own; else the defaults."""
    declared = getattr(given, "facts", None)
    if isinstance(declared, record):
        return declared
    found = {each.name: getattr(given, each.name, None) for each in fields(record)}  # type: ignore[arg-type]
    return record(**{name: value for name, value in found.items() if value is not None})
