"""Campaigns that every store must pass: kills, zombies, reads during commits, removals. `catalog.py` lists the stores."""
