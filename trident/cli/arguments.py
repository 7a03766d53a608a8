"""Arguments and options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Recovery = Literal["refuse", "rewind", "keep_totals", "keep_totals_even_if_wrong", "discard_totals"]
"""What to do when the log and a store do not belong together."""
Engine = Literal["spark", "in_process", "auto"]
"""What runs the stages."""
LogFormat = Literal["text", "json"]
"""What standard error is made of."""


def local_folder(folder: Path | None) -> Path | None:
    """Refuse a URL where only a folder of this machine will do (a callback of typer)."""
    from trident.config import NO_URL, is_url

    if folder is not None and is_url(str(folder)):
        raise typer.BadParameter(f"{str(folder)!r} {NO_URL}")
    return folder


def log_named(log: str) -> str:
    """Return where a log is that is given as its place, or as the name of a topology that runs here or in a cluster."""
    from trident.servers.log_addresses import is_log_address

    if is_log_address(log) or os.sep in log or Path(log).exists():
        return log
    from trident.cluster.cluster_log import submitted_log
    from trident.config import Config

    place = submitted_log(log) or Config().log_folder(log)
    return place if is_log_address(place) or Path(place).exists() else log


def existing_log(log: str) -> str:
    """Refuse what can be neither a folder of this machine nor the address of a log on a server (a callback of typer)."""
    from trident.config import Config
    from trident.errors import ConfigError

    try:
        return Config(log_dir=log).log_dir or log
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def feed_position(since: str | None) -> str | None:
    """Refuse what is neither the number of a batch nor the position of a feed (a callback of typer)."""
    from trident.runtime.reading.change_feed import FeedPosition

    try:
        return None if since is None else str(FeedPosition.of(since))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def option(help: str, metavar: str, *names: str, **more: Any) -> Any:
    """Return an option whose default is not shown, as None says nothing."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **more)


def argument(help: str, metavar: str | None = None, **more: Any) -> Any:
    """Return an argument whose default is not shown."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def secret(variable: str, help: str, show_default: str, *names: str) -> Any:
    """Return an option that the environment gives as well."""
    return typer.Option(*names, metavar="TEXT", envvar=variable, help=help, show_default=show_default, show_envvar=True)


def port(help: str, show_default: bool | str = True) -> Any:
    """Return an option that is a port."""
    return typer.Option(metavar="PORT", min=0, max=65535, help=help, show_default=show_default)


Target = Annotated[
    str,
    argument(
        "A topology, or a function without arguments that returns one. MODULE is a module (the working directory "
        "is searched first) or the path of a .py file.",
        "MODULE:TOPOLOGY",
    ),
]
Conf = Annotated[
    list[str] | None,
    option(
        "A setting of trident.Config; keys that begin with spark. are Spark's. Repeatable.", "KEY=VALUE", "--conf", "-c"
    ),
]
LogDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the transaction log, or its address (zookeeper://…, postgresql://…, s3://…).",
        show_default="trident-log/TOPOLOGY",
    ),
]
SubmittedName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The name under which it was submitted to a cluster.",
        show_default="the topology's own",
    ),
]
LogPlace = Annotated[
    str, argument("Folder of the log, or its address; or the name of a topology.", "DIR|NAME", callback=existing_log)
]
Wide = Annotated[bool, typer.Option("--wide", "-w", help="Shorten nothing, however long the lines get.")]
StateName = Annotated[str, argument("The name of the state.")]
Logs = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        help="Standard error as text, or as lines of JSON.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Token = Annotated[
    str | None,
    secret(
        "TRIDENT_DRPC_TOKEN",
        "What DRPC requests must carry, as Authorization: Bearer TEXT. Use the variable: all users see arguments.",
        "everybody may ask",
    ),
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
    secret(
        "TRIDENT_TOKEN",
        "The cluster's token. Use the variable: all users see arguments.",
        "that in the folder of the cluster",
        "--token",
    ),
]
Topology = Annotated[str, argument("A topology, by its name or its id.", "NAME")]
Workers = Annotated[int | None, option("How many workers run it: processes of Spark.", "N", "--workers", "-n", min=1)]
Requirements = Annotated[
    Path | None,
    option(
        "What the topology needs, as pip reads it; supervisors install it.",
        "FILE",
        exists=True,
        dir_okay=False,
    ),
]
Include = Annotated[
    list[str] | None,
    option("A file or folder beside the module that is packed too. Repeatable.", "PATH"),
]


def conf_of(given: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--conf key=value`, names and texts."""
    return dict(_pair(each, "--conf", "key=value, as in max_spout_pending=5") for each in given)


def executors_of(given: Sequence[str]) -> dict[str, int]:
    """Return the numbers of `-e component=n`."""
    executors = {}
    for each in given:
        name, text = _pair(each, "-e", "COMPONENT=N, as in count=4")
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise typer.BadParameter(f"-e {each!r}: expected COMPONENT=N with N at least 1, as in count=4")
        executors[name] = int(text)
    return executors


def _pair(text: str, option: str, expected: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=") if option == "-e" else text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{option} {text!r}: expected {expected}")
    return name, value
