"""How checks are written: methods of a contract, each marked with its promise, that compare what is found with it.

Contracts are pytest classes, and a suite makes their checks without pytest.
"""

from __future__ import annotations

import base64
import inspect
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, NoReturn, TypeVar
from unittest import SkipTest

import cloudpickle

from trident.errors import ConfigError
from trident.testing.checks.promises import Promised

Check = TypeVar("Check", bound=Callable[..., None])
_SHOWN = 240


def promise(promised: Promised, *claims: str, refusal: bool = False) -> Callable[[Check], Check]:
    """Mark a check of a `Contract` with the promise that it belongs to.

    `claims`: what must be claimed, or the check is not made.
    `refusal`: it is made all the same, and looks for the documented refusal.
    """

    def mark(body: Check) -> Check:
        @wraps(body)
        def check(contract: Any) -> None:
            if (reason := contract.make(check)) and contract.skips:
                raise SkipTest(reason)

        check.promise, check.claims, check.refusal = promised, claims, refusal  # type: ignore[attr-defined]
        return check  # type: ignore[return-value]

    return mark


class Contract:
    """Base of the contracts: a class whose methods `test_…` are checks, each marked with `promise`.

    `seed`: the seed of the random choices.
    `skips`: whether pytest is told of a check that is not made because its claim is not there.
    `subject`: the name of the cached property that is what is checked.
    """

    seed: ClassVar[int] = 0
    skips: ClassVar[bool] = False
    subject: ClassVar[str]

    @classmethod
    def checks(cls) -> dict[str, Any]:
        """Return the checks by name, in the order in which they are written."""
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        return {name: member for name, member in members.items() if name.startswith("test_")}

    def make(self, check: Any) -> str:
        """Make a check; return why it was not made, an empty text if it was."""
        reason = next(filter(None, map(self.unclaimed, check.claims)), "")
        if not reason or check.refusal:
            check.__wrapped__(self)
        return reason

    def unclaimed(self, claim: str) -> str:
        """Return why a check with a claim is not made, an empty text if it is."""
        raise NotImplementedError

    def run_schedule(self, number: int) -> None:
        """Run one random schedule over what is checked, which is empty."""
        raise NotImplementedError

    def teardown_method(self) -> None:
        """Close what the check opened; pytest calls it."""
        if (opened := vars(self).pop(self.subject, None)) is not None:
            opened.close()

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def given(self, name: str, arguments: int = 0, hint: str = "") -> Any:
        """Return what the user has set under a name; a function in a class body that takes no `self` stays a function."""
        member = inspect.getattr_static(self, name)
        if member is None and hint:
            raise ConfigError(f"{type(self).__name__} has no {name}: set the class attribute `{name}`{hint}")
        if isinstance(member, FunctionType) and len(inspect.signature(member).parameters) in (0, arguments):
            return member
        return getattr(self, name)


class Violation(AssertionError):
    """A promise is broken; the text says how."""


def broken(text: str) -> NoReturn:
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
def expect_error(*kinds: type[Exception], what: str, must: bool = True) -> Iterator[None]:
    """Run a block that must, or may, raise one of the errors, and no other one."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds:
        return
    except Violation:
        raise
    except Exception as error:
        wanted = f"expected {names}, got" if kinds else "raised"
        raise Violation(f"{what}: {wanted} {type(error).__name__}: {_shorten(str(error))}") from error
    if must:
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


# ---- in another process --------------------------------------------------------------------------------------------


def answer_in_another_process(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a new process; `Violation` with `what` and the error if it raises there."""
    pickled = base64.b64encode(cloudpickle.dumps((function, arguments)))
    script = f"from {__name__} import answer_in_this_process as answer; answer()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path or Path.cwd()) for path in sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickled, capture_output=True, timeout=60.0, env=environment, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        broken(f"{what}: {lines[-1] if lines else done.returncode}")
    return pickle.loads(base64.b64decode(done.stdout.splitlines()[-1]))  # made by this very module


def answer_in_this_process() -> None:
    """What the other process runs."""
    function, arguments = pickle.loads(base64.b64decode(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(b"\n" + base64.b64encode(cloudpickle.dumps(function(*arguments))) + b"\n")
    sys.stdout.flush()
    os._exit(0)  # a client's own threads may end badly with the interpreter; the answer is given
