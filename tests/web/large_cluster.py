"""`LargeCluster`: a cluster of made-up topologies, as large as is wanted, whose figures change with each request."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from trident.errors import NoSuchTopology
from trident.observe.health import verdict
from trident.web.cluster_pages import LogOf, Page

_WINDOWS = (("600", "10m 0s"), ("10800", "3h 0m 0s"), ("86400", "1d 0h 0m 0s"), (":all-time", "All time"))


class LargeCluster:
    """`ClusterPages` with `topologies` topologies of `components` bolts and spouts each."""

    read_only = False

    def __init__(self, topologies: int, components: int) -> None:
        self.names = [f"topology-{number}" for number in range(topologies)]
        self._components, self._steps = components, itertools.count()

    def cluster_summary(self) -> Page:
        slots = len(self.names) + 8
        return {
            "stormVersion": "1", "supervisors": 4, "topologies": len(self.names), "slotsTotal": slots,
            "slotsUsed": slots - 8, "slotsFree": 8, "executorsTotal": 4 * len(self.names), "tasksTotal": 900,
        }  # fmt: skip

    def nimbus_summary(self) -> Page:
        return {
            "nimbuses": [
                {"host": f"nimbus-{each}", "url": f"http://nimbus-{each}:8080", "version": "0.1.0",
                 "status": "Leader" if each == 1 else "Not a Leader", "nimbusUpTimeSeconds": 86_400 * each}
                for each in (1, 2)
            ]
        }  # fmt: skip

    def supervisor_summary(self) -> Page:
        return {
            "supervisors": [
                {"id": f"machine-{each}", "host": f"machine-{each}.example", "uptimeSeconds": 70_000 * each,
                 "slotsTotal": 4, "slotsUsed": each - 1, "slotsFree": 5 - each}
                for each in range(1, 5)
            ]
        }  # fmt: skip

    def topology_summary(self) -> Page:
        return {"topologies": [self._row(number) for number in range(len(self.names))]}

    def of_topology(self, topology_id: str) -> "LargeTopology":
        if topology_id not in self.names:
            raise NoSuchTopology(f"there is no topology {topology_id!r}")
        return LargeTopology(topology_id, self._components, next(self._steps))

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        return {"text": "", "offset": 0, "next": 0}

    def _row(self, number: int) -> Page:
        step = next(self._steps)
        bolts, failed = number % 3 == 0, number == 4
        row: Page = {
            "id": self.names[number], "name": self.names[number], "kind": "bolts" if bolts else "trident",
            "status": "FAILED" if failed else "INACTIVE" if number == 7 else "ACTIVE", "uptimeSeconds": 3600 * (number + 1),
            "workersTotal": 2, "executorsTotal": 9, "tasksTotal": 9, "host": f"machine-{number % 4 + 1}.example",
            "rates": {"tuplesPerSecond": 0 if failed else 900.0 + 131 * number + step % 50},
            "lags": [] if bolts else [{"amount": 100 * (step % 40), "unit": "records"}],
            "health": {"failures": 3 if failed else 0, "deadLetters": 2 if number == 1 else 0, "fenced": False, "error": None},
        }  # fmt: skip
        return {**row, "verdict": verdict(row)}


class CyclicTopology(LargeCluster):
    """`ClusterPages` of one topology whose bolts feed each other, and one itself."""

    def __init__(self) -> None:
        super().__init__(1, 4)

    def of_topology(self, topology_id: str) -> "LargeTopology":
        found = super().of_topology(topology_id)
        pairs = [(0, 1), (1, 2), (2, 3), (3, 1), (2, 2)]
        found.edges = [
            {"source": f"component-{source}", "target": f"component-{target}", "stream": "default", "grouping": "shuffle",
             "kind": "tuples", "tuples": 1, "tuplesPerSecond": 1.0}
            for source, target in pairs
        ]  # fmt: skip
        return found


class LargeTopology:
    """One of them: spouts that feed bolts in layers."""

    def __init__(self, name: str, components: int, step: int) -> None:
        self._name, self._step = name, step
        self.edges: list[Page] | None = None
        self._of = [f"component-{number}" for number in range(components)]
        self._spouts = max(1, components // 25)

    def topology(self, window_s: int = 0) -> Page:
        figures = [self._figures(number) for number in range(len(self._of))]
        page: Page = {
            "id": self._name, "name": self._name, "kind": "bolts", "status": "ACTIVE", "uptimeSeconds": 7200 + self._step,
            "msgTimeout": 30, "windowHint": "10m 0s", "workersTotal": 4, "executorsTotal": 900, "tasksTotal": 1000,
            "pending": 17, "rates": {"tuplesPerSecond": 52_000.0 + self._step % 97}, "lags": [], "errors": [],
            "health": {"failures": 0, "workerDeaths": 0, "fenced": False, "error": None},
            "topologyStats": [{"window": w, "windowPretty": p, **self._figures(0)} for w, p in _WINDOWS],
            "spouts": [{"spoutId": self._of[n], **figures[n]} for n in range(self._spouts)],
            "bolts": [{"boltId": self._of[n], **figures[n]} for n in range(self._spouts, len(self._of))],
            "actions": ["activate", "deactivate", "rebalance", "kill"],
        }  # fmt: skip
        return {**page, "verdict": verdict(page)}

    def view(self, name: str, window_s: int = 0) -> Page:
        what, _, component = name.partition("/")
        if what == "visualization":
            return self._picture()
        return self._component(component) if what == "component" else {"batches": [], "deadLetters": []}

    def _component(self, component: str) -> Page:
        number = self._of.index(component)
        return {"id": component, "componentType": "bolt", "executors": 2, "tasks": 2, "componentErrors": [],
                "boltStats": [{"window": w, "windowPretty": p, **self._figures(number)} for w, p in _WINDOWS]}  # fmt: skip

    def _picture(self) -> Page:
        chance = random.Random(7)
        width = max(2, len(self._of) // 20)
        edges = []
        for number in range(self._spouts, len(self._of)):
            first = max(0, number - 2 * width)
            last = max(first + 1, number - width // 3)
            for source in {chance.randrange(first, last) for _ in range(1 + number % 5 // 4)}:
                edges.append(
                    {"source": self._of[source], "target": self._of[number], "stream": "default", "grouping": "shuffle",
                     "kind": "tuples", "tuples": 1, "tuplesPerSecond": 10.0 * number + self._step % 13}
                )  # fmt: skip
        nodes = [
            {"id": each, "label": each, "detail": "Work", "kind": "spout" if n < self._spouts else "bolt", "stage": None,
             "capacity": (n * 37 + self._step) % 100 / 100, "latencyMs": 1.5, "executors": 2, "tasks": 2, "perSecond": 3.0}
            for n, each in enumerate(self._of)
        ]  # fmt: skip
        return {"stages": [], "nodes": nodes, "edges": edges if self.edges is None else self.edges}

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        raise KeyError(state)

    def act(self, action: str, parameters: Mapping[str, Any]) -> Page:
        return {}

    def _figures(self, number: int) -> Page:
        amount = 1000 * (number + 1) + self._step
        return {
            "executors": 2, "tasks": 2, "emitted": amount, "transferred": amount, "executed": amount, "acked": amount,
            "failed": 0, "executeLatency": "0.412", "processLatency": "0.517", "completeLatency": "12.345",
            "capacity": f"{(number * 37 + self._step) % 100 / 100:.3f}", "lastError": "",
        }  # fmt: skip
