"""State in the memory of the process."""

from states.memory.state import (
    ColumnarMemoryMap,
    LRUMemoryMapState,
    MemoryBackingMap,
    MemoryData,
    MemoryMap,
    MemoryMapState,
)

__all__ = ["ColumnarMemoryMap", "LRUMemoryMapState", "MemoryBackingMap", "MemoryData", "MemoryMap", "MemoryMapState"]
