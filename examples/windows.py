"""Temperatures by the minute: windows of event time, with readings that come late.

A minute fires when the watermark reaches its end, and once more if a reading comes late; the table of minutes keeps the last
word. Windows and table are Delta tables beside the log, so another run goes on where this one stopped::

    python examples/windows.py
"""

from datetime import timedelta

from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import TridentTopology, TridentTuple
from trident.operations import Max, ReducerAggregator, TumblingDurationWindow

READINGS = [
    ("roof", 5_000, 19.5), ("hall", 20_000, 21.0), ("roof", 50_000, 19.0),
    ("roof", 65_000, 18.5), ("hall", 70_000, 21.5), ("hall", 58_000, 23.0),
    ("roof", 80_000, 18.0), ("roof", 40_000, 20.5), ("hall", 130_000, 22.0),
]  # fmt: skip
"""Sensor, milliseconds since 1970, degrees. In the second batch a reading is out of order, in the third one is late."""


class Last(ReducerAggregator[float]):
    """The last value that came."""

    def init(self) -> float:
        """Begin with no value; it is never emitted."""
        return float("nan")

    def reduce(self, curr: float, tuple: TridentTuple) -> float:
        """Take the new value."""
        value: float = tuple[0]
        return value


minute = TumblingDurationWindow.of(timedelta(minutes=1)).by_event_time(
    "at_ms", delay=timedelta(seconds=10), allowed_lateness=timedelta(minutes=1)
)
topology = TridentTopology("temperatures")
warmest = (
    topology.new_stream("readings", FixedBatchSpout("sensor: string, at_ms: bigint, degrees: double", 3, *READINGS))
    .group_by("sensor")
    .window(minute, DeltaState("windows"), "degrees", Max(), "warmest", bounds="start, end")
)
table = warmest.group_by("sensor", "start").persistent_aggregate(
    DeltaState("minutes"), "warmest", Last(), "warmest_of_minute"
)

if __name__ == "__main__":
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        for sensor, start, degrees in sorted(running.state(table).get_tuples()):
            print(f"{start:%H:%M} {sensor}: {degrees}")
