"""Runs topologies of spouts and bolts for tests: without threads, with a clock that the test moves.

Begin with `topology_completing.py` (`complete_topology`), then `stepped_cluster.py`.
"""

from trident.storm.testing.stepped_cluster import SteppedCluster
from trident.storm.testing.topology_completing import CompletedTopology, MockedSpout, complete_topology

__all__ = ["CompletedTopology", "MockedSpout", "SteppedCluster", "complete_topology"]
