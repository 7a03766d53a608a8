"""State in the memory of the process.

Begin with `state.py`; `number_columns.py` keeps opaque numbers in arrays.
"""

from states.memory.state import (
    ColumnarMemoryMap,
    LRUMemoryMapState,
    MemoryBackingMap,
    MemoryData,
    MemoryMap,
    MemoryMapState,
)

__all__ = ["ColumnarMemoryMap", "LRUMemoryMapState", "MemoryBackingMap", "MemoryData", "MemoryMap", "MemoryMapState"]
