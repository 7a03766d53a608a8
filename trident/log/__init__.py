"""The log that says which batches are committed.

Begin with `records.py` (what the log says) and `log_state.py` (what that means); `file_log.py` makes one driver the
writer, `framing.py` has the bytes and the rule that reads them after a crash.
"""

from trident.log.file_log import FileLog
from trident.log.log_interface import MemoryLog

__all__ = ["FileLog", "MemoryLog"]
