"""What makes an object an operation, method by method.

The classes of `interfaces.py` are not asked for: an object that has the methods will do. Each is asked where the operation is
declared, or prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trident.ability import Ability
from trident.tuples import TridentCollector, TridentTuple

if TYPE_CHECKING:
    from trident.operations.interfaces import TridentOperationContext

__all__ = [
    "Accepts",
    "Applies",
    "CleansUp",
    "Combines",
    "Completes",
    "DeclaresTypes",
    "Executes",
    "Keeps",
    "Prepares",
    "Reduces",
    "ReducesStreams",
    "Retrieves",
    "UpdatesState",
    "WrapsFunction",
]


@runtime_checkable
class Prepares(Ability, Protocol):
    """An operation that is told once per process where it runs, before its first tuple."""

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        """Open what it needs."""


@runtime_checkable
class CleansUp(Ability, Protocol):
    """An operation that is told when the topology ends."""

    def cleanup(self) -> None:
        """Release what it holds."""


@runtime_checkable
class DeclaresTypes(Ability, Protocol):
    """An operation that knows the types of what it emits."""

    @property
    def output_types(self) -> Sequence[str | None]:
        """The DDL type of each output field."""


@runtime_checkable
class WrapsFunction(Ability, Protocol):
    """An operation that is a plain function of a user."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""


@runtime_checkable
class Executes(Ability, Protocol):
    """A `Function`, `MapFunction` or `FlatMapFunction`; of a `Function` the second argument is a collector."""

    def execute(self, *args: Any) -> Any:
        """Process one tuple."""


@runtime_checkable
class Keeps(Ability, Protocol):
    """A `Filter`."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Whether to keep the tuple."""


@runtime_checkable
class Accepts(Ability, Protocol):
    """A `Consumer`."""

    def accept(self, tuple: TridentTuple) -> None:
        """Look at one tuple."""


@runtime_checkable
class Combines(Ability, Protocol):
    """A `CombinerAggregator`; it is taken for one whatever else it has."""

    def combine(self, val1: Any, val2: Any) -> Any:
        """Return the aggregate of both parts."""


@runtime_checkable
class Reduces(Ability, Protocol):
    """A `ReducerAggregator`, unless it combines."""

    def reduce(self, curr: Any, tuple: TridentTuple) -> Any:
        """Return the value after one more tuple."""


@runtime_checkable
class Completes(Ability, Protocol):
    """An `Aggregator`, unless it combines or reduces."""

    def complete(self, val: Any, collector: TridentCollector) -> None:
        """All tuples of the batch partition were seen."""


@runtime_checkable
class ReducesStreams(Ability, Protocol):
    """A `MultiReducer` or `GroupedMultiReducer`, whose methods have the same names."""

    def init(self, *args: Any) -> Any:
        """Return the value to start with."""

    def execute(self, *args: Any) -> Any:
        """Take one tuple of one of the streams."""

    def complete(self, *args: Any) -> None:
        """All tuples of the batch partition were seen."""


@runtime_checkable
class Applies(Ability, Protocol):
    """An `Assembly`."""

    def apply(self, input: Any) -> Any:
        """Declare steps on a stream and return the stream that they give."""


@runtime_checkable
class UpdatesState(Ability, Protocol):
    """A `StateUpdater`."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        """Apply tuples to a state."""


@runtime_checkable
class Retrieves(Ability, Protocol):
    """A `QueryFunction`."""

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        """Return one result per tuple, in order."""
