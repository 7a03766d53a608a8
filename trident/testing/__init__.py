"""The tools that users test with: a driver for topologies, runs with faults, contracts and a suite for back-ends.

Begin with `driver.py` (`TopologyTestDriver`) to test a topology batch by batch, with `simulation/simulating.py`
(`simulate`) to run it with drawn faults, with `backend/suite.py` (`backend_suite`) to test a store; `backend/faulty_map.py` is
a store that fails.
"""

from trident.testing.backend.backing_map_contract import BackingMapContract
from trident.testing.backend.faulty_map import Faults, FaultyMap, InjectedFault
from trident.testing.backend.fenced_map_contract import FencedMapContract
from trident.testing.backend.schedules import Add, Append
from trident.testing.backend.state_contracts import MapStateContract, SnapshottableContract
from trident.testing.backend.store_under_test import Limits
from trident.testing.backend.suite import Report, backend_suite
from trident.testing.contract import Promise, SpoutPromise, Violation
from trident.testing.driver import TopologyTestDriver
from trident.testing.simulation.simulating import SimulationFailed, SimulationReport, simulate
from trident.testing.spout.source_under_test import SpoutSource
from trident.testing.spout.spout_contract import SpoutContract, SpoutReport, spout_suite, spout_table
from trident.testing.stand_ins import BatchResult, HandClock
from trident.testing.suite import Finding, Status

__all__ = [
    "Add", "Append", "BackingMapContract", "BatchResult", "Faults", "FaultyMap", "FencedMapContract", "Finding",
    "HandClock", "InjectedFault", "Limits", "MapStateContract", "Promise", "Report", "SimulationFailed",
    "SimulationReport", "SnapshottableContract", "SpoutContract", "SpoutPromise", "SpoutReport", "SpoutSource",
    "Status", "TopologyTestDriver", "Violation", "backend_suite", "simulate", "spout_suite", "spout_table",
]  # fmt: skip
