"""What users test with: a driver for topologies, contracts and a suite for back-ends, and a store that fails.

::

    class TestMyMap(BackingMapContract):
        factory = staticmethod(open_map)

    backend_suite(open_map).raise_if_violated()
"""

from trident.testing.backing_map import BackingMapContract
from trident.testing.driver import TopologyTestDriver
from trident.testing.driver_result import BatchResult, HandClock
from trident.testing.faults import Faults, FaultyMap, InjectedFault
from trident.testing.fenced_map import FencedMapContract
from trident.testing.limits import Limits
from trident.testing.map_state import MapStateContract
from trident.testing.promises import Promise, Violation
from trident.testing.report import Finding, Report, Status
from trident.testing.snapshottable import SnapshottableContract
from trident.testing.suite import backend_suite
from trident.testing.updaters import Add, Append

__all__ = [
    "Add",
    "Append",
    "BackingMapContract",
    "BatchResult",
    "Faults",
    "FaultyMap",
    "FencedMapContract",
    "Finding",
    "HandClock",
    "InjectedFault",
    "Limits",
    "MapStateContract",
    "Promise",
    "Report",
    "SnapshottableContract",
    "Status",
    "TopologyTestDriver",
    "Violation",
    "backend_suite",
]
