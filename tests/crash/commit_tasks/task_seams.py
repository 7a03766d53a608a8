"""The seams at which a fault happens in a worker: a factory of states whose maps and states come by its points."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from states.delta import DeltaMapState, DeltaOptions
from tests.crash.commit_tasks.rule_switches import set_rules
from tests.crash.commit_tasks.task_faults import Fault
from trident.state import Key, MicroBatchIBackingMap, SnapshottableMap, StateConf, StateType, map_for
from trident.state.forwarding import MapWrapper
from trident.state.txid import Sentinel, Txid

__all__ = ["FaultyStates", "Tables"]

_CHUNK = 2


class FaultyMap(MapWrapper):
    """Below the chunks of a put; the second one of a commit comes by `chunk`."""

    def __init__(self, inner: Any, fault: Fault, state: str) -> None:
        super().__init__(inner)
        self._fault, self._state = fault, state
        self._txid = self._puts = 0

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        self._txid, self._puts = sentinel.txid, 0
        super().move_sentinel(sentinel, force)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self._puts += 1
        if self._puts == 2:
            self._fault.reach("chunk", self._state, self._txid)
        try:
            self.inner.multi_put(keys, values)
        except Exception as error:
            self._fault.put(type(error).__name__)
            raise
        self._fault.put("accepted")


class FaultyState(SnapshottableMap):
    """Comes by the other points."""

    def __init__(self, map_state: Any, fault: Fault, state: str) -> None:
        super().__init__(map_state)
        self._fault, self._state = fault, state

    def begin_commit(self, txid: int) -> None:
        self._fault.reach("before", self._state, txid)
        super().begin_commit(txid)
        self._fault.reach("begun", self._state, txid)

    def commit(self, txid: int) -> None:
        self._fault.reach("put", self._state, txid)
        super().commit(txid)
        self._fault.reach("committed", self._state, txid)


class FaultyTable(DeltaMapState):
    """A Delta state, which tasks stage: it comes by the other points too, and by `publish` and `published` in the driver."""

    def __init__(
        self, path: Path, kind: StateType, conf: StateConf, fault: Fault, driver: Fault, options: DeltaOptions
    ) -> None:
        super().__init__(str(path), kind, conf, 0, options)
        seam = MicroBatchIBackingMap(FaultyMap(self._backing, fault, conf.state), 0, _CHUNK)
        SnapshottableMap.__init__(self, map_for(kind, seam, conf.prefix, 0), self.snapshot_key)
        self._fault, self._driver, self._state = fault, driver, conf.state

    def begin_commit(self, txid: int) -> None:
        self._fault.reach("before", self._state, txid)
        super().begin_commit(txid)
        self._fault.reach("begun", self._state, txid)

    def stage(self, txid: int) -> bytes:
        self._fault.reach("put", self._state, txid)
        staged = super().stage(txid)
        self._fault.reach("committed", self._state, txid)
        return staged

    def publish(self, txid: Txid, staged: bytes) -> None:
        self._stay("publish", txid)
        super().publish(txid, staged)
        self._stay("published", txid)

    def _stay(self, point: str, txid: int) -> None:
        """Stay at a point of the driver, until it is killed."""
        fault = self._driver
        here = (fault.point, fault.state, fault.txid) == (point, self._state, int(txid))
        if here and fault.note("reached", str(os.getpid())):
            threading.Event().wait()


@dataclass(frozen=True)
class Tables:
    """Opens Delta tables in a folder that all executors have."""

    folder: str
    options: DeltaOptions

    def state(self, kind: StateType, conf: StateConf, fault: Fault, driver: Fault) -> FaultyTable:
        """Open one of them."""
        return FaultyTable(Path(self.folder, conf.state), kind, conf, fault, driver, self.options)


@dataclass(frozen=True)
class FaultyStates:
    """The `StateFactory` of a case: a store's maps with seams around them.

    Attributes
    ----------
    maps
        Opens the store's map of a partition; or `Tables`.
    without
        The rules that are switched off where this is unpickled.
    """

    maps: Any
    kind: StateType
    fault: Fault
    without: Collection[str] = ()

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        from pyspark import TaskContext

        # What the driver itself commits, and what reads, has no part in it.
        apart = conf.read_only or TaskContext.get() is None or (self.fault.how == "slow" and partition_index > 0)
        fault = Fault() if apart else self.fault
        if isinstance(self.maps, Tables):
            return self.maps.state(self.kind, conf, fault, Fault() if conf.read_only else self.fault)
        backing = self.maps(conf, partition_index, num_partitions)
        seam = MicroBatchIBackingMap(FaultyMap(backing, fault, conf.state), 0, _CHUNK)
        return FaultyState(map_for(self.kind, seam, conf.prefix, partition_index), fault, conf.state)

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        set_rules(self.without, lambda: self._second_run())

    def _second_run(self) -> None:
        if self.fault.folder:
            self.fault.note("second-run")
