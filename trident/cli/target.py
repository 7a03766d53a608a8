"""From the words of a command line to a topology and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from trident.config import Config
from trident.errors import ConfigError
from trident.runtime.engine.shipping import ship_modules_of
from trident.runtime.reading import targets
from trident.topology import TridentTopology

__all__ = ["load_topology", "settings"]


def load_topology(target: str) -> TridentTopology:
    """Import `MODULE:TOPOLOGY`, see `trident.runtime.reading.targets`; what names nothing is a wrong use of the command.

    The executors of a cluster get what was loaded from the same folder.
    """
    try:
        topology = targets.load_topology(target)
    except targets.NoSuchTarget as error:
        raise typer.BadParameter(str(error)) from None
    ship_modules_of(targets.folder_of(target))
    return topology


def settings(conf: Sequence[str], given: Mapping[str, Any]) -> Config:
    """Build the settings from `--conf key=value`; `given` wins where it is not None.

    Keys that begin with `spark.` are settings of Spark.

    Raises
    ------
    typer.BadParameter
        An unknown key or an impossible value; the message lists what there is.
    """
    values: dict[str, Any] = {}
    spark: dict[str, str] = {}
    for each in conf:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--conf {each!r}: expected key=value, as in max_spout_pending=5")
        (spark if key.startswith("spark.") else values)[key] = value
    if spark:
        values["spark_conf"] = spark
    values.update({key: value for key, value in given.items() if value is not None})
    try:
        return Config.of(values)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
