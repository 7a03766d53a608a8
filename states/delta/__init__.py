"""States in Delta tables: one atomic transaction a batch; begin with `state.py`, then `map.py`, which commits."""

from states.delta.map import DeltaBackingMap
from states.delta.options import DeltaOptions
from states.delta.spark_table import delta_dataframe, delta_session_conf
from states.delta.state import DeltaMapState, DeltaState, DeltaStateAt, delta_state_at

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
