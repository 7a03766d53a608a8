"""What the commands print and how they end: tables, how a run goes in lines, errors in one message, Ctrl-C and SIGTERM."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

import typer

from trident.errors import FencedError, TridentError
from trident.naming import amount, counted, visible
from trident.servers.plain_json import plain
from trident.servers.server_thread import is_loopback

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from trident.run.running import RunningTopology
    from trident.storm.spark.running_storm import RunningStormTopology

logger = logging.getLogger("trident.cli")
starting = logging.getLogger("trident.spark.session")  # says that Spark starts, which takes some seconds

INTERRUPTED = 130  # the exit code after Ctrl-C
REPLACED = 3  # the exit code of a driver that another one replaced, so that a supervisor need not start it again
PIPE_WIDTH = 10_000  # the width of what goes into a file or a pipe: it has no screen to fit
_TIME = "%Y-%m-%d %H:%M:%S"


def results() -> Console:
    return _console(stderr=False)


def problems() -> Console:
    return _console(stderr=True)


class _Visible(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def say(text: str, style: str = "", console: Console | None = None) -> None:
    """Print a line as it is: unwrapped, so that it can be searched, and without markup."""
    (console or results()).print(visible(text), style=style, soft_wrap=True, markup=False, highlight=False)


def say_page(name: str, host: str, url: str) -> None:
    """Say where a page is, and warn if it is for more than this machine."""
    say(f"{name}: page at {url}")
    if not is_loopback(host):
        text = f"anyone who reaches {url} may read the page, values of states included; only actions need the token"
        say(f"warning: {text}", "yellow", problems())


def is_wide(console: Console) -> bool:
    return console.width >= 80  # on a narrower screen the lines of a box take the space of words


def show(
    rows: Iterable[Sequence[str]],
    *columns: str,
    right: Collection[int] = (),
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table: in a box on a screen that is wide enough, else as plain text. `right`: columns at the right."""
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
        table.add_row(*map(visible, row))
    console.print(table, markup=False)


def show_facts(facts: Mapping[str, str], console: Console | None = None) -> None:
    from rich.table import Column, Table

    grid = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(name, visible(value))
    (console or results()).print(grid, markup=False)


def cell(value: Any, is_key: bool = False) -> str:
    """Return a value as one row of a table has it; a key as the commands take it."""
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool) and not is_key:
        return f"{value:,}"
    data = value if isinstance(value, str) else plain(value)
    text = json.dumps(data, ensure_ascii=False) if isinstance(data, list | dict) else str(data)
    return text.replace("\n", "\\n")


def tell(value: Any, as_json: bool, show: Callable[[], object]) -> None:
    print_json(value) if as_json else show()


def print_line(text: str, nl: bool = True) -> None:
    """Print one of many lines, or a text that has its line breaks: `say` takes longer."""
    typer.echo(visible(text), nl=nl)


