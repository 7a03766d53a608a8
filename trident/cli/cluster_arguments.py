"""Arguments and options of the commands for clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "ClusterAddress",
    "ClusterToken",
    "Include",
    "Requirements",
    "Topology",
    "Workers",
    "conf_of",
    "executors_of",
]

ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        envvar="TRIDENT_CLUSTER",
        help="The cluster: zookeeper://host1:2181,host2:2181/storm, or the folder of one on this machine.",
        show_default="trident-cluster",
        show_envvar=True,
    ),
]
ClusterToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TEXT",
        envvar="TRIDENT_TOKEN",
        help="The cluster's token. Rather set the variable: arguments are seen by all users of a machine.",
        show_default="that in the folder of the cluster",
        show_envvar=True,
    ),
]
Topology = Annotated[str, typer.Argument(metavar="NAME", help="A topology, by its name or its id.", show_default=False)]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-n", metavar="N", min=1, help="How many workers run it: processes of Spark.", show_default=False
    ),
]
Requirements = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="What the topology needs, as pip reads it; supervisors install it, each set once.",
        show_default=False,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="A file or folder, beside the module, that is packed although no import names it. Repeatable.",
        show_default=False,
    ),
]


def conf_of(given: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--conf key=value`, names and texts."""
    return dict(_pair(each, "--conf", "key=value, as in max_spout_pending=5") for each in given)


def executors_of(given: Sequence[str]) -> dict[str, int]:
    """Return the numbers of `-e component=n`."""
    found = {}
    for each in given:
        name, text = _pair(each, "-e", "COMPONENT=N, as in count=4")
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise typer.BadParameter(f"-e {each!r}: expected COMPONENT=N with N at least 1, as in count=4")
        found[name] = int(text)
    return found


def _pair(text: str, option: str, expected: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=") if option == "-e" else text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{option} {text!r}: expected {expected}")
    return name, value
