"""Every error that the framework raises: of a topology, its log, its states, its sources, a cluster.

Messages say what was tried, what was found and what to do. ``args`` are the fields, so every class survives pickling on its
way from a worker. An error that cannot heal ends a topology at its first try, at the start too.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Self


class TridentError(Exception):
    """Base of all errors of this package.

    Attributes
    ----------
    can_heal
        Whether another try of the same may succeed although nothing was changed.
    waits_for
        The store or source that does not answer at the moment, such as `PostgreSQL at db:5432/shop`; tries while it is
        away do not count. Empty if something else is wrong.
    """

    can_heal: bool = True
    waits_for: str = ""
    _text_of_args: ClassVar[str] = ""
    """The message, with the names of what the class is made with in braces; empty if it is made otherwise."""

    def __init_subclass__(cls, can_heal: bool | None = None) -> None:
        super().__init_subclass__()
        if can_heal is not None:
            cls.can_heal = can_heal

    def __new__(cls, *given: Any, **named: Any) -> Self:
        made_with = signature(cls).bind(*given, **named)
        made_with.apply_defaults()
        return super().__new__(cls, *made_with.args)  # which are its `args`: an `__init__` need not say them again

    def __str__(self) -> str:
        kind = next(kind for kind in type(self).__mro__ if "_text_of_args" in vars(kind))
        message: str = vars(kind)["_text_of_args"]
        if not message:
            return super().__str__()
        return message.format(**dict(zip(signature(kind).parameters, self.args, strict=True)))


class TopologyError(TridentError, can_heal=False):
    """The declaration of a topology is wrong. Raised at the call that is wrong; nothing has run."""


class InexactPairingError(TopologyError):
    """A spout and a state that together cannot be exact, and `allow_inexact` was not given."""

    def __init__(self, stream: str, spout_kind: str, state: str, state_kind: str) -> None: ...

    def __str__(self) -> str:
        stream, spout_kind, state, state_kind = self.args
        article = "an" if spout_kind[0] in "aeiou" else "a"
        kind, _, lack = state_kind.partition(" ")  # "opaque without attempts"
        way_out = (
            "No state is exact behind such a spout by itself: use a transactional or opaque spout, or leave out what came "
            "before, as docs/spouts/redis-streams.md shows,"
            if spout_kind.startswith("non")
            else "Use an opaque state that stores the attempts (exact with transactional and opaque spouts),"
        )
        return (
            f"stream {stream!r} has {article} {spout_kind} spout and feeds state {state!r}, which is {state_kind}: "
            f"the pairing ({spout_kind} spout, {f'{kind} state {lack}'.strip()}) is not exact after a replay. "
            f"{way_out} or accept double counts with allow_inexact=True"
        )


class DirtyReadError(InexactPairingError):
    """A query may read what a failed attempt wrote, and feeds a state that must be exact; `allow_inexact` was not given."""

    __str__ = TridentError.__str__
    _text_of_args = (
        "query {query!r} reads state {state!r}, which is {state_kind}, before the batch has updated it, and feeds state "
        "{fed!r}: in a replay it may read what a failed attempt wrote. Only an opaque state can be read as of the batch "
        "before, so {fed!r} is not exact. Make {state!r} opaque, query it behind its own update (new_values_stream()), or "
        "accept wrong values with allow_inexact=True"
    )

    def __init__(self, query: str, state: str, state_kind: str, fed: str) -> None: ...


class TopologyChangedError(TopologyError):
    """States or streams mean something else than what the log was written with, and `allow_changed_topology` is not set.

    `differences`: for each change what it is, from what and to what, and what to do about it.
    """

    def __init__(self, topology: str, differences: Sequence[tuple[str, str]]) -> None:
        self.topology, self.differences = topology, tuple(differences)

    def __str__(self) -> str:
        changes = "\n".join(
            f"  {text}\n    To do: {remedy.replace('{name}', self.topology)}" for text, remedy in self.differences
        )
        warning = "\nallow_changed_topology takes all of these as they are: settle the others first"
        takes_all = any("allow_changed_topology" in remedy for _, remedy in self.differences)
        return (
            f"topology {self.topology!r} is not what its log was written with, so what is stored would be misread. "
            "Nothing was written; with its former declaration the topology goes on.\n"
            f"{changes}{warning if takes_all and len(self.differences) > 1 else ''}"
        )


class ConfigError(TridentError, ValueError, can_heal=False):
    """An unknown key or an impossible value in the configuration."""


class EnvironmentProblem(TridentError, can_heal=False):
    """Something outside the program is missing or too old; the message says what to install."""

    @classmethod
    def of_now(cls, message: str) -> Self:
        """Make one that may pass by itself: a part of Spark is away, slow or busy."""
        problem = cls(message)
        problem.can_heal = True
        return problem


class FailedException(TridentError):
    """Raise it in an operation, spout or state to have the batch replayed (with backoff)."""


class ReportedFailedException(FailedException):
    """Like `FailedException`; the error also appears in the progress reports of the topology."""


class BatchFailedError(TridentError):
    """A batch failed `max_batch_attempts` times. Nothing is lost: a restart continues with the same txid.

    Attributes
    ----------
    txid, attempts, step, row, cause
        The batch, how often it was tried, the step that raised, the tuple it worked on (text, None where no
        single tuple is the cause) and the error as text.
    writes_dead_letters
        Whether the topology already leaves failing tuples out where it can (`on_poison="dead_letter"`).
    may_leave_out
        Whether it can leave out this one: an operation raised at it, not a state's update, and no `FailedException`.
    can_heal
        That of the cause.
    """

    writes_dead_letters: bool = False
    may_leave_out: bool = False

    def __init__(self, txid: int, attempts: int, step: str, row: str | None, cause: str) -> None:
        self.txid, self.attempts, self.step, self.row, self.cause = txid, attempts, step, row, cause

    def __str__(self) -> str:
        on = f" on tuple {self.row}" if self.row is not None else ""
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        hint = (
            ' (or set on_poison="dead_letter" to leave such tuples out)'
            if self.may_leave_out and not self.writes_dead_letters
            else ""
        )
        return (
            f"batch {self.txid} failed {times} in step {self.step!r}{on}: {self.cause}. "
            f"Nothing of it is committed; after the cause is fixed a restart continues with this batch{hint}"
        )


class RetriesUsedUpError(BatchFailedError):
    """A batch failed, and since its start this driver has had so many failures that it can number no more attempts."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. It was the last of the 1,048,576 failures that one driver can number; "
            "a restart numbers from the beginning"
        )


