"""A state that commits the same keys over and over, each key an int count, with a log's sentinel: opaque and fenced."""

import gc
import operator
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from trident.state import (
    CodecSerializer,
    CombinerUpdates,
    Key,
    OpaqueValue,
    Sentinel,
    StateConf,
    StateSpec,
    Txid,
    Winners,
)

FIRST_ATTEMPT = 1 << 20


def keys_of(count: int) -> list[Key]:
    return [(f"word-{number:07}",) for number in range(count)]


def stored_bytes() -> bytes:
    """Return what a state stores for one count."""
    return CodecSerializer().serialize(OpaqueValue(7, FIRST_ATTEMPT, 123_456, 123_457))


class Writer:
    """The writer of the only partition of a state made from a public `StateSpec`."""

    def __init__(self, spec: StateSpec, name: str, keys: list[Key]) -> None:
        conf = StateConf("bench", name, (("word", "string"),), "bigint")
        self.state: Any = spec.factory.make_state(conf, 0, 1)
        self._takes_columns = self.state.facts.keeps_columns
        self._expected: Sentinel | None = None
        self._winners = Winners()
        self.txid = 0
        self.use(keys)

    def use(self, keys: list[Key]) -> None:
        """Commit these keys from now on."""
        self._keys, self._updaters = keys, CombinerUpdates(operator.add, [1] * len(keys))
        self._parts, self._ones = [pa.array([word for (word,) in keys])], pa.array([1] * len(keys))

    def commit(self) -> None:
        """Commit one batch that adds 1 to every key, by columns where the store keeps them, as a topology does."""
        txid = Txid(self.txid + 1, FIRST_ATTEMPT, self._winners, "bench", self._expected)
        self.state.begin_commit(txid)
        if not self._takes_columns or self.state.multi_combine(self._parts, self._ones, "sum") is None:
            self.state.multi_update(self._keys, self._updaters)
        self.state.commit(txid)
        self.txid, self._expected = int(txid), txid.sentinel
        self._winners = self._winners.with_winner(int(txid), FIRST_ATTEMPT)

    def read(self) -> None:
        assert len(self.state.multi_get(self._keys)) == len(self._keys)

    def check(self, count: int) -> None:
        """Check that every key was counted so often."""
        assert set(self.state.multi_get(self._keys)) == {count}

    def close(self) -> None:
        getattr(self.state, "close", lambda: None)()


def milliseconds(action: Callable[[], object]) -> float:
    """Run and time; without the garbage collector, as a topology commits."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        action()
        return (time.perf_counter() - started) * 1000
    finally:
        gc.enable()


@contextmanager
def peak_rss_growth_mb() -> Iterator[list[float]]:
    """Measure by how much the memory of this process grows at most; the list has the figure afterwards."""
    growth: list[float] = []
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now the present size
    before = status_mb("VmRSS")
    yield growth
    growth.append(status_mb("VmHWM") - before)


def status_mb(field: str) -> float:
    """Return what the system says of the memory of this process: `VmRSS` now, `VmHWM` at most."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return round(int(found[1]) / 1024, 1)
