"""Runs plans: on Spark and in process; commits states."""