class ReplayDiffersError(TridentError, can_heal=False):
    """`TopologyTestDriver.check_replays` processed a batch twice, and a step gave other results.

    `row`: the tuple that the step was given, as text; None where several make a row together.
    `difference`: what the two runs gave, in words.
    """

    _text_of_args = (
        "topology {topology!r}, batch {txid}: {difference}. A replay would give other totals: let the results of a step depend "
        "on its tuples alone, not on a clock, a random number, a counter, or their order"
    )

    def __init__(self, topology: str, txid: int, step: str, row: str | None, difference: str) -> None:
        self.topology, self.txid, self.step, self.row, self.difference = topology, txid, step, row, difference


class DRPCExecutionException(TridentError):
    """A DRPC request got no answer. It changed nothing, so it may be sent again.

    `step`: the step that raised; None if it was not a step.
    `reason`: `failed`, `unknown` (no such function), `invalid`, `unauthorized`, `too_large`, `overloaded`, `timeout`, `stopped`
    or `unreachable`.
    """

    def __init__(self, function: str, cause: str, step: str | None = None, reason: str = "failed") -> None:
        self.function, self.cause, self.step, self.reason = function, cause, step, reason

    def __str__(self) -> str:
        where = f" in step {self.step!r}" if self.step is not None else ""
        return f"DRPC function {self.function!r} gave no answer ({self.reason}){where}: {self.cause}"


class ReplayFailedError(TridentError, can_heal=False):
    """A recorded batch cannot be processed again as it was; `step` is the step, spout or state that failed."""

    def __init__(self, topology: str, txid: int, step: str, cause: str, code: str = "") -> None:
        self.txid, self.step = txid, step

    def __str__(self) -> str:
        topology, txid, step, cause, code = self.args
        needs = "" if code else ". A replay needs the sources as they were, and code that does the same"
        by = f" by the {code}" if code else ""
        said = f"batch {txid} of topology {topology!r} cannot be processed again{by}, at step {step!r}: {cause}"
        return f"{said}. Nothing was written{needs}"


class FencedError(TridentError):
    """Another driver has taken this topology over. The writer that gets this error must stop."""

    _text_of_args = "{what}: this writer is {own}, but {found} has taken over; nothing more is written from here"

    def __init__(self, what: str, own: str, found: str) -> None: ...


class LogError(TridentError):
    """The transaction log cannot be read or written."""


class LogHeldError(LogError):
    """Another driver holds the log."""

    _text_of_args = (
        "the transaction log {path} is held by {holder}. Stop that driver, or start with takeover=True (trident run: "
        "--takeover, other commands: --conf takeover=true), which fences it out"
    )

    def __init__(self, path: str, holder: str) -> None: ...


