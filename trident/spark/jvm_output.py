"""What Spark's JVM, and its Python workers through it, print to stderr."""

from __future__ import annotations

import atexit
import os
import re
import selectors
import threading


class JvmOutput:
    """What the JVM writes to stderr: held back while Spark starts, passed on afterwards.

    The lines of a start come from the launcher, the JVM itself and a logging that is not yet configured, so no setting
    turns them all off. A thread of its own reads them, because a full pipe would stop the JVM.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._lock = threading.Lock()
        self._held: bytearray | None = bytearray()
        self._shown = BrokenPipes()
        self._closed = threading.Event()
        threading.Thread(target=self._pump, name="spark-jvm-stderr", daemon=True).start()
        atexit.register(self._drain, at_exit=True)  # the thread may end with lines unread

    def last_lines(self) -> str:
        """Return the end of what the JVM wrote, for the message of an error."""
        self._close_write_end()
        self._closed.wait(timeout=1)  # returns at once if the JVM is gone; a running one has written its message
        with self._lock:
            lines = bytes(self._held or b"").decode(errors="replace").strip().splitlines()[-20:]
        return " The last lines of the JVM:\n" + "\n".join(lines) if lines else " The JVM printed nothing"

    def release(self) -> None:
        """Stop holding output back. Of the held lines, only those that log an error are printed."""
        self._close_write_end()
        with self._lock:
            held, self._held = bytes(self._held or b""), None
            _print(b"".join(line for line in held.splitlines(keepends=True) if b" ERROR " in line))

    def hold(self) -> None:
        """Hold output back from now on."""
        with self._lock:
            self._held = bytearray()

    def _close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)  # the JVM has a copy; when the JVM ends, the pipe must end too
            self.write_end = -1

    def _pump(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._read_end, selectors.EVENT_READ)
            while not self._closed.is_set():
                selector.select()
                self._drain()

    def _drain(self, at_exit: bool = False) -> None:
        """Read what is in the pipe now, and notice its end."""
        with self._lock:
            while not self._closed.is_set():
                try:
                    data = os.read(self._read_end, 65536)
                except BlockingIOError:
                    break
                if not data:
                    os.close(self._read_end)
                    self._closed.set()
                elif self._held is None:
                    _print(self._shown(data))
                else:
                    self._held += data
            if at_exit or self._closed.is_set():
                _print(self._shown.end())


class BrokenPipes:
    """Leaves out the traces of Python workers whose pipe broke because their job was cancelled.

    They say nothing about the topology, because none of their frames is user code.
    """

    def __init__(self) -> None:
        self._trace = b""
        self._rest = b""  # of a line that is held back
        self._open = False  # of a line that is shown
        self._follows = False  # on a trace that was left out

    def __call__(self, data: bytes) -> bytes:
        """Return what is to be shown now."""
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        shown = b"".join(map(self._line, lines))
        beginnings = (*_BEGINS, *_BETWEEN) if self._follows else _BEGINS
        if (
            self._rest
            and not self._trace
            and (self._open or not any(line.startswith(self._rest) for line in beginnings))
        ):
            shown, self._rest, self._open = shown + self._rest, b"", True
        return shown

    def end(self) -> bytes:
        """Return what was held back, as nothing more comes."""
        held, self._trace, self._rest = self._trace + self._rest, b"", b""
        return held

    def _line(self, line: bytes) -> bytes:
        if self._open:
            self._open = self._follows = False
            return line
        if not self._trace:
            self._follows = self._follows and line in _BETWEEN
            if line in _BEGINS:
                self._trace = line
            return b"" if self._trace or self._follows else line
        self._trace += line
        if line.startswith(b" ") or line in _BEGINS:
            return b""
        trace, self._trace = self._trace, b""
        self._follows = line.startswith(_BROKEN) and all(
            _OF_PYSPARK.search(frame) for frame in trace.splitlines() if frame.startswith(b'  File "')
        )
        return b"" if self._follows else trace


_BEGINS = (
    b"Traceback (most recent call last):\n",
    b"PySpark daemon failed to flush the output to the worker process:\n",
)
_BETWEEN = (b"\n", b"During handling of the above exception, another exception occurred:\n")
_BROKEN = (b"BrokenPipeError:", b"ConnectionResetError:", b"ConnectionAbortedError:")
_OF_PYSPARK = re.compile(rb"[/\\]pyspark[/\\]|[/\\]socket\.py")


def _print(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        return  # the terminal is gone, or stderr was closed, so there is no place to print
