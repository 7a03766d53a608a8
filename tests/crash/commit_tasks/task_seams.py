"""What goes wrong in a commit task, once, in the worker that runs it; the seams where it does; E1 and E2 switched off."""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from states.delta import DeltaMapState, DeltaOptions
from trident.engine import tasks
from trident.errors import BackendError
from trident.run import committing
from trident.state import Key, MicroBatchIBackingMap, SnapshottableMap, StateConf, StateType, map_for
from trident.state.forwarding import MapWrapper
from trident.state.txid import Sentinel, Txid

POINTS = {
    "before": "before begin_commit",
    "begun": "after begin_commit",
    "chunk": "between two chunks of a put",
    "put": "before commit",
    "committed": "after commit",
}
"""Instants of a commit task, in order. The driver adds `processed` (before the job that commits) and `record`."""

_WAIT_S = 120.0
_LOOK_S = 0.02
_SLOW_S = 6.0


@dataclass(frozen=True)
class Fault:
    """What happens once at a point of the commit of a batch.

    Attributes
    ----------
    point
        One of `POINTS`, or `processed` or `record`, which are the driver's.
    how
        `worker`, `executor`: this process, or its executor's JVM, is killed. `neighbour`: the other executor is killed, and
        this task goes on. `pause`: this process stops (SIGSTOP) until it is woken. `raise`: the store answers with an error.
        `driver`: this process waits until the file `go` is there; the driver is killed meanwhile. `slow`: the first
        partition takes its time, in each attempt, so that Spark begins a copy of its task. "": nothing happens.
    state, txid
        The state and the batch.
    folder
        Where the files are that tell other processes what has happened.
    """

    point: str = ""
    how: str = ""
    state: str = ""
    txid: int = 2
    folder: str = ""

    def reach(self, point: str, state: str, txid: int) -> None:
        if (point, state, txid) != (self.point, self.state, self.txid) or not self.how:
            return
        if self.how == "slow":
            time.sleep(_SLOW_S)
        elif self.note("reached", str(os.getpid())):
            self._happen()

    def _happen(self) -> None:
        if self.how == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "executor":
            _own_executor().kill()
            signal.pause()
        elif self.how == "neighbour":
            own = _own_executor()
            for other in executors_of(own.cmdline()):
                if other != own:
                    other.kill()
        elif self.how == "pause":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif self.how == "raise":
            raise BackendError("no answer")
        elif self.how == "driver":
            if threading.current_thread() is threading.main_thread():  # a resident worker commits in another one
                for ignored in (
                    signal.SIGHUP,
                    signal.SIGTERM,
                ):  # on another machine it would not learn of its driver's end
                    signal.signal(ignored, signal.SIG_IGN)
            self._wait_for("go")

    def put(self, put: object) -> None:
        """Note what became of the put of a process that slept in it."""
        if self.how == "pause" and self.said("reached") == str(os.getpid()):
            self.note("woken", str(put))

    def note(self, name: str, text: str = "") -> bool:
        """Write a file whole, unless it is there; return whether it was written."""
        whole = Path(self.folder, f"{name}.{os.getpid()}")
        whole.write_text(text)
        try:
            os.link(whole, Path(self.folder, name))
        except FileExistsError:
            return False
        finally:
            whole.unlink()
        return True

    def said(self, name: str) -> str | None:
        """Return what such a file says, None if it is not there."""
        path = Path(self.folder, name)
        return path.read_text() if path.exists() else None

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while self.said(name) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def _own_executor() -> psutil.Process:
    return next(one for one in psutil.Process().parents() if one.name() == "java")


def executors_of(driver: Collection[str]) -> list[psutil.Process]:
    """Return the executors of a driver on this machine, whoever started them.

    Parameters
    ----------
    driver
        Holds the driver's address as Spark writes it; the command line of each of its executors does.
    """
    address = next(word for word in driver if word.startswith("spark://CoarseGrainedScheduler@"))
    # The command line of a zombie is None.
    return [one for one in psutil.process_iter(["cmdline"]) if address in (one.info["cmdline"] or [])]


def _nothing(*_: Any, **__: Any) -> str:
    return ""


def _no_digests(*_: Any) -> dict[int, str]:
    return {}


def _same(txid: Txid, _: str) -> Txid:
    return txid


_SWITCHES: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "E1": [(committing, "_refuse_second_run", _nothing), (Txid, "of_run", _same)],
    "E2": [(tasks, "digests_of", _no_digests), (tasks, "is_mixed", _nothing)],
}
_ORIGINALS = {
    (owner, name): getattr(owner, name) for switches in _SWITCHES.values() for owner, name, _ in switches
    if hasattr(owner, name)
}  # fmt: skip


def set_rules(without: Collection[str], noticing: Callable[[], None] | None = None) -> None:
    """Switch rules off, and all others on.

    Parameters
    ----------
    noticing
        Called when Spark runs a task that commits again.
    """
    for rule, switches in _SWITCHES.items():
        for owner, name, instead in switches:
            if (owner, name) in _ORIGINALS:
                setattr(owner, name, instead if rule in without else _ORIGINALS[owner, name])
    if noticing is not None and "E1" not in without:
        refuse = _ORIGINALS[committing, "_refuse_second_run"]

        def noticed(*args: Any, **kwargs: Any) -> Any:
            from pyspark import TaskContext

            context = TaskContext.get()
            if context is not None and context.attemptNumber() > 0:
                noticing()
            return refuse(*args, **kwargs)

        committing._refuse_second_run = noticed


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
