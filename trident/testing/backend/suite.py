"""backend_suite: all contracts and random schedules over one store, without pytest, and what holds as a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TextIO

from trident.state.interfaces import StateConf, StateSpec, StateType, state_type
from trident.testing.backend.backing_map_contract import BackingMapContract
from trident.testing.backend.contract import StoreContract
from trident.testing.backend.fenced_map_contract import FencedMapContract
from trident.testing.backend.state_contracts import MapStateContract, SnapshottableContract
from trident.testing.backend.store_under_test import RUN_PREFIX, Limits, Store, SuiteRun
from trident.testing.contract import Promise, Promised
from trident.testing.suite import Findings, SuiteRunner

MAP_CONTRACTS: tuple[type[StoreContract], ...] = (BackingMapContract, FencedMapContract)
STATE_CONTRACTS: tuple[type[StoreContract], ...] = (MapStateContract, SnapshottableContract)


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
    """
    report, factories = Report(seed), _by_kind(factory, kinds)
    contracts = {kind: STATE_CONTRACTS if at else MAP_CONTRACTS + STATE_CONTRACTS for at, kind in enumerate(factories)}
    cases = {kind: [(one, name) for one in of_kind for name in one.checks()] for kind, of_kind in contracts.items()}
    runner = SuiteRunner(report, sum(map(len, cases.values())), at_most, out)
    run = SuiteRun(runner.until, clean)
    for number, (kind, one) in enumerate(factories.items(), 1):
        given = {"factory": one, "kind": kind, "limits": limits, "outage": outage, "suite_run": run}
        for contract, name in cases[kind]:
            runner.check(_case(contract, seed, given), name, kind.value, f"{contract.__name__}.{name}")
        claimed = None if kind is StateType.NON_TRANSACTIONAL else Promise.EXACTLY_ONCE
        runner.run_schedules(_case(StoreContract, seed, given), claimed, kind.value, seconds * number / len(factories))
    report.left = sum(run.left.values())
    runner.end()
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


def _case(contract: type[StoreContract], seed: int, given: Mapping[str, Any]) -> StoreContract:
    case: StoreContract = type(contract.__name__, (contract,), {"seed": seed})()
    vars(case).update(given)
    return case


@dataclass
class Report(Findings):
    """All findings of one run of `backend_suite`; `left` is how many keys stayed in the store."""

    promises: ClassVar[type[Promised]] = Promise

    left: int = 0

    def _afterwards(self) -> list[str]:
        if not self.left:
            return []
        return [
            f"{self.left} keys stay in the store, in states whose topology's name starts with {RUN_PREFIX!r}: the map has "
            "neither reset nor multi_delete; give a function that empties a state (clean=..., --clean)"
        ]
