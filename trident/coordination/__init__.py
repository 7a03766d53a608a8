"""Which batch runs and commits when, and the log that says so."""
