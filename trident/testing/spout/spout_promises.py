"""The promises of a spout."""

from __future__ import annotations

from trident.testing.checks.expecting import Promised

__all__ = ["SpoutPromise"]


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
    SIZE = "the size of a batch is told from its definition alone"
    LAG = "the lag reaches zero, and no server is asked for it"
    CLOSE = "threads, files and connections are released"
    ERRORS = "a source that is away raises SpoutError"
    CHANGES = "a source that was changed raises SpoutError, and gives no other rows"
    AT_LEAST_ONCE = "non-transactional: failures and crashes at random lose no row"
    EXACTLY_ONCE = "failures, crashes and lost partitions at random end exact"
