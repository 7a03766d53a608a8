"""State in the memory of the process.

Begin with `state.py`; `map.py` has the stored values and their writer.
"""

from states.memory.map import ColumnarMemoryMap, MemoryBackingMap, MemoryData
from states.memory.state import LRUMemoryMapState, MemoryMap, MemoryMapState

__all__ = ["ColumnarMemoryMap", "LRUMemoryMapState", "MemoryBackingMap", "MemoryData", "MemoryMap", "MemoryMapState"]
