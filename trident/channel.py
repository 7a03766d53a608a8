"""What threads share: a `Channel` of messages; a `DaemonPool` for code that may hang; a `Clock`; Python's cycle collector."""

import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_MOST_UNSEEN = 50_000  # objects that were made and not freed, while there is always a thread inside


class Channel(Generic[T]):
    """Messages for one thread, oldest first.

    In place of `queue.SimpleQueue`: before Python 3.13 its `get` never returns if its timeout is over before it begins to wait.
    `queue.Queue` holds a lock that a signal handler, which may put a message too, would wait for in the same thread.
    """

    def __init__(self) -> None:
        self.messages: deque[T] = deque()
        self._come = Lock()  # released when a message has come since one was last waited for
        self._come.acquire()

    def put(self, message: T) -> None:
        self.messages.append(message)
        if self._come.locked():
            with suppress(RuntimeError):  # another thread has just done so
                self._come.release()

    def take(self, wait_s: float = 0.0, most: int = 1) -> list[T]:
        """Return the oldest messages, `most` at the most; empty if none comes within `wait_s` seconds."""
        messages = self.messages
        if not messages and wait_s > 0:
            until = monotonic() + wait_s
            # It may have been released for a message that was taken without waiting.
            while not messages and self._come.acquire(timeout=max(0.0, until - monotonic())):
                pass
        return [messages.popleft() for _ in range(min(len(messages), most))]


def waitable(seconds: float | None) -> float | None:
    """Return a time to wait that threads take: `math.inf`, and what is longer than their 292 years, they refuse."""
    return None if seconds is None else min(threading.TIMEOUT_MAX, seconds)


class DaemonPool(Executor):
    """Like `ThreadPoolExecutor`, but the interpreter does not wait for a thread that hangs before it ends."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the pool {self._name} was shut down")
            self._work.put((future, partial(function, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def idents(self) -> list[int]:
        return [one.ident for one in list(self._threads) if one.ident is not None]

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            _call(*work)
            del work  # it would keep its arguments alive
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work, and let the threads end; `cancel_futures` drops work that has not begun."""
        with self._lock:
            self._closed = True
            while cancel_futures and not self._work.empty():
                with suppress(Empty):  # a thread took it
                    work = self._work.get_nowait()
                    if work is not None:
                        work[0].cancel()
            for _ in self._threads:
                self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _call(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001  it is raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(result)


class Clock:
    """The time of this machine."""

    monotonic = staticmethod(time.monotonic)
    """Seconds from an arbitrary start, never going back. As it is, because each batch asks a dozen times."""

    cpu = staticmethod(time.thread_time)
    """Seconds that the calling thread has computed."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)


class _CollectorPause:
    """Pauses Python's cycle collector, in all threads, where many small objects are made that do not refer to others.

    While there is always another thread inside, one that leaves collects where much was made.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # what the collector runs may enter again
        self._inside, self._was_on = 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            is_late = self._was_on and self._inside > 0 and gc.get_count()[0] > _MOST_UNSEEN
            if not self._inside and self._was_on:
                gc.enable()
        if is_late:  # not under the lock: what is collected may run code that enters; each tenth time what is old, too
            gc.collect(1 if gc.get_count()[2] < 10 else 2)


COLLECTOR_PAUSE = _CollectorPause()


def thread_stacks() -> dict[int, FrameType]:
    # Collecting meanwhile, Python before 3.11.9 can stand still for ever: it holds a lock that a thread needs to begin or end.
    with COLLECTOR_PAUSE:
        return sys._current_frames()  # noqa: SLF001  nothing public gives another's stack
