"""backend_suite: all contracts and random schedules over one store, without pytest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from trident.errors import describe
from trident.state.interfaces import StateSpec, StateType
from trident.state.map_state import state_type
from trident.testing.backing_map import BackingMapContract
from trident.testing.contract import StoreContract
from trident.testing.fenced_map import FencedMapContract
from trident.testing.limits import Limits
from trident.testing.map_state import MapStateContract
from trident.testing.promises import Promise, Violation, promise_of
from trident.testing.report import Finding, Report, Status
from trident.testing.schedules import Schedule
from trident.testing.snapshottable import SnapshottableContract
from trident.testing.store import Store

__all__ = ["backend_suite"]

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
    outage: Callable[[], Any] | None = None,
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
        When no further schedule is begun. The contracts always run to their end, and a few schedules too.
    seed
        Decides everything that is drawn at random.
    outage
        Returns a context in which the store does not answer.
    out
        Where the report is printed; None: standard output.

    Returns
    -------
    Report
        `report.ok`, `report.violated`, `report.raise_if_violated()`.
    """
    began = time.monotonic()
    report = Report(seed)
    factories = _by_kind(factory, kinds)
    for number, (kind, one) in enumerate(factories.items()):
        contracts = (*MAP_CONTRACTS, *STATE_CONTRACTS) if number == 0 else STATE_CONTRACTS
        for contract in contracts:
            for case in _cases(contract):
                report.findings.append(_run_case(_subclass(contract, seed), case, one, kind, limits, outage))
        until = began + seconds * (number + 1) / len(factories)
        _run_schedules(report, one, kind, limits, until)
    report.seconds = time.monotonic() - began
    (out or sys.stdout).write(str(report))
    return report


def _by_kind(factory: Any, kinds: Iterable[StateType | str] | None) -> dict[StateType, Any]:
    if isinstance(factory, Mapping):
        given = {state_type(kind): one for kind, one in factory.items()}
        wanted = given if kinds is None else [state_type(kind) for kind in kinds]
        return {kind: given[kind] for kind in wanted}
    if kinds is None:
        return {Store(factory).kind: factory}
    found = {state_type(kind): factory for kind in kinds}
    if isinstance(factory, StateSpec) and set(found) != {Store(factory).kind}:
        raise ValueError(
            f"a StateSpec that is {Store(factory).kind.value} cannot be checked as {', '.join(k.value for k in found)}"
        )
    return found


def _cases(contract: type[StoreContract]) -> Iterator[str]:
    seen = {name: None for base in reversed(contract.__mro__) for name in vars(base) if name.startswith("test_")}
    yield from seen


def _subclass(contract: type[StoreContract], seed: int) -> type[StoreContract]:
    return type(contract.__name__, (contract,), {"seed": seed})


def _run_case(
    contract: type[StoreContract],
    name: str,
    factory: Any,
    kind: StateType,
    limits: Limits | None,
    outage: Callable[[], Any] | None,
) -> Finding:
    case, check = contract(), getattr(contract, name)
    case.factory, case.kind, case.limits, case.outage = factory, kind, limits, outage
    kept, where = promise_of(check), f"{contract.__name__}.{name}"
    try:
        claimed = not check.claim or case.is_claimed(check.claim)
        check(case)
    except Exception as error:  # noqa: BLE001 - a user's store may raise anything
        detail = str(error) if isinstance(error, Violation) else f"raised {describe(error)}"
        return Finding(kept, kind.value, where, Status.VIOLATED, detail)
    finally:
        case.teardown_method()
    return Finding(kept, kind.value, where, Status.OK if claimed else Status.NOT_CLAIMED)


def _run_schedules(report: Report, factory: Any, kind: StateType, limits: Limits | None, until: float) -> None:
    """Live random lives until the time is over, or one ends wrong."""
    exact = kind is not StateType.NON_TRANSACTIONAL
    partitions = (factory.required_num_partitions if isinstance(factory, StateSpec) else None) or 2
    for number in range(_MOST_SCHEDULES if exact else 0):
        if number >= _FEWEST_SCHEDULES and time.monotonic() > until:
            break
        store, seed = Store(factory, kind, limits), f"{report.seed}/{kind.value}/{number}"
        try:
            Schedule(store, seed, partitions).run()
        except Exception as error:  # noqa: BLE001 - a user's store may raise anything
            detail = str(error) if isinstance(error, Violation) else f"raised {describe(error)}; seed {seed!r}"
            where = f"schedule {number}"
            report.findings.append(Finding(Promise.EXACTLY_ONCE, kind.value, where, Status.VIOLATED, detail))
            return
        finally:
            store.close()
        report.schedules += 1
    status = Status.OK if exact else Status.NOT_CLAIMED
    report.findings.append(Finding(Promise.EXACTLY_ONCE, kind.value, "random schedules", status))
