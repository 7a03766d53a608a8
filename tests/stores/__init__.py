"""Campaigns that every store must pass: kills, zombies and reads during commits. `catalog.py` lists the stores."""
