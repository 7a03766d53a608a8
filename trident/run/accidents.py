"""Which accident it was if log and stores do not belong together, and the one way on that keeps the totals right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from functools import cached_property
from typing import Any

from trident.errors import StartMismatchError, StateMismatchError
from trident.log.log_state import LogState
from trident.naming import counted
from trident.read.open_partitions import move_advice
from trident.spout.interfaces import OnNewLog
from trident.state.txid import Sentinel, epoch_of

_NOTHING = Sentinel("", 0, 0)


@dataclass
class Found:
    """A state that keeps sentinels, as this start finds it."""

    name: str
    instances: Sequence[Any]  # the partitions that the log knows, then the added ones
    known: int  # how many of them the log knows
    sentinels: list[Sentinel | None]
    mismatches: dict[int, StateMismatchError] = field(default_factory=dict)  # by partition

    @property
    def can_be_emptied(self) -> bool:
        return all(one.offers("reset") and one.facts.can_be_emptied for one in self.instances)


class Accident(IntEnum):
    """What happened to a partition of a state: first where the log is at fault, then where the store is."""

    LOG_LOST = 1
    LOG_SET_BACK = 2
    OF_ANOTHER_LOG = 3
    EMPTIED = 4
    SET_BACK = 5


@dataclass(frozen=True)
class Accidents:
    """What a start finds wrong, in all states."""

    log: LogState
    founds: Sequence[Found]  # all states that keep sentinels; one of them at least does not match
    begins: Mapping[str, OnNewLog]
    unseen: Sequence[str] = ()  # states that keep no sentinels, and outlast the driver

    def error(self, rewinds: bool, refused: str) -> StartMismatchError:
        """Return the error of a start; whether rewinding would be accepted, and which policy was `refused`, if any."""
        line = "partition {1} of state {0!r}: the log expects {2}, the store has {3}"
        numbers = [line.format(*one.args) for found in self.founds for one in found.mismatches.values()]
        emptied = self.founds if {*self._kinds} == {Accident.EMPTIED} else ()
        moves = filter(None, (move_advice(one.name, one.instances[0], one.sentinels) for one in emptied))
        return StartMismatchError(self.said, refused, next(moves, "") + self._remedy(rewinds), "; ".join(numbers))

    @property
    def said(self) -> str:
        said = [self._describe(accident) for accident in sorted(self._kinds)]
        return "; ".join([*said, *(f"state {name!r} has none" for name in self._without_totals())])

    def why_refused(self, policy: str) -> str:
        """Say why a policy would not end with right totals; empty: it does what its name says, or finds out itself."""
        why = self._why_not_kept() if policy == "keep_totals" else ""
        if policy == "rewind" and min(self._kinds) < Accident.EMPTIED:
            why = "the log lacks batches that the store has"
        return f'state_recovery="{policy}" is refused: {why}' if why else ""

    def _why_not_kept(self) -> str:
        there = [found.sentinels[each] or _NOTHING for found in self.founds for each in found.mismatches]
        if max(self._kinds) > Accident.LOG_SET_BACK or any(one.txid < self.log.txid or not one.sealed for one in there):
            return "a store does not have the totals of all batches"
        if names := self._without_totals():
            return f"state {names[0]!r} has none, as after a loss"
        return self._why_counted_again() if max(one.txid for one in there) > self.log.txid else ""

    def _why_counted_again(self) -> str:
        """Say which stream does not go on behind totals that are ahead of the log; empty: all do."""
        for stream, begins in self.begins.items():
            if begins != "behind" and self.log.txid:
                return (
                    f"stream {stream!r} would go on behind batch {self.log.txid}, and count again what the totals hold"
                )
            if begins == "start":
                return f"stream {stream!r} would begin at its start, and count again what the totals hold"
            if begins != "behind":
                return f"stream {stream!r} does not begin where the totals end"
        return ""

    @cached_property
    def _kinds(self) -> dict[Accident, dict[str, list[int]]]:
        """What happened, each with the states and their partitions; the partition with the latest batch is the last."""
        kinds: dict[Accident, dict[str, list[int]]] = {}
        for found in self.founds:
            txids = {partition: (found.sentinels[partition] or _NOTHING).txid for partition in found.mismatches}
            for partition in sorted(txids, key=txids.__getitem__):
                states = kinds.setdefault(self._accident(found.sentinels[partition]), {})
                states.setdefault(found.name, []).append(partition)
        return kinds

    def _accident(self, sentinel: Sentinel | None) -> Accident:
        log = self.log
        if sentinel is None or sentinel.incarnation.startswith(f"{log.incarnation} ("):  # a store notes a loss so
            return Accident.EMPTIED
        if sentinel.incarnation != log.incarnation:
            if not log.txid:
                return Accident.LOG_LOST
            has_values = sentinel.txid or not sentinel.sealed  # else it is a start's claim: nothing was written since
            return Accident.OF_ANOTHER_LOG if has_values else Accident.EMPTIED
        is_of_log = epoch_of(sentinel.attempt) in log.epochs or not sentinel.attempt
        return Accident.SET_BACK if is_of_log and sentinel.txid <= log.txid else Accident.LOG_SET_BACK

    def _describe(self, accident: Accident) -> str:
        states = self._kinds[accident]
        parts = [self._of_state(found, states[found.name], accident) for found in self.founds if found.name in states]
        if accident is Accident.LOG_LOST:
            return f"the log is new, and {' and '.join(parts)}: the log was lost, or log_dir names another one"
        if accident is Accident.LOG_SET_BACK:
            return f"the log was set back: it ends with {self._batch(self.log.txid)}, and {' and '.join(parts)}"
        return "; ".join(parts)

    def _of_state(self, found: Found, partitions: Sequence[int], accident: Accident) -> str:
        sentinel, end = found.sentinels[partitions[-1]] or _NOTHING, self.log.txid
        last = max((self.log.expected_sentinel(found.name, each) or _NOTHING).txid for each in partitions)
        state, store = f"state {found.name!r}", f"the store of state {found.name!r}"
        if accident <= Accident.LOG_SET_BACK:
            if sentinel.txid <= end:
                return f"{state} was written by a driver that it does not know"
            count = counted(sentinel.txid - end, "batch", "batches")
            return f"{state} has {count} more" if end else f"{state} has the totals of {count}"
        if accident is Accident.OF_ANOTHER_LOG:
            return f"{store} is of another log: it has batch {sentinel.txid} of that, and this one ends with {self._batch(end)}"
        if accident is Accident.EMPTIED:
            part = "" if len(partitions) == len(found.instances) else "a part of "
            what = "lost values" if sentinel.incarnation.startswith(self.log.incarnation) else "was emptied"
            return f"{part}{store} {what}, and the log has written to it up to {self._batch(last)}"
        done = sentinel.txid - (not sentinel.sealed)
        if done >= last:
            return f"{store} was set back to {self._batch(done)}, from before the log gave the state its present form"
        until = "" if done + 1 == last else f" up to {self._batch(last)}"
        by = counted(last - done, "batch", "batches")
        return f"{store} was set back by {by}: it lacks {self._batch(done + 1)}{until}"

    def _batch(self, txid: int) -> str:
        at_ms = next((one.at_ms for one in self.log.history if one.txid == txid), None)
        if at_ms is None:
            return f"batch {txid}" if txid else "no batch"
        return f"batch {txid} of {datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def _without_totals(self) -> list[str]:
        """Return the states whose store has nothing, where the log is new and another one has totals."""
        return [found.name for found in self.founds if Accident.LOG_LOST in self._kinds and not any(found.sentinels)]

    def _remedy(self, rewinds: bool) -> str:
        """Return the way on that the next start accepts, and that keeps the totals right."""
        if rewinds:
            return f"start once with {_policy('rewind')}, which replays what the store lacks from the log's history"
        back = "copies of the log and the stores that are of one moment"
        if max(self._kinds) <= Accident.LOG_SET_BACK:
            back = "the log that belongs to the store (log_dir)"
        elif min(self._kinds) > Accident.LOG_SET_BACK:
            back = f"a store of this log that has {self._batch(self.log.txid)}, such as a newer copy"
        if not self._why_not_kept():
            keep = _policy("keep_totals")
            return f"start with {back}. If there is none, once with {keep}: the sources go on behind the totals"
        gone = [stream for stream, begins in self.begins.items() if begins not in ("start", "checkpoint")]
        fixed = [found.name for found in self.founds if not found.can_be_emptied]
        if gone or fixed:
            why = (
                f"stream {gone[0]!r} does not give its rows again" if gone else f"state {fixed[0]!r} cannot be emptied"
            )
            return f"start with {back}. Nothing else makes the totals right, because {why}"
        new = ["a new checkpoint"] if "checkpoint" in self.begins.values() else []
        new += [] if {*self._kinds} == {Accident.LOG_LOST} else ["a new log_dir"]
        once = f"once with {', '.join(new)}{' and ' * bool(new)}{_policy('discard_totals')}"
        own = "".join(f", but for {name!r}, which keeps no sentinel: empty it yourself" for name in self.unseen)
        return (
            f"start with {back}. If there is none, {once}: the states are emptied{own}, and all that the sources still have is "
            "counted again, from their start"
        )


def _policy(name: str) -> str:
    return f'state_recovery="{name}" (--state-recovery {name})'
