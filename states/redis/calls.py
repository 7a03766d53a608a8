"""Runs calls to Redis servers to their end: several in flight on each connection, sent again when a connection breaks.

A call that is sent again may run twice on the server. Reads and fenced writes of the same values allow that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from states.redis.faults import driver, is_moving, is_transient, refused
from states.redis.options import RedisOptions
from states.redis.scripts import eval_of
from states.redis.wire import Call, Link, Servers
from trident.errors import BackendError

__all__ = ["Exchange"]

Result = TypeVar("Result")

_SHORTEST_PAUSE_S = 0.01
_DOUBLED = 30
"""After so many failures a pause no longer grows, whatever `max_backoff_s`: its computation would overflow."""

_WINDOW = 8
"""Calls in flight on a connection: the server works on one while the next is packed and the last is read."""


class Exchange:
    """Runs calls to their end, through lost connections.

    Parameters
    ----------
    servers
        Where to.
    options
        How often, and how long to wait in between.
    """

    def __init__(self, servers: Servers, options: RedisOptions) -> None:
        from redis.backoff import ExponentialWithJitterBackoff

        self._servers = servers
        self._backoff = ExponentialWithJitterBackoff(cap=options.max_backoff_s, base=options.backoff_s)
        self._retries, self._patience_s = options.retries, options.timeout_s

    def run(self, doing: str, calls: Iterable[Call], renew: Callable[[], Iterable[Call]] | None = None) -> None:
        """Run all calls; their answers are taken in no certain order, but in the order of the calls on each server.

        Parameters
        ----------
        doing
            For messages: "read 10 keys".
        calls
            Made one by one, a few before they are sent.
        renew
            Makes calls that must run before lost calls are sent again.

        Raises
        ------
        BackendError
            A server refused or did not answer. Any of the calls may have run.
        """
        lost: deque[Call] = deque()
        source = iter(calls)
        broken = False

        def attempt() -> None:
            nonlocal broken
            if broken and renew is not None:
                self._attempt(doing, iter(list(renew())), deque())
            broken = True
            self._attempt(doing, _all(lost, source), lost)

        self._persist(attempt)

    def each(self, doing: str, command: Callable[[Link], Result], links: Callable[[], Sequence[Link]]) -> list[Result]:
        """Call `command` with each link, all of them again where a connection breaks; return what it returned."""

        def attempt() -> list[Result]:
            link: Link | None = None
            results: list[Result] = []
            try:
                for link in links():
                    results.append(command(link))
            except BaseException as error:
                if link is not None:
                    link.drop()
                raise self._translated(error, doing, link) from error
            return results

        return self._persist(attempt)

    def look(self, doing: str, ask: Callable[[], Result]) -> Result:
        """Return what `ask` returns; it is called again while connections break."""

        def attempt() -> Result:
            try:
                return ask()
            except driver().exceptions.RedisError as error:
                raise self._translated(error, doing, None) from error

        return self._persist(attempt)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _persist(self, attempt: Callable[[], Result]) -> Result:
        waited_s = 0.0
        for failures in count(1):
            try:
                return attempt()
            except _TransientError as error:
                self._servers.forget()
                # A slot that is being moved, or a node that is replaced, takes longer than a broken connection.
                if failures > self._retries and not (error.moving and waited_s < self._patience_s):
                    raise error.refused from error.__cause__
                pause_s = max(self._backoff.compute(min(failures, _DOUBLED)), _SHORTEST_PAUSE_S)
                time.sleep(pause_s)
                waited_s += pause_s
        raise AssertionError("unreachable")

    def _attempt(self, doing: str, calls: Iterator[Call], lost: deque[Call]) -> None:
        link: Link | None = None
        try:
            for call in calls:
                lost.append(call)  # until it is outstanding on a link
                link = None
                link = self._servers.link(call.bucket)
                link.open()
                lost.pop()
                link.send(call)
                if len(link.waiting) >= _WINDOW:
                    self._receive(link)
            while busy := [each for each in self._servers.links() if each.waiting]:
                for link in busy:
                    self._receive(link)
        except BaseException as error:
            # What is still outstanding would be taken for the answers of later calls.
            for each in self._servers.links():
                if each.waiting or each is link:
                    lost.extend(each.drop())
            raise self._translated(error, doing, link) from error

    def _receive(self, link: Link) -> None:
        call, answer = link.waiting[0], link.read()
        if not isinstance(answer, Exception):
            call.take(answer)
            link.waiting.popleft()
            return
        errors = driver().exceptions
        if isinstance(answer, errors.NoScriptError):
            link.send(Call(call.bucket, lambda: eval_of(call.command()), call.take))  # which also loads it
        elif type(answer) is errors.AskError and call.reads:
            # The slot is being moved, and all keys of this call have moved already.
            moved: Any = answer
            target = self._servers.link_at(moved.host, moved.port)
            target.open()
            target.send(call, asking=True)
        else:
            raise answer
        link.waiting.popleft()

    def _translated(self, error: BaseException, doing: str, link: Link | None) -> BaseException:
        if not isinstance(error, driver().exceptions.RedisError):
            return error
        shown = refused(error, doing, self._servers.name if link is None else link.name)
        return _TransientError(shown, is_moving(error)) if is_transient(error) else shown


class _TransientError(Exception):
    """Worth another try on a new connection. Stays inside."""

    def __init__(self, refused: BackendError, moving: bool) -> None:
        super().__init__(refused, moving)
        self.refused, self.moving = refused, moving


def _all(lost: deque[Call], source: Iterator[Call]) -> Iterator[Call]:
    while lost:
        yield lost.popleft()
    # Not `yield from`: an attempt that breaks closes this iterator, which must leave the rest of the source for the next.
    for call in source:  # noqa: UP028
        yield call
