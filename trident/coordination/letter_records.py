"""Dead letters as the log names them: by batch, and by their numbers in the batch as ranges `[first, end)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["LETTERS", "Ranges", "count_of", "numbers_of", "ranges_of", "with_letters"]

LETTERS = "$letters"
"""The key, among the definitions of a batch's spouts, of the dead letters that it puts back; no stream has this name."""

Ranges = Mapping[int, Sequence[Sequence[int]]]
"""Txid of the batch that left tuples out -> ranges of their numbers, ascending."""


def numbers_of(ranges: Iterable[Sequence[int]]) -> list[int]:
    """Return the numbers in ranges."""
    return [number for first, end in ranges for number in range(first, end)]


def ranges_of(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as the fewest ranges."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges


def count_of(letters: Ranges) -> int:
    """Return how many letters these are."""
    return sum(end - first for ranges in letters.values() for first, end in ranges)


def with_letters(known: Ranges, more: Ranges) -> dict[int, list[list[int]]]:
    """Return the letters that are in one or the other."""
    together = {txid: [list(one) for one in ranges] for txid, ranges in known.items()}
    for txid, ranges in more.items():
        together[txid] = ranges_of([*numbers_of(together.get(txid, ())), *numbers_of(ranges)])
    return together
