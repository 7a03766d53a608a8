"""A Delta state of more keys than a writer keeps in memory: `python -m tests.benchmarks.delta_large`.

Builds an opaque count of `--keys` words, then starts on it in another process and commits batches of random words; and
the same with a state that fits into memory, for comparison. Each phase is a process of its own. Prints one JSON line:

- `build_s`, `build_peak_mb`: a million new words a batch.
- `start_s`, `start_mb`: until the state has read its sentinel, and the memory of the process then; `idle_mb` before.
- `first_s`, `median_s`, `max_s`: a batch; the first one opens what the start left alone. Merges run beside the batches.
- `peak_mb`: the most memory of the process that ran the batches.
- `ratio`: a median batch, against that of the state in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.delta import DeltaState
from tests.benchmarks._measuring import apart, tell
from tests.benchmarks._writers import FIRST_ATTEMPT, status_mb
from trident.state import Sentinel, Snapshot, StateConf, Txid, Winners

_IN_MEMORY = _BUILD = 1_000_000
_SAMPLE = 1_000


def words(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return the keys of some numbers."""
    return pc.binary_join_element_wise("word-", pa.array(numbers).cast(pa.string()), "")


class Counts:
    """The writer of an opaque count of words, which commits as a topology does."""

    def __init__(self, path: str) -> None:
        conf = StateConf("bench", "counts", (("word", "string"),), "bigint")
        self.state: Any = DeltaState.opaque(path).factory.make_state(conf, 0, 1)
        found: Sentinel | None = self.state.read_sentinel()
        self._expected, self.txid = found, 0 if found is None else found.txid
        self._winners = Winners().with_winner(1, FIRST_ATTEMPT)

    def commit(self, numbers: npt.NDArray[np.int64]) -> float:
        """Count some words once; return the seconds."""
        keys, ones = words(numbers), np.ones(len(numbers), np.int64)
        began = time.perf_counter()
        txid = Txid(self.txid + 1, FIRST_ATTEMPT, self._winners, "bench", self._expected)
        self.state.begin_commit(txid)
        new = self.state.multi_combine([keys], ones, "sum")
        assert new is not None
        self.state.commit(txid)
        self.txid, self._expected = int(txid), txid.sentinel
        self.state.recorded(Snapshot(self.txid, self._winners))
        return time.perf_counter() - began


def build(path: str, keys: int) -> dict[str, Any]:
    """Count each of so many words once."""
    counts, began = Counts(path), time.perf_counter()
    for first in range(0, keys, _BUILD):
        counts.commit(np.arange(first, min(first + _BUILD, keys)))
    counts.state.close()
    return {"build_s": round(time.perf_counter() - began, 1), "build_peak_mb": status_mb("VmHWM")}


def batch_of(keys: int, size: int, number: int) -> npt.NDArray[np.int64]:
    """Return the words of a batch: distinct, in a random order, the same in each run."""
    dice = np.random.default_rng(number)
    chosen: npt.NDArray[np.int64] = np.unique(dice.integers(0, keys, size + size // 10 + 100))
    dice.shuffle(chosen)
    return chosen[:size]


def run(path: str, keys: int, size: int, batches: int) -> dict[str, Any]:
    """Start on a state that is there, and commit batches of random words."""
    idle, began = status_mb("VmRSS"), time.perf_counter()
    counts = Counts(path)
    start_s, at_start = time.perf_counter() - began, status_mb("VmRSS")
    times = [counts.commit(batch_of(keys, size, number)) for number in range(batches)]
    peak = status_mb("VmHWM")
    _check(counts, keys, size, batches)
    counts.state.close()
    return {
        "keys": keys,
        "median_s": round(statistics.median(times), 3),
        "max_s": round(max(times), 3),
        "first_s": round(times[0], 3),
        "start_s": round(start_s, 3),
        "idle_mb": idle,
        "start_mb": at_start,
        "peak_mb": peak,
        "files": sum(1 for _ in Path(path).rglob("part-*.parquet")),
    }


def _check(counts: Counts, keys: int, size: int, batches: int) -> None:
    """Check some counts against what was committed."""
    sample = batch_of(keys, _SAMPLE, batches)
    expected = np.ones(len(sample), np.int64)
    for number in range(batches):
        expected += np.isin(sample, batch_of(keys, size, number))
    found = counts.state.multi_get([(word,) for word in words(sample).to_pylist()])
    assert found == expected.tolist(), "the state is wrong"


def measure(folder: Path, keys: int, size: int, batches: int) -> dict[str, Any]:
    """Build a state and run batches on it."""
    path = str(folder / str(keys))
    built = apart(build, path=path, keys=keys)
    return {**apart(run, path=path, keys=keys, size=min(size, keys), batches=batches), **built}


def main() -> None:
    parser = argparse.ArgumentParser(description="Commits to a Delta state beyond memory.")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--in-memory", type=int, default=_IN_MEMORY, help="keys of the state to compare with")
    parser.add_argument("--size", type=int, default=100_000, help="keys of a batch")
    parser.add_argument("--batches", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large = measure(Path(folder), args.keys, args.size, args.batches)
        small = measure(Path(folder), args.in_memory, args.size, args.batches)
    ratio = round(large["median_s"] / small["median_s"], 1)
    tell(benchmark="delta_large", large=large, in_memory=small, ratio=ratio)


if __name__ == "__main__":
    main()
