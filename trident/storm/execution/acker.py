"""The acker: knows of each tuple tree only the xor of its edges, and sees from that when the tree is complete.

Every edge of a tree is drawn at random. It is sent to the acker twice: once by the emitter of the tuple, in the very message
in which its own tuple leaves the tree, and once by the task that answers it. So the xor is 0 when, and only when, every edge
that entered the tree has left it; but for a chance of 2^-64 for each message. A tree that looked complete by such a chance
would cost one replay, if one of its tuples failed just then.

A tree takes one number: the xor in the lower 64 bits, then one bit if it failed before it began, and above them the spout's
task, plus one. So a tree without its beginning (lost, or not here yet) has nothing at the top, and never looks complete.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

from trident.storm.execution.messages import Outcomes, Tracking

_EDGES = (1 << 64) - 1
_FAILED = 1 << 64
_TASK = 65  # the bit at which the task begins
_GENERATIONS = 3


class Acker:
    """One task of the system component `__acker`. `send` takes the task of a spout and what became of its trees."""

    def __init__(self, send: Callable[[int, Outcomes], None]) -> None:
        self._send = send
        self._young: dict[int, int] = {}
        self._older: list[dict[int, int]] = [{} for _ in range(_GENERATIONS - 1)]

    def __len__(self) -> int:
        return len(self._young) + sum(map(len, self._older))

    def handle(self, tracking: Tracking) -> None:
        outcomes = defaultdict[int, Outcomes](Outcomes)
        self._begin(tracking.begun, outcomes)
        self._answer(tracking.acked, outcomes)
        for root in tracking.failed:
            tree = self._take(root)
            if tree >> _TASK:
                outcomes[(tree >> _TASK) - 1].failed.append(root)
            else:  # its beginning is still on its way
                self._young[root] = tree | _FAILED
        for root in tracking.extended:
            tree = self._take(root)
            if tree:
                self._young[root] = tree
            if tree >> _TASK:
                outcomes[(tree >> _TASK) - 1].extended.append(root)
        for task, each in outcomes.items():
            self._send(task, each)

    def rotate(self) -> int:
        """Forget trees without a message for two to three timeouts, which their spouts have failed; return how many."""
        forgotten = len(self._older.pop())
        self._older.insert(0, self._young)
        self._young = {}
        return forgotten

    def _begin(self, begun: list[int], outcomes: Mapping[int, Outcomes]) -> None:
        for root, edges, task in zip(begun[::3], begun[1::3], begun[2::3], strict=True):
            tree = self._take(root)
            if tree >> _TASK:  # begun twice: a second xor would cancel the first one, and complete a tree that is not
                self._young[root] = tree
                continue
            if tree & _FAILED:
                outcomes[task].failed.append(root)
                continue
            tree ^= edges | (task + 1) << _TASK
            if tree & _EDGES:
                self._young[root] = tree
            else:
                outcomes[task].acked.append(root)

    def _answer(self, acked: list[int], outcomes: Mapping[int, Outcomes]) -> None:
        young = self._young
        numbers = iter(acked)
        for root, edges in zip(numbers, numbers, strict=True):
            tree = young.get(root)
            if tree is None:
                tree = self._take_older(root)
            tree ^= edges
            if tree & _EDGES or not tree >> _TASK:
                young[root] = tree
            else:
                young.pop(root, None)
                outcomes[(tree >> _TASK) - 1].acked.append(root)

    def _take(self, root: int) -> int:
        tree = self._young.pop(root, None)
        return self._take_older(root) if tree is None else tree

    def _take_older(self, root: int) -> int:
        for generation in self._older:
            if generation and root in generation:
                return generation.pop(root)
        return 0
