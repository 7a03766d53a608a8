"""`command`: makes a function a command, with its errors as messages and its exit code; arguments and options of several.

`target`: A topology, or a function without arguments that returns one. MODULE is a module (the working directory is searched
first) or the path of a .py file.
`conf`: A setting of trident.Config; keys that begin with spark. are Spark's. Repeatable.
`log_dir`: Folder of the transaction log, or its address (zookeeper://…, postgresql://…, s3://…).
`name`: The name under which it was submitted to a cluster.
`directory`: Folder of the log, or its address; or the name of a topology.
`log_format`: Standard error as text, or as lines of JSON.
`token`: What DRPC requests must carry, as Authorization: Bearer TEXT. Use the variable: all users see arguments.
`session_timeout`: A daemon that is out of touch with ZooKeeper or PostgreSQL for this long counts as gone; in a folder, one
that has ended.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from trident.cli.console import reporting, wrong_use
from trident.config import NO_URL, Config
from trident.servers.log_addresses import is_url

if TYPE_CHECKING:
    from trident.cluster.client import ClusterClient
    from trident.topology import TridentTopology

Function = Callable[..., int | None]

_DESCRIBED = re.compile(r"^`(\w+)`: (.*(?:\n(?!`\w+`: ).+)*)\n?", re.MULTILINE)
"""A parameter in the docstring of its command, or of this module: its help, if none stands beside it."""


def local_folder(folder: Path | None) -> Path | None:
    """Refuse a URL where only a folder of this machine will do (a callback of typer)."""
    if folder is not None and is_url(str(folder)):
        raise typer.BadParameter(f"{str(folder)!r} {NO_URL}")
    return folder


def log_named(log: str) -> str:
    """Return where a log is that is given as its place, or as the name of a topology that runs here or in a cluster."""
    from trident.servers.log_addresses import is_log_address

    if is_log_address(log) or os.sep in log or Path(log).exists():
        return log
    from trident.cluster_state.cluster_address import submitted_log

    place = submitted_log(log) or Config().log_folder(log)
    return place if is_log_address(place) or Path(place).exists() else log


def existing_log(log: str) -> str:
    """Refuse what can be neither a folder of this machine nor the address of a log on a server (a callback of typer)."""
    from trident.errors import ConfigError

    with wrong_use(ConfigError):
        return Config(log_dir=log).log_dir or log


def feed_position(since: str | None) -> str | None:
    """Refuse what is neither the number of a batch nor the position of a feed (a callback of typer)."""
    from trident.read.change_feed import FeedPosition

    with wrong_use(ValueError):
        return None if since is None else str(FeedPosition.of(since))


def option(help: str, metavar: str | None, *names: str, show_default: bool | str = True, **more: Any) -> Any:
    """Return an option; its default is shown unless it is None, or in the words of `show_default`."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=show_default, **more)


