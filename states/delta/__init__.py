"""States in Delta tables: one atomic transaction a batch.

Begin with `state.py`; `map.py` commits, `state_table.py` is the table, `time_travel.py` reads batches of the past.
"""

from states.delta.state import (
    DeltaBackingMap,
    DeltaMapState,
    DeltaOptions,
    DeltaState,
    DeltaStateAt,
    delta_dataframe,
    delta_session_conf,
    delta_state_at,
)

__all__ = [
    "DeltaBackingMap",
    "DeltaMapState",
    "DeltaOptions",
    "DeltaState",
    "DeltaStateAt",
    "delta_dataframe",
    "delta_session_conf",
    "delta_state_at",
]
