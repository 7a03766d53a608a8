"""Which batch runs and commits when, and the log that says so.

Begin with `coordinator.py` (the rules) and `records.py` (what the log says); `transaction_log.py` makes one driver the
writer, `framing.py` has the bytes and the rule that reads them after a crash.
"""

from trident.coordination.log_interface import MemoryLog
from trident.coordination.transaction_log import FileLog

__all__ = ["FileLog", "MemoryLog"]
