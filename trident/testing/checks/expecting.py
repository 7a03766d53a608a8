"""How a check says that a promise is broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

_SHOWN = 240


class Violation(AssertionError):
    """A promise is broken; the text says how."""


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
