"""What the commands print, and how they fail: errors of the framework are one message, not a stack trace."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from trident.errors import FencedError, TridentError
from trident.monitoring.event_log import event_of
from trident.monitoring.events import TopologyTerminated

__all__ = ["INTERRUPTED", "REPLACED", "is_wide", "problems", "reporting", "results", "say", "table"]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

REPLACED = 3
"""The exit code of a driver that another one replaced, so that a supervisor need not start it again."""

_PIPE_WIDTH = 10_000  # a table that goes into a file or a pipe has no screen to fit
_NARROW = 80  # on a narrower screen the lines of a box take the space of words


def results() -> Console:
    """Return standard output, for what was asked for."""
    return _console(stderr=False)


def problems() -> Console:
    """Return standard error, for progress, warnings and errors."""
    return _console(stderr=True)


def say(text: str, style: str = "", console: Console | None = None) -> None:
    """Print a line as it is: unwrapped, so that it can be searched, and without markup."""
    (console or results()).print(text, style=style, soft_wrap=True, markup=False, highlight=False)


def is_wide(console: Console) -> bool:
    """Whether a table of many columns fits."""
    return console.width >= _NARROW


def table(console: Console, *columns: str, title: str | None = None) -> Table:
    """Return a table for a console: in a box on a screen that is wide enough, else plain text."""
    plain = not (console.is_terminal and is_wide(console))
    made = Table(title=title, title_justify="left", box=None if plain else box.HEAVY_HEAD, padding=(0, 1))
    if plain:
        made.padding, made.pad_edge = (0, 2, 0, 0), False
    for name in columns:
        made.add_column(name, overflow="fold")  # long values continue in the next line; nothing is cut
    return made


@contextmanager
def reporting(debug: bool = False) -> Iterator[None]:
    """Turn errors of the framework into a message and exit code 1 (`REPLACED`); with `debug` into a stack trace.

    Log records from WARNING on (from INFO on with `debug`) go to standard error.
    """
    _log_to(problems(), logging.INFO if debug else logging.WARNING)
    try:
        yield
    except TridentError as error:
        if debug:
            traceback.print_exc()
        else:
            say(f"error: {error}" if str(error) else f"error: {type(error).__name__}", "bold red", problems())
        raise typer.Exit(REPLACED if isinstance(error, FencedError) else 1) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    return console


def _log_to(console: Console, level: int) -> None:
    handler: logging.Handler
    if console.is_terminal:
        handler, text = RichHandler(console=console, show_time=False, show_path=False), "%(name)s: %(message)s"
    else:  # one line each, as wide as it is
        handler, text = logging.StreamHandler(console.file), "%(levelname)-8s %(name)s: %(message)s"
    handler.addFilter(_is_no_repetition)
    logging.basicConfig(level=level, format=text, handlers=[handler], force=True)
    starting = logging.getLogger("trident.runtime.engine.session")  # says that Spark starts, which takes some seconds
    starting.handlers, starting.propagate = [_Plain(console)], False
    starting.setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # If it cannot connect, the command ends with an error of ours; its own messages are stack traces.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)


class _Plain(logging.Handler):
    """Prints progress, as plain lines."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message alone."""
        say(record.getMessage(), console=self._console)


def _is_no_repetition(record: logging.LogRecord) -> bool:
    # The error that ended a topology is raised as well, and printed by `reporting`.
    return not isinstance(event_of(record), TopologyTerminated)
