"""How often Python looks for garbage in cycles while a worker runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_collected"]

# Tuples on their way are no cycles, and Python would look through the young ones after every 700.
_THRESHOLDS = (20_000, 20, 100)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect cycles less often, and leave out what was imported before; as it was afterwards."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
