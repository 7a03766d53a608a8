"""What the contracts of stores and of spouts share: they are pytest classes, and a suite makes their checks without pytest."""

from __future__ import annotations

import inspect
import random
from types import FunctionType
from typing import Any, ClassVar

from trident.errors import ConfigError


class Contract:
    """Base of the contracts: a class whose methods `test_…` are checks, each marked with `promise`.

    Attributes
    ----------
    seed
        The seed of the random choices.
    skips
        Whether pytest is told of a check that is not made because its claim is not there.
    """

    seed: ClassVar[int] = 0
    skips: ClassVar[bool] = False
    _subject: Any = None

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

    def teardown_method(self) -> None:
        """Close what the check opened; pytest calls it."""
        if self._subject is not None:
            self._subject.close()
            self._subject = None

    def random(self, name: str) -> random.Random:
        """Return the random numbers of one check."""
        return random.Random(f"{self.seed} {name}")

    def given(self, name: str, arguments: int = 0, hint: str = "") -> Any:
        """Return what the user has set under a name; a function in a class body that takes no `self` stays a function."""
        member = inspect.getattr_static(self, name)
        if member is None and hint:
            raise ConfigError(f"{type(self).__name__} has no {name}: set the class attribute `{name}`{hint}")
        if isinstance(member, FunctionType) and len(inspect.signature(member).parameters) in (0, arguments):
            return member
        return getattr(self, name)
