"""backend_suite: all contracts and random schedules over one store, without pytest, and what holds as a report."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TextIO

from trident.errors import describe
from trident.state.interfaces import StateConf, StateSpec, StateType
from trident.state.map_state import state_type
from trident.testing.backend.backing_map_contract import BackingMapContract
from trident.testing.backend.contract import StoreContract
from trident.testing.backend.fenced_map_contract import FencedMapContract
from trident.testing.backend.limits import Limits, Promise
from trident.testing.backend.map_state_contract import MapStateContract
from trident.testing.backend.schedules import Schedule
from trident.testing.backend.snapshottable_contract import SnapshottableContract
from trident.testing.backend.store_under_test import Store
from trident.testing.backend.suite_run import RUN_PREFIX, OutOfTime, SuiteRun
from trident.testing.checks.expecting import Promised, Violation, promise_of
from trident.testing.checks.findings import CheckProgress, Finding, Findings, Status

MAP_CONTRACTS: tuple[type[StoreContract], ...] = (BackingMapContract, FencedMapContract)
STATE_CONTRACTS: tuple[type[StoreContract], ...] = (MapStateContract, SnapshottableContract)
_FEWEST_SCHEDULES = 6
_MOST_SCHEDULES = 200


def backend_suite(
    factory: Any,
    *,
    kinds: Iterable[StateType | str] | None = None,
    limits: Limits | None = None,
    seconds: float = 30.0,
    seed: int = 0,
    at_most: float | None = None,
    outage: Callable[[], Any] | None = None,
    clean: Callable[[StateConf], Any] | None = None,
    out: TextIO | None = None,
) -> Report:
    """Check a back-end: every contract, then random schedules of crashes, replays and takeovers.

    Parameters
    ----------
    factory
        A `BackingMapFactory`, a `StateSpec` or `StateFactory`; or a function without arguments that returns one of these
        over an empty store. A mapping from kinds to such, where each kind needs its own.
    kinds
        What the maps hold: the kind of the `StateSpec`, or opaque, if not given.
    limits
        What the store claims; what its methods claim if not given.
    seconds
        When no further schedule is begun. The contracts run to their end, and a few schedules too, unless `at_most` says.
    seed
        Decides everything that is drawn at random.
    at_most
        Seconds after which no check starts: what is left is reported as not run, and the report is not `ok`.
    outage
        Returns a context in which the store does not answer.
    clean
        Called with the `StateConf` of a state when its values are no longer needed. A map with `reset` or `multi_delete`
        needs none; of others the report says how many keys stay.
    out
        Where the report is printed; None: standard output, and standard error shows meanwhile what is being checked.

    Returns
    -------
    Report
        `report.ok`, `report.violated`, `report.raise_if_violated()`.
    """
    began, report = time.monotonic(), Report(seed)
    run = SuiteRun(math.inf if at_most is None else began + at_most, clean)
    factories = _by_kind(factory, kinds)
    cases = {kind: list(_cases(number == 0)) for number, kind in enumerate(factories)}
    progress = CheckProgress(sys.stderr if out is None else None, sum(map(len, cases.values())))
    for number, (kind, one) in enumerate(factories.items(), 1):
        for contract, name in cases[kind]:
            progress.say(len(report.findings) + 1, f"{contract.__name__}.{name}")
            case = _subclass(contract, seed)()
            case.factory, case.kind, case.limits, case.outage, case.suite_run = one, kind, limits, outage, run
            report.findings.append(_run_case(case, name, run))
        _run_schedules(report, Subject(one, kind, limits, run), progress, began + seconds * number / len(factories))
    progress.end()
    report.seconds, report.left = time.monotonic() - began, sum(run.left.values())
    (out or sys.stdout).write(str(report))
    return report


def _by_kind(factory: Any, kinds: Iterable[StateType | str] | None) -> dict[StateType, Any]:
    if isinstance(factory, Mapping):
        given = {state_type(kind): one for kind, one in factory.items()}
        wanted = given if kinds is None else [state_type(kind) for kind in kinds]
        return {kind: given[kind] for kind in wanted}
    if kinds is None:
        return {Store(factory).kind: factory}
    factories = {state_type(kind): factory for kind in kinds}
    if isinstance(factory, StateSpec) and set(factories) != {Store(factory).kind}:
        raise ValueError(
            f"a StateSpec that is {Store(factory).kind.value} cannot be checked as {', '.join(k.value for k in factories)}"
        )
    return factories


def _cases(maps_too: bool) -> Iterator[tuple[type[StoreContract], str]]:
    for contract in (*MAP_CONTRACTS, *STATE_CONTRACTS) if maps_too else STATE_CONTRACTS:
        names = {name: None for base in reversed(contract.__mro__) for name in vars(base) if name.startswith("test_")}
        yield from ((contract, name) for name in names)


def _subclass(contract: type[StoreContract], seed: int) -> type[StoreContract]:
    return type(contract.__name__, (contract,), {"seed": seed})


def _run_case(case: StoreContract, name: str, run: SuiteRun) -> Finding:
    check, kind = getattr(case, name), case.kind
    assert kind is not None
    promise, where = promise_of(check), f"{type(case).__name__}.{name}"
    try:
        run.check_time()
        claimed = not check.claim or case.is_claimed(check.claim)
        check()
    except OutOfTime:
        return Finding(promise, kind.value, where, Status.NOT_RUN)
    except Exception as error:  # noqa: BLE001 - a user's store may raise anything
        detail = str(error) if isinstance(error, Violation) else f"raised {describe(error)}"
        return Finding(promise, kind.value, where, Status.VIOLATED, detail)
    finally:
        case.teardown_method()
    return Finding(promise, kind.value, where, Status.OK if claimed else Status.NOT_CLAIMED)


class Subject(NamedTuple):
    """What the schedules run on."""

    factory: Any
    kind: StateType
    limits: Limits | None
    run: SuiteRun


def _run_schedules(report: Report, subject: Subject, progress: CheckProgress, until: float) -> None:
    """Run random schedules until the time is over, or one fails."""
    factory, kind, limits, run = subject
    exact = kind is not StateType.NON_TRANSACTIONAL
    status = Status.OK if exact else Status.NOT_CLAIMED
    for number in range(_MOST_SCHEDULES if exact else 0):
        if number >= _FEWEST_SCHEDULES and time.monotonic() > until:
            break
        progress.say(len(report.findings), f"schedule {number + 1}")
        store, seed = Store(factory, kind, limits, run), f"{report.seed}/{kind.value}/{number}"
        try:
            run.check_time()
            Schedule(store, seed, store.partitions or 2).run()
        except OutOfTime:
            status = Status.OK if number >= _FEWEST_SCHEDULES else Status.NOT_RUN
            break
        except Exception as error:  # noqa: BLE001 - a user's store may raise anything
            detail = str(error) if isinstance(error, Violation) else f"raised {describe(error)}; seed {seed!r}"
            where = f"schedule {number}"
            report.findings.append(Finding(Promise.EXACTLY_ONCE, kind.value, where, Status.VIOLATED, detail))
            return
        finally:
            store.close()
        report.schedules += 1
    report.findings.append(Finding(Promise.EXACTLY_ONCE, kind.value, "random schedules", status))


@dataclass
class Report(Findings):
    """All findings of one run of `backend_suite`.

    Attributes
    ----------
    left
        How many keys stayed in the store.
    """

    promises: ClassVar[type[Promised]] = Promise

    left: int = 0

    def _afterwards(self) -> list[str]:
        if not self.left:
            return []
        return [
            f"{self.left} keys stay in the store, in states whose topology's name starts with {RUN_PREFIX!r}: the map has "
            "neither reset nor multi_delete; give a function that empties a state (clean=..., --clean)"
        ]
