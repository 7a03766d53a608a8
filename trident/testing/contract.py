"""What stores and spouts promise, and how that is checked: methods of a contract, each marked with its promise."""

import base64
import inspect
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, NoReturn, TypeVar
from unittest import SkipTest

import cloudpickle

from trident.errors import ConfigError

Check = TypeVar("Check", bound=Callable[..., None])
_SHOWN = 240


class Promised(Enum):
    """Base of the promises of one kind of thing: the members in the order of the report, their values what they mean."""

    @property
    def title(self) -> str:
        return self.name.lower().replace("_", " ")


class Promise(Promised):
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
    SENTINEL = "the sentinel is stored, and moves forward only"
    FENCING = "a writer that was replaced changes nothing"
    ATOMIC = "a commit is seen whole or not at all"
    REMOVAL = "a removed key is gone, in a replay too"
    LISTING = "every key is listed once"
    RESET = "an emptied state is empty, and no other is"
    RULES = "a replayed batch counts once"
    SNAPSHOT = "readers see whole committed batches"
    LOSS = "a wiped, rolled back or foreign store is found"
    SINGLE_VALUE = "the value of an ungrouped aggregate is stored as a key's value is"
    CLAIMS = "the map has the methods that it claims, and claims all that it has"
    EXACTLY_ONCE = "crashes, replays and takeovers at random end exact"


class SpoutPromise(Promised):
    """What is checked, in the order of the report; the value says what the promise means."""

    FIELDS = "what is emitted has the names and types of the output fields"
    VALUES = "a row comes as the source holds it"
    NO_GAP = "each row of the source is in a batch"
    NO_OVERLAP = "no row is in two batches"
    ORDER = "the rows of a partition come in its order"
    LIMIT = "a backlog is read in batches within the limit"
    THROTTLE = "a throttled spout makes smaller batches, and goes on"
    IDLE = "where there is nothing, there is no batch, and it costs nothing"
    GROWTH = "what is added to the source is found"
    PLAIN = "a definition is plain data, and nothing changes it"
    SMALL = "a definition does not grow with the batches before it"
    REPLAY = "a definition read again has the same rows"
    CUTS = "a definition has the same rows in any number of parts"
    ELSEWHERE = "another coordinator, in another process, reads the same rows"
    AHEAD = "batches may be defined before those before them are committed"
    RETRY = "a batch whose attempt failed is defined again from the same place"
    RESTART = "a new coordinator goes on from the last definition"
    NEW_PARTITIONS = "a partition that is added is read from its first row"
    LOST_PARTITIONS = "the rows of a partition that is lost and comes back count once"
    SHIPPED = "what goes to workers can be pickled, and a description opens nothing"
    SIZE = "the size of a batch follows from its definition alone"
    LAG = "the lag reaches zero, and no server is asked for it"
    CLOSE = "threads, files and connections are released"
    ERRORS = "a source that is away raises SpoutError"
    CHANGES = "a source that was changed raises SpoutError, and gives no other rows"
    AT_LEAST_ONCE = "non-transactional: failures and crashes at random lose no row"
    EXACTLY_ONCE = "failures, crashes and lost partitions at random end exact"


_ROWS = (SpoutPromise.VALUES, SpoutPromise.NO_GAP, SpoutPromise.NO_OVERLAP)

SCHEDULED = (Promise.EXACTLY_ONCE, SpoutPromise.AT_LEAST_ONCE, SpoutPromise.EXACTLY_ONCE)
"""What random schedules are about."""

_AROUND_ROWS = (SpoutPromise.SHIPPED, SpoutPromise.SIZE, SpoutPromise.LAG, SpoutPromise.CLOSE)

