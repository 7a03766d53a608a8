"""What the spouts of single messages share: each message stays pending at its queue until its tuple tree is acknowledged.

Begin with `spout.py`, the base of these spouts, then `deliveries.py` (what a queue must be able to do; what becomes of a
message between it and the topology, when it comes again, and when never).
`redis` and `kafka` have the queues.
"""
