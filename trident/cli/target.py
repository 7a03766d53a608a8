"""From the words of a command line to a topology and its settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from trident import targets
from trident.cli.console import wrong_use
from trident.config import Config
from trident.errors import ConfigError
from trident.read.written_values import parse_key
from trident.setting_types import nest_spark_conf
from trident.spark.shipping import ship_modules_of
from trident.state.interfaces import Key
from trident.storm import StormConfig, StormTopology, TopologyBuilder
from trident.topology import TridentTopology


def load_topology(target: str, name: str | None = None) -> TridentTopology:
    """Import `MODULE:TOPOLOGY`, also for executors; what names nothing is a wrong use. `name`: under which it was submitted."""
    topology: TridentTopology = _load(target, (TridentTopology,))
    topology.name = name or topology.name
    return topology


def load_both(former: str, new: str, name: str | None) -> tuple[TridentTopology, TridentTopology]:
    """Import two declarations of one topology as `load_topology`, each with the modules of its own folder."""
    return targets.load_both(former, new, lambda target: load_topology(target, name))


def load_runnable(target: str) -> TridentTopology | StormTopology:
    topology: TridentTopology | TopologyBuilder | StormTopology = _load(
        target, (TridentTopology, TopologyBuilder, StormTopology)
    )
    return topology.create_topology() if isinstance(topology, TopologyBuilder) else topology


def parse_keys(topology: TridentTopology, state: str, texts: Sequence[str], part: bool = False) -> list[Key]:
    """Return keys of a state; what cannot be one is a wrong use of the command. `part`: the first fields of a key will do."""
    fields = topology.graph().state(state).key_fields
    with wrong_use(ValueError):
        return [parse_key(text, fields, state, part=part) for text in texts]


def _load(target: str, kinds: tuple[type, ...]) -> Any:
    with wrong_use(targets.NoSuchTarget):
        topology = targets.load_one_of(target, kinds)
    ship_modules_of(targets.folder_of(target))
    return topology


def storm_settings(target: str, conf: Sequence[str], given: Mapping[str, Any]) -> StormConfig:
    """Build the settings of a topology of spouts and bolts, as `settings`. By default it is named after its module."""
    module = target.rpartition(":")[0]
    name = Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]
    values = {"name": name, **_values(conf, given)}
    with wrong_use(ConfigError):
        return StormConfig.of(values)


def settings(conf: Sequence[str], given: Mapping[str, Any], topology: TridentTopology | None = None) -> Config:
    """Build the settings from `--conf key=value`; `given` wins where it is not None. Those of `topology` are below both."""
    with wrong_use(ConfigError):
        values = _values(conf, given)
        return Config.of(values) if topology is None else topology.settings(values, origin="command line")


def conf_of(given: Sequence[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for name, equals, value in pairs:
        if not (name and equals):
            raise typer.BadParameter(f"--conf {name + equals + value!r}: expected key=value, as in max_spout_pending=5")
    return {name: value for name, _, value in pairs}


def _values(conf: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**nest_spark_conf(conf_of(conf)), **{key: value for key, value in given.items() if value is not None}}