def print_json(value: Any) -> None:
    """Print a value in one line; what JSON has not, as a number that is not finite, is a text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(plain(value), ensure_ascii=False)
    print_line(text)


@contextmanager
def wrong_use(*errors: type[Exception]) -> Iterator[None]:
    """Take errors for a wrong use of the command: exit code 2, with their text."""
    try:
        yield
    except errors as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def reporting(debug: bool = False, as_json: bool = False) -> Iterator[None]:
    """Log from WARNING on; turn errors of the framework into a message and exit code 1 (`REPLACED`). `debug`: more of both."""
    level = logging.INFO if debug else logging.WARNING
    lines = _log_as_json(level) if as_json else None
    if lines is None:
        _log_to(problems(), level)
    starting.setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # If it cannot connect, the command ends with an error of ours; its own messages are stack traces.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
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
    handler.setFormatter(_Visible(text, _TIME))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    starting.handlers, starting.propagate = [logging.StreamHandler(console.file)], False


def _log_as_json(level: int) -> _JsonLines:
    from trident.observe.events import JsonFormatter, event_logger

    handler = _JsonLines()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    event_logger.setLevel(logging.INFO)
    return handler


def log_for_page() -> None:
    """Log from INFO on, for the page; what goes to standard error stays as it is."""
    root, ours, events = (logging.getLogger(name) for name in ("", "trident", "trident.events"))
    level, always = root.level, events.name if events.level else ""
    if ours.getEffectiveLevel() > logging.INFO:
        for handler in root.handlers:
            handler.addFilter(lambda record: record.levelno >= level or record.name == always)
        ours.setLevel(logging.INFO)


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
    """Notices SIGINT and SIGTERM in its block. The handler only notes the first: it may run in the middle of anything."""

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


class LiveLines:
    """Says how far something is: in place on a terminal, elsewhere in plain lines every few seconds."""

    first = "starting"

    def __init__(self, console: Console, name: str, every_s: float = 5.0) -> None:
        self._console, self._name, self._every_s = console, name, every_s
        self._status: Status | None = None
        self._line_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(f"{self._name}: {self.first}")
            self._status.start()
        self._line_at = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, running: Any) -> None:
        """Show how a topology goes that runs; called several times a second."""

    def is_due(self, live_s: float = 0.0) -> bool:
        """Whether the next lines would be shown; on a terminal, `live_s` seconds after the last ones."""
        return time.monotonic() - self._line_at >= (self._every_s if self._status is None else live_s)

    def tell(self, line: str, *more: str) -> None:
        from rich.text import Text

        self._line_at = time.monotonic()
        if self._status is not None:
            text = "\n".join([f"{self._name}: {line}", *_align(more)])
            self._status.update(Text(visible(text)))  # a name may look like markup
            return
        say(f"{self._name}: {line}", console=self._console)
        for each in more:  # each by itself says what it is about: they stand between the lines of a log
            say(f"{self._name}/{each}", console=self._console)


class LineDisplay(LiveLines):
    """How a Trident topology goes; elsewhere than on a terminal only while something is committed."""

    def __init__(self, console: Console, name: str, every_s: float = 5.0) -> None:
        super().__init__(console, name, every_s)
        self._seen: deque[tuple[float, dict[str, Any]]] = deque()
        self._line_of: int | None = None  # the batch that was shown last

    def update(self, running: RunningTopology) -> None:
        status = running.status
        if self._line_of is None:
            self._line_of = status["txid"]
        if self._status is not None or (self.is_due() and status["txid"] != self._line_of):
            self._line_of = status["txid"]
            self.tell(*self._lines(running, time.monotonic(), status))

    def _lines(self, running: RunningTopology, now: float, status: dict[str, Any]) -> list[str]:
        sources = status["sources"]
        self._seen.append((now, status))
        while len(self._seen) > 2 and now - self._seen[1][0] > 5.0:  # the seconds that a rate is over
            self._seen.popleft()
        at, since = self._seen[0]
        before = {each["description"]: each["numInputRows"] for each in since["sources"]}

        def rate(tuples: int, former: int) -> float:
            count, seconds = (tuples - former, now - at) if now - at >= 1 else (tuples, running.seconds)
            return count / max(seconds, 1e-3)

        speed = rate(status["tuples"], since["tuples"])
        total = [f"batch {status['txid']:,}", counted(status["tuples"], "tuple")]
        total += [f"{speed:,.0f} tuples/s" if speed else "waiting for tuples"]
        if len(sources) == 1:
            total += _behind(sources[0])
        last = running.last_progress
        if last is not None:
            total.append(f"commit lag {last['durationMs']['wait'] + last['durationMs']['commit']:,.0f} ms")
        lines = [", ".join([*total, *_troubles(status)])]
        for each in sources if len(sources) > 1 else ():
            name = each["description"]
            own = f"{rate(each['numInputRows'], before.get(name, 0)):,.0f} tuples/s"
            lines.append(f"{name}: {', '.join([own, *_behind(each)])}")
        return lines


class StormLines(LiveLines):
    """The same of spouts and bolts: one line, whether or not something was acknowledged."""

    first = "running"
    _acked = 0

    def update(self, running: RunningStormTopology) -> None:
        if self.is_due(1.0):
            self.tell(self._line(running, time.monotonic() - self._line_at))

    def _line(self, running: RunningStormTopology, seconds: float) -> str:
        status = running.status
        figures, recent = status.statistics.over().figures, status.statistics.over(600).figures
        rate, self._acked = max(0, figures.acked - self._acked) / seconds, figures.acked
        parts = [f"{figures.acked:,} messages acknowledged", f"{rate:,.0f}/s", f"{status.pending:,} pending"]
        if recent.complete_latency_ms is not None:
            parts.append(f"{recent.complete_latency_ms:,.1f} ms on average")
        if figures.failed:
            parts.append(f"{figures.failed:,} failed")
        if running.deaths:
            parts.append(f"{counted(running.deaths, 'death')} of workers")
        return ", ".join(parts)


def _behind(source: dict[str, Any]) -> list[str]:
    lag = source["lag"]
    if lag is None:
        return []
    return [f"{amount(lag['amount'], lag['unit'])} behind" if lag["amount"] else "up to date"]


def _troubles(status: dict[str, Any]) -> list[str]:
    troubles = []
    if status["share"] < 1:
        troubles.append(f"batches cut to {max(1, round(100 * status['share']))} % because they take long")
    if status["failures"]:
        troubles.append(f"{counted(status['failures'], 'failure')} (the last: {status['lastFailure']})")
    letters = counted(status["deadLetters"], "dead letter") if status["deadLetters"] else None
    return [*troubles, *filter(None, (status["waiting"], letters))]


def _align(lines: Sequence[str]) -> list[str]:
    columns = [(name, *figures.partition(", ")[::2]) for name, figures in [line.split(": ", 1) for line in lines]]
    wide, wide_rate = (max((len(each[number]) for each in columns), default=0) for number in (0, 1))
    return [f"  {name:<{wide}}  {rate:>{wide_rate}}  {more}".rstrip() for name, rate, more in columns]
