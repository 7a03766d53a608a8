"""The log that says which batches are committed.

Begin with `records.py` (what the log says) and `log_state.py` (what that means); `transaction_log.py` makes one driver the
writer, `framing.py` has the bytes and the rule that reads them after a crash.
"""

from trident.coordination.log_interface import MemoryLog
from trident.coordination.transaction_log import FileLog

__all__ = ["FileLog", "MemoryLog"]
