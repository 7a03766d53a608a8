"""What is committed beside an offset: what is done behind it, and how often records failed.

Kafka keeps a text with each committed offset, of up to 4,096 bytes. After a restart what it names is not emitted again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_MOST_BYTES = 3800
_MOST_FAILURES = 60


@dataclass(frozen=True)
class OffsetNotes:
    """What is known beside the committed offset of a partition.

    `topic_id`: the id of the topic: another one of the same name has other records under these offsets.
    `partitions`: how many partitions the topic had when the group began with it.
    `done`: ranges behind the offset that are done, each (first, end).
    `failures`: by offset how often a record failed that is not done.
    """

    topic_id: str = ""
    partitions: int = 0
    done: Sequence[tuple[int, int]] = ()
    failures: Mapping[int, int] = field(default_factory=dict)

    def furthest(self, offset: int) -> int:
        """Return the offset behind all that is done, given the committed one."""
        return max([offset, *(end for _, end in self.done)])

    def before(self, offset: int) -> OffsetNotes:
        """Return the notes on records before an offset: from there on the numbers belong to other records."""
        done = [(first, min(end, offset)) for first, end in self.done if first < offset]
        failures = {at: count for at, count in self.failures.items() if at < offset}
        return replace(self, done=done, failures=failures)

    def text(self, offset: int) -> str:
        """Write as much as there is room for, what is nearest to the offset first."""
        failures = [[at - offset, self.failures[at]] for at in sorted(self.failures)[:_MOST_FAILURES]]
        found: dict[str, Any] = {
            "trident": 1,
            "topic": self.topic_id,
            "partitions": self.partitions,
            "failures": failures,
        }
        room = _MOST_BYTES - len(_json({**found, "done": []}))
        done: list[int] = []
        before = offset
        for first, end in self.done:  # each as its distance from the one before, and its length
            pair = (first - before, end - first)
            room -= len(f"{pair[0]},{pair[1]},")
            if room < 0:
                break
            done += pair
            before = end
        return _json({**found, "done": done})

    @classmethod
    def of(cls, text: str | None, offset: int) -> OffsetNotes:
        """Read a text; what another program has committed says nothing."""
        try:
            found = json.loads(text or "")
            if found["trident"] != 1:
                return cls()
            numbers, done, before = iter(found["done"]), [], offset
            for distance in numbers:
                first = before + distance
                before = first + next(numbers)
                done.append((first, before))
            failures = {offset + at: count for at, count in found["failures"]}
            return cls(found["topic"], found["partitions"], done, failures)
        except (ValueError, TypeError, KeyError, StopIteration):
            return cls()


def _json(notes: Mapping[str, Any]) -> str:
    return json.dumps(notes, separators=(",", ":"))