class AlreadyRunningError(LogHeldError):
    """The topology is running in this very process."""

    _text_of_args = (
        "the transaction log {path} is held by {holder}, which is this very process: the topology is already running here. "
        "Call stop() on what its start() has returned, or leave its with block, and start again; with takeover=True the "
        "running one is fenced out"
    )


class ForeignLogError(LogError, can_heal=False):
    """The log was written by another topology."""

    _text_of_args = (
        "the transaction log {path} belongs to {found}, not to {expected}. Give each topology a log_dir of its own; if it was "
        "renamed, give it its former name"
    )

    def __init__(self, path: str, found: str, expected: str) -> None: ...


class CorruptLogError(LogError, can_heal=False):
    """A record in the middle of the log is damaged; it is not the torn end that a crash may leave."""

    _text_of_args = (
        "the transaction log {path} is damaged at byte {offset}: {reason}. Nothing was changed. Restore the file from a copy. "
        "If there is none, move log_dir away and start: the start says what keeps the totals right then"
    )

    def __init__(self, path: str, offset: int, reason: str) -> None: ...


class HistoryGapError(LogError, can_heal=False):
    """A piece of the history of a log is damaged or missing. The topology itself does not need it."""

    _text_of_args = (
        "the history of the transaction log {place} lacks {missing}: {cause}. The batches after them can be read from batch "
        "{resume} on (`first={resume}`, `--since {resume}`). The topology goes on without them"
    )

    def __init__(self, place: str, missing: str, resume: int, cause: str) -> None: ...


class HistoryStartError(LogError, can_heal=False):
    """The history of a log begins too late: what the batches before `first` did to the states is not known (None: of any)."""

    def __init__(self, place: str, first: int | None) -> None:
        self.first = first

    def __str__(self) -> str:
        place, first = self.args
        kept = "has no batch" if first is None else f"begins with batch {first}"
        return (
            f"the history of the transaction log {place} {kept}, and totals are made of all batches from the first one on. "
            "Nothing was read. Totals whose first batches are gone cannot be computed again: give the topology a history that "
            'reaches back to its first batch (history="52w", or a number of batches) when it begins with empty states'
        )


class StateError(TridentError):
    """A state cannot be read or written."""


class StaleTransactionError(StateError, can_heal=False):
    """The store already holds a later batch than the one being committed. Nothing was written."""

    _text_of_args = (
        "batch {txid} is behind batch {stored_txid} stored for {key!r} in state {state!r}; a second topology writes this "
        "state, or the coordinator's progress was lost"
    )

    def __init__(self, state: str, key: object, txid: int, stored_txid: int) -> None:
        self.txid, self.stored_txid = txid, stored_txid


class ChangesGoneError(StateError, can_heal=False):
    """The changes behind a batch are not kept any more, or were not kept yet: a reader of a feed came too late."""

    def __init__(self, topology: str, state: str, since: int, first: int, last: int) -> None: ...

    def __str__(self) -> str:
        topology, state, since, first, last = self.args
        found = f"those up to batch {first} are not kept (the last batch is {last})"
        if since >= first:
            found = f"the log ends with batch {last}; it was lost or set back, and counts from the beginning"
        return (
            f"the changes of state {state!r} of {topology!r} since batch {since}: {found}. Begin with snapshot(), which "
            "gives the rows as of one batch and continues after it (a topology that follows cannot: count both again, with new "
            "logs and empty states, and since=0); raise changes= of the state if readers are away for longer"
        )


class ChangesReplacedError(ChangesGoneError):
    """The log of the topology whose changes were read was set back: other batches have the numbers of those that were read."""

    __str__ = TridentError.__str__
    _text_of_args = (
        "the changes of state {state!r} of {topology!r} were read up to batch {txid}, {read}; the log {found}: it was set back "
        "to a copy, and the batches read after that copy were undone. Replace all that was made of the changes with "
        "snapshot(); a topology that follows must begin with another log and empty states (and since=0 if all changes are "
        "kept), or be set back as well, log and stores, to a copy from before that moment"
    )

    def __init__(self, topology: str, state: str, txid: int, read: str, found: str) -> None: ...


class StateMismatchError(StateError, can_heal=False):
    """The last commit of a state according to the store does not match the log. Nothing was written."""

    _text_of_args = (
        "partition {partition} of state {state!r}: the log expects {expected}, the store has {found}. The store was emptied, "
        "set back or replaced since the start. Nothing was written. Start the topology again: the start says which accident it "
        "was, and what keeps the totals right"
    )

    def __init__(self, state: str, partition: int, expected: str, found: str) -> None: ...


