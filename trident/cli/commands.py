"""`command`: makes a function a command, with the options that several have, its errors as messages, its exit code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from trident.cli.arguments import ClusterAddress, ClusterToken, Conf, LogDir, SubmittedName, Target
from trident.cli.console import reporting

if TYPE_CHECKING:
    from trident.cluster.client import ClusterClient
    from trident.config import Config
    from trident.topology import TridentTopology

Function = Callable[..., int | None]

Debug = Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error, and log more.")]


def command(app: typer.Typer, name: str, example: str, panel: str | None = None) -> Callable[[Function], Function]:
    """Make a function a command of `app`; the number that it returns is the exit code.

    A parameter whose type is a dataclass stands for its fields: an argument in this place, options at the end. Every command
    has `--debug`, and says errors of the framework in a message.
    """

    def added(function: Function) -> Function:
        app.command(name, epilog=f"Example: {example}", rich_help_panel=panel)(_whole(function))
        return function

    return added


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
    return run


def _parameters(declared: Callable[..., Any]) -> list[inspect.Parameter]:
    types = get_type_hints(declared, include_extras=True)
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

    def settings(self) -> Config:
        """Return the settings."""
        from trident.cli.target import settings

        return settings(self.conf or [], {"log_dir": self.log_dir})

    def load(self) -> tuple[TridentTopology, Config]:
        """Return the topology and the settings; what is wrong with these is said before the module is imported."""
        from trident.cli.target import load_topology

        config = self.settings()
        return load_topology(self.target, self.name), config

    def load_both(self, new: str) -> tuple[TridentTopology, TridentTopology, Config]:
        """Return the topology, its new declaration, and the settings."""
        from trident.cli.target import load_both

        config = self.settings()
        return *load_both(self.target, new, self.name), config


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster that a command looks at."""

    cluster: ClusterAddress = None

    def client(self, token: str | None = None) -> ClusterClient:
        """Open a client."""
        from trident.cluster.client import ClusterClient
        from trident.cluster.state.cluster_address import default_address

        return ClusterClient(self.cluster or default_address(), token)


@dataclass(frozen=True)
class ClusterAndToken(ClusterOptions):
    """The cluster in which a command changes something."""

    token: ClusterToken = None

    def client(self, token: str | None = None) -> ClusterClient:
        """Open a client with the token."""
        return super().client(token or self.token)
