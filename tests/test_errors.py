"""Errors travel: pickled from a worker, or as text alone. Their text says everything, and survives."""

import inspect
import pickle

import pytest

from trident import errors
from trident.errors import TridentError, can_heal, describe

# The fields of each class, by the name of its parameters; a class that is not here takes one message.
FIELDS: dict[type[TridentError], dict[str, object]] = {
    errors.InexactPairingError: {
        "stream": "lines", "spout_kind": "opaque", "state": "counts", "state_kind": "transactional",
    },
    errors.DirtyReadError: {"query": "lines/query", "state": "counts", "state_kind": "transactional", "fed": "sum"},
    errors.TopologyChangedError: {"topology": "t", "differences": [("state 'n': kind opaque -> custom", "declare it opaque")]},
    errors.BatchFailedError: {"txid": 71, "attempts": 3, "step": "each Split", "row": "[a=1]", "cause": "KeyError: x"},
    errors.RetriesUsedUpError: {"txid": 71, "attempts": 3, "step": "each Split", "row": "[a=1]", "cause": "KeyError: x"},
    errors.ReplayDiffersError: {
        "topology": "words", "txid": 71, "step": "each stamp", "row": "[a=1]",
        "difference": "step 'each stamp' gives other results for tuple [a=1]",
    },
    errors.DRPCExecutionException: {
        "function": "words", "cause": "KeyError: x", "step": "drpc:words/each", "reason": "overloaded",
    },
    errors.FencedError: {"what": "append to log", "own": "epoch 4", "found": "epoch 5"},
    errors.LogHeldError: {"path": "logs/t", "holder": "pid 77 on host"},
    errors.AlreadyRunningError: {"path": "logs/t", "holder": "pid 77 on host"},
    errors.ForeignLogError: {"path": "logs/t", "found": "topology 'a'", "expected": "topology 'b'"},
    errors.CorruptLogError: {"path": "logs/t", "offset": 4096, "reason": "checksum differs"},
    errors.HistoryGapError: {"place": "logs/t", "missing": "batches 7 to 9", "resume": 10, "cause": "x.log is gone"},
    errors.HistoryStartError: {"place": "logs/t", "first": 7},
    errors.ReplayFailedError: {"topology": "t", "txid": 7, "step": "lines", "cause": "ReplayMismatchError: x", "code": ""},
    errors.ChangesGoneError: {"topology": "words", "state": "counts", "since": 3, "first": 8, "last": 9},
    errors.ChangesReplacedError: {
        "topology": "words", "state": "counts", "txid": 3, "read": "which was 3 (start 7)", "found": "has a batch 3 (start 8)"
    },
    errors.StaleTransactionError: {"state": "counts", "key": ("the", 1), "txid": 8, "stored_txid": 9},
    errors.PartitionLostError: {"spout": "Ledger", "txid": 7, "lost": "'b'", "there": "'a'"},
    errors.StatePlaceError: {"what": "state 'a' partition 1", "own": "t/a", "found": "t/b"},
    errors.StateMovedError: {"state": "counts", "note": "moved to new:topology"},
    errors.RewindError: {"state": "counts", "why": "its history begins with batch 9", "replayed": 3},
    errors.SecondRunError: {"what": "state 'a' partition 1", "own": "batch 7 attempt 3 of incarnation i"},
    errors.KeyConflictError: {"state": "counts", "key": "the key ('the',)", "one": 1, "other": 3, "txid": 8},
    errors.StateReadError: {
        "state": "counts", "partition": 3, "expected": "batch 7", "found": "nothing", "wrong": "it was emptied"
    },
    errors.StartMismatchError: {
        "accident": "the log is new", "refused": "", "remedy": "start with the log", "numbers": "partition 3: nothing"
    },
    errors.StateMismatchError: {"state": "counts", "partition": 3, "expected": "batch 7", "found": "nothing"},
    errors.StateLossDetected: {"what": "state counts in Redis", "found": "the sentinel is gone"},
    errors.BackendError: {"message": "MGET of 12 keys on a store: no answer in 5 s", "retryable": False},
    errors.StoreAwayError: {"message": "MGET on Redis at localhost:6379: no answer", "store": "Redis at localhost:6379"},
}  # fmt: skip
CLASSES = sorted(
    (kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, TridentError)),
    key=lambda kind: kind.__name__,
)


