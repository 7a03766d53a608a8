"""`trident crashtest`: kills a plain Spark job of the user's at every bad moment and compares what it wrote.

Begin with `crash_test.py`; `job_run.py` starts a run in a copy of the job's folder, `injected/sitecustomize.py` kills it from
inside, `table_rows.py` reads the table, and compares.
"""

from trident.crashtest.crash_test import CrashReport, CrashTest, Trial, TrialOutcome
from trident.crashtest.job_run import USUAL, KillMoment, TimeLimits
from trident.crashtest.table_rows import Comparison, RowDifference, Table, table_named

__all__ = [
    "USUAL", "Comparison", "CrashReport", "CrashTest", "KillMoment", "RowDifference", "Table", "TimeLimits", "Trial",
    "TrialOutcome", "table_named",
]  # fmt: skip
