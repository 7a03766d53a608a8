"""What goes wrong in a simulated run, where, and how its rows are cut into batches: drawn from a seed, and made small."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

FaultKind = Literal["crash", "error", "lost_answer", "pause", "set_back", "other_cut"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

POINTS: Mapping[str, tuple[str, tuple[FaultKind, ...]]] = {
    "start": ("while the driver starts", ("crash",)),
    "define": ("before it is defined", ("crash", "error")),
    "defined": ("when it is defined", ("crash", "pause")),
    "read": ("while its rows are read", ("crash", "error")),
    "processed": ("after its steps", ("crash", "pause")),
    "begin_commit": ("before the commit of state {state!r}", ("crash", "error", "pause")),
    "before put": ("before a put of state {state!r}", ("crash", "error", "pause")),
    "half put": ("in the middle of a put of state {state!r}", ("crash", "error")),
    "after put": ("after a put of state {state!r}", ("crash", "lost_answer", "pause")),
    "put": ("after the update of state {state!r}, before its commit", ("crash", "error", "pause")),
    "commit": ("after the commit of state {state!r}", ("crash", "lost_answer", "pause")),
    "record": ("when its states are committed, before its record", ("crash", "pause")),
    "recorded": ("after its record", ("crash", "set_back")),
}
"""Where something can go wrong: in words, and what."""

OF_STATES = ("begin_commit", "before put", "half put", "after put", "put", "commit")
"""The points of the commit of a state."""

Rows = Mapping[str, Sequence[int]]
"""By stream, the numbers of the rows that are left."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, the first time that a batch comes to a point.

    `batches`: of a pause: how many batches the successor commits meanwhile. Of a store that is set back: an odd number, if the
    driver goes on.
    """

    kind: FaultKind
    point: str
    txid: int
    state: str = ""
    batches: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the driver goes on over a store that is set back."""
        return self.kind == "set_back" and self.batches % 2 == 1

    @property
    def is_in_commit(self) -> bool:
        """Whether it happens between the begin of a batch's commit and its record."""
        return self.point in OF_STATES or self.point == "record"

    def __str__(self) -> str:
        where = self.state if self.kind == "set_back" else POINTS[self.point][0].format(state=self.state)
        return {
            "crash": f"the driver crashes {where}",
            "error": f"a call fails {where}",
            "lost_answer": f"the answer is lost {where}",
            "pause": f"the driver is paused {where}",
            "set_back": f"{'' if self.is_live else 'the driver crashes, and '}state {where!r} is set back to the batch before",
        }[self.kind]


@dataclass(frozen=True)
class FaultPlan:
    """All that a run depends on beside the topology and its rows.

    `most`: the most rows of a stream in a batch; `pending`: how many batches may be in flight.
    `recuts`: whether a batch that is asked for again may have other rows, if its spout is not transactional.
    `empties`: whether a batch may have no rows of a stream that has some.
    `cuts`: the number of rows by stream and batch; where it is not given it is drawn.
    """

    seed: int
    faults: tuple[Fault, ...] = ()
    most: int = 1
    pending: int = 1
    recuts: bool = False
    empties: bool = False
    cuts: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def rows_of(self, stream: str, txid: int, asked: int) -> int:
        if (given := self.cuts.get((stream, txid))) is not None:
            return given
        chance = random.Random(f"{self.seed} {stream} {txid} {asked if self.recuts else 0}")
        return 0 if chance.random() < 0.05 and self.empties else chance.randint(1, self.most)


def drawn_plan(seed: int, states: Sequence[str], rows: int, kinds: Collection[FaultKind]) -> FaultPlan:
    """Draw a plan from a seed: for the `states` that batches write, the `rows` of the longest stream, the `kinds` of faults."""
    chance = random.Random(f"{seed}")
    most = max(1, -(-2 * rows // chance.choice((2, 3, 4, 6, 9))))
    txids = max(1, min(2 * rows // (most + 1), rows))
    places: dict[FaultKind, list[tuple[str, str]]] = {}  # points, and the states whose points they are
    for point, (_, possible) in POINTS.items():
        for kind in possible:
            if kind in kinds:
                of_state = point in OF_STATES or kind == "set_back"
                places.setdefault(kind, []).extend((point, state) for state in (states if of_state else ("",)))
    places = {kind: there for kind, there in places.items() if there}
    faults = []
    for _ in range(chance.choice((1, 1, 2, 2, 3, 4, 6)) if places else 0):
        kind = chance.choice(sorted(places))
        point, state = chance.choice(places[kind])
        faults.append(Fault(kind, point, chance.randint(1, txids), state, chance.choice((0, 1, 1, 2))))
    return FaultPlan(seed, tuple(faults), most, chance.choice((1, 1, 2, 3)), "other_cut" in kinds, True)


def shrunk(plan: FaultPlan, rows: Rows, fails: Callable[[FaultPlan, Rows], bool]) -> tuple[FaultPlan, Rows]:
    """Return the smallest plan and rows that were found to fail; each step keeps what `fails` says is enough."""
    tries, found = 400, True  # to make a plan smaller
    while found:
        found = False
        for smaller in _smaller(plan, rows):
            tries -= 1
            if tries < 0:
                return plan, rows
            if fails(*smaller):
                (plan, rows), found = smaller, True
                break
    return plan, rows


def _smaller(plan: FaultPlan, rows: Rows) -> Iterator[tuple[FaultPlan, Rows]]:
    """Iterate over what could be left out next, the largest first."""
    faults = plan.faults
    if len(faults) > 1:
        yield replace(plan, faults=()), rows
    for at in range(len(faults)):
        yield replace(plan, faults=(*faults[:at], *faults[at + 1 :])), rows
    easier: tuple[dict[str, Any], ...] = ({"recuts": False}, {"empties": False}, {"pending": 1})
    yield from ((replace(plan, **each), rows) for each in easier if replace(plan, **each) != plan)
    for stream, kept in rows.items():
        size = len(kept)
        while size := size // 2:
            for begin in range(0, len(kept), size):
                yield plan, {**rows, stream: [*kept[:begin], *kept[begin + size :]]}
    for at, fault in enumerate(faults):
        for simpler in _simpler(fault):
            yield replace(plan, faults=(*faults[:at], simpler, *faults[at + 1 :])), rows


def _simpler(fault: Fault) -> Iterator[Fault]:
    if fault.txid > 1:
        yield replace(fault, txid=fault.txid - 1)
    if fault.kind in ("pause", "lost_answer"):
        yield replace(fault, kind="crash")
    if fault.batches:
        yield replace(fault, batches=fault.batches - 1)
