"""A state in Cassandra when things go wrong: replaced writers, lost replies, a server that hangs or is killed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cassandra
import pytest
from cassandra.cluster import NoHostAvailable

from states.cassandra.cluster_session import CassandraConnection, UnknownOutcome, _backend_error
from states.cassandra.fence import CODEC, FLOOR_BUCKET, PUTS_PER_COMMIT, timestamp
from states.cassandra.map import CassandraBackingMap
from tests.harness.servers import start_cassandra
from tests.harness.store_commits import update, values
from tests.states.cassandra.cassandra_states import EPOCH, Home, Log, claim, commit
from trident.errors import (
    BackendError,
    CommitOrderError,
    CorruptValueError,
    FencedError,
    StateLossDetected,
    StateMismatchError,
    UnsupportedOperation,
)
from trident.state import Key, Sentinel, Snapshot, Txid
from trident.state.encoding.codec import encode

SMALL: dict[str, Any] = {"table": "two", "buckets": 2, "rows_per_batch": 2}  # a window of 16 keys


class Values(Sequence[bytes]):
    """Values of a put that call a function when those from a place on are taken: between the check of a window and its send."""

    def __init__(self, size: int, value: bytes, at: int, act: Callable[[], None]) -> None:
        self._size, self._value, self._at, self._act = size, value, at, act

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Any:
        if at.start == self._at:
            self._act()
        return [self._value] * len(range(self._size)[at])


def test_a_writer_that_wakes_up_between_windows_is_fenced_and_changes_nothing(home: Home) -> None:
    conf = home.conf()
    old, new = home.map(conf, **SMALL), home.map(conf, **SMALL)
    keys: list[Key] = [(n,) for n in range(48)]
    claim(old, 1)

    def take_over() -> None:
        claim(new, 1, attempt=1)
        new.multi_put(keys, [b"new"] * len(keys))

    # The old writer has checked its second window and sleeps while it is replaced, then sends it.
    with pytest.raises(FencedError, match=f"this writer is batch 1 attempt {EPOCH} .* has taken over"):
        old.multi_put(keys, Values(len(keys), b"zombie", 16, take_over))
    assert new.multi_get(keys) == [b"new"] * len(keys)
    with pytest.raises(FencedError):
        old.multi_delete(keys)
    with pytest.raises(FencedError):
        old.end(Txid(1, EPOCH, incarnation="log"))
    assert new.multi_get(keys) == [b"new"] * len(keys)


def test_what_a_replaced_writer_deletes_late_stays(home: Home) -> None:
    conf = home.conf()
    old, new = home.map(conf), home.map(conf)
    claim(old, 1)
    old.multi_put([("k",)], [b"old"])
    late = timestamp(old._stamp or 0, 5)
    claim(new, 1, attempt=1)
    new.multi_put([("k",)], [b"new"])
    old._rows.delete([key for page in new._rows.pages() for key in page], late, lambda: None)
    assert new.multi_get([("k",)]) == [b"new"]


def test_a_second_run_of_the_same_attempt_replaces_the_first(home: Home) -> None:
    conf = home.conf()
    first, second = home.map(conf), home.map(conf)
    claim(first, 1)
    for n in range(5):
        first.multi_put([("k",)], [b"zzz%d" % n])
    claim(second, 1)
    second.multi_put([("k",)], [b"aaa"])  # fewer puts and lesser bytes, and yet the later write
    assert second.multi_get([("k",)]) == [b"aaa"]
    with pytest.raises(FencedError, match="another run of it"):
        first.multi_put([("k",)], [b"zzz"])
    claim(first, 2)
    first.multi_put([("k",)], [b"000"])
    assert second.multi_get([("k",)]) == [b"000"]


def test_a_key_that_is_put_twice_in_a_commit_has_the_later_value(home: Home) -> None:
    backing = home.map(home.conf())
    keys = [(n,) for n in range(50)]
    claim(backing, 1)
    for value in (b"zzz", b"mmm", b"aaa"):  # of two writes at one timestamp Cassandra keeps the greater bytes
        backing.multi_put(keys, [value] * len(keys))
    assert backing.multi_get(keys) == [b"aaa"] * len(keys)
    backing.multi_delete(keys)
    backing.multi_put(keys, [b"0"] * len(keys))
    assert backing.multi_get(keys) == [b"0"] * len(keys)


def test_more_puts_in_a_commit_than_can_be_told_apart_are_refused() -> None:
    assert timestamp(3, PUTS_PER_COMMIT - 1) < timestamp(4, 0)
    with pytest.raises(UnsupportedOperation, match="more than 262144 puts in one commit"):
        timestamp(3, PUTS_PER_COMMIT)


def test_versions_beyond_the_ceiling_keep_rising(home: Home) -> None:
    conf = home.conf()
    for attempt in (0, 1, 40 * EPOCH, 41 * EPOCH, 400 * EPOCH):  # each by an instance of its own
        backing = home.map(conf)
        claim(backing, 1, attempt=attempt)
        backing.multi_put([("k",)], [b"%d" % -attempt])
        assert backing.multi_get([("k",)]) == [b"%d" % -attempt]
    other = home.map(conf, 1)
    claim(other, 1, incarnation="another")  # starts above the ceiling, so it must be above all of these
    other.multi_put([("k",)], [b""])
    assert other.multi_get([("k",)]) == [b""]


@pytest.mark.parametrize(("incarnation", "error"), [("log", StateLossDetected), ("another", FencedError)])
def test_a_sentinel_that_is_laid_again_may_go_back_and_its_writes_count(
    home: Home, incarnation: str, error: type[Exception]
) -> None:
    conf = home.conf()
    old, new = home.map(conf), home.map(conf)
    claim(old, 900, attempt=30 * EPOCH)
    old.multi_put([("k",)], [b"zzz"])
    new.move_sentinel(Sentinel(incarnation, 3, 1), force=True)
    with pytest.raises(error):
        old.multi_put([("k",)], [b"zzz"])
    claim(new, 4, incarnation=incarnation)
    new.multi_put([("k",)], [b"aaa"])
    assert old.multi_get([("k",)]) == [b"aaa"]


def test_another_log_that_finds_no_sentinel_still_writes_above_the_first(home: Home) -> None:
    conf = home.conf()
    old, new = home.map(conf, 5), home.map(conf, 0)  # the first log never touched partition 0
    claim(old, 900, attempt=30 * EPOCH)
    old.multi_put([("k",)], [b"zzz"])
    claim(new, 1, incarnation="another")
    new.multi_put([("k",)], [b"aaa"])
    assert old.multi_get([("k",)]) == [b"aaa"]


def test_calls_of_a_commit_out_of_their_order_are_refused(home: Home) -> None:
    backing = home.map(home.conf())
    with pytest.raises(CommitOrderError, match="end of batch 4 .*without its begin"):
        backing.end(Txid(4))
    with pytest.raises(CommitOrderError, match="begin of batch 4 .*without its sentinel"):
        backing.begin(Txid(4, EPOCH, incarnation="log"))


@pytest.mark.parametrize(
    ("doing", "how"),
    [("put", "truncate"), ("delete", "truncate"), ("end", "truncate"), ("seal", "truncate"), ("seal", "reset")],
)
def test_a_sentinel_that_disappears_in_a_commit_is_a_loss(
    home: Home, cql: CassandraConnection, doing: str, how: str
) -> None:
    conf, table = home.conf(), f"losing_{doing}"
    backing, other, begun = home.map(conf, table=table), home.map(conf, table=table), Sentinel("log", 1, EPOCH)
    if doing == "seal":
        backing.move_sentinel(begun._replace(sealed=False))
    txid = Txid(1, EPOCH, incarnation="log") if doing == "seal" else claim(backing, 1)
    cql.define(f"TRUNCATE tests.{table}") if how == "truncate" else other.reset()
    acts = {
        "seal": lambda: backing.move_sentinel(begun),
        "put": lambda: backing.multi_put([("k",)], [b"v"]),
        "delete": lambda: backing.multi_delete([("k",)]),
        "end": lambda: backing.end(txid),
    }
    with pytest.raises(StateLossDetected, match=rf"its sentinel \(batch 1 attempt {EPOCH} of .*\) is gone"):
        acts[doing]()
    assert (other.multi_get([("k",)]), other.read_sentinel()) == ([None], None)


def test_a_foreign_record_is_named(home: Home, cql: CassandraConnection) -> None:
    conf = home.conf()
    backing = home.map(conf)
    insert = "INSERT INTO tests.states (trident_state, trident_bucket, trident_record) VALUES ('{}', {}, 0x0191{})"
    cql.define(insert.format(conf.prefix, FLOOR_BUCKET, "01"))
    with pytest.raises(CorruptValueError, match=r"the floor of timestamps is \[1\]"):
        claim(backing, 1)
    cql.define(insert.format(conf.prefix, FLOOR_BUCKET - 1, "02"))
    with pytest.raises(CorruptValueError, match="read the sentinel of partition 0 of state .* found .* in its place"):
        backing.read_sentinel()


class Lossy:
    """Lets one conditional write lose its answer: made or not."""

    def __init__(self, backing: CassandraBackingMap, monkeypatch: pytest.MonkeyPatch, made: bool) -> None:
        self.lost = 0
        connection = backing._connection
        execute = connection.execute

        def lose(statement: Any, doing: str) -> list[tuple[Any, ...]]:
            if "sentinel" not in doing and "move" in doing and not self.lost:
                self.lost += 1
                if made:
                    execute(statement, doing)
                raise UnknownOutcome("no answer")
            return execute(statement, doing)

        monkeypatch.setattr(connection, "execute", lose)


@pytest.mark.parametrize("made", [True, False])
def test_a_sentinel_whose_move_was_not_answered_is_read_back(
    home: Home, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    backing = home.map(home.conf())
    claim(backing, 1)
    lossy = Lossy(backing, monkeypatch, made)
    claim(backing, 2)
    assert lossy.lost == 1
    assert backing.read_sentinel() == Sentinel("log", 2, EPOCH)
    backing.multi_put([("k",)], [b"v"])
    assert backing.multi_get([("k",)]) == [b"v"]


@pytest.mark.long
def test_a_server_that_hangs_is_a_timeout_that_may_pass_and_the_replay_is_exact(home: Home) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf, timeout_s=0.7)
    words, raw = {f"w{n}": 1 for n in range(2000)}, state.map_state.backing.backing
    commit(state, log, 1, words)
    txid = log.txid(2)
    state.begin_commit(txid)
    home.server.pause()
    try:
        with pytest.raises(BackendError, match=r"cannot read .*OperationTimedOut.*may be replayed") as reading:
            update(state, words)
        with pytest.raises(BackendError, match=r"cannot write 1 keys .*OperationTimedOut") as writing:
            raw._rows.put([("key",)], [b"value"], timestamp(raw._stamp, 9), lambda: None)
    finally:
        home.server.resume()
    assert reading.value.retryable
    assert writing.value.retryable
    patient = home.state(conf)
    commit(patient, log, 2, words, attempt=1)
    assert values(patient, *words) == [2] * len(words)


def test_a_sentinel_is_moved_by_a_server_that_comes_back_in_time(home: Home) -> None:
    backing = home.map(home.conf(), timeout_s=2.5)
    claim(backing, 1)
    backing.read_sentinel()  # as every commit does first
    home.server.pause()
    resume = threading.Timer(3.0, home.server.resume)  # after the write gave up, while it is being read back
    resume.start()
    try:
        backing.move_sentinel(Sentinel("log", 2, EPOCH))
    finally:
        resume.join()
    assert backing.read_sentinel() == Sentinel("log", 2, EPOCH)


REFUSED = cassandra.AuthenticationFailed("Bad credentials")


@pytest.mark.parametrize(
    ("error", "retryable", "text"),
    [
        (NoHostAvailable("none", {"a": REFUSED}), False, "Bad credentials. Check user, password"),
        (cassandra.Unauthorized("no rights"), False, "Check user, password and the account's rights"),
        (cassandra.InvalidRequest("bad query"), False, "the server refuses it: bad query"),
        (cassandra.WriteTimeout("slow", write_type=0), True, "WriteTimeout: .*may be replayed"),
        (cassandra.ReadTimeout("slow"), True, "ReadTimeout"),
        (cassandra.Unavailable("two of three down"), True, "Unavailable"),
        (cassandra.OperationTimedOut(), True, "OperationTimedOut"),
        (NoHostAvailable("none", {"a": OSError("refused")}), True, "NoHostAvailable: refused. The batch"),
        (NoHostAvailable("all are shut", {}), True, "NoHostAvailable: .*all are shut"),
        (ConnectionResetError("reset"), True, "ConnectionResetError: reset"),
    ],
)
def test_errors_of_the_driver_say_whether_the_batch_may_be_replayed(
    error: Exception, retryable: bool, text: str
) -> None:
    found = _backend_error("cannot read 3 keys", "127.0.0.1:9042", error)
    assert found.retryable is retryable
    with pytest.raises(BackendError, match=f"cannot read 3 keys: .*{text}"):
        raise found


def test_a_statement_is_prepared_again_if_no_answer_of_a_node_is_noted(
    cql: CassandraConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may raise a moment before it notes that the server had not opened the table yet."""
    prepare, errors = cql._session.prepare, iter([NoHostAvailable("no host could do it", {})])

    def fail_once(text: str) -> Any:
        for error in errors:
            raise error
        return prepare(text)

    monkeypatch.setattr(cql._session, "prepare", fail_once)
    assert cql.execute(cql.prepare("SELECT key FROM system.local", "ONE"), "look") == [("local",)]


