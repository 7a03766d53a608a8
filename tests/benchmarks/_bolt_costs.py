"""What a sentence costs the processor, part by part: the executors of two workers, run by hand in one thread."""

import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

from tests.benchmarks._bolt_words import WORDS, words
from trident.storm.execution.executors import Executor, make_executor
from trident.storm.execution.launch import Launch
from trident.storm.execution.messages import Body, Delivery
from trident.storm.spark.linked_mail import Decoder, Encoder
from trident.storm.spark.worker_task import seldom_collected
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology, TaskLayout

_cpu_s = time.thread_time
_AT_ONCE = 9  # deliveries of a step, as of `Inbox.take`
_ROUNDS = 2  # of all executors between two looks: short, so that in some of them no other process had the core


class _Mail:
    """Carries deliveries within a worker as they are, and to the other one as frames; notes what these cost."""

    def __init__(self, topology: StormTopology, layout: TaskLayout) -> None:
        self.queues: dict[int, deque[Delivery]] = {task: deque() for task in layout.component_of}
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.words = 0
        self.worker = -1
        self._counts, self._worker_of = layout.tasks["count"], layout.worker_of
        self._encoder, self._decoder = Encoder(topology), Decoder(topology, layout)

    def send(self, task: int, body: Body) -> None:
        if isinstance(body, list) and task in self._counts:
            self.words += len(body)
        if self._worker_of[task] == self.worker:
            self.queues[task].append((task, body))
            return
        began = _cpu_s()
        frame = self._encoder.encode(task, body)
        encoded = _cpu_s()
        self.queues[task].append(self._decoder.decode(frame))
        self.spent["encode"] += encoded - began
        self.spent["decode"] += _cpu_s() - encoded

    def is_open(self, task: int) -> bool:
        return True

    def wait_until_open(self, task: int) -> None:
        """It always is."""


def costs(folder: Path, seconds: float, conf: Mapping[str, Any]) -> dict[str, float]:
    """Return the microseconds of the processor for one sentence by part, each as in the best twentieth of many looks."""
    topology = words().create_topology()
    storm = StormConfig.of({"workers": 2, "user": {"notes": str(folder)}, **conf}, name="words")
    launch = Launch.of(topology, storm)
    mail = _Mail(topology, launch.layout)
    setting = launch.setting(mail, _report, random=lambda: Random(1))
    executors = [make_executor(each, setting) for each in launch.layout.executors]
    for each in executors:
        each.active = True
        each.open()
    looks: defaultdict[str, list[float]] = defaultdict(list)
    with seldom_collected():
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            mail.spent.clear()
            mail.words = 0
            for _ in range(_ROUNDS):
                _round(executors, mail)
            for part, spent in mail.spent.items() if mail.words else ():
                looks[part].append(spent / mail.words * WORDS * 1e6)
    for each in executors:
        each.close()
    return {part: quantiles(found, n=20)[0] for part, found in looks.items() if len(found) > 1}


def _round(executors: list[Executor], mail: _Mail) -> None:
    for each in executors:
        queues = [mail.queues[task] for task in each.place.tasks]
        deliveries = [queue.popleft() for queue in queues for _ in range(min(len(queue), _AT_ONCE))]
        if deliveries or each.place.component == "sentences":
            mail.worker = each.place.worker
            frames = mail.spent["encode"] + mail.spent["decode"]
            began = _cpu_s()
            each.step(deliveries)
            took = _cpu_s() - began
            mail.spent[each.place.component] += took - (mail.spent["encode"] + mail.spent["decode"] - frames)


def _report(component: str, task: int, error: BaseException) -> None:
    raise error
