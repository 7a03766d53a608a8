"""The named instants of a batch's life at which a driver is made to die, and the fuse that does it."""

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trident.errors import BackendError

POINTS = {
    "P0": "before the definition",
    "P1": "after the definition is written",
    "P2": "in the source read",
    "P3": "a Spark worker killed as it hands over its partials",
    "P4": "after begin_commit",
    "P5": "after multi_get",
    "P6": "between two chunks of a put",
    "P7": "put applied, answer lost",
    "P8": "after the last put of a state",
    "P9": "between two states",
    "P10": "before the record",
    "P11": "half of the record written",
    "P12": "after the record, before success",
    "P13": "log compaction: next segment written, not named",
    "P14": "twice more while the restart recovers",
    "P15": "paused between begin_commit and put, replaced, woken",
}
"""What users of this package read about; `P14` is made of the two points below."""

OPENING, RECONCILING = "P14 opening", "P14 reconciling"


class Died(BaseException):
    """The driver is dead, as far as one that shares its process with the test can be."""


@dataclass(frozen=True)
class Arm:
    """Where a life ends (`point`, in batch `txid`; 0: in any) and how.

    `kill` and `stop` are the signals, sent by the driver to itself; `die` raises what nothing handles; `park` is a
    pause of this thread alone; `fail` is an error that the driver survives.
    """

    point: str
    txid: int = 0
    how: str = "kill"


class Fuse:
    """Goes off once per arm, at the first time that its point is reached. Shared by all seams of one driver."""

    def __init__(self, arms: Sequence[Arm] = ()) -> None:
        self._arms = list(arms)
        self._lock = threading.Lock()
        self.reached: list[str] = []
        self.parked, self.woken = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return Fuse, ()  # a worker has no part in it

    def is_armed(self, point: str, txid: int) -> bool:
        """Whether `reach` would go off."""
        return any(self._matches(arm, point, txid) for arm in self._arms)

    def reach(self, point: str, txid: int = 0) -> None:
        """Come by a point; whoever is to die here does."""
        with self._lock:
            arm = next((arm for arm in self._arms if self._matches(arm, point, txid)), None)
            if arm is None:
                return
            self._arms.remove(arm)
            self.reached.append(point)
        self._go_off(arm)

    @staticmethod
    def _matches(arm: Arm, point: str, txid: int) -> bool:
        return arm.point == point and arm.txid in (0, txid)

    def _go_off(self, arm: Arm) -> None:
        if arm.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif arm.how == "stop":
            # To this very thread: a signal to the process may let it run on until another thread has taken it.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif arm.how == "park":
            self.parked.set()
            self.woken.wait()
        elif arm.how == "fail":
            raise BackendError(f"no answer at {arm.point}")
        else:
            raise Died(arm.point)
