"""What a log in a `RecordStore` must do when connections are cut, servers hang or die, and the log is set back.

A contract; its user has the fixtures `server`, `home`, `behind`, and `quick`, by which a silent server counts as away sooner.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tests.harness.commands import until
from tests.harness.proxy import Point, Proxy
from tests.harness.servers import Server
from tests.log.log_homes import StoredHome, read, reopened
from tests.log.log_samples import commit, without_epoch
from trident.errors import CorruptLogError, FencedError, LogError, LogHeldError
from trident.log.records import DefineRecord
from trident.servers import patience
from trident.servers.patience import Patience

WAIT_S = 60


class StoredFaults:
    """Faults of the way to the server.

    `asks`: the method that sends a request, and its class.
    """

    asks: tuple[type, str] = (Patience, "run")

    @pytest.fixture
    def proxy(self, server: Server) -> Iterator[Proxy]:
        with closing(Proxy(server.port)) as proxy:
            yield proxy

    @pytest.mark.parametrize("point", ["half request", "reply"])
    @pytest.mark.parametrize("size", [10, 1_200_000], ids=["small", "large"])
    def test_a_record_is_there_once_though_the_connection_is_cut(
        self, home: StoredHome, behind: StoredHome, proxy: Proxy, point: Point, size: int
    ) -> None:
        with closing(behind.open()) as log:
            for txid in range(1, 4):
                log.append(DefineRecord(txid, "lines", "x" * size), durable=False)
                proxy.arm(point, lambda: None)
                log.append(commit(txid))
                assert not proxy.disarm()
                assert read(home) == log.state
            assert log.state.txid == 3
        assert without_epoch(reopened(home)) == without_epoch(log.state)

    @pytest.mark.parametrize("point", ["half request", "reply"])
    def test_a_segment_begins_once_though_cut(
        self, home: StoredHome, behind: StoredHome, proxy: Proxy, point: Point
    ) -> None:
        with closing(behind.open(segment_bytes=1)) as log:
            for txid in range(1, 13):
                proxy.arm(point, lambda: None)
                log.append(commit(txid))
                proxy.disarm()
                assert read(home) == log.state
            assert home.segments()[-1].seq >= 3

    @pytest.mark.parametrize(("point", "there"), [("held request", 1), ("half request", 1), ("reply", 2)])
    def test_a_takeover_during_an_append_fences_it_and_loses_nothing_reported(
        self, home: StoredHome, behind: StoredHome, proxy: Proxy, point: Point, there: int
    ) -> None:
        seconds: list[Any] = []
        first = behind.open()
        first.append(commit(1))
        proxy.arm(point, lambda: seconds.append(home.open(takeover=True)))
        with pytest.raises(FencedError, match="epoch 2"):
            first.append(commit(2))
        proxy.disarm()
        (second,) = seconds
        # `reply`: it was carried out before the takeover, and the answer was lost. The successor has it.
        assert (first.state.txid, second.state.txid, read(home).txid) == (1, there, there)
        second.append(commit(there + 1, 2 << 20))
        first.close()
        second.close()
        assert reopened(home).winners.winner(there + 1) == 2 << 20

    @pytest.mark.parametrize("point", ["half request", "reply"])
    def test_a_log_is_opened_once_whichever_of_its_requests_is_cut(
        self, home: StoredHome, behind: StoredHome, proxy: Proxy, point: Point, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kind, name = self.asks
        ask, left = getattr(kind, name), [0]

        def counted(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                proxy.arm(point, lambda: None)
            return ask(*args)

        cut = 0
        while left[0] <= 0:  # until an open has fewer requests
            cut += 1
            left[0] = cut
            with monkeypatch.context() as patch:
                patch.setattr(kind, name, counted)
                log = behind.open()
            proxy.disarm()
            assert (log.epoch, log.state.txid) == (cut, cut - 1)
            log.append(commit(cut, cut << 20))
            log.close()
        assert cut > 4
        assert reopened(home).totals["batches"] == cut

    def test_an_interrupted_append_is_not_sent_again(
        self, home: StoredHome, log: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace = log._store.replace

        def interrupted(*args: Any) -> bool:
            replace(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(log._store, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(commit(1))
        with pytest.raises(LogError, match="was interrupted"):
            log.append(commit(1))
        log.close()
        assert reopened(home).txid == 1

    def test_a_log_that_was_set_back_is_not_continued(self, home: StoredHome, log: Any) -> None:
        for txid in range(1, 3):
            log.append(commit(txid))
        before = home.save()
        log.append(commit(3))
        home.restore(before)
        with pytest.raises(LogError, match="its newest records were removed while it was written"):
            log.append(commit(4))
        log.close()
        assert reopened(home).txid == 2

    def test_after_stop_a_log_whose_server_answers_still_appends(self, home: StoredHome) -> None:
        with closing(home.open()) as log:
            log.stop_waiting()
            log.append(commit(1))
        assert reopened(home).txid == 1


class StoredContents:
    """What is said of a log that is not as it was written."""

    @pytest.mark.sample(5)
    @pytest.mark.parametrize("at", [0, 5, 11, 20, -1, "cut off", "empty"])
    @pytest.mark.parametrize("which", ["head", "chunk"])
    def test_any_changed_byte_is_an_error_that_names_it(self, home: StoredHome, which: str, at: int | str) -> None:
        with closing(home.open()) as log:
            for txid in range(1, 4):
                log.append(commit(txid))
        name = which if which == "head" else next(each for each in home.contents() if "chunks" in each)
        data = bytearray(home.contents()[name])
        if isinstance(at, int):
            data[at] ^= 1
        else:
            del data[-1 if at == "cut off" else 0 :]
        home.put(name, bytes(data))
        before = home.contents()
        for act in (lambda: read(home), lambda: home.open(takeover=True)):
            with pytest.raises(
                CorruptLogError, match=f"{log._store.place}/{name} is damaged at byte .*".replace("?", r"\?")
            ):
                act()
        assert home.contents() == before

    def test_a_chunk_that_is_gone_is_missed(self, home: StoredHome) -> None:
        with closing(home.open()) as log:
            home.delete([name for name in home.contents() if "chunks" in name])
            with pytest.raises(LogError, match="records of its newest segment were missing 20 times"):
                read(home)
            log.append(commit(1))  # the writer needs it no more
        with pytest.raises(LogError, match="were missing"):
            home.open()

    def test_what_a_driver_left_that_died_between_chunk_and_head_is_swept(self, home: StoredHome) -> None:
        home.open().close()
        home.put("chunks/00000001-0001-00000002-00ff", b"x")
        assert len([name for name in home.contents() if "chunks/00000001-" in name]) == 2
        for _ in range(2):
            reopened(home)
        assert not [name for name in home.contents() if "chunks/00000001-" in name]


class StoredAway:
    """A server that hangs; or dies, with `IsKilled`.

    `at_start`: what is said of it at a start.
    """

    at_start = r"no answer from .* for \d+ seconds"

    def vanish(self, server: Server) -> None:
        server.pause()

    def appear(self, server: Server) -> None:
        server.resume()

    @pytest.mark.server
    def test_an_append_waits_for_a_server_that_is_away_and_goes_on(
        self,
        home: StoredHome,
        server: Server,
        thread: ThreadPoolExecutor,
        caplog: pytest.LogCaptureFixture,
        quick: None,
    ) -> None:
        with closing(home.open()) as log, closing(home.reader()) as reader:
            log.append(commit(1))
            self.vanish(server)
            try:
                result = thread.submit(log.append, commit(2))
                until(
                    lambda: f"no answer from {log._store.patience.server}" in caplog.text,
                    "it is said that the log waits",
                )
                assert not result.done()
            finally:
                self.appear(server)
            result.result(WAIT_S)
            log.check_owner()
            log.append(commit(3))
            assert reader.refresh() == log.state
            assert f"{log._store.patience.server} answers again" in caplog.text
            assert reader.holder() is not None
            with pytest.raises(LogHeldError):
                home.open()
        assert reopened(home).totals["batches"] == 3

    @pytest.mark.long
    @pytest.mark.server
    def test_what_waits_for_a_server_ends_soon_when_the_driver_is_to_stop(
        self,
        home: StoredHome,
        log: Any,
        server: Server,
        thread: ThreadPoolExecutor,
        caplog: pytest.LogCaptureFixture,
        quick: None,
    ) -> None:
        log.append(commit(1))
        self.vanish(server)
        try:
            result = thread.submit(log.append, commit(2))
            until(
                lambda: f"no answer from {log._store.patience.server}" in caplog.text, "it is said that the log waits"
            )
            since = time.monotonic()
            log.stop_waiting()
            with pytest.raises(
                LogError, match=f"no answer from {log._store.patience.server} .* Batch 1 is the last one known to be"
            ):
                result.result(WAIT_S)
            assert time.monotonic() - since < WAIT_S / 2
            with pytest.raises(LogError, match="known to be committed"):
                log.check_owner()
            log.close()
        finally:
            self.appear(server)
        assert reopened(home, takeover=True).txid in (1, 2)

    @pytest.mark.server
    def test_a_server_that_is_away_at_the_start_is_named(
        self, home: StoredHome, server: Server, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(patience, "START_S", 1.0)
        self.vanish(server)
        try:
            with pytest.raises(LogError, match=self.at_start):
                home.open()
            with pytest.raises(LogError, match=self.at_start):
                read(home)
        finally:
            self.appear(server)
        assert reopened(home).epoch == 1


class IsKilled:
    """Mixed into `StoredAway`: a server that dies."""

    def vanish(self, server: Server) -> None:
        server.kill()

    def appear(self, server: Server) -> None:
        server.start()