def test_after_an_error_nothing_more_is_sent(cql: CassandraConnection) -> None:
    taken: list[int] = []

    def statements() -> Iterator[Any]:
        for n in range(100):
            taken.append(n)
            yield "SELECT nothing FROM nowhere" if n == 5 else "SELECT key FROM system.local"

    with pytest.raises(BackendError, match="the server refuses it"):
        list(cql.stream(statements(), 4, "try"))
    assert len(taken) < 12


def test_what_is_written_after_the_seal_is_later_than_what_came_before_it(home: Home) -> None:
    backing, begun = home.map(home.conf()), Sentinel("log", 1, EPOCH, "", False)
    backing.move_sentinel(begun)
    backing.multi_put([("k",)], [b"zzz"])
    backing.move_sentinel(begun._replace(sealed=True))
    backing.multi_put([("k",)], [b"aaa"])
    assert backing.multi_get([("k",)]) == [b"aaa"]


def test_one_run_of_an_attempt_does_not_seal_what_another_one_began(home: Home) -> None:
    conf, begun = home.conf(), Sentinel("log", 1, EPOCH, "", False)
    first, second = home.map(conf), home.map(conf)
    first.move_sentinel(begun)
    second.move_sentinel(begun)
    with pytest.raises(FencedError, match="another run of it"):
        first.move_sentinel(begun._replace(sealed=True))
    sentinel = second.read_sentinel()
    assert sentinel is not None
    assert not sentinel.sealed


