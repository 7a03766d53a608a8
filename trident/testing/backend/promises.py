"""The promises of a store."""

from __future__ import annotations

from trident.testing.checks.expecting import Promised

__all__ = ["Promise"]


class Promise(Promised):
    """What is checked, in the order of the report; the value says what the promise means."""

    ORDER = "a read has one answer per key, in the order asked"
    ABSENT = "None is read where nothing was written, and nowhere else"
    BULK = "all keys of a put are written, few or many"
    OVERWRITE = "a put replaces what was there, of its keys only"
    KEYS = "different keys are different"
    BINARY_KEYS = "bytes in keys stay apart"
    NUMBERS = "a number comes back with its value and type"
    VALUES = "any other value comes back as it was"
    ERRORS = "what is not written raises, and does not look written"
    REOPENED = "another instance reads what was written last"
    DURABLE = "another process reads what was written"
    PREFIX = "states that share a store do not meet"
    PARTITIONS = "partitions keep apart what is theirs, and share what is not"
    SENTINEL = "the sentinel is kept, and moves forward only"
    FENCING = "a writer that was replaced changes nothing"
    ATOMIC = "a commit is seen whole or not at all"
    REMOVAL = "a removed key is gone, in a replay too"
    LISTING = "every key is listed once"
    RESET = "an emptied state is empty, and no other is"
    RULES = "a replayed batch counts once"
    SNAPSHOT = "readers see whole committed batches"
    LOSS = "a wiped, rolled back or foreign store is found"
    SINGLE_VALUE = "the value of an ungrouped aggregate is kept as a key is"
    CLAIMS = "the map has the methods that it claims, and claims those that it has"
    EXACTLY_ONCE = "crashes, replays and takeovers at random end exact"
