"""Roles: base classes of what users write, whose optional methods have defaults; and of what a `with` block closes.

A user's class need not inherit: where an object comes in, `adapt` makes it one of the role, so the rest calls methods and reads
facts, and asks nothing. Where several kinds of objects may be given, `has` tells them apart by their methods.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
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


def adapt(role: Any, given: Any) -> Any:
    """Return an object as one of a role: itself if it inherits, else one with what it has, and defaults for the rest."""
    usual: Any = getattr(role, "facts", None)
    facts: Any = None if usual is None else _with_own(facts_of(type(usual), given), given)
    # Of one whose facts are a property they cannot be replaced: it is adapted as if it did not inherit.
    if isinstance(given, role) and (usual is None or not isinstance(given.__class__.facts, property)):
        if usual is not None and facts is not given.facts:
            object.__setattr__(given, "facts", facts)  # also of one that is frozen
        return given
    return type(type(given).__name__, (role,), _members(role, given, facts))()


def _members(role: Any, given: Any, facts: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"given": given}
    for name in (name for name in dir(role) if not name.startswith("_") and name not in ("given", "offers")):
        value = facts if name == "facts" else getattr(given, name, None)
        if callable(value) and getattr(type(given), name, None) is not getattr(role, name):
            made[name] = staticmethod(value)
        elif value is not None and not callable(value):
            made[name] = value
    return made


@cache
def abilities(record: Any) -> list[str]:
    """Return the facts that are not yes or no: methods, and things, that only some of a role have."""
    return [each.name for each in fields(record) if not isinstance(each.default, bool)]


def _with_own(facts: Any, given: Any, names: Iterable[str] = ()) -> Any:
    """Return facts with the abilities, or `names`, that an object has: nothing that is None, no data in place of a method."""
    record, own = facts.__class__, {}
    for name in names or abilities(record):
        known = getattr(facts, name)
        found = getattr(given, name, known)
        if found is None:
            found = getattr(record, name, known)
        elif not callable(found) and str(record.__dataclass_fields__[name].type).startswith("Callable"):
            found = known
        if found != known:
            own[name] = found
    return replace(facts, **own) if own else facts


def lacking(role: Any, given: object) -> list[str]:
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
    made: F = _with_own(record(), given, [each.name for each in fields(record)])  # type: ignore[arg-type]
    return made
