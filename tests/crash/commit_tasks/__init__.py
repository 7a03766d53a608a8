"""Commits in executors that something kills, stops or repeats: what is stored must be exact. See `README.md`."""
