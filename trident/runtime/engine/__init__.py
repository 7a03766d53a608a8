"""Where batches are processed: in Spark tasks or in this process.

Begin with `runners.py`; `tasks.py` and `worker.py` are what runs in a task, `routing.py` brings rows to other partitions.
"""
