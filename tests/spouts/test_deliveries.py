"""When messages come again, and what becomes of them, whatever happens: random answers, crashes, servers away.

The queue is a list in memory that keeps what a real one promises: what is not acknowledged is delivered again."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.messages import Deliveries, Message, MessageQueue, RetryPolicy, decode_all
from trident.errors import ConfigError, SourceAwayError, SpoutError


class ListQueue(MessageQueue):
    """A queue; it loses its connection when told, and checks what it is told."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.place = "Lists at home"
        self.unread = list(numbers)
        self.pending: dict[Any, int] = {}
        self.failures: Counter[int] = Counter()
        self.acked: Counter[int] = Counter()
        self.dead: dict[int, str] = {}
        self.is_away = self.is_lost = self.refuses_letters = False
        self.calls_left: int | None = None  # before the connection is lost for a moment
        self._deliveries = 0

    def _check(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.calls_left = None
                self.lose()
                self.is_away = False
        if self.is_away or self.is_lost:
            raise SourceAwayError("away")

    def lose(self) -> None:
        self.is_away = self.is_lost = True

    def reconnect(self) -> None:
        self.is_lost = self.is_away
        self._check()

    def describe(self, message: Message) -> str:
        return f"number {message.values[0]}"

    def fetch(self, room: int) -> list[Message]:
        self._check()
        taken, self.unread = self.unread[:room], self.unread[room:]
        found = []
        for number in taken:
            self._deliveries += 1
            self.pending[self._deliveries] = number
            trouble = "bad" if number < 0 else None
            found.append(Message(self._deliveries, (number,), self._deliveries, self.failures[number], trouble))
        return found

    def acknowledge(self, done: Sequence[Message]) -> None:
        self._check()
        for message in done:
            self.acked[self.pending.pop(message.raw)] += 1

    def note_failures(self, failed: Sequence[Message]) -> None:
        self._check()
        for message in failed:
            self.failures[self.pending[message.raw]] = message.failures

    def dead_letter(self, message: Message, reason: str) -> None:
        self._check()
        if self.refuses_letters:
            raise SpoutError("no such place")
        self.dead[self.pending.pop(message.raw)] = reason

    def maintain(self) -> None:
        self._check()

    def rest(self) -> None:
        self._check()

    def close(self) -> None:
        self.is_away = True


class Run:
    """Deliveries over a queue, with a clock that is moved by hand."""

    def __init__(self, queue: ListQueue, policy: RetryPolicy, max_pending: int = 5) -> None:
        self.queue, self.now = queue, 0.0
        self.out: dict[Any, int] = {}
        self.complete: Counter[int] = Counter()
        self.errors: list[str] = []
        self.deliveries = Deliveries(
            queue, policy, max_pending, self.emit, lambda error: self.errors.append(str(error)), lambda: self.now
        )

    def emit(self, values: Any, message_id: Any = None, stream_id: str = "default") -> None:
        assert message_id not in self.out, "it is out already"
        self.out[message_id] = values[0]

    def step(self, seconds: float = 0.01) -> None:
        self.now += seconds
        self.deliveries.emit_next()

    def ack(self, id_: Any) -> None:
        self.complete[self.out.pop(id_)] += 1
        self.deliveries.ack(id_)


@given(
    st.integers(0, 2**32),
    st.lists(
        st.sampled_from(["step", "step", "step", "ack", "ack", "fail", "lose", "back", "wait", "rest", "cut"]),
        max_size=80,
    ),
)
def test_nothing_is_lost_and_nothing_is_acked_before_the_topology_did(seed: int, moves: list[str]) -> None:
    queue = ListQueue([*range(12), -1])
    run = Run(queue, RetryPolicy(max_failures=3, first_pause_s=0.1, longest_pause_s=1.0, dead_letters="dead"))
    choose = random.Random(seed)
    for move in [*moves, "back"]:
        if move == "step":
            run.step()
        elif move == "wait":
            run.step(2.0)
        elif move == "lose":
            queue.lose()
        elif move == "back":
            queue.is_away = False
        elif move == "cut":
            queue.calls_left = choose.randrange(5)
        elif move == "rest":
            run.deliveries.deactivate()
            run.deliveries.activate()
        elif run.out:
            id_ = choose.choice(sorted(run.out))
            if move == "ack":
                run.ack(id_)
            else:
                del run.out[id_]
                run.deliveries.fail(id_)
        assert run.deliveries.pending <= 5
        assert all(queue.acked[number] <= run.complete[number] for number in range(12))
    _finish(run)
    assert {*queue.acked, *queue.dead} == {*range(12), -1}
    assert queue.dead[-1] == "bad"
    assert not queue.pending
    assert not queue.unread


def _finish(run: Run) -> None:
    for _ in range(300):
        run.step(1.0)
        for id_ in sorted(run.out):
            run.ack(id_)


def test_a_server_that_is_away_is_reported_once_and_asked_less_and_less_often() -> None:
    queue = ListQueue([])
    asked: list[float] = []
    run = Run(queue, RetryPolicy())
    queue.lose()
    check = queue.reconnect

    def reconnect() -> None:
        asked.append(run.now)
        check()

    queue.reconnect = reconnect  # type: ignore[method-assign]
    for _ in range(3000):
        run.step()
    pauses = [round(after - before, 1) for before, after in itertools.pairwise(asked)]
    assert pauses[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert set(pauses[6:]) == {5.0}
    assert run.errors == ["away"]


@pytest.mark.parametrize(("how", "said"), [("refused", "no such place"), ("lost", "away")])
def test_a_burial_that_is_refused_or_breaks_is_tried_again_and_its_message_stays_pending(how: str, said: str) -> None:
    queue = ListQueue([1])
    run = Run(queue, RetryPolicy(max_failures=1, first_pause_s=0.1, longest_pause_s=1.0, dead_letters="dead"))
    run.step()
    ((id_, _),) = run.out.items()
    run.deliveries.fail(id_)
    if how == "refused":
        queue.refuses_letters = True
    else:
        queue.calls_left = 2  # `maintain` and `note_failures`
    run.step()
    assert run.errors == [said]
    assert queue.pending
    queue.refuses_letters = False
    run.step(6.0)
    assert queue.dead == {1: "it failed once"}
    assert not queue.pending


def test_a_queue_that_has_nothing_is_not_asked_all_the_time() -> None:
    queue = ListQueue([])
    asked = 0
    fetch = queue.fetch

    def counted(room: int) -> list[Message]:
        nonlocal asked
        asked += 1
        return fetch(room)

    queue.fetch = counted  # type: ignore[method-assign]
    run = Run(queue, RetryPolicy())
    for _ in range(10_000):
        run.step(0.0001)
    assert 45 <= asked <= 60


def test_any_other_error_of_the_queue_ends_the_worker() -> None:
    queue = ListQueue([])
    run = Run(queue, RetryPolicy())

    def broken(room: int) -> list[Message]:
        raise SpoutError("the queue was deleted")

    queue.fetch = broken  # type: ignore[method-assign]
    with pytest.raises(SpoutError, match="deleted"):
        run.step()


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_a_bad_item_spoils_no_other(numbers: list[int]) -> None:
    def decode(items: Sequence[int]) -> list[tuple[int]]:
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [(item,) for item in items]

    assert decode_all(numbers, decode) == [((), "negative") if number < 0 else ((number,), None) for number in numbers]


@given(st.lists(st.integers(0, 5), max_size=8))
def test_what_failed_comes_again_when_it_is_due_and_not_before(seconds_between: list[int]) -> None:
    numbers = range(len(seconds_between))
    run = Run(ListQueue(numbers), RetryPolicy(first_pause_s=2.0), max_pending=8)
    for _ in range(20):
        run.step(1e-3)
    due = {}
    for id_, seconds in zip(list(run.out), seconds_between, strict=True):
        run.now += seconds
        due[run.out.pop(id_)] = run.now + 2.0
        run.deliveries.fail(id_)
    assert sorted(due) == list(numbers)
    while due:
        run.now += 0.25
        for _ in range(20):
            run.step(1e-3)
        assert set(run.out.values()) >= {number for number, at in due.items() if at <= run.now - 0.01}
        for id_, number in list(run.out.items()):
            assert due.pop(number) <= run.now
            run.ack(id_)


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    policy = RetryPolicy(first_pause_s=0.5, longest_pause_s=3.0)
    assert [policy.pause_s(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.integers(1, 10**9), st.floats(0.001, 900), st.floats(0.001, 900))
def test_a_pause_is_never_outside_of_its_limits(failures: int, one: float, other: float) -> None:
    policy = RetryPolicy(first_pause_s=min(one, other), longest_pause_s=max(one, other))
    assert min(one, other) <= policy.pause_s(failures) <= policy.pause_s(failures + 1) <= max(one, other)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (RetryPolicy(), None),
        (RetryPolicy(dead_letters="d"), 10),
        (RetryPolicy(4, dead_letters="d"), 4),
        (RetryPolicy(1), 1),
    ],
)
def test_nothing_is_given_up_without_a_limit_or_a_place_for_it(policy: RetryPolicy, limit: int | None) -> None:
    assert policy.limit == limit
    assert policy.gives_up(10**9) is (limit is not None)
    if limit is not None:
        assert not policy.gives_up(limit - 1)
        assert policy.gives_up(limit)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_failures": 0}, "max_failures=0: give a whole number of at least 1"),
        ({"max_failures": 1.5}, "max_failures=1.5"),
        ({"first_pause_s": 0}, "first_pause_s=0"),
        ({"first_pause_s": 9, "longest_pause_s": 8}, "longest_pause_s=8: give at least first_pause_s=9"),
        ({"dead_letters": ""}, "dead_letters='': give the name"),
    ],
)
def test_an_impossible_policy_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RetryPolicy(**options)
