"""`MessageQueue`: what a queue must be able to do so that its messages become tuples that are tracked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from trident.errors import SpoutError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Message:
    """A message that was taken from a queue and not acknowledged there yet.

    Attributes
    ----------
    id
        Names it in the topology.
    values
        The values of its tuple; empty if it cannot be read.
    raw
        What its queue needs to acknowledge it or to make a dead letter of it.
    failures
        How often it failed, as far as the queue and this spout know.
    trouble
        Why it cannot be read; None if it can.
    """

    id: Hashable
    values: Sequence[Any]
    raw: Any
    failures: int = 0
    trouble: str | None = None


class MessageQueue(Protocol):
    """One task's connection to a queue. No call waits for messages.

    Every call may raise `SourceAwayError`: the server does not answer, and `reconnect` is called until it does. Any other
    `SpoutError` ends the worker.

    What was taken stays with this task when the connection is lost.

    `place`: its kind and address, such as `Redis at queues:6379`.
    """

    place: str

    def reconnect(self) -> None:
        """Connect again."""

    def describe(self, message: Message) -> str:
        """Name a message in an error: its number and its place."""

    def fetch(self, room: int) -> Sequence[Message]:
        """Take what is there, at most `room` messages; each stays pending at the queue."""

    def acknowledge(self, done: Sequence[Message]) -> None:
        """Take messages off the queue for good."""

    def note_failures(self, failed: Sequence[Message]) -> None:
        """Write down how often these have failed, where the queue can keep that."""

    def bury(self, message: Message, reason: str) -> None:
        """Write a dead letter, and once that is safe take the message off the queue."""

    def tend(self) -> None:
        """Do what must be done from time to time; called often."""

    def rest(self) -> None:
        """Have the server know all that is done: the spout is deactivated, and few calls follow."""

    def close(self) -> None:
        """Release everything. What is not acknowledged is delivered again."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A queue whose `fetch` gives what has come to this task already: nothing need not mean that nothing is there."""

    def look_now(self) -> None:
        """Find out what is there at this moment. For any thread."""

    def may_have_more(self) -> bool:
        """Whether something of that may not have been fetched yet."""


def decoded(
    items: Sequence[T], decode: Callable[[Sequence[T]], Sequence[Sequence[Any]]]
) -> list[tuple[Sequence[Any], str | None]]:
    """Decode many items at once, and one by one if that fails, so that one bad item spoils no other.

    Parameters
    ----------
    decode
        Returns the values of each item; raises `SpoutError` or `ValueError` if any cannot be read.

    Returns
    -------
    list
        For each item its values, and the reason why it cannot be read, None if it can.
    """
    if not items:
        return []
    try:
        return [(values, None) for values in decode(items)]
    except (SpoutError, ValueError) as error:
        if len(items) == 1:
            return [((), str(error))]
    return [decoded([item], decode)[0] for item in items]