# A check that says nothing while another promise is broken: a report names what is broken, not all that follows from it.
BUILDS_ON: dict[Promised, tuple[SpoutPromise, ...]] = {
    SpoutPromise.THROTTLE: (SpoutPromise.LIMIT, *_ROWS),
    SpoutPromise.LAG: _ROWS,
    SpoutPromise.AHEAD: _ROWS,
    SpoutPromise.RETRY: (SpoutPromise.REPLAY, *_ROWS),
    SpoutPromise.RESTART: _ROWS,
    SpoutPromise.CUTS: (SpoutPromise.REPLAY, *_ROWS),
    SpoutPromise.ELSEWHERE: (SpoutPromise.REPLAY,),
    SpoutPromise.NEW_PARTITIONS: (SpoutPromise.GROWTH, SpoutPromise.RESTART, *_ROWS),
    SpoutPromise.LOST_PARTITIONS: (SpoutPromise.REPLAY, SpoutPromise.RETRY, *_ROWS),
    SpoutPromise.ERRORS: (SpoutPromise.REPLAY, SpoutPromise.RETRY, *_ROWS),
    SpoutPromise.CLOSE: (SpoutPromise.SHIPPED,),
    SpoutPromise.CHANGES: (SpoutPromise.REPLAY, SpoutPromise.ELSEWHERE),
    **dict.fromkeys(SCHEDULED[1:], tuple(each for each in SpoutPromise if each not in (*SCHEDULED, *_AROUND_ROWS))),
}


def promise(promised: Promised, *claims: str, refusal: bool = False) -> Callable[[Check], Check]:
    """Mark a check with its promise; if a claim is missing it is not made, or looks for the documented `refusal`."""

    def mark(body: Check) -> Check:
        @wraps(body)
        def check(contract: Any) -> None:
            if (reason := contract.make(check)) and contract.skips:
                raise SkipTest(reason)

        check.promise, check.claims, check.refusal = promised, claims, refusal  # type: ignore[attr-defined]
        return check  # type: ignore[return-value]

    return mark


class Contract:
    """Base of the contracts: methods `test_…` are checks, each marked with `promise`; `subject` names what they check."""

    seed: ClassVar[int] = 0
    skips: ClassVar[bool] = False
    subject: ClassVar[str]

    @classmethod
    def checks(cls) -> dict[str, Any]:
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        return {name: member for name, member in members.items() if name.startswith("test_")}

    def make(self, check: Any) -> str:
        """Make a check; return why it was not made, an empty text if it was."""
        reason = next(filter(None, map(self.why_unclaimed, check.claims)), "")
        if not reason or check.refusal:
            check.__wrapped__(self)
        return reason

    def why_unclaimed(self, claim: str) -> str:
        """Return why a check with a claim is not made, an empty text if it is."""
        raise NotImplementedError

    def run_schedule(self, number: int) -> None:
        """Run one random schedule over what is checked, which is empty."""
        raise NotImplementedError

    def teardown_method(self) -> None:
        if (opened := vars(self).pop(self.subject, None)) is not None:
            opened.close()

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def user_attribute(self, name: str, arguments: int = 0, hint: str = "") -> Any:
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
    """Compare what was found with what was promised: value, and type of every part. NaN equals NaN, -0.0 differs from 0.0."""
    if isinstance(found, Sequence) and isinstance(wanted, list) and not isinstance(found, str | bytes):
        if len(found) != len(wanted):
            broken(f"{what}: expected {len(wanted)} entries, found {len(found)}")
        wrong = [at for at, pair in enumerate(zip(found, wanted, strict=True)) if not _same(*pair)]
        if wrong:
            at = wrong[0]
            broken(
                f"{what}: {len(wrong)} of {len(wanted)} entries are wrong, the first is entry {at}: expected "
                f"{_short_repr(wanted[at])}, found {_short_repr(found[at])}"
            )
    elif not _same(found, wanted):
        broken(f"{what}: expected {_short_repr(wanted)}, found {_short_repr(found)}")


@contextmanager
def expect_error(*kinds: type[Exception], what: str, must: bool = True) -> Iterator[None]:
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


def _same(found: Any, wanted: Any) -> bool:
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, float):  # NaN too
        return repr(found) == repr(wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(_same(*pair) for pair in zip(found, wanted, strict=True))
    if isinstance(wanted, dict):
        return _same(list(found.items()), list(wanted.items()))
    if isinstance(wanted, int | str | bytes | set | frozenset):
        return bool(found == wanted)
    return bool(found == wanted) and repr(found) == repr(wanted)  # Decimal("1.0") equals Decimal("1.00")


def _short_repr(value: Any) -> str:
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 4 :]} ({len(text)} characters)"


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
    function, arguments = pickle.loads(base64.b64decode(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(b"\n" + base64.b64encode(cloudpickle.dumps(function(*arguments))) + b"\n")
    sys.stdout.flush()
    os._exit(0)  # a client's own threads may end badly with the interpreter; the answer is given
