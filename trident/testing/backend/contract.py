"""What the contracts share: the store under test, opened for each check and closed after it."""

from __future__ import annotations

import inspect
import random
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, ClassVar

from trident.errors import ConfigError
from trident.state.interfaces import StateType
from trident.testing.backend.limits import Limits
from trident.testing.backend.store_under_test import Store
from trident.testing.backend.suite_run import SuiteRun

__all__ = ["StoreContract"]


class StoreContract:
    """Base of the contracts. Subclass one of them, name the factory, and let pytest run it.

    Attributes
    ----------
    factory
        What opens the store: a `BackingMapFactory`, a `StateSpec`, a `StateFactory`, a function without arguments that
        returns one of these over an empty store; also as a method, or set by a fixture.
    kind
        What the maps hold; None: as the factory says, else opaque.
    limits
        What the store claims; None: what its methods claim.
    outage
        A function that returns a context in which the store does not answer; None: the case is left out.
    seed
        The seed of the random choices.
    suite_run
        The run of `backend_suite` that the check belongs to.
    """

    factory: Any = None
    kind: StateType | None = None
    limits: Limits | None = None
    outage: Any = None
    seed: ClassVar[int] = 0
    suite_run: SuiteRun | None = None
    _store: Store | None = None

    @property
    def store(self) -> Store:
        """The store of this check, opened at first use."""
        if self._store is None:
            factory = self._unbound("factory", 3)
            if factory is None:
                raise ConfigError(
                    f"{type(self).__name__} has no factory: set the class attribute `factory`, or let a fixture set it"
                )
            self._store = Store(factory, self.kind, self.limits, self.suite_run)
        return self._store

    @property
    def claims(self) -> Limits:
        """What the store claims."""
        return self.store.limits

    def is_claimed(self, claim: str) -> bool:
        """Whether the store, or the contract's `limits`, claims what a check is about."""
        found = getattr(self.claims, claim) if hasattr(self.claims, claim) else getattr(self, claim)
        return found not in (False, None, "no")

    def teardown_method(self) -> None:
        """Close what the check opened; pytest calls it."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def random(self, name: str) -> random.Random:
        """Return the random numbers of one check."""
        return random.Random(f"{self.seed} {name}")

    def broken_store(self) -> AbstractContextManager[object] | None:
        """Return a context in which the store does not answer, if there is a way to it."""
        outage = self._unbound("outage", 0)
        return None if outage is None else outage()

    def _unbound(self, name: str, arguments: int) -> Any:
        # A function in a class body becomes a method; one without a parameter for `self` is used as a function.
        found = inspect.getattr_static(self, name)
        if isinstance(found, FunctionType) and len(inspect.signature(found).parameters) in (0, arguments):
            return found
        return getattr(self, name)
