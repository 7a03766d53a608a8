"""Trident for Spark: topologies with exactly-once state.

Declare with `TridentTopology`; operations are in `trident.operations`, state interfaces and maps in `trident.state`, spout
interfaces in `trident.spout`, errors in `trident.errors`. Stores are in the package `states`, sources in `spouts`.
"""

from trident.config import Config
from trident.errors import (
    BatchFailedError,
    FailedException,
    FencedError,
    ReportedFailedException,
    TopologyError,
    TridentError,
)
from trident.exactly_once import exactly_once
from trident.fields import Fields
from trident.fluent.joining import JoinOutFieldsMode, JoinType
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
    "BatchFailedError",
    "Config",
    "FailedException",
    "FencedError",
    "Fields",
    "GroupedStream",
    "JoinOutFieldsMode",
    "JoinType",
    "QueryBatches",
    "ReportedFailedException",
    "Stream",
    "TopologyError",
    "TridentCollector",
    "TridentError",
    "TridentState",
    "TridentTopology",
    "TridentTuple",
    "__version__",
    "changes",
    "exactly_once",
    "forget_keys",
    "migrate_state",
    "move_state",
    "open_state",
    "open_states",
    "read_history",
    "rehearse_upgrade",
    "verify_state",
    "why",
]