def argument(help: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def from_environment(variable: str, help: str, show_default: str, metavar: str = "TEXT") -> Any:
    return option(help, metavar, show_default=show_default, envvar=variable, show_envvar=True)


def port(help: str, show_default: bool | str = True) -> Any:
    return option(help, "PORT", show_default=show_default, min=0, max=65535)


def flag(name: str, help: str, *short: str) -> Any:
    return typer.Option(name, *short, help=help)


def needs(other: str, is_there: object, **given: object) -> None:
    for name, value in given.items():
        if value is not None and not is_there:
            raise typer.BadParameter(f"--{name.replace('_', '-')} says nothing without {other}; add that")


Debug = Annotated[bool, flag("--debug", "Show the stack trace of an error, and log more.")]
Target = Annotated[str, argument("", "MODULE:TOPOLOGY")]
Conf = Annotated[list[str] | None, option("", "KEY=VALUE", "--conf", "-c")]
LogDir = Annotated[str | None, option("", "DIR", show_default="trident-log/TOPOLOGY")]
SubmittedName = Annotated[str | None, option("", "NAME", "--name", show_default="the topology's own")]
LogPlace = Annotated[str, argument("", "DIR|NAME", callback=existing_log)]
Wide = Annotated[bool, flag("--wide", "Shorten nothing, however long the lines get.", "-w")]
StateName = Annotated[str, argument("The name of the state.", "STATE")]
Logs = Annotated[Literal["text", "json"], typer.Option("--log-format", help="")]
AsJson = Annotated[bool, flag("--json", "Print JSON.")]
Token = Annotated[str | None, from_environment("TRIDENT_DRPC_TOKEN", "", "everybody may ask")]
Topology = Annotated[str, argument("A topology, by its name or its id.", "NAME")]
Workers = Annotated[int | None, option("How many workers run it: processes of Spark.", "N", "--workers", "-n", min=1)]


def command(app: typer.Typer, name: str, example: str, panel: str | None = None) -> Callable[[Function], Function]:
    """Make a function a command of `app`, which says errors in a message; the number that it returns is the exit code.

    A parameter whose type is a dataclass stands for its fields: an argument in this place, options at the end.
    """

    def add_command(function: Function) -> Function:
        app.command(name, epilog=f"Example: {example}", rich_help_panel=panel)(_whole(function))
        return function

    return add_command


def _whole(function: Function) -> Callable[..., None]:
    """Return the function with all its options apart, as typer reads it."""
    own: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for each in _parameters(function):
        if is_dataclass(each.annotation):
            kind: Any = each.annotation
            groups[each.name] = kind
            for inner in _parameters(kind):
                (own if inner.default is inner.empty else shared).append(inner)
        else:
            own.append(each)

    @functools.wraps(function)
    def run(debug: bool, **given: Any) -> None:
        with reporting(debug, given.get("log_format") == "json"):
            for name, kind in groups.items():
                given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            code = function(**given)
        if code:
            raise typer.Exit(code)

    last = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__dict__["__signature__"] = inspect.Signature([*own, *shared, last])
    run.__annotations__ = {}
    run.__doc__ = _DESCRIBED.sub("", inspect.getdoc(function) or "").rstrip()
    return run


def _parameters(declared: Callable[..., Any]) -> list[inspect.Parameter]:
    types = get_type_hints(declared, include_extras=True)
    described = inspect.getmro(declared) if isinstance(declared, type) else (declared,)
    docs = [inspect.getdoc(each) or "" for each in described]
    for name, text in (found for doc in (*docs, __doc__) for found in _DESCRIBED.findall(doc)):
        if get_origin(types.get(name)) is Annotated:
            info = get_args(types[name])[1]
            info.help = info.help or " ".join(text.split())
    return [
        each.replace(kind=each.KEYWORD_ONLY, annotation=types[each.name])
        for each in inspect.signature(declared).parameters.values()
    ]


@dataclass(frozen=True)
class TopologyOptions:
    """The topology that a command is about, and where its log is."""

    target: Target
    conf: Conf = None
    log_dir: LogDir = None
    name: SubmittedName = None

    def load(self) -> tuple[TridentTopology, Config]:
        """Return the topology and the settings; what is wrong with these is said before the module is imported."""
        from trident.cli.target import load_topology, settings

        config = settings(self.conf or [], {"log_dir": self.log_dir})
        return load_topology(self.target, self.name), config

    def load_both(self, new: str) -> tuple[TridentTopology, TridentTopology, Config]:
        from trident.cli.target import load_both, settings

        config = settings(self.conf or [], {"log_dir": self.log_dir})
        return *load_both(self.target, new, self.name), config


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster that a command looks at.

    `cluster`: The cluster: zookeeper://host1:2181,host2:2181/storm, postgresql://USER@HOST/DATABASE?cluster=NAME,
    s3://BUCKET/PREFIX, or a folder of this machine.
    """

    cluster: Annotated[str | None, from_environment("TRIDENT_CLUSTER", "", "trident-cluster", "ADDRESS")] = None

    def client(self, token: str | None = None) -> ClusterClient:
        from trident.cluster.client import ClusterClient
        from trident.cluster_state.cluster_address import default_address

        return ClusterClient(self.cluster or default_address(), token)


@dataclass(frozen=True)
class ClusterAndToken(ClusterOptions):
    """The cluster in which a command changes something.

    `token`: The cluster's token. Use the variable: all users see arguments.
    """

    token: Annotated[str | None, from_environment("TRIDENT_TOKEN", "", "that in the folder of the cluster")] = None

    def client(self, token: str | None = None) -> ClusterClient:
        return super().client(token or self.token)
