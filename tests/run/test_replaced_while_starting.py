"""A driver that is replaced while it starts harms nothing that its successor wrote, wherever it was paused, and is told so."""

import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spouts import TextFileSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.server_states import state_on
from tests.harness.topology_runs import start
from trident import TridentTopology, move_state
from trident.errors import ConfigError, FencedError, StateMismatchError
from trident.log.file_log import FileLog
from trident.operations import Count
from trident.run.running import RunningTopology
from trident.state import StateSpec
from trident.state.map_commits import CommittedMap

pytestmark = [pytest.mark.slow, pytest.mark.server]

Made = Callable[[int], StateSpec]
ASKED_OR_WRITTEN = [(FileLog, "append"), (FileLog, "check_owner")] + [
    (CommittedMap, name) for name in ("read_sentinel", "move_sentinel", "reset")
]


class World:
    """A topology whose log can be lost, in a folder; its state is `spec`."""

    def __init__(self, folder: Path, spec: StateSpec) -> None:
        self.log, self.spec, self.words = folder / "log", spec, folder / "words"
        self.words.mkdir(parents=True, exist_ok=True)

    def topology(self, partitions: int = 2) -> TridentTopology:
        topology = TridentTopology("t")
        words = topology.new_stream("s", TextFileSpout(self.words, allow_empty=True)).group_by("line")
        words.persistent_aggregate(self.spec, Count(), "count", state_name="count").parallelism_hint(partitions)
        return topology

    def start(self, partitions: int = 2, **conf: Any) -> RunningTopology:
        return start(self.topology(partitions), "in_process", log_dir=self.log, history="1d", **conf)

    def count(self, running: RunningTopology) -> list[Any]:
        """Commit a batch that has each word once, and return the counts."""
        number = len(list(self.words.iterdir()))
        (self.words / f"{number}.txt").write_text("a\nb\nc\nd\n")
        running.process_all_available()
        return list(running.state("count").multi_get(list("abcd")))

    def lose_log(self) -> None:
        shutil.rmtree(self.log)
        for each in self.words.iterdir():
            each.unlink()


class Pause:
    """Calls `then` before the n-th call of this thread that asks or writes; `happened`: whether there was one."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, then: Callable[[], None]) -> None:
        self.happened, self._left, self._then = False, number, then
        for kind, name in ASKED_OR_WRITTEN:
            patch.setattr(kind, name, self._counted(getattr(kind, name)))

    def end(self) -> None:
        self._left = 0

    def _counted(self, call: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and self._left:
                self._left -= 1
                if not self._left:
                    self.happened = True
                    self._then()
            return call(*given, **named)

        return counted


def started(world: World, conf: dict[str, Any], pause: Pause) -> None:
    """Start, and find that there is a successor, at once or when a batch is to be made."""
    with world.start(**conf) as first:
        pause.end()
        if pause.happened:
            first.process_all_available()


def moved(move: Callable[[], Any], pause: Pause) -> None:
    move()


def overtaken(
    world: World, number: int, patch: pytest.MonkeyPatch, first: partial[None], second: Callable[[], RunningTopology]
) -> list[Any]:
    """Let `second` start at the n-th call of `first`; return the counts of its two batches, none if there was no such call."""
    counts: list[Any] = []
    with ExitStack() as opened:
        running: list[RunningTopology] = []

        def succeed() -> None:
            running.append(opened.enter_context(second()))
            counts.append(world.count(running[0]))

        with patch.context() as slow:
            pause = Pause(slow, number, succeed)
            try:
                first(pause)
            except FencedError:
                assert pause.happened
            else:
                if not pause.happened:
                    return []
                assert first.func is moved, (
                    f"overtaken at call {number}, and not told"
                )  # a move was done but for its last mark
        counts.append(world.count(running[0]))
    return counts


OTHERS = ("memory", "postgres", "delta", "memcached", "cassandra")


@pytest.fixture(params=["redis", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    prefix = tmp_path.name[-30:].replace("-", "_")
    if request.param == "memory":
        return lambda number: MemoryMapState.opaque()
    if request.param == "delta":
        return lambda number: DeltaState.opaque(str(tmp_path / f"table{number}"))
    server, options = request.getfixturevalue(f"{request.param}_server"), dict[str, Any]()
    if request.param == "cassandra":
        options["buckets"] = 8
    return lambda number: state_on(request.param, server, f"{prefix}{number}", **options)


def refuse(made: Made, kind: str, why: str) -> None:
    if kind in repr(made(0).factory):
        pytest.skip(why)


@pytest.mark.sample(2)
@pytest.mark.parametrize("how", ["keep_totals_even_if_wrong", "discard_totals", "rewind", "partitions"])
def test_the_successor_goes_on_wherever_the_first_driver_was_paused(
    how: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "rewind":
        refuse(made, "Memcached", "an epoch is of all partitions: emptied one after the other, they are lost data")
    conf: dict[str, Any] = {"partitions": 3} if how == "partitions" else {"state_recovery": how}
    before = 0 if how == "discard_totals" else 1
    for number in count(1):
        world = World(tmp_path / str(number), made(number))
        with world.start() as running:
            assert world.count(running) == [1] * 4
            if how == "rewind":
                for partition in running.opened.states["count"]:
                    partition.read_sentinel()
                    partition.reset()
        if how in ("keep_totals_even_if_wrong", "discard_totals"):
            world.lose_log()
        first, second = partial(started, world, conf), partial(world.start, takeover=True, **conf)
        counts = overtaken(world, number, monkeypatch, first, second)
        if not counts:
            assert number > 3
            return
        with world.start() as running:
            assert [*counts, world.count(running)] == [[before + at] * 4 for at in (1, 2, 3)], (
                f"replaced at call {number}"
            )


@pytest.mark.long
def test_a_start_goes_on_wherever_a_move_was_paused_that_it_overtook(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(made, "Memcached", "it cannot list its keys, so nothing moves from it")
    refuse(made, "Memory", "it ends with its process, so it is nowhere that it could move from")
    for number in count(1):
        old, new = (World(tmp_path / str(number), made(2 * number + at)) for at in (0, 1))
        with old.start() as running:
            assert old.count(running) == [1] * 4
        move = partial(move_state, old.topology(), "count", new.topology(), log_dir=str(old.log))

        def second(old: World = old, new: World = new) -> RunningTopology:
            try:
                return old.start(takeover=True)
            except StateMismatchError:  # the log knows of the move already
                return new.start(takeover=True)

        counts = overtaken(old, number, monkeypatch, partial(moved, move), second)
        if not counts:
            assert number > 10
            return
        with suppress(ConfigError):
            move()
        with new.start() as running:
            assert [*counts, new.count(running)] == [[at] * 4 for at in (2, 3, 4)], f"overtaken at call {number}"
