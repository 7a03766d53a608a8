"""The settings of a topology in a cluster, as they were given: names and texts, of Trident's `Config` or of `StormConfig`."""

from __future__ import annotations

from collections.abc import Mapping

from trident.cluster.state.cluster_records import TopologyKind
from trident.config import Config
from trident.errors import ConfigError
from trident.setting_types import gathered
from trident.storm import StormConfig

__all__ = ["settings_of"]

_CLUSTERS = {
    "takeover": "a driver of a cluster always takes the log over",
    "name": "the name is given when a topology is submitted (--name)",
    "topology.name": "the name is given when a topology is submitted (--name)",
}


def settings_of(
    kind: TopologyKind, name: str, conf: Mapping[str, str], workers: int | None = None
) -> Config | StormConfig:
    """Read settings; those whose names begin with `spark.` are Spark's.

    Parameters
    ----------
    name
        Under which the topology was submitted.
    workers
        Of spouts and bolts: how many processes run it, whatever `conf` says.

    Raises
    ------
    ConfigError
        A name that is not known, or a value that is not possible.
    """
    for key, why in _CLUSTERS.items():
        if key in conf and kind == ("trident" if key == "takeover" else "bolts"):
            raise ConfigError(f"{key} cannot be set here: {why}")
    values = gathered(conf)
    if kind == "trident":
        return Config.of(values)
    values["name"] = name
    if workers is not None:
        values.pop("topology.workers", None)
        values["workers"] = workers
    return StormConfig.of(values)
