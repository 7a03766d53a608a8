"""The log that says which batches are committed. Begin with `records.py` and `log_state.py`."""

from trident.log.file_log import FileLog
from trident.log.log_interface import MemoryLog

__all__ = ["FileLog", "MemoryLog"]