class StartMismatchError(StateMismatchError):
    """A start found that the log and the stores do not belong together. Nothing was written.

    `accident` and `remedy` are what happened, and what keeps the totals right; `refused` is why the `state_recovery` that was
    asked for does not; `numbers` are the last commits as log and stores have them.
    """

    def __init__(self, accident: str, refused: str, remedy: str, numbers: str) -> None: ...

    def __str__(self) -> str:
        accident, refused, remedy, numbers = self.args
        why = f"{refused}.\n" if refused else ""
        return f"{accident}. Nothing was written.\n{why}What to do: {remedy}.\nFor experts: {numbers}"


class StatePlaceError(StateMismatchError):
    """Two states keep their values in the same place: the same prefix, table or path."""

    _text_of_args = (
        "{what}: the place where {own!r} wants to keep its values belongs to {found!r}. Nothing was written. Give each state a "
        "prefix, table or path of its own. If the topology or the state was renamed, give it its former name"
    )

    def __init__(self, what: str, own: str, found: str) -> None: ...


class RewindError(StateMismatchError):
    """A state whose store was set back cannot be brought forward again (`state_recovery="rewind"`).

    `why`: what is in the way; `replayed`: how many batches were replayed before.
    """

    def __init__(self, state: str, why: str, replayed: int) -> None: ...

    def __str__(self) -> str:
        state, why, replayed = self.args
        batches = "1 batch was" if replayed == 1 else f"{replayed:,} batches were"
        done = f"{batches}, and the next start goes on behind that" if replayed else "Nothing was written"
        return (
            f"state {state!r} cannot be rewound: {why}. {done}. Remove the cause and start again; or start without "
            'state_recovery="rewind": the start says what else keeps the totals right'
        )


class StateMovedError(StateMismatchError):
    """The topology declares a place that `trident state move` has moved the state from, or has not filled yet.

    `note`: what the store says: `moved to MODULE:TOPOLOGY`, or `moving`.
    """

    def __init__(self, state: str, note: str) -> None: ...

    def __str__(self) -> str:
        state, note = self.args
        if note.startswith("moved"):
            return f"state {state!r} was {note} by `trident state move`, and goes on there. Declare it as it is declared there"
        return (
            f"state {state!r}: a move into this place has not ended. Run `trident state move` again, or declare the state as "
            "it was before: there nothing has changed"
        )


class SecondRunError(StateError):
    """Spark ran a task that commits twice, and the other run has begun this commit; the batch is tried again as a whole.

    Two runs may have different rows, and both would belong to one attempt: what only the other run wrote would count.
    Nothing was written.
    """

    _text_of_args = (
        "{what}: another run of the same Spark task has begun {own} and may have written. Spark runs a task again if an "
        "executor or its output is lost; nothing was written, and the batch is tried again as a whole"
    )

    def __init__(self, what: str, own: str) -> None: ...


class KeyConflictError(StateError, can_heal=False):
    """Two partitions of a state write the same key in one batch, so that one of the updates would be lost; or both hold it.

    Only an updater of `partition_persist` can do that: it chooses its keys. Nothing of the batch is committed. `one` and
    `other` are the partitions; `txid` is None where a reader found different values for the key.
    """

    def __init__(self, state: str, key: str, one: int, other: int, txid: int | None = None) -> None: ...

    def __str__(self) -> str:
        state, key, one, other, txid = self.args
        way_out = (
            "Bring all tuples of a key into one partition right before partition_persist, with partition_by and the fields "
            "that the key is made of, or give the state one partition"
        )
        if txid is None:
            return f"partitions {one} and {other} of state {state!r} have different values of {key}. {way_out}"
        return (
            f"partitions {one} and {other} of state {state!r} both update {key} in batch {txid}, and one of the updates would "
            f"be lost; nothing of the batch is committed. {way_out}"
        )


class StateReadError(StateMismatchError):
    """A reader found a store that does not belong to the log: moved away, rolled back, foreign, or without its last writes.

    `expected`, `found`: the last commit as the log has it, and as the store has it; `wrong`: what is wrong with the store.
    """

    _text_of_args = (
        "partition {partition} of state {state!r} cannot be read: the log expects {expected}, the store has {found}: {wrong}. "
        "Bring back the store that belongs to the log, or name the log (log_dir) and the options of the state that belong to "
        "this store"
    )

    def __init__(self, state: str, partition: int, expected: str, found: str, wrong: str) -> None: ...


