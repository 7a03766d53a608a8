"""What users prove their own back-ends with: contracts for pytest, a suite without it, and a store that fails.

::

    class TestMyMap(BackingMapContract):
        factory = staticmethod(open_map)

    backend_suite(open_map).raise_if_violated()
"""

from trident.testing.backing_map import BackingMapContract
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
    "Faults",
    "FaultyMap",
    "FencedMapContract",
    "Finding",
    "InjectedFault",
    "Limits",
    "MapStateContract",
    "Promise",
    "Report",
    "SnapshottableContract",
    "Status",
    "Violation",
    "backend_suite",
]
