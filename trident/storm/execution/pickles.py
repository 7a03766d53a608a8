"""Spouts and bolts as bytes, so that every task has an instance of its own."""

from __future__ import annotations

from collections.abc import Mapping

import cloudpickle

from trident.errors import TopologyError
from trident.storm.storm_topology import SpoutSpec, StormTopology


def pickled_components(topology: StormTopology) -> Mapping[str, bytes]:
    """Return each spout and bolt pickled, by component.

    Raises `TopologyError`: one cannot be pickled: it holds a connection, a lock or an open file.
    """
    found = {}
    for name, spec in topology.components.items():
        made = spec.spout if isinstance(spec, SpoutSpec) else spec.bolt
        try:
            found[name] = cloudpickle.dumps(made)
        except Exception as error:
            raise TopologyError(
                f"component {name!r}: {type(made).__name__} cannot be pickled to be sent to a worker ({error}); open "
                "connections, files and threads in open() or prepare(), not before"
            ) from error
    return found
