"""What every transaction log must do, in one process and between processes: here logs in files.

Subclass a contract and override `home`."""

import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import until
from tests.log.log_homes import FileHome, Home, read, reopened
from tests.log.log_processes import ProcessContract
from tests.log.log_samples import ATTEMPT, TOPOLOGY, commit, without_epoch
from trident.errors import AlreadyRunningError, FencedError, ForeignLogError, LogError, LogHeldError
from trident.log.records import AdoptRecord, DefineRecord, LayoutRecord, ResetRecord
from trident.state.txid import Sentinel


class LogContract:
    """A life without trouble, compaction, a reader beside the writer."""

    def test_a_new_log_has_an_incarnation_and_no_batch(self, home: Home) -> None:
        with closing(home.reader()) as reader:
            assert not reader.is_there()
            log = home.open()
            assert (log.state.txid, log.state.topology, log.epoch, log.state.epoch) == (0, TOPOLOGY, 1, 1)
            assert len(log.state.incarnation) == 16
            assert reader.is_there()
            log.check_owner()
            log.close()

    def test_everything_is_there_after_a_restart(self, home: Home, log: Any) -> None:
        log.append(LayoutRecord("counts", 4, "opaque"))
        log.append(DefineRecord(1, "lines", {"file": "a\udcff", "raw": b"\x00\xc1", "to": 10}))
        log.append(commit(1, payload=("a", 10)))
        log.append(DefineRecord(2, "lines", [1, 2]))
        log.append(AdoptRecord("other", 1, True, {0: (1, 0)}))
        log.append(ResetRecord("gone"))
        log.close()
        state = reopened(home)
        assert without_epoch(state) == without_epoch(log.state)
        assert state.spouts == {"lines": ["a", 10]}
        assert state.touched["counts"] == {1: Sentinel(state.incarnation, 1, ATTEMPT)}
        assert state.epoch == 2

    def test_what_the_caller_changes_afterwards_is_not_in_the_log(self, home: Home) -> None:
        log, definition = home.open(), {"rows": [1]}
        log.append(DefineRecord(1, "lines", definition))
        definition["rows"].append(2)
        log.close()
        assert log.state.definitions == reopened(home).definitions == {1: {"lines": {"rows": [1]}}}

    def test_a_record_that_cannot_come_next_writes_nothing_and_the_log_goes_on(self, home: Home, log: Any) -> None:
        before = home.contents()
        with pytest.raises(ValueError, match="commit of batch 2 after batch 0; only batch 1 can"):
            log.append(commit(2))
        with pytest.raises(ValueError, match="cannot write this to the transaction log: .* Definitions of spouts are"):
            log.append(DefineRecord(1, "lines", {1, 2}))
        assert home.contents() == before
        log.append(commit(1))
        log.close()
        assert reopened(home).txid == 1

    def test_records_that_are_not_durable_are_there_with_the_next_one_that_is(self, home: Home) -> None:
        with closing(home.open()) as log, closing(home.reader()) as reader:
            for txid in (1, 2):
                log.append(DefineRecord(txid, "lines", "x" * txid), durable=False)
            assert log.state.definitions == {1: {"lines": "x"}, 2: {"lines": "xx"}}
            log.append(commit(1))
            assert reader.refresh() == log.state
        assert reopened(home).definitions == {2: {"lines": "xx"}}

    def test_records_that_are_not_durable_are_there_after_a_clean_end(self, home: Home, log: Any) -> None:
        log.append(DefineRecord(1, "lines", "x"), durable=False)
        log.close()
        assert reopened(home).definitions == {1: {"lines": "x"}}

    def test_records_that_are_not_durable_outlast_the_begin_of_a_segment(self, home: Home) -> None:
        log = home.open(segment_bytes=1)
        for txid in range(1, 60):
            log.append(DefineRecord(txid + 1, "lines", "x" * 100), durable=False)
            log.append(commit(txid), durable=txid % 2 == 0)
        assert home.segments()[-1].seq > 3
        log.close()
        assert without_epoch(reopened(home)) == without_epoch(log.state)

    @pytest.mark.parametrize("size", [900_000 - 30, 900_000, 2_700_001])
    def test_records_of_any_size_are_read_as_they_were_written(self, home: Home, size: int) -> None:
        with closing(home.open()) as log, closing(home.reader()) as reader:
            log.append(DefineRecord(1, "lines", os.urandom(size)))
            log.append(commit(1))
            assert reader.refresh() == log.state
            log.append(DefineRecord(2, "lines", os.urandom(size)), durable=False)
            log.append(DefineRecord(3, "lines", os.urandom(size)))
            assert (reader.refresh(), reader.torn) == (log.state, 0)
        assert without_epoch(reopened(home)) == without_epoch(log.state)  # its header is as large
        assert without_epoch(read(home)) == without_epoch(log.state)

    def test_a_closed_log_refuses_records_and_closes_twice(self, home: Home, log: Any) -> None:
        log.close()
        log.close()
        with pytest.raises(LogError, match="the transaction log .* is closed"):
            log.append(commit(1))
        with pytest.raises(LogError, match="is closed"):
            log.check_owner()

    def test_closing_gives_back_every_file_descriptor(self, home: Home) -> None:
        def descriptors() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        reopened(home)
        before = descriptors()
        for _ in range(3):
            log = home.open(segment_bytes=1)
            with pytest.raises(LogHeldError):
                home.open()
            for txid in range(log.state.txid + 1, log.state.txid + 4):
                log.append(commit(txid))
            read(home)
            log.close()
        until(lambda: descriptors() <= before, "the descriptors are given back")  # connections end by themselves

    def test_a_log_of_another_topology_is_refused_and_its_writer_goes_on(self, home: Home, log: Any) -> None:
        before = home.contents()
        with pytest.raises(ForeignLogError, match="belongs to topology 'word-count', not to topology 'other'"):
            home.open("other", takeover=True)
        assert home.contents() == before
        log.append(commit(1))
        assert log.state.txid == 1

    def test_segments_are_switched_and_nothing_is_lost(self, home: Home) -> None:
        log = home.open(segment_bytes=1000)
        for txid in range(1, 151):
            log.append(commit(txid, payload="x" * 50))
        segments = home.segments()
        log.close()
        assert len(segments) == 2
        assert segments[1] == (1, segments[0].seq + 1)
        assert 3 < segments[1].seq < 60
        state = read(home)
        assert state == log.state
        assert [each.txid for each in state.history] == list(range(51, 151))
        assert state.totals == {"tuples": 1500, "batches": 150}

    def test_a_state_larger_than_a_segment_is_not_written_with_every_record(self, home: Home) -> None:
        log = home.open(segment_bytes=1)
        log.append(DefineRecord(100, "lines", "x" * 100_000))
        for txid in range(1, 21):
            log.append(commit(txid))
        log.close()
        assert home.segments()[-1].seq == 2
        assert read(home) == log.state

    def test_opening_keeps_the_previous_segment_and_none_before_it(self, home: Home) -> None:
        for _ in range(4):
            reopened(home)
        assert home.segments() == [(3, 1), (4, 1)]

    def test_a_reader_follows_appends_and_segments(self, home: Home) -> None:
        with closing(home.open(segment_bytes=300)) as log, closing(home.reader()) as reader:
            for txid in range(1, 40):
                log.append(commit(txid))
                assert reader.refresh() == log.state

    def test_a_reader_does_not_read_again_what_it_has(self, home: Home) -> None:
        with closing(home.open()) as log, closing(home.reader()) as reader:
            log.append(commit(1))
            state = reader.refresh()
            assert reader.refresh() is state
            log.append(commit(2))
            assert reader.refresh() is state
            assert state.txid == 2

    def test_a_reader_says_who_writes(self, home: Home) -> None:
        with closing(home.reader()) as reader:
            assert reader.holder() is None
            log = home.open()
            holder = reader.holder() or ""
            assert holder.startswith(f"process {os.getpid()} on ")
            assert re.search(r" \(epoch 1, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\)$", holder)
            log.close()
            assert reader.holder() is None

    def test_without_a_log_a_reader_says_so(self, home: Home) -> None:
        with (
            closing(home.reader()) as reader,
            pytest.raises(LogError, match="there is no transaction log .*; a topology's first start makes one"),
        ):
            reader.refresh()


