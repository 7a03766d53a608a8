"""Trident for Spark: topologies with exactly-once state.

Declare with `TridentTopology`; operations are in `trident.operations`, state interfaces and maps in `trident.state`, spout
interfaces in `trident.spout`, errors in `trident.errors`. Stores are in the package `states`, sources in `spouts`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trident.config import Config
    from trident.errors import (
        BatchFailedError,
        FailedException,
        FencedError,
        ReportedFailedException,
        TopologyError,
        TridentError,
    )
    from trident.fields import Fields
    from trident.fluent.combining import JoinOutFieldsMode, JoinType
    from trident.one_aggregate import exactly_once
    from trident.reading import (
        changes,
        forget_keys,
        migrate_state,
        move_state,
        open_state,
        open_states,
        read_history,
        rehearse_upgrade,
        verify_state,
        why,
    )
    from trident.spout.query_batches import QueryBatches
    from trident.stream import GroupedStream, Stream, TridentState
    from trident.topology import TridentTopology
    from trident.tuples import TridentCollector, TridentTuple

__version__ = "0.1.0"

__all__ = [
    "BatchFailedError", "Config", "FailedException", "FencedError", "Fields", "GroupedStream", "JoinOutFieldsMode",
    "JoinType", "QueryBatches", "ReportedFailedException", "Stream", "TopologyError", "TridentCollector",
    "TridentError", "TridentState", "TridentTopology", "TridentTuple", "__version__", "changes", "exactly_once",
    "forget_keys", "migrate_state", "move_state", "open_state", "open_states", "read_history", "rehearse_upgrade",
    "verify_state", "why",
]  # fmt: skip

_HOMES = (
    "errors",
    "config",
    "fields",
    "tuples",
    "fluent.combining",
    "spout.query_batches",
    "stream",
    "topology",
    "reading",
    "one_aggregate",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is asked for: most commands of `trident` need little of it."""
        if name in __all__:
            homes = (import_module(f"trident.{home}") for home in _HOMES)
            value = next(vars(home)[name] for home in homes if name in vars(home))
        else:
            try:
                value = import_module(f"trident.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"trident.{name}":
                    raise
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
