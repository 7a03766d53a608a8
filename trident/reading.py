"""`open_state`: reading a state from another process than the one that runs its topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trident.config import Config
from trident.stream import TridentState
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from trident.runtime.reading.state_reader import StateReader

__all__ = ["open_state"]


def open_state(
    topology: TridentTopology | str,
    state: TridentState | str,
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> StateReader:
    """Open a state for reading, whether its topology runs or not, in any process, without Spark. It is never written to.

    Parameters
    ----------
    topology
        As it is declared: the topology, or where it is found, as `"module:topology"` or `"path/to/module.py:topology"`.
    state
        What `persistent_aggregate` or `partition_persist` returned, or its name.
    conf, settings
        As of `TridentTopology.start`; `log_dir` names the log. By default it is that of the topology in its cluster, if the one
        that `TRIDENT_CLUSTER` names, or the folder `trident-cluster`, has one of this name; else `trident-log/TOPOLOGY`.

    Returns
    -------
    StateReader
        A context manager with `multi_get(keys)`, `get()`, `get_tuples(prefix, limit)`, `at(txid)`, `to_dataframe(spark)` and
        `txid`.

    Raises
    ------
    TopologyError
        There is no such topology, or it has no such state.
    UnsupportedOperation
        The state is in the memory of the process that runs the topology.
    LogError, ForeignLogError
        There is no log, or it is of another topology.

    Examples
    --------
    ::

        with trident.open_state("examples/word_count.py:topology", "count") as counts:
            print(counts.multi_get(["the", "cow"]), "after batch", counts.txid)
            for word, count in counts.get_tuples(prefix="th", limit=10):
                print(word, count)
    """
    from trident.runtime.reading.state_reader import StateReader
    from trident.runtime.reading.targets import load_topology

    declared = load_topology(topology) if isinstance(topology, str) else topology
    name = state if isinstance(state, str) else state.state_name
    return StateReader(declared.graph(), name, Config.of(conf, **settings))
