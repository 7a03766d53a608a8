"""State in the memory of the process.

Begin with `state.py`; `map.py` is the writer, `data.py` the stored values.
"""

from states.memory.data import MemoryData
from states.memory.map import ColumnarMemoryMap, MemoryBackingMap
from states.memory.state import LRUMemoryMapState, MemoryMap, MemoryMapState

__all__ = ["ColumnarMemoryMap", "LRUMemoryMapState", "MemoryBackingMap", "MemoryData", "MemoryMap", "MemoryMapState"]
