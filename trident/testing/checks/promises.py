"""The promises of stores and of spouts, in the order of their reports."""

from __future__ import annotations

from enum import Enum


class Promised(Enum):
    """Base of the promises of one kind of thing: the members in the order of the report, their values what they mean."""

    @property
    def title(self) -> str:
        """The name in reports: lower case words."""
        return self.name.lower().replace("_", " ")


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
    SENTINEL = "the sentinel is stored, and moves forward only"
    FENCING = "a writer that was replaced changes nothing"
    ATOMIC = "a commit is seen whole or not at all"
    REMOVAL = "a removed key is gone, in a replay too"
    LISTING = "every key is listed once"
    RESET = "an emptied state is empty, and no other is"
    RULES = "a replayed batch counts once"
    SNAPSHOT = "readers see whole committed batches"
    LOSS = "a wiped, rolled back or foreign store is found"
    SINGLE_VALUE = "the value of an ungrouped aggregate is stored as a key's value is"
    CLAIMS = "the map has the methods that it claims, and claims all that it has"
    EXACTLY_ONCE = "crashes, replays and takeovers at random end exact"


class SpoutPromise(Promised):
    """What is checked, in the order of the report; the value says what the promise means."""

    FIELDS = "what is emitted has the names and types of the output fields"
    VALUES = "a row comes as the source holds it"
    NO_GAP = "each row of the source is in a batch"
    NO_OVERLAP = "no row is in two batches"
    ORDER = "the rows of a partition come in its order"
    LIMIT = "a backlog is read in batches within the limit"
    THROTTLE = "a throttled spout makes smaller batches, and goes on"
    IDLE = "where there is nothing, there is no batch, and it costs nothing"
    GROWTH = "what is added to the source is found"
    PLAIN = "a definition is plain data, and nothing changes it"
    SMALL = "a definition does not grow with the batches before it"
    REPLAY = "a definition read again has the same rows"
    CUTS = "a definition has the same rows in any number of parts"
    ELSEWHERE = "another coordinator, in another process, reads the same rows"
    AHEAD = "batches may be defined before those before them are committed"
    RETRY = "a batch whose attempt failed is defined again from the same place"
    RESTART = "a new coordinator goes on from the last definition"
    NEW_PARTITIONS = "a partition that is added is read from its first row"
    LOST_PARTITIONS = "the rows of a partition that is lost and comes back count once"
    SHIPPED = "what goes to workers can be pickled, and a description opens nothing"
    SIZE = "the size of a batch follows from its definition alone"
    LAG = "the lag reaches zero, and no server is asked for it"
    CLOSE = "threads, files and connections are released"
    ERRORS = "a source that is away raises SpoutError"
    CHANGES = "a source that was changed raises SpoutError, and gives no other rows"
    AT_LEAST_ONCE = "non-transactional: failures and crashes at random lose no row"
    EXACTLY_ONCE = "failures, crashes and lost partitions at random end exact"


_ROWS = (SpoutPromise.VALUES, SpoutPromise.NO_GAP, SpoutPromise.NO_OVERLAP)

SCHEDULED = (Promise.EXACTLY_ONCE, SpoutPromise.AT_LEAST_ONCE, SpoutPromise.EXACTLY_ONCE)
"""What random schedules are about."""

_AROUND_ROWS = (SpoutPromise.SHIPPED, SpoutPromise.SIZE, SpoutPromise.LAG, SpoutPromise.CLOSE)

# A check that says nothing while another promise is broken: a report names what is broken, not all that follows from it.
BUILDS_ON: dict[Promised, tuple[SpoutPromise, ...]] = {
    SpoutPromise.THROTTLE: (SpoutPromise.LIMIT, *_ROWS),
    SpoutPromise.LAG: _ROWS,
    SpoutPromise.AHEAD: _ROWS,
    SpoutPromise.RETRY: (SpoutPromise.REPLAY, *_ROWS),
    SpoutPromise.RESTART: _ROWS,
    SpoutPromise.CUTS: (SpoutPromise.REPLAY, *_ROWS),
    SpoutPromise.ELSEWHERE: (SpoutPromise.REPLAY,),
    SpoutPromise.NEW_PARTITIONS: (SpoutPromise.GROWTH, SpoutPromise.RESTART, *_ROWS),
    SpoutPromise.LOST_PARTITIONS: (SpoutPromise.REPLAY, SpoutPromise.RETRY, *_ROWS),
    SpoutPromise.ERRORS: (SpoutPromise.REPLAY, SpoutPromise.RETRY, *_ROWS),
    SpoutPromise.CLOSE: (SpoutPromise.SHIPPED,),
    SpoutPromise.CHANGES: (SpoutPromise.REPLAY, SpoutPromise.ELSEWHERE),
    **dict.fromkeys(SCHEDULED[1:], tuple(each for each in SpoutPromise if each not in (*SCHEDULED, *_AROUND_ROWS))),
}
