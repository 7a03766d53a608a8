"""What every log must do between real processes: held, paused and replaced, killed at any moment, read while written, forked.

A contract: subclass it and override `home`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.log.log_homes import Home, read
from trident.errors import LogError, LogHeldError
from trident.log.records import CommitRecord

# Appends one batch per line that it reads ("+" for as many as it can), and says which batches are durable.
DRIVER = """
import functools
import sys
from trident.log import log_address
from trident.log.file_log import FileLog
from trident.log.stored_log import StoredLog
from trident.log.records import CommitRecord, DefineRecord

def append():
    txid = log.state.txid + 1
    log.append(DefineRecord(txid, "lines", "x" * (txid % 7 * 100)))
    log.append(CommitRecord(txid, log.epoch << 20, {"lines": txid}, {"counts": [txid % 4]}, {"tuples": 1}, 0))
    print(txid, flush=True)

try:
    address, size = sys.argv[1], int(sys.argv[2])
    for kind in (FileLog, StoredLog):  # with small segments
        kind.open = functools.partial(kind.open, segment_bytes=size)
    log = log_address.open_log(address, "word-count")
    print("open", log.state.txid, flush=True)
    for line in sys.stdin:
        append()
        while line == "+\\n":
            append()
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


class Driver:
    """A driver in a process of its own."""

    def __init__(self, home: Home, segment_bytes: int = 1 << 20) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, home.address, str(segment_bytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def append(self) -> str:
        self.tell("one")
        return self.says()

    def kill(self) -> list[str]:
        """Kill the process; return what it had still said, whole lines only."""
        self.process.kill()
        assert self.process.stdout is not None
        said = self.process.stdout.read()  # not communicate(): that forgets what readline has read ahead
        return said.split("\n")[:-1]


def commit(txid: int, attempt: int) -> CommitRecord:
    return CommitRecord(txid, attempt, {}, {}, {"tuples": 1}, 0)


@pytest.mark.slow
class ProcessContract:
    """Drivers in processes of their own."""

    @pytest.fixture
    def stack(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            yield stack

    def test_a_second_driver_is_refused_and_told_of_the_first(self, home: Home, stack: ExitStack) -> None:
        driver = stack.enter_context(Driver(home))
        assert driver.says() == "open 0"
        with pytest.raises(LogHeldError, match=f"held by process {driver.process.pid} on .*epoch 1"):
            home.open()
        second = stack.enter_context(Driver(home))
        assert re.match(f"LogHeldError .* held by process {driver.process.pid} on ", second.says())
        assert driver.append() == "1"

    def test_the_log_of_a_killed_driver_is_free_at_once(self, home: Home, stack: ExitStack) -> None:
        driver = stack.enter_context(Driver(home))
        driver.says()
        assert driver.append() == "1"
        driver.kill()
        log = home.open()
        assert (log.state.txid, log.epoch) == (1, 2)
        log.close()

    def test_a_paused_driver_that_was_replaced_cannot_append(self, home: Home, stack: ExitStack) -> None:
        driver = stack.enter_context(Driver(home))
        driver.says()
        assert driver.append() == "1"
        driver.process.send_signal(signal.SIGSTOP)
        with pytest.raises(LogHeldError):
            home.open()
        log = home.open(takeover=True)
        assert log.state.txid == 1
        log.append(commit(2, log.epoch << 20))
        driver.process.send_signal(signal.SIGCONT)
        told = driver.append()
        assert told.startswith("FencedError ")
        assert f"this writer is epoch 1, but process {os.getpid()} on " in told
        driver.process.wait(timeout=30)
        log.append(commit(3, log.epoch << 20))
        log.close()
        state = read(home)
        assert (state.txid, state.definitions) == (3, {})
        assert [each.attempt >> 20 for each in state.history] == [1, 2, 2]

    def test_a_busy_driver_is_replaced_between_two_of_its_records(self, home: Home, stack: ExitStack) -> None:
        driver = stack.enter_context(Driver(home, segment_bytes=2000))
        driver.says()
        driver.tell("+")
        while driver.says() != "20":
            pass
        log = home.open(takeover=True)
        taken = log.state.txid
        driver.process.wait(timeout=30)
        *durable, end = driver.kill()
        assert end.startswith("FencedError ")
        assert 20 <= max([20, *map(int, durable)]) <= taken
        log.append(commit(taken + 1, log.epoch << 20))
        log.close()
        state = read(home)
        assert state.winners.ranges == ((1, 1 << 20), (taken + 1, 2 << 20))
        assert state.totals == {"tuples": taken + 1, "batches": taken + 1}

    @pytest.mark.long
    def test_what_a_killed_driver_called_durable_is_there(self, home: Home, stack: ExitStack) -> None:
        committed = 0
        for life in range(12):
            # Small segments, so that some kills hit a compaction.
            driver = stack.enter_context(Driver(home, segment_bytes=1 if life % 2 else 3000))
            opened = int(driver.says().removeprefix("open "))
            assert opened - committed in (0, 1)  # 1: durable, and killed before it could say so
            driver.tell("+")
            wanted = str(opened + 1 + 7 * life)
            while (said := driver.says()) != wanted:
                assert said.isdigit(), said
            committed = int([wanted, *driver.kill()][-1])
        state = read(home)
        assert state.txid - committed in (0, 1)
        assert state.totals == {"tuples": state.txid, "batches": state.txid}
        assert [each.txid for each in state.history] == list(range(max(1, state.txid - 99), state.txid + 1))
        assert state.spouts == {"lines": state.txid}
        assert len(state.winners.ranges) == 12

    @pytest.mark.parametrize("segment_bytes", [1 << 20, 500])
    def test_a_reader_sees_batches_of_others_at_once(self, home: Home, stack: ExitStack, segment_bytes: int) -> None:
        driver = stack.enter_context(Driver(home, segment_bytes))
        driver.says()
        reader = home.reader()
        for txid in range(1, 30):
            assert driver.append() == str(txid)
            assert reader.refresh().txid == txid
        assert reader.segment is not None
        assert (reader.segment.seq == 1) == (segment_bytes > 500)
        assert reader.refresh().spouts == {"lines": 29}

    def test_a_forked_child_can_neither_write_nor_hold_the_log(self, home: Home, log: Any) -> None:
        asks, tells = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                log.append(commit(1, 1 << 20))
                said = "appended"
            except LogError as error:
                said = str(error)
            os.write(tells[1], said.encode())
            os.read(asks[0], 1)  # lives on until the parent has closed the log and opened it again
            os._exit(0)
        try:
            said = os.read(tells[0], 1000).decode()
            assert f"was opened by process {os.getpid()} and cannot be used by process {child}, forked from it" in said
            with pytest.raises(LogHeldError):
                home.open()
            log.append(commit(1, 1 << 20))
            log.close()
            again = home.open()
            assert again.state.txid == 1
            again.close()
        finally:
            os.write(asks[1], b".")
            os.waitpid(child, 0)
            for end in (*asks, *tells):
                os.close(end)

    def test_the_end_of_a_driver_frees_the_log_though_a_forked_child_lives_on(self, home: Home) -> None:
        forks = "import os, sys, subprocess\nfrom trident.log.log_address import open_log\n" \
            "log = open_log(sys.argv[1], 'word-count')\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\n" \
            "    sys.stdin.read()\n    os._exit(0)\nos.wait3(os.WNOHANG)\nos._exit(0)\n"  # fmt: skip
        parent = subprocess.Popen(
            [sys.executable, "-c", forks, home.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.wait(timeout=30)
            log = home.open()
            assert log.epoch == 2
            assert os.path.exists(f"/proc/{child}")  # noqa: PTH110  # a process, not a path
            log.append(commit(1, 2 << 20))
            log.close()
            assert read(home).txid == 1
        finally:
            parent.communicate()
