"""`python -m trident.testing MODULE:FACTORY`: check a back-end, or a spout, and print what holds."""

import pkgutil
import sys
from pathlib import Path
from typing import Annotated, Any

from trident.extras import needs_package
from trident.roles import missing
from trident.spout.interfaces import IBatchSpout, ITridentSpout
from trident.spout.rich import IRichSpout
from trident.testing.backend.store_under_test import Limits
from trident.testing.backend.suite import backend_suite
from trident.testing.spout.source_under_test import SpoutSource
from trident.testing.spout.spout_contract import spout_suite

with needs_package("python -m trident.testing", "cli"):
    import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    factory: Annotated[
        str,
        typer.Argument(help="MODULE:FACTORY, e.g. sqlite_state:open_map; or a SpoutSource", metavar="MODULE:FACTORY"),
    ],
    kind: Annotated[
        list[str] | None, typer.Option(help="opaque, transactional or non-transactional; may repeat")
    ] = None,
    limits: Annotated[
        str | None, typer.Option(help="MODULE:LIMITS, what the store claims", metavar="MODULE:LIMITS")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="no check starts after so many seconds; not given: all checks run; 0: all, and few schedules"
        ),
    ] = None,
    clean: Annotated[
        str | None, typer.Option(help="MODULE:FUNCTION, empties the state of a StateConf", metavar="MODULE:FUNCTION")
    ] = None,
    seed: Annotated[int, typer.Option(help="the seed of all random choices")] = 0,
) -> None:
    """Check a back-end or a spout: every contract, then random schedules. Exit code 1 unless every claim holds."""
    given = _import_named(factory)
    at_least, at_most = 30.0 if seconds is None else seconds, seconds or None  # of schedules, if nothing is said
    if any(set(missing(given, kind)) <= {"spout_type"} for kind in (ITridentSpout, IBatchSpout, IRichSpout)):
        raise typer.BadParameter(
            f"{factory} is a spout; give a subclass of trident.testing.SpoutSource, which fills its source"
        )
    if isinstance(given, type) and issubclass(given, SpoutSource):
        raise typer.Exit(0 if spout_suite(given, seconds=at_least, seed=seed, at_most=at_most).ok else 1)
    claimed = None if limits is None else _import_named(limits)
    if not isinstance(claimed, Limits | None):
        raise typer.BadParameter(f"{limits} is a {type(claimed).__name__}, expected trident.testing.Limits")
    report = backend_suite(
        given,
        kinds=kind or None,
        limits=claimed,
        seconds=at_least,
        at_most=at_most,
        clean=None if clean is None else _import_named(clean),
        seed=seed,
    )
    raise typer.Exit(0 if report.ok else 1)


def _import_named(target: str) -> Any:
    if not target.partition(":")[2]:
        raise typer.BadParameter(f"{target!r}: expected MODULE:NAME, as in sqlite_state:open_map")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(target)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{target!r}: {error}") from error


if __name__ == "__main__":
    app()
