"""FaultyMap: fails at the call that it is told to, in the way that it is told to, and offers what the store offers."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap
from trident.errors import BackendError
from trident.state import Key, Sentinel
from trident.testing import Faults, FaultyMap, InjectedFault

KEYS: list[Key] = [("a",), ("b",), ("c",), ("d",)]
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("how", "written"),
    [("before", [None] * 4), ("middle", [1, 2, None, None]), ("after", [1, 2, 3, 4]), ("lost_reply", [1, 2, 3, 4])],
)
def test_a_put_fails_in_each_way(how: Any, written: list[int | None]) -> None:
    store, faults = DictMap(), Faults()
    faulty = FaultyMap(store, faults)
    faults.fail(at=2, how=how)
    faulty.multi_get(KEYS)
    with pytest.raises(InjectedFault) as raised:
        faulty.multi_put(KEYS, [1, 2, 3, 4])
    assert [store.entries.get(key) for key in KEYS] == written
    assert ("no answer" in str(raised.value)) is (how == "lost_reply")
    assert isinstance(raised.value, BackendError)
    assert raised.value.retryable
    assert faults.fired == [f"multi_put {how}"]
    faulty.multi_put(KEYS, [5, 6, 7, 8])
    assert list(faulty.multi_get(KEYS)) == [5, 6, 7, 8]


def test_every_call_of_every_map_counts() -> None:
    faults = Faults()
    fenced, plain = FaultyMap(MemoryBackingMap[int](), faults), FaultyMap(DictMap(), faults)
    assert fenced.offers("move_sentinel")
    fenced.move_sentinel(Sentinel("log", 1, 1))
    fenced.multi_put(KEYS, [1, 2, 3, 4])
    faults.fail(at=2, how="middle")
    plain.multi_get(KEYS)
    assert fenced.offers("multi_delete")
    with pytest.raises(InjectedFault):
        fenced.multi_delete(KEYS)
    assert list(fenced.multi_get(KEYS)) == [None, None, 3, 4]
    assert faults.calls == 5


def test_what_is_not_said_is_drawn_from_the_seed() -> None:
    def fired(seed: int) -> list[str]:
        faults = Faults(seed)
        faulty = FaultyMap(DictMap(), faults)
        for _ in range(20):
            faults.fail()
            for _ in range(16):
                try:
                    faulty.multi_put(KEYS, [1, 2, 3, 4])
                except InjectedFault:
                    break
        return faults.fired

    assert fired(1) == fired(1) != fired(2)
    assert len(fired(1)) == 20
    assert {how.split()[1] for how in fired(1)} == {"before", "middle", "after", "lost_reply"}


def test_a_failure_that_is_cleared_does_not_happen() -> None:
    faults = Faults()
    faults.fail(at=1)
    faults.clear()
    FaultyMap(DictMap(), faults).multi_put(KEYS, [1, 2, 3, 4])
    assert (faults.calls, faults.fired) == (1, [])


@pytest.mark.parametrize(
    ("wrong", "text"), [({"at": 0}, "the next call is 1"), ({"how": "later"}, "use one of 'before'")]
)
def test_a_failure_that_cannot_be_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Faults().fail(**wrong)


def test_a_fault_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(InjectedFault("put: failed")))
    assert (type(again), str(again), again.retryable) == (InjectedFault, "put: failed", True)


@pytest.mark.slow
def test_the_kit_needs_no_pytest() -> None:
    script = "import sys, trident.testing, trident.testing.__main__; print({'pytest', 'pyspark'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
