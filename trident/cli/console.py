"""What the commands print and how they end: errors in one message, Ctrl-C and SIGTERM."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

import typer

from trident.errors import FencedError, TridentError
from trident.http.server_thread import is_loopback

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("trident.cli")
starting = logging.getLogger("trident.spark.session")  # says that Spark starts, which takes some seconds

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

REPLACED = 3
"""The exit code of a driver that another one replaced, so that a supervisor need not start it again."""

PIPE_WIDTH = 10_000
"""The width of what goes into a file or a pipe: it has no screen to fit."""
_TIME = "%Y-%m-%d %H:%M:%S"


def results() -> Console:
    """Return standard output, for what was asked for."""
    return _console(stderr=False)


def problems() -> Console:
    """Return standard error, for progress, warnings and errors."""
    return _console(stderr=True)


def say(text: str, style: str = "", console: Console | None = None) -> None:
    """Print a line as it is: unwrapped, so that it can be searched, and without markup."""
    (console or results()).print(text, style=style, soft_wrap=True, markup=False, highlight=False)


def say_page(name: str, host: str, url: str) -> None:
    """Say where a page is, and warn if it is for more than this machine."""
    say(f"{name}: page at {url}")
    if not is_loopback(host):
        text = f"anyone who reaches {url} may read the page, values of states included; only actions need the token"
        say(f"warning: {text}", "yellow", problems())


def is_wide(console: Console) -> bool:
    """Whether a table of many columns fits."""
    return console.width >= 80  # on a narrower screen the lines of a box take the space of words


def show(
    rows: Iterable[Sequence[str]],
    *columns: str,
    right: Collection[int] = (),
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table: in a box on a screen that is wide enough, else as plain text.

    `right`: the numbers of the columns that stand at the right.
    """
    from rich import box
    from rich.table import Table

    console = console or results()
    plain = not (console.is_terminal and is_wide(console))
    table = Table(title=title, title_justify="left", box=None if plain else box.HEAVY_HEAD, padding=(0, 1))
    if plain:
        table.padding, table.pad_edge = (0, 2, 0, 0), False
    for number, name in enumerate(columns):  # long values continue in the next line; nothing is cut
        table.add_column(name, overflow="fold", justify="right" if number in right else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


def show_facts(facts: Mapping[str, str], console: Console | None = None) -> None:
    from rich.table import Column, Table

    grid = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(name, value)
    (console or results()).print(grid, markup=False)


def tell(value: Any, as_json: bool, show: Callable[[], object]) -> None:
    print_json(value) if as_json else show()


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


@contextmanager
def wrong_use(*errors: type[Exception]) -> Iterator[None]:
    """Take errors for a wrong use of the command: exit code 2, with their text."""
    try:
        yield
    except errors as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def reporting(debug: bool = False, as_json: bool = False) -> Iterator[None]:
    """Turn errors of the framework into a message and exit code 1 (`REPLACED`); with `debug` into a stack trace.

    Log records from WARNING on (from INFO on with `debug`) go to standard error; `as_json`: as JSON, with all events of the
    topology.
    """
    level = logging.INFO if debug else logging.WARNING
    lines = _log_as_json(level) if as_json else None
    if lines is None:
        _log_to(problems(), level)
    try:
        yield
    except TridentError as error:
        text = str(error) or type(error).__name__
        if lines is not None:
            if lines.last_error != text:
                logger.error("%s", text, exc_info=debug)
        elif debug:
            traceback.print_exc()
        else:
            say(f"error: {text}", "bold red", problems())
        raise typer.Exit(REPLACED if isinstance(error, FencedError) else 1) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def json_line(text: str) -> str:
    """Return a message as a line of JSON, without the log."""
    from trident.observe.events import JsonFormatter

    return JsonFormatter().format(logging.makeLogRecord({"name": logger.name, "levelname": "INFO", "msg": text}))


def _console(stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def _log_to(console: Console, level: int) -> None:
    handler: logging.Handler
    if console.is_terminal:
        from rich.logging import RichHandler

        handler, text = RichHandler(console=console, show_path=False, log_time_format=_TIME), "%(name)s: %(message)s"
    else:  # one line each, as wide as it is
        handler, text = logging.StreamHandler(console.file), "%(asctime)s %(levelname)-8s %(name)s: %(message)s"
    handler.addFilter(_is_no_repetition)
    logging.basicConfig(level=level, format=text, datefmt=_TIME, handlers=[handler], force=True)
    starting.handlers, starting.propagate = [logging.StreamHandler(console.file)], False
    _quiet()


def _log_as_json(level: int) -> _JsonLines:
    from trident.observe.events import JsonFormatter, event_logger

    handler = _JsonLines()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    event_logger.setLevel(logging.INFO)
    _quiet()
    return handler


def _quiet() -> None:
    starting.setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # If it cannot connect, the command ends with an error of ours; its own messages are stack traces.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)


class _JsonLines(logging.StreamHandler[TextIO]):
    """Writes lines of JSON; knows the error that ended a topology, which is raised as well, to report it once."""

    last_error: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        from trident.observe.events import TopologyTerminated, event_of

        event = event_of(record)
        if isinstance(event, TopologyTerminated):
            self.last_error = event.exception
        super().emit(record)


def _is_no_repetition(record: logging.LogRecord) -> bool:
    # The error that ended a topology, which names the last failure, is raised as well, and printed by `reporting`.
    from trident.observe.events import AttemptFailed, TopologyTerminated, event_of

    event = event_of(record)
    is_last_failure = isinstance(event, AttemptFailed) and not event.will_retry
    return not (is_last_failure or (isinstance(event, TopologyTerminated) and event.exception is not None))


class EndingSignals:
    """Notices SIGINT and SIGTERM in its block. The handler only notes the first: it may run in the middle of anything.

    `first`, `second`: what is said at the first signal, and at the second.
    """

    def __init__(self, first: str, second: str, as_json: bool) -> None:
        self.received: int | None = None
        self._first, self._second, self._as_json = first, second, as_json

    def __enter__(self) -> Self:
        self._before = {signum: signal.signal(signum, self._handle) for signum in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *raised: object) -> None:
        if self.received is None:  # otherwise the process is about to end, and a second signal must end it at once
            for signum, handler in self._before.items():
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._say(self._second)
            os._exit(128 + signum)  # a crash like any other: what is promised does not depend on a clean end
        self.received = signum
        self._say(self._first)

    def wait(self) -> int:
        """Wait for a signal; returns the exit code that it asks for."""
        waiting = threading.Event()
        while self.received is None:
            waiting.wait(0.2)
        return 128 + self.received

    def _say(self, text: str) -> None:
        # Past the log, whose lock the interrupted code may hold. The line break ends what a terminal shows of Ctrl-C.
        line = json_line(text) if self._as_json else f"\n{text}"
        os.write(2, f"{line}\n".encode())


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind as Ctrl-C does, so that the job is killed on the way out."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    before = {signum: signal.signal(signum, end) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
