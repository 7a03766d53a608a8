"""Reads a log in bounded pieces: its end, for a download, and the records in it of a level and with a text."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator

from trident.ui.cluster_pages import Page
from trident.ui.recent_log import TAIL_BYTES

ReadLog = Callable[[int | None], Page]
"""Returns a piece of a log from an offset on, see `ClusterPages.log`."""

SEARCHED_BYTES = 1 << 20
"""How much of the end of a log is searched."""
DOWNLOADED_BYTES = 16 << 20
"""How much of the end of a log is downloaded."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# The head of a record, as Trident and as Spark write it.
_HEAD = re.compile(r"\d\d(?:\d\d)?[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d[.,\d]* +([A-Z]+)\b")
_OTHER_NAMES = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}


def end_of_log(read: ReadLog, most: int = DOWNLOADED_BYTES) -> Iterator[Page]:
    """Iterate over the pieces of the last `most` bytes of a log. What is logged meanwhile is left out."""
    end = int(read(None)["next"])
    return pieces_of(read, max(0, end - most), most)


def pieces_of(read: ReadLog, offset: int, most: int) -> Iterator[Page]:
    """Iterate over the pieces of a log from an offset on, until it ends or about `most` bytes were read."""
    for _ in range(most // TAIL_BYTES + 1):
        page = read(offset)
        if not page["text"]:
            return
        yield page
        offset = int(page["next"])


def matching(read: ReadLog, offset: int | None, level: str | None, search: str) -> Page:
    """Return a page of a log with the records of a level or above, and with a text in them, upper or lower case alike.

    A record is a line with a level, and the lines without one that follow it, as a stack trace. From `offset` on, or of the
    last mebibyte. `found` says how many there are; of more than 64 KiB of them the last ones are returned.
    """
    pages = list(end_of_log(read, SEARCHED_BYTES) if offset is None else pieces_of(read, offset, SEARCHED_BYTES))
    if not pages:
        page = read(offset)
        return {**page, "text": "", "found": 0}
    text, first = "".join(each["text"] for each in pages), int(pages[0]["offset"])
    if offset is None and first:  # the line that is cut off
        text = text.partition("\n")[2]
    whole, _, rest = text.rpartition("\n")
    if not whole and len(rest) > TAIL_BYTES:  # no line
        whole, rest = text, ""
    found = [each for each in _records(whole) if _is_of(each, level) and search.lower() in each.lower()]
    shown: deque[str] = deque()
    size = 0
    for record in reversed(found):
        size += len(record) + 1
        if size > TAIL_BYTES and shown:
            break
        shown.appendleft(record[-TAIL_BYTES:] + "\n")
    following = int(pages[-1]["next"]) - len(rest.encode())  # a line that has not ended is read the next time
    return {"text": "".join(shown), "offset": first, "next": following, "found": len(found)}


def _records(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        if lines and (_HEAD.match(line) or not _HEAD.match(lines[0])):
            yield "\n".join(lines)
            lines = []
        lines.append(line)
    yield "\n".join(lines)


def _is_of(record: str, level: str | None) -> bool:
    if level is None:
        return True
    head = _HEAD.match(record)
    name = "" if head is None else _OTHER_NAMES.get(head[1], head[1])
    return logging.getLevelNamesMapping().get(name, 0) >= logging.getLevelNamesMapping()[level]
