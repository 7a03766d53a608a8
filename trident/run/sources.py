"""Fixes what a batch contains: asks the spouts, the dead letters and the clock, and logs it if a replay must be the same."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar

from trident.channel import Clock
from trident.engine.worker import Part
from trident.errors import describe
from trident.graph import WindowNode
from trident.log.records import LETTERS, TIME, DefineRecord
from trident.run.batch import NOTHING, Batch, Begun, Definitions, Said, Undecided, is_ahead, time_of_batch
from trident.run.opened_topology import OpenedTopology
from trident.run.replays import Replays
from trident.run.retrying import Waiting, moment_text
from trident.spout.interfaces import Definition, Lag
from trident.steps.failures import StepFailed, calls_user_code, failing_at, failure_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
Sizes = Mapping[str, int | None]  # about how many bytes a batch has of each source; None: a source does not say

# Of back-pressure.
_LEAST = 0.001
_SHRINK = 0.25  # at most to this share of a batch that took too long, because it may have been an exception
_GROW = 1.25
_OTHER_SIZE = 1.5
_KEPT = 16
_TRUST = 0.3  # how much a single line through two batches is believed
_SPILLED = 0.5
_FORGIVE = 1.005  # by how much a batch that did not spill raises what the next may read
_SAME = 0.1  # a change of less than this is noise

_OF_SOME = ("throttle", "lag", "traits")  # the methods of coordinators that most do not have


class Sources:
    """The spouts of a topology, and the other sources of a batch. Every call raises `StepFailed` if a source does."""

    def __init__(self, opened: OpenedTopology, clock: Clock) -> None:
        self._log, self._clock = opened.log, clock
        self.asked: Begun | None = None  # the spout that may not return
        self._sync, self._topology, self._warned_ahead = bool(opened.lasting), opened.plan.topology, 0
        over_time = [node for node in opened.plan.commits if isinstance(node, WindowNode)]
        self._has_time = any(node.config.by_batch_time for node in over_time)
        self._may_begin_again = opened.config.reset_batch_time
        self._replays = Replays(opened.plan, opened.letters)
        self._coordinators, self._repeated = opened.spouts, {*opened.repeated, LETTERS}
        self.pressure, self._told_share = BackPressure(opened.config.target_batch_s), 1.0
        self.lags: dict[str, Lag | None] = dict.fromkeys(opened.spouts)
        self._offering = {one: [name for name, each in opened.spouts.items() if each.offers(one)] for one in _OF_SOME}
        self._throttled = self._offering["throttle"] if opened.config.target_batch_s else []
        self._begun_before = frozenset(opened.log.state.definitions)  # by a driver that may not have known each spout
        # By spout, the largest hint of its stage, 0 if there is none; a state's hint is the number of its partitions.
        hints, stages = opened.plan.hints.items(), opened.plan.fragments
        self._hints = {
            name: max((hint for node, hint in hints if node in stages[name].ids), default=0) for name in opened.spouts
        }

    def refresh(self) -> None:
        """Look for requested dead letters, and for what the sources have, before the next batch. For any thread."""
        self._replays.refresh()
        for coordinator in self._coordinators.values():
            coordinator.refresh()

    def are_preparing(self) -> bool:
        """Whether a source that has nothing yet may have something soon."""
        return any(coordinator.may_have_more() for coordinator in self._coordinators.values())

    def waiting(self) -> Waiting | None:
        """Return a source that is away and holds up no batch. For any thread."""
        found = [(name, away) for name, one in self._coordinators.items() if (away := one.unavailable()) is not None]
        found.sort(key=lambda one: not one[1].is_fault)
        return next((Waiting(f"{away.what} (step {name!r})", 0.0, away.since_ms) for name, away in found), None)

    def define(self, txid: int, in_flight: Mapping[int, Batch]) -> tuple[Definitions, Undecided | None, Sizes] | None:
        """Fix what batch `txid` contains, and what is left to reading; None if no spout has anything and no window is due."""
        logged = self._log.state.definitions.get(txid, {})
        if self.pressure.share != self._told_share:
            self._told_share = self.pressure.share
            for name in self._throttled:
                with failing_at(name):
                    self._coordinators[name].throttle(self._told_share)
        said = {name: self._ask(txid, name, self._say, txid, name, logged, in_flight) for name in self._coordinators}
        letters = logged.get(LETTERS)
        if not logged and (now_s := self._clock.monotonic()) >= self._replays.look_at:
            letters = self._replays.next(self._log, now_s)
        if letters is not None:
            with failing_at("dead letters"):
                said[LETTERS] = Said(letters, size=self._replays.size_of(letters, self._log.state))
        sizes = {name: one.size for name, one in said.items() if one.definition is not None}
        undecided = tuple(name for name, one in said.items() if not one.traits.is_complete)
        now = self._clock.wall_ms() if self._has_time else 0
        time_if_read = self._time_of(now, txid, in_flight, said)
        if not undecided:
            definitions = self._settle(txid, logged, said, time_if_read)
            return None if definitions is None else (definitions, None, sizes)
        decided = {name: one for name, one in said.items() if name not in undecided}
        time = self._time_of(now, txid, in_flight, decided)
        self._settle(txid, logged, decided, time)
        return _given_definitions(said, time_if_read), Undecided(undecided, decided, time_if_read, time), sizes

    def _say(self, txid: int, name: str, logged: Definitions, in_flight: Mapping[int, Batch]) -> Said:
        if name in logged:
            return self._answer(name, lambda: logged[name])
        if name in self._repeated and txid in self._begun_before:
            return NOTHING  # keys that the batch has written take no more of it
        begin, earlier = self._coordinators[name].initialize_transaction, self._earlier(name, txid, in_flight)
        return self._answer(name, begin, txid, earlier)

    def _answer(self, name: str, ask: Callable[..., Definition | None], *arguments: Any) -> Said:
        definition = ask(*arguments)
        if definition is None:
            return NOTHING
        spout, says = self._coordinators[name], name in self._offering["traits"]
        return Said(definition, spout.traits(definition) if says else NOTHING.traits, spout.size(definition))

    def complete(self, batch: Batch) -> bool:
        """Complete the definitions of a batch with what was read, and log them; False if it has nothing at all."""
        undecided, txid = batch.undecided, batch.attempt.txid
        assert undecided is not None, batch
        read = {}
        for name in undecided.spouts:
            with failing_at(name):
                known, found = batch.definitions[name], batch.output.metadata.get(name, {})
                read[name] = self._answer(name, self._coordinators[name].complete, known, found)
        logged, said = self._log.state.definitions.get(txid, {}), {**undecided.said, **read}
        definitions = self._settle(txid, logged, said, undecided.time_if_read if _any(read) else undecided.time_if_not)
        if definitions is None:
            return False
        batch.definitions, batch.undecided = definitions, None
        batch.is_guess = not self._sync and any(one.traits.is_guess for one in said.values())
        return True

    def _ask(self, txid: int, spout: str, call: Callable[..., T], *arguments: Any) -> T:
        """Call a spout because of a batch, watched; what it raises is a failure of its stream."""
        try:
            return self._call_watched(txid, spout, call, *arguments)
        except StepFailed:
            raise
        except Exception as error:
            raise StepFailed(failure_of(spout, error)) from error

    @calls_user_code
    def _call_watched(self, txid: int, spout: str, call: Callable[..., T], *arguments: Any) -> T:
        self.asked = Begun(txid, get_ident(), monotonic(), True, False, spout)
        try:
            return call(*arguments)
        finally:
            self.asked = None

    def _time_of(
        self, now: int, txid: int, in_flight: Mapping[int, Batch], said: Mapping[str, Said]
    ) -> Definition | None:
        """Return the time of a batch whose spouts said this; None if there is no batch, or if no window uses the time."""
        if not self._has_time:
            return None
        logged, earlier = self._log.state.definitions.get(txid, {}), self._earlier(TIME, txid, in_flight)
        time = time_of_batch(now, logged.get(TIME), earlier, _any(said), bool(logged), self._may_begin_again)
        if time is not None and is_ahead(now, time) and time["now"] != self._warned_ahead:
            self._warned_ahead = ahead = time["now"]
            at = [each.txid for each in self._log.state.history if each.spouts.get(TIME, {}).get("now") == ahead]
            logger.warning(
                "topology %s: the time of its batches has been standing still at %s since batch %s, because the clock of "
                "its driver was ahead then; the clock says %s now. Windows by the time of the batch give nothing until it "
                "has got there: the time never goes back, as that would give windows a second time. If that is too long, "
                "start once with reset_batch_time=True: these windows then give what they hold, and begin again at the clock",
                self._topology, moment_text(ahead), min(at, default=self._log.state.txid), moment_text(now),
            )  # fmt: skip
        return time

    def _settle(
        self, txid: int, logged: Definitions, said: Mapping[str, Said], time: Definition | None
    ) -> Definitions | None:
        """Return what is known of a batch, None if nothing is; log what a replay has to repeat."""
        # Before anything reads a source, or before what has been read is committed.
        # Durable at once if a state needs identical replays, or if it was chosen: the source would give another answer later.
        # Else that is left to the commit, which saves one of two syncs.
        given = _given_definitions(said, time)
        if not given and not logged:  # a logged batch runs even if empty, to drop it from the log
            return None
        for name, (definition, traits, _) in said.items():
            is_chosen = traits.is_start_position
            if (is_chosen or name in self._repeated) and (self._sync or not traits.is_guess) and name not in logged:
                self._log.append(DefineRecord(txid, name, definition), self._sync or is_chosen)
        if time is not None and TIME not in logged:
            self._log.append(DefineRecord(txid, TIME, time), self._sync)
        return given

    def _earlier(self, name: str, txid: int, in_flight: Mapping[int, Batch]) -> Definition | None:
        """Return the last definition before batch `txid` under a name: of a batch in flight, else the last committed one."""
        for before in range(txid - 1, self._log.state.txid, -1):
            batch = in_flight.get(before)
            if batch is not None and name in batch.definitions:
                return batch.definitions[name]
        return self._log.state.spouts.get(name)

    def cut(self, batch: Batch) -> list[Part]:
        attempt = batch.attempt
        parts: list[Part] = []
        for name, coordinator in self._coordinators.items():
            if name in batch.definitions:
                parallelism = self._hints[name] or batch.runner.parallelism
                cut = self._ask(attempt.txid, name, coordinator.parts, attempt, batch.definitions[name], parallelism)
                parts.extend(zip(repeat(name), cut))
        if LETTERS in batch.definitions:
            with failing_at("dead letters"):
                put_back = self._replays.parts(batch.definitions[LETTERS], self._log.state, batch.runner.program)
                parts.extend(put_back)
        return parts

    def commit(self, batch: Batch, spouts: Iterable[str]) -> None:
        """Let the spouts that take part commit a batch that all states have committed."""
        for name in spouts:
            if name in batch.definitions:
                self._log.check_owner()  # a fenced driver must not commit anywhere
                commit, attempt = self._coordinators[name].commit, batch.attempt
                self._ask(attempt.txid, name, commit, attempt, batch.definitions[name])

    def report_success(self, batch: Batch) -> None:
        txid, times = batch.attempt.txid, batch.times
        for name in self._coordinators:
            if name in batch.definitions:
                # A call that does not return delays the next batch; this one is committed.
                self._call_watched(txid + 1, name, self._report_success_to, name, txid, batch.definitions[name])
        if self._throttled and batch.share is not None:
            # What it waited for the commits of earlier batches is not its own.
            own_s = times.processed - times.defined + times.recorded - times.committing
            self.pressure.took(batch.share, own_s)
            if batch.output.bytes_spilled:
                self.pressure.note_spill(batch.share)

    def _report_success_to(self, name: str, txid: int, definition: Definition) -> None:
        self._coordinators[name].success(txid, definition)
        if name not in self._offering["lag"]:
            return
        try:
            self.lags[name] = self._coordinators[name].lag(definition)
        except Exception as error:  # noqa: BLE001  a figure for display is no reason to end a topology
            logger.warning("spout %s: its lag is not known any more: %s", name, describe(error))
            self.lags[name] = None
            self._offering["lag"].remove(name)

    def timed_out(self, batch: Batch) -> None:
        """Let the spouts read less, because a batch was not processed within `message_timeout_s`."""
        if self._throttled and batch.share is not None:
            self.pressure.timed_out(batch.share)


def _any(said: Mapping[str, Said]) -> bool:
    return any(one.definition is not None for one in said.values())


def _given_definitions(said: Mapping[str, Said], time: Definition | None) -> Definitions:
    given = {name: one.definition for name, one in said.items() if one.definition is not None}
    return given if time is None else {**given, TIME: time}


class BackPressure:
    """How much spouts may read: less while batches take longer than `target_batch_s`. Arithmetic only.

    A batch takes a fixed time plus a time for what it reads, so the share follows from a line through the last batch and the
    last one of another size. Where the fixed time alone is longer than the target, half of a batch's time goes into what it
    reads. After a batch that spills to disk the next ones read half of it, and later ones grow slowly beyond that size.
    """

    def __init__(self, target_s: float) -> None:
        self.share = self._most = 1.0  # of their limits, from 0.001
        self._target_s, self._fixed_s = target_s, 0.0
        self._seen: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def took(self, share: float, seconds: float) -> None:
        """Note how long a batch took that was defined with `share`, from which this goes on: several batches are in flight."""
        if share == self.share == 1.0 and seconds <= self._target_s:  # as nearly all are
            self._seen.append((share, seconds))
            return
        self._fixed_s += _TRUST * (self._fixed_seconds(share, seconds) - self._fixed_s)
        fixed = min(self._fixed_s, seconds)
        slope = (seconds - fixed) / share
        # The share with which a batch would take the target's time, at least 1 if less would not help.
        wanted = max(self._target_s - fixed, fixed) / slope if slope > 0 else 1.0
        self._most = min(self._most * _FORGIVE, 1.0)
        self._seen.append((share, seconds))
        if wanted < share:
            chosen = min(self.share, max(wanted, share * _SHRINK, _LEAST))
        else:
            chosen = max(self.share, min(wanted, share * _GROW, self._most))
        if chosen == 1.0 or abs(chosen / self.share - 1) > _SAME:
            self.share = chosen

    def timed_out(self, share: float) -> None:
        self.share = min(self.share, max(share * _SHRINK, _LEAST))

    def note_spill(self, share: float) -> None:
        """Note that a stage of a batch that was defined with `share` had more rows than memory, and wrote them to disk."""
        self._most = min(self._most, share * (1 - _SAME))
        self.share = min(self.share, max(share * _SPILLED, _LEAST))

    def _fixed_seconds(self, share: float, seconds: float) -> float:
        """Return the seconds of a batch that do not depend on its size, 0 while all were of about one size."""
        for other, took in reversed(self._seen):
            if max(share, other) >= _OTHER_SIZE * min(share, other):
                slope = (took - seconds) / (other - share)
                return min(max(seconds - slope * share, 0.0), seconds)
        return 0.0
