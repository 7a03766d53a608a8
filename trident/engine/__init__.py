"""Where batches are processed: in Spark tasks or in this process.

Begin with `runners.py`. `tasks.py` and `worker.py` run in a task; `routing.py` sends rows to other partitions.
"""
