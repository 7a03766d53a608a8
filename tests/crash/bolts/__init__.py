"""Topologies of spouts and bolts on Spark whose processes are killed at random moments, over real queues."""
