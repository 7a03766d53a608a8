"""`trident explain`: what a topology does, without running it."""

from __future__ import annotations

import json

import typer

from trident.topology import TridentTopology


def explain(topology: TridentTopology, dot: bool, mermaid: bool, as_json: bool) -> None:
    """Print the stages of a topology, or its graph, or its states.

    Raises
    ------
    typer.BadParameter
        More than one of them is asked for.
    """
    if dot + mermaid + as_json > 1:
        raise typer.BadParameter("--dot, --mermaid and --json exclude each other")
    if dot:
        typer.echo(topology.to_dot(), nl=False)
    elif mermaid:
        typer.echo(topology.to_mermaid(), nl=False)
    elif as_json:
        typer.echo(json.dumps(topology.describe(), ensure_ascii=False))
    else:
        typer.echo(topology.explain(), nl=False)
