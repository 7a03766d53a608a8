"""The promises of a store, and how a check says that one is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn, TypeVar

__all__ = ["Promise", "Violation", "broken", "expect", "expect_error", "promise", "promise_of"]

Check = TypeVar("Check", bound=Callable[..., None])
_SHOWN = 240


class Promise(Enum):
    """What is checked, in the order of the report; the value says what the promise means."""

    ORDER = "a read has one answer per key, in the order asked"
    ABSENT = "None is read where nothing was written, and nowhere else"
    BULK = "all keys of a put are written, few or many"
    OVERWRITE = "a put replaces what was there, of its keys only"
    KEYS = "different keys are different"
    BINARY_KEYS = "bytes in keys stay apart"
    NUMBERS = "a number comes back with its value and type"
    VALUES = "any other value comes back as it was"
    ERRORS = "what is not written raises, and does not look written"
    REOPENED = "another instance reads what was written last"
    DURABLE = "another process reads what was written"
    PREFIX = "states that share a store do not meet"
    PARTITIONS = "partitions keep apart what is theirs, and share what is not"
    SENTINEL = "the sentinel is kept, and moves forward only"
    FENCING = "a writer that was replaced changes nothing"
    ATOMIC = "a commit is seen whole or not at all"
    REMOVAL = "a removed key is gone, in a replay too"
    LISTING = "every key is listed once"
    RESET = "an emptied state is empty, and no other is"
    RULES = "a replayed batch counts once"
    SNAPSHOT = "readers see whole committed batches"
    LOSS = "a wiped, rolled back or foreign store is found"
    SINGLE_VALUE = "the value of an ungrouped aggregate is kept as a key is"
    CLAIMS = "the map has the methods that it claims, and claims those that it has"
    EXACTLY_ONCE = "crashes, replays and takeovers at random end exact"

    @property
    def title(self) -> str:
        """The name in reports: lower case words."""
        return self.name.lower().replace("_", " ")


class Violation(AssertionError):
    """A promise is broken; the text says how."""


def promise(kept: Promise, claim: str = "") -> Callable[[Check], Check]:
    """Mark a check with the promise that it belongs to.

    `claim` is the field of `Limits`, or the attribute of the contract, without which the promise is not made.
    """

    def mark(check: Check) -> Check:
        check.promise, check.claim = kept, claim  # type: ignore[attr-defined]
        return check

    return mark


def promise_of(check: object) -> Promise:
    """Return the promise that a check was marked with."""
    found = getattr(check, "promise", None)
    if not isinstance(found, Promise):
        raise TypeError(f"{check!r} is marked with no promise; put @promise(Promise.…) above it")
    return found


def broken(text: str) -> NoReturn:
    """Say that a promise is broken."""
    raise Violation(text)


def expect(found: Any, wanted: Any, what: str) -> None:
    """Compare what was found with what was promised: the value, and the type of every part of it.

    NaN equals NaN here, and -0.0 differs from 0.0.
    """
    if isinstance(found, Sequence) and isinstance(wanted, list) and not isinstance(found, str | bytes):
        _expect_list(list(found), wanted, what)
    elif not _same(found, wanted):
        broken(f"{what}: expected {_shown(wanted)}, found {_shown(found)}")


@contextmanager
def expect_error(*kinds: type[Exception], what: str) -> Iterator[None]:
    """Run a block that must raise one of the errors."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds:
        return
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{what}: expected {names}, got {type(error).__name__}: {_shorten(str(error))}") from error
    broken(f"{what}: expected {names}, but nothing was raised")


def _expect_list(found: list[Any], wanted: list[Any], what: str) -> None:
    if len(found) != len(wanted):
        broken(f"{what}: expected {len(wanted)} entries, found {len(found)}")
    wrong = [at for at, pair in enumerate(zip(found, wanted, strict=True)) if not _same(*pair)]
    if wrong:
        at = wrong[0]
        broken(
            f"{what}: {len(wrong)} of {len(wanted)} entries are wrong, the first is entry {at}: expected "
            f"{_shown(wanted[at])}, found {_shown(found[at])}"
        )


def _same(found: Any, wanted: Any) -> bool:
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, int | str | bytes | None):
        return bool(found == wanted)
    if isinstance(wanted, float):
        return bool(found.hex() == wanted.hex())
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(_same(*pair) for pair in zip(found, wanted, strict=True))
    if isinstance(wanted, dict):
        return _same(list(found), list(wanted)) and _same(list(found.values()), list(wanted.values()))
    if isinstance(wanted, set | frozenset):
        return bool(found == wanted)
    return bool(found == wanted) and repr(found) == repr(wanted)  # Decimal("1.0") equals Decimal("1.00")


def _shown(value: Any) -> str:
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 4 :]} ({len(text)} characters)"