class StateLossDetected(StateError, can_heal=False):
    """The store lost data that it had acknowledged: a restart without persistence, an eviction, an expiry.

    `what`: the state, its partition and the server; `found`: the sign of the loss.
    """

    _text_of_args = (
        "{what} lost data that it had acknowledged: {found}. The batch was not committed. Start the topology again: the start "
        "says what is lost, and what keeps the totals right"
    )

    def __init__(self, what: str, found: str) -> None: ...


class CommitOrderError(StateError):
    """begin_commit, updates and commit were called in an order that has no meaning."""


class CorruptValueError(StateError, can_heal=False):
    """A stored value cannot be decoded, or a value cannot be encoded."""


class WrongKeyError(StateError, ValueError, can_heal=False):
    """What was asked for cannot be a key of this state: a text for an int, one field of two."""


class UnsupportedOperation(StateError, can_heal=False):
    """The store cannot do what was asked; the message names what can."""


class BackendError(StateError):
    """A store refused, or another writer got there first.

    `message`: what was tried on what, and what came back.
    `retryable`: True if the batch may be replayed; the value rules then undo what was written. False if it cannot heal: a wrong
    password, a missing right.
    """

    def __init__(self, message: str, retryable: bool = True) -> None:
        self.retryable = self.can_heal = retryable

    def __str__(self) -> str:
        return str(self.args[0])


class StoreAwayError(BackendError):
    """A store does not answer at the moment: it is stopped, out of reach, or not ready yet.

    The batch is tried again until the store answers, for `store_wait_s` at most. Whether a write was made is unknown.

    `store`: its kind and address, without user and password: `Redis at localhost:6379`.
    """

    def __init__(self, message: str, store: str) -> None:
        super().__init__(message)
        self.args = (message, store)
        self.waits_for = store


class SpoutError(TridentError):
    """A source cannot be read."""


class BadDataError(SpoutError, can_heal=False):
    """A source has data that cannot be read as a row, such as a wrong value in a file. Every try meets the same data."""


class ReplayMismatchError(SpoutError, can_heal=False):
    """A spout that promised identical replay cannot give the same batch again."""


class CheckpointMismatchError(SpoutError, can_heal=False):
    """A source's own record of its progress does not belong to the log. The batch is not tried again."""


class SourceAwayError(SpoutError):
    """A source does not answer at the moment. The batch is tried again until it does, however often that is."""

    waits_for = "its source"


class PartitionLostError(SourceAwayError):
    """A partition that a batch must be replayed from is not there. The batch is tried again until it is back.

    `lost`, `there`: the partitions that are missing, and those that are there, as text.
    """

    _text_of_args = (
        "{spout}: batch {txid} has rows of {lost}, which the source does not have now (it has: {there}). A transactional spout "
        "gives the same rows again, so the batch waits until the source has them back. If they are gone for good, begin with "
        "another log and empty states, and make it an opaque spout, which goes on with the rows that are left"
    )

    def __init__(self, spout: str, txid: int, lost: str, there: str) -> None:
        self.spout, self.txid, self.lost, self.there = spout, txid, lost, there


_MISTAKES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


def can_heal(error: BaseException) -> bool:
    """Whether the same call may succeed later although nothing was changed; also for errors of Python and of libraries.

    A mistake in code or data (`ZeroDivisionError`, `KeyError`, `ImportError` …) is the same each time; an error from a
    disk, a network or a library may pass.
    """
    if isinstance(error, TridentError):
        return error.can_heal
    return isinstance(error, OSError) or not isinstance(error, _MISTAKES)


def describe(error: BaseException) -> str:
    """One line for an error of any kind: its class and text (the class alone where it has no text)."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ClusterError(TridentError):
    """A cluster, or one of its daemons, could not do what was asked."""


class ClusterUnreachable(ClusterError):
    """The servers that keep a cluster's state, or a daemon, do not answer."""


class NoLeader(ClusterError):
    """No Nimbus leads the cluster."""


class NoSuchTopology(ClusterError):
    """The cluster has no topology of this name or id."""


class NotRunning(ClusterError):
    """What only the driver of a topology knows was asked for, and it has none."""


class NameTaken(ClusterError):
    """The cluster has a topology of this name."""


class BadPackage(ClusterError, can_heal=False):
    """A package of code is damaged, was made by another version, or does not hold the topology."""


class RequirementsFailed(ClusterError):
    """The requirements of a package cannot be installed on this machine just now, or it has other versions than made it."""


class UpgradeRefused(ClusterError):
    """New code does not fit the log of the topology that runs."""


class NotAllowed(ClusterError):
    """The token is missing or wrong."""
