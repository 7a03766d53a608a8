"""Bolts for the topologies of the tests: they write down what they did in a list of this process."""

from __future__ import annotations

from typing import Any

from trident.storm import BaseRichBolt, Tuple

__all__ = ["EXECUTED", "Refusing"]

EXECUTED: list[Any] = []


class Refusing(BaseRichBolt):
    """Fails every number that `refused` divides, each time, and 1 once."""

    def __init__(self, refused: int) -> None:
        self._refused = refused

    def execute(self, tuple: Tuple) -> None:
        """Write the number down, and answer."""
        number = tuple["n"]
        first = number not in EXECUTED
        EXECUTED.append(number)
        if number % self._refused == 0 or (number == 1 and first):
            self.collector.fail(tuple)
        else:
            self.collector.ack(tuple)
