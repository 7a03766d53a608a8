"""Readers of a Delta state, other processes, processes that are killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from states.delta import DeltaBackingMap
from tests.states.delta.delta_states import ROOT, WORDS, Log, changes, commit, reader_at, state_at, values
from trident.errors import UnsupportedOperation
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Txid
from trident.state.values import OpaqueValue

pytestmark = pytest.mark.slow


def test_a_reader_whose_files_were_deleted_moves_on_to_the_newer_version(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=4), Log()
    for number in range(1, 4):
        commit(state, log, number, 1, {"man": 1})
    reader = DeltaBackingMap(
        tmp_path, StateType.OPAQUE, StateConf(key_fields=WORDS.key_fields, value_type="bigint", read_only=True)
    )
    table = reader._table
    before = table.refresh()
    old = DeltaTable(changes(tmp_path)).file_uris()
    commit(state, log, 4, 1, {"man": 1})
    state.wait_for_maintenance()
    for file in old:
        Path(file).unlink()
    assert table.version == before  # the reader is still at the version of which no file is left
    assert table.scan().num_rows == 2
    assert table.version > before
    assert reader.multi_get([("man",)]) == [OpaqueValue(4, 1, 3, 4)]


def test_a_reader_asks_the_store_once_per_version(tmp_path: Path) -> None:
    state, log, reader = state_at(tmp_path), Log(), reader_at(tmp_path)
    assert values(reader, "man") == [None]
    for number in (1, 2):
        commit(state, log, number, 1, {"man": 1})
        assert values(reader, "man", "dog") == [number, None]
    for file in DeltaTable(changes(tmp_path)).file_uris():
        Path(file).unlink()
    assert values(reader, "man", "dog") == [2, None]


def test_a_read_only_instance_writes_nothing(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.OPAQUE, StateConf(read_only=True))
    with pytest.raises(UnsupportedOperation, match="opened to be read only"):
        backing.multi_put([("a",)], [OpaqueValue(1, 1, None, 1)])
    with pytest.raises(UnsupportedOperation):
        backing.begin(Txid(1))
    with pytest.raises(UnsupportedOperation):
        backing.move_sentinel(Sentinel("inc", 1, 1), force=True)
    with pytest.raises(UnsupportedOperation):
        backing.reset()
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys
import json
from pathlib import Path
from tests.states.delta.delta_states import *
from trident.state.txid import Sentinel
from trident.state.winners import Winners
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
state, log = state_at(path, compact_after_commits=4, fsync=False), Log()
attempt = first
if first > 1:
    log.winners = Winners.of(json.loads(sys.argv[4]))
    log.expected = Sentinel("inc", first - 1, log.winners.winner(first - 1))
for number in range(first, last + 1):
    commit(state, log, number, attempt, {"all": 1, f"w{number % 7}": number})
    print(number, flush=True)
"""


def child(path: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def model_after(txid: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number in range(1, txid + 1):
        for word, n in (("all", 1), (f"w{number % 7}", number)):
            counts[word] = counts.get(word, 0) + n
    return counts


@pytest.mark.long
def test_a_new_process_goes_on_where_another_stopped(tmp_path: Path) -> None:
    with child(tmp_path, 1, 6) as process:
        assert process.wait(60) == 0
    assert dict(state_at(tmp_path).get_tuples()) == model_after(6)
    with child(tmp_path, 7, 9, json.dumps([[1, 1]])) as process:
        assert process.wait(60) == 0
    assert dict(reader_at(tmp_path).get_tuples()) == model_after(9)


@pytest.mark.long
@pytest.mark.timeout(300)  # ten processes, on a machine that may be busy
def test_ten_kills_in_the_middle_of_commits_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    dice, done, ranges = random.Random(seed), 0, list[list[int]]()
    for _ in range(10):
        arguments = [json.dumps(ranges)] if done else []
        with child(tmp_path, done + 1, 1_000_000, *arguments) as process:
            assert process.stdout is not None
            first, stop = done + 1, done + dice.randrange(1, 12)
            reported = done
            for line in process.stdout:
                reported = int(line)
                if reported == stop:
                    # Any moment of the commits that follow: how many steps this loop takes is left to chance.
                    for _ in range(dice.randrange(200_000)):
                        pass
                    process.send_signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL
        assert reported >= stop, seed
        found = dict(state_at(tmp_path).get_tuples())
        assert found in (model_after(reported), model_after(reported + 1)), (seed, reported, found)
        # The record of the log: what was reported is committed; what came after it is tried again by the next child.
        ranges.append([first, first])
        done = reported
    assert done >= 10


@pytest.mark.long
def test_a_reader_in_another_process_sees_whole_batches_while_a_writer_runs(tmp_path: Path) -> None:
    reader = reader_at(tmp_path)
    with child(tmp_path, 1, 60) as process:
        assert process.stdout is not None
        for line in process.stdout:
            at_least = int(line)
            all_, *rest = values(reader, "all", *(f"w{n}" for n in range(7)))
            assert all_ >= at_least
            expected = model_after(all_)
            assert rest == [expected.get(f"w{n}") for n in range(7)]
        assert process.wait(60) == 0
    assert values(reader, "all") == [60]