def test_the_record_of_a_sentinel_is_its_fields(home: Home) -> None:
    fields = ["log", 3, EPOCH, 10, bytes(range(8)), "words/count", False, "4f1c"]
    found = CODEC.decode(encode(fields), "state p")
    assert tuple(found.sentinel) == ("log", 3, EPOCH, "words/count", False, "4f1c")
    assert found.notes == (10, bytes(range(8)))
    assert CODEC.encode(found) == encode(fields)


@pytest.mark.long
@pytest.mark.server
def test_a_server_that_lost_the_end_of_a_commit_is_not_taken_for_whole(tmp_path: Path) -> None:
    """With a periodic commit log SIGKILL takes the writes of the last 0.1 s, nine times in ten a part of a commit."""
    server = start_cassandra(tmp_path, durable=False)
    words = {f"w{n}": 1 for n in range(3000)}
    keys = [(word,) for word in words]
    try:
        home = Home(server)
        opened = [(home.state(conf), conf, Log()) for conf in (home.conf("within"), home.conf("after"))]
        for state, _, log in opened:
            commit(state, log, 1, words)
        opened[0][0].begin_commit(opened[0][2].txid(2))
        update(opened[0][0], words)  # killed within this commit,
        for number in (2, 3):
            commit(opened[1][0], opened[1][2], number, words)  # and just after this one
        server.kill()
        home.close()
        server.start()
        home = Home(server)
        for (_, conf, log), count in zip(opened, (1, 3), strict=True):
            again = home.state(conf)
            whole = again.multi_get_at(keys, Snapshot(count, log.winners)) == [count] * len(keys)
            try:
                again.begin_commit(log.txid(count + 1, attempt=1))
            except StateMismatchError:
                continue
            assert whole
        home.close()
    finally:
        server.kill()
