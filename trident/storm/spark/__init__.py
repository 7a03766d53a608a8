"""Runs topologies of spouts and bolts on Spark: each worker is one long-running Spark task, in a job of its own.

Begin with `running_storm.py` (the driver's handle, and which worker starts, ends, comes back); what runs in a Spark task is
`worker_task.py`. Workers write to each other over ZeroMQ: `linked_mail.py`.
"""
