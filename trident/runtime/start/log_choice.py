"""Which log a topology gets: one that outlasts it, or one in memory where all of its states are."""

from __future__ import annotations

from trident.config import Config
from trident.coordination import log_address
from trident.coordination.memory_log import MemoryLog, TransactionLog
from trident.planner import Plan
from trident.runtime.start.capabilities import is_all_in_memory

__all__ = ["open_log"]


def open_log(plan: Plan, config: Config, memory_log: MemoryLog | None) -> TransactionLog:
    """Take the log, which no other driver may write from now on; `memory_log` is continued if it is the one."""
    if config.log_dir is None and is_all_in_memory(plan):
        return MemoryLog(plan.topology) if memory_log is None else memory_log.reopened(config.takeover)
    return log_address.open_log(config.log_folder(plan.topology), plan.topology, config.takeover)
