"""The command `trident`: run a topology, read its states, look into its log, and a demonstration.

Begin with `app.py`, which declares commands and gathers those of other modules; the work of a command is in the module of its
name. `commands.py` makes commands of functions, with the options of several (`arguments.py`).
`target.py` finds the topology that the command line names, `console.py` prints and turns errors into messages.
"""

from trident.cli.entry import main

__all__ = ["main"]
