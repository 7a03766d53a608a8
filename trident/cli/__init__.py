"""The command `trident`: run a topology, read its states, look into its log, and a demonstration."""

from trident.cli.app import main

__all__ = ["main"]
