"""What the checks of spouts share: the source under test, opened for each check and closed after it."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, ClassVar
from unittest import SkipTest

from trident.errors import ConfigError
from trident.planner.guarantees import spout_type_of
from trident.spout.interfaces import SpoutType
from trident.testing.spout.filled_source import FilledSource
from trident.testing.spout.source_under_test import SpoutSource


class SpoutChecks:
    """Base of the contract.

    Attributes
    ----------
    source
        The class of your `SpoutSource`, or a function without arguments that returns one; also as a method, or set by a
        fixture. It is called for each check.
    seed
        The seed of the random choices.
    """

    source: Any = None
    seed: ClassVar[int] = 0
    _filled: FilledSource | None = None

    @property
    def filled(self) -> FilledSource:
        """The source of this check, empty at first use."""
        if self._filled is None:
            self._filled = FilledSource(self._opened())
        return self._filled

    def teardown_method(self) -> None:
        """Remove the source of the check; pytest calls it."""
        if self._filled is not None:
            self._filled.close()
            self._filled = None

    @staticmethod
    def needs(claimed: bool, what: str) -> None:
        """Skip the check of what is not claimed: `SkipTest`, which pytest knows."""
        if not claimed:
            raise SkipTest(what)

    def needs_replays(self) -> None:
        """Skip the check unless the spout promises something about replays."""
        self.needs(self.kind is not SpoutType.NON_TRANSACTIONAL, "the spout is non-transactional")

    def needs_identical_replays(self) -> None:
        """Skip the check unless a replay is the same."""
        self.needs(self.kind is SpoutType.TRANSACTIONAL, f"the spout is {self.kind.value}")

    @property
    def kind(self) -> SpoutType:
        """What the spout promises about replays."""
        return spout_type_of(self.filled.source.spout())

    def _opened(self) -> SpoutSource:
        given = inspect.getattr_static(self, "source")
        if given is None:
            raise ConfigError(
                f"{type(self).__name__} has no source: set the class attribute `source` to your subclass of SpoutSource, or "
                "let a fixture set it"
            )
        # A function in a class body becomes a method; one without a parameter for `self` is used as a function.
        is_plain = isinstance(given, FunctionType) and not inspect.signature(given).parameters
        opened = given() if is_plain else self.source()
        if not isinstance(opened, SpoutSource):
            raise ConfigError(
                f"{type(self).__name__}.source() returned a {type(opened).__name__}, expected a SpoutSource"
            )
        return opened
