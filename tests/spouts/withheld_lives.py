"""Runs the batches of a spout whose source does not answer everything."""

from __future__ import annotations

import pickle
from typing import Any

from tests.harness.commands import until
from tests.spouts.reading import rows_of
from trident.errors import SpoutError
from trident.spout import Definition
from trident.spout.interfaces import coordinator_of

__all__ = ["Life"]


class Life:
    """Batches of a spout as a driver runs them: what fails is tried again, what was defined is kept, as in a log."""

    def __init__(self, spout: Any) -> None:
        self.spout, self.rows, self.committed = spout, list[Any](), list[Definition]()
        self.errors = list[SpoutError]()
        self.coordinator: Any = None
        self.defined: Definition | None = None

    def step(self) -> bool:
        """Define, read and commit one batch, as far as that can be done; whether there may be more."""
        try:
            if self.coordinator is None:
                self.coordinator = self.spout.get_coordinator({})
            txid, previous = len(self.committed) + 1, self.committed[-1] if self.committed else None
            if self.defined is None:
                self.defined = self.coordinator.initialize_transaction(txid, pickle.loads(pickle.dumps(previous)))
            if self.defined is None:
                return coordinator_of(self.coordinator).is_preparing()
            read = rows_of(self.spout, self.coordinator, self.defined, 1, txid)
        except SpoutError as error:
            self.errors.append(error)
            return True
        self.rows += read
        self.committed.append(self.defined)
        self.coordinator.success(txid, self.defined)
        self.defined = None
        return True

    def run(self) -> None:
        try:
            until(lambda: not self.step(), "it has read all that is there")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.errors[-1:]}") from self.errors[-1]

    def restart(self) -> None:
        if self.coordinator is not None:
            self.coordinator.close()
        self.coordinator = None
