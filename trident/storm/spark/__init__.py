"""Runs topologies of spouts and bolts on Spark: each worker is one long-running Spark task, in a job of its own.

Begin with `running_storm.py`, the driver's handle; a Spark task runs `worker_task.py`, workers write by `linked_mail.py`.
"""