class OwnerContract:
    """Who writes: held logs, takeovers and claims at every awkward moment, within one process."""

    def test_a_held_log_is_refused_and_the_holder_named_which_is_this_very_process(self, home: Home, log: Any) -> None:
        advice = rf"held by process {os.getpid()} on .* very process.* Call stop\(\) on"
        with pytest.raises(AlreadyRunningError, match=advice) as caught:
            home.open()
        assert re.search(r"\(epoch 1, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\)", str(caught.value))
        log.append(commit(1))
        log.close()
        state = reopened(home)
        assert (state.txid, state.epoch) == (1, 2)

    def test_a_takeover_fences_the_first_at_its_next_append(self, home: Home) -> None:
        first = home.open()
        first.append(commit(1))
        second = home.open(takeover=True)
        assert (second.epoch, second.state.txid) == (2, 1)
        before = home.contents()
        for _ in range(2):
            with pytest.raises(FencedError, match="this writer is epoch 1, but process .* has taken over"):
                first.append(commit(2))
        assert first.state.txid == 1
        with pytest.raises(FencedError):
            first.check_owner()
        assert home.contents() == before
        second.append(commit(2, 2 << 20))
        second.close()
        first.close()
        assert reopened(home).winners.winner(2) == 2 << 20

    def test_a_driver_that_only_looks_learns_that_it_was_replaced(self, home: Home) -> None:
        first = home.open()
        with closing(home.open(takeover=True)):
            with pytest.raises(FencedError, match="this writer is epoch 1, but process .*epoch 2.* has taken over"):
                first.check_owner()
            with pytest.raises(FencedError):
                first.append(commit(1))
        first.close()

    def test_after_a_takeover_the_end_of_the_first_does_not_free_the_log(self, home: Home) -> None:
        first = home.open()
        second = home.open(takeover=True)
        first.close()
        with pytest.raises(LogHeldError, match="epoch 2"):
            home.open()
        second.append(commit(1))
        second.close()
        assert reopened(home).txid == 1

    def test_what_the_first_appends_until_the_claim_counts(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        first = home.open()
        first.append(commit(1))
        real: Callable[..., Any] = home.claim_type.take

        def late(*args: Any) -> Any:
            first.append(commit(2))  # after the second has read the log, before it claims it
            return real(*args)

        monkeypatch.setattr(home.claim_type, "take", late)
        second = home.open(takeover=True)
        assert second.state.txid == first.state.txid == 2
        second.close()
        first.close()

    @pytest.mark.parametrize("rivals", [1, 3, 0], ids=["one", "several", "of a new log"])
    def test_of_two_claims_at_once_the_second_is_refused(
        self, home: Home, monkeypatch: pytest.MonkeyPatch, rivals: int
    ) -> None:
        where, name = home.claim
        real = getattr(where, name)
        with ExitStack() as stack:
            first = stack.enter_context(closing(home.open())) if rivals else None
            logs: list[Any] = []

            def late(*args: Any) -> Any:
                seen = real(*args)
                monkeypatch.setattr(where, name, real)
                for _ in range(rivals or 1):
                    logs.append(stack.enter_context(closing(home.open(takeover=first is not None))))
                return seen

            monkeypatch.setattr(where, name, late)
            with pytest.raises(LogHeldError, match=rf"held by process \d+ .*epoch {rivals + 1}"):
                home.open(takeover=first is not None)
            logs[-1].append(commit(1))
            assert logs[-1].state.txid == 1
            if first is not None:
                with pytest.raises(FencedError):
                    first.append(commit(1))

    def test_a_writer_whose_log_was_removed_stops(self, home: Home, log: Any) -> None:
        home.remove()
        with pytest.raises(FencedError, match="the claim .*00000001.* is gone"):
            log.append(commit(1))

    def test_a_claim_that_cannot_be_read_is_still_named(self, home: Home, log: Any) -> None:
        home.spoil_claim()
        with pytest.raises(LogHeldError, match=r"held by an unknown process \(epoch 1\)"):
            home.open()

    def test_a_child_forked_during_an_append_is_refused_and_not_stuck(self, home: Home, log: Any) -> None:
        with log._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                try:
                    log.append(commit(1))
                except LogError:
                    log.close()
                    os._exit(0)
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        log.append(commit(1))

    def test_a_record_that_is_not_durable_counts_only_with_one_that_the_owner_writes(self, home: Home) -> None:
        first = home.open()
        first.append(DefineRecord(1, "lines", "before"), durable=False)
        second = home.open(takeover=True)
        first.append(DefineRecord(2, "lines", "after"), durable=False)
        with pytest.raises(FencedError):
            first.append(commit(1))
        kept = {1: {"lines": "before"}} if home.keeps_undurable else {}
        assert second.state.definitions == read(home).definitions == kept
        for log in (first, second):
            log.close()


class TestFiles(LogContract, OwnerContract, ProcessContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> FileHome:
        return FileHome(tmp_path / "a" / "log")