def example(kind: type[TridentError]) -> TridentError:
    return kind(*FIELDS.get(kind, {"message": f"tried {kind.__name__}, found 42, do this"}).values())


def test_an_error_survives_pickling() -> None:
    for error in map(example, CLASSES):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(error, protocol))
            assert (type(copy), str(copy), copy.args, vars(copy)) == (type(error), str(error), error.args, vars(error))


def test_an_error_of_one_message_is_its_message() -> None:
    for kind in set(CLASSES) - set(FIELDS):
        assert str(example(kind)) == f"tried {kind.__name__}, found 42, do this"


def test_the_table_above_names_every_field() -> None:
    for kind, fields in FIELDS.items():
        assert list(fields) == list(inspect.signature(kind).parameters), kind
    assert {kind for kind in CLASSES if "__init__" in vars(kind)} <= set(FIELDS)


def test_the_text_names_every_field_and_has_no_placeholder() -> None:
    for kind, fields in FIELDS.items():
        text = str(example(kind))
        for name, field in fields.items():
            parts = field[0] if isinstance(field, list) else [field]
            assert name == "retryable" or all(str(part) in text for part in parts), (kind, name)
        assert "{" not in text, kind


def test_an_error_of_a_user_may_have_any_attribute() -> None:
    class Mine(errors.FailedException):
        _text, _message = "", "x"

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self._text = text

    assert str(Mine("line {7}")) == "line {7}"


def test_a_failed_batch_without_a_tuple_names_none() -> None:
    assert "tuple" not in str(errors.BatchFailedError(1, 3, "commit", None, "x")).partition("x.")[0]


def test_a_setting_that_is_set_is_not_proposed() -> None:
    error = errors.BatchFailedError(1, 3, "sum", "[n=1]", "x")
    error.may_leave_out = True
    assert "on_poison" in str(error)
    error.writes_dead_letters = True
    assert "on_poison" not in str(pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize(
    ("error", "text"), [(ValueError("x is 3"), "ValueError: x is 3"), (TimeoutError(), "TimeoutError")]
)
def test_describe_gives_class_and_text(error: BaseException, text: str) -> None:
    assert describe(error) == text


def test_a_backend_error_may_be_retried_unless_it_says_no() -> None:
    assert errors.BackendError("no answer").retryable
    assert not pickle.loads(pickle.dumps(errors.BackendError("refused", False))).retryable


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (errors.BackendError("wrong password", retryable=False), False),
        (errors.BackendError("a deadlock"), True),
        (errors.StoreAwayError("no answer", "Redis at localhost:6379"), True),
        (errors.SourceAwayError("no leader"), True),
        (errors.ConfigError("unknown key"), False),
        (errors.TopologyChangedError("t", [("kind opaque -> custom", "declare it opaque")]), False),
        (errors.StateMismatchError("counts", 3, "batch 7", "nothing"), False),
        (errors.FencedError("append to log", "epoch 4", "epoch 5"), True),  # nothing is wrong: the other driver goes on
        (errors.LogHeldError("logs/t", "pid 77"), True),
        (errors.FailedException("again"), True),
        (ZeroDivisionError("division by zero"), False),
        (ModuleNotFoundError("No module named 'zmq'"), False),
        (SyntaxError("invalid syntax"), False),
        (TimeoutError("no answer"), True),
        (RuntimeError("a library gave up"), True),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else str(given),
)
def test_an_error_says_whether_it_can_heal_without_anybody_changing_anything(error: BaseException, heals: bool) -> None:
    assert can_heal(error) is heals
    assert can_heal(pickle.loads(pickle.dumps(error))) is heals


def test_a_failed_batch_can_heal_if_its_cause_can() -> None:
    final = errors.BatchFailedError(7, 1, "each", None, "wrong password")
    final.can_heal = False
    assert not can_heal(pickle.loads(pickle.dumps(final)))
