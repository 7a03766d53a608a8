"""Where tuples go whose operation raises on the last try of their batch (`on_poison="dead_letter"`), and the way back.

A batch that puts tuples aside has a file of its own, `<txid>.<attempt>.<incarnation>.jsonl`, written and made durable before
the batch's record. The record decides: only the file of the attempt that won counts, so that one of an attempt (or of a
driver) that came to nothing neither counts nor replaces another. Which letters were put back the log says as well; a file
is never changed.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trident.config import Config
from trident.coordination.letter_records import Ranges, count_of
from trident.coordination.log_file import make_directory, sync_directory
from trident.coordination.records import LogState
from trident.errors import CorruptValueError, LogError
from trident.runtime.steps.rows import Aside, Failure
from trident.spout.interfaces import TransactionAttempt
from trident.state.encoding.codec import decode, encode

__all__ = ["DeadLetter", "DeadLetters", "Request", "dead_letters_of", "waiting"]

logger = logging.getLogger(__name__)

_REQUESTS = "replay"
_NAME = re.compile(r"([0-9]+)\.([0-9]+)\.")
_MOST = 1 << 24  # letters of one request


@dataclass(frozen=True)
class DeadLetter:
    """A tuple that was put aside.

    Attributes
    ----------
    txid, attempt, number
        The batch, and which of its dead letters this is.
    failure
        Step, error and traceback, and the tuple, typed, as it was at the input of the step.
    size
        How long its line in the file is; 0 if it comes from none.
    """

    txid: int
    attempt: int
    number: int
    failure: Failure
    size: int = field(default=0, compare=False)

    @property
    def id(self) -> str:
        """The batch and the number, as people name a dead letter."""
        return f"{self.txid}-{self.number}"

    @property
    def aside(self) -> Aside:
        """The tuple and where it was."""
        assert self.failure.aside is not None, "only what was put aside is a dead letter"
        return self.failure.aside

    def to_line(self) -> str:
        """Return the letter as JSON: to be read, but for the typed tuple, which is bytes of the codec."""
        failure, aside = self.failure, self.aside
        return json.dumps(
            {
                "txid": self.txid, "attempt": self.attempt, "number": self.number,
                "step": failure.step, "tuple": failure.row, "error": failure.cause, "details": failure.details,
                "entry": aside.entry, "port": aside.port, "partition": aside.partition, "partitions": aside.partitions,
                "values": base64.b64encode(encode(dict(aside.values))).decode(),
            },
            ensure_ascii=False,
        )  # fmt: skip

    @staticmethod
    def of_line(line: str) -> DeadLetter:
        """Read what `to_line` gave; ValueError, KeyError or `CorruptValueError` if it is not that."""
        data = json.loads(line)
        values = decode(base64.b64decode(data["values"], validate=True))
        aside = Aside(values, *(data[name] for name in ("entry", "port", "partition", "partitions")))
        failure = Failure(data["step"], data["tuple"], data["error"], details=data["details"], aside=aside)
        return DeadLetter(data["txid"], data["attempt"], data["number"], failure, len(line))


@dataclass(frozen=True)
class Request:
    """Dead letters that somebody asked to be put back, and the file that says so."""

    path: Path
    letters: Ranges


class DeadLetters:
    """The dead letters of a topology, in a folder: of the running driver, which writes them, and of readers.

    `captures` says whether tuples are put aside at all; those of earlier runs are put back also where they are not.
    """

    def __init__(self, folder: str | os.PathLike[str], captures: bool = True) -> None:
        self.folder, self.captures = Path(folder), captures
        self._told: set[str] = set()

    # ---- the driver -------------------------------------------------------------------------------------------------

    def write(self, attempt: TransactionAttempt, captured: Sequence[Failure], incarnation: str) -> None:
        """Make an attempt's dead letters durable; `LogError` if that cannot be done."""
        path = self._path(attempt.txid, attempt.attempt, incarnation)
        try:
            letters = (DeadLetter(*attempt, number, failure) for number, failure in enumerate(captured))
            text = "".join(letter.to_line() + "\n" for letter in letters)
            make_directory(self.folder)
            _write(path, text)
        except (OSError, CorruptValueError) as error:
            raise LogError(
                f"cannot write {len(captured)} dead letters of batch {attempt.txid} to {path}: {error}. The batch is "
                "not committed; make room or change dead_letter_dir, and start again"
            ) from error

    # ---- reading ----------------------------------------------------------------------------------------------------

    def all(self, log: LogState) -> Iterator[DeadLetter]:
        """Iterate over the dead letters of committed batches, put back or not, oldest batch first."""
        for txid, attempt in self._files(log.incarnation):
            if txid <= log.txid and log.winners.winner(txid) == attempt:
                yield from _read(self._path(txid, attempt, log.incarnation))

    def of_batch(self, log: LogState, txid: int) -> list[DeadLetter]:
        """Return the dead letters of a committed batch; none if it has none, or its file is gone."""
        attempt = log.winners.winner(txid) if txid <= log.txid else None
        return [] if attempt is None else _read(self._path(txid, attempt, log.incarnation))

    # ---- asking for them back ---------------------------------------------------------------------------------------

    def request(self, log: LogState, letters: Ranges) -> Path:
        """Ask, durably, that letters be put back: by the driver that runs, or else by the next one."""
        folder = self.folder / _REQUESTS
        path = folder / f"{uuid.uuid4().hex}.json"
        asked = {str(txid): [list(one) for one in ranges] for txid, ranges in letters.items()}
        try:
            make_directory(folder)
            _write(path, json.dumps({"incarnation": log.incarnation, "letters": asked}))
        except OSError as error:
            raise LogError(f"cannot ask for dead letters in {folder}: {error}. Nothing is put back") from error
        return path

    def requests(self, log: LogState) -> list[Request]:
        """Return what was asked for and is of this log; one that cannot be read is told and left alone."""
        found = []
        try:
            paths = sorted(Path(entry) for entry in os.scandir(self.folder / _REQUESTS) if entry.name.endswith(".json"))
        except OSError:
            return []
        for path in paths:
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                letters = {int(txid): _ranges(ranges) for txid, ranges in data["letters"].items()}
                if count_of(letters) > _MOST:
                    raise ValueError(f"more than {_MOST:,} of them")
                if data["incarnation"] == log.incarnation:
                    found.append(Request(path, letters))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                self.tell(f"{path} asks for no dead letters that could be understood: {error}")
        return found

    def tell(self, problem: str) -> None:
        """Log a warning, once: a running driver looks every second."""
        if problem not in self._told:
            self._told.add(problem)
            logger.warning("%s", problem)

    # ---- files ------------------------------------------------------------------------------------------------------

    def _path(self, txid: int, attempt: int, incarnation: str) -> Path:
        return self.folder / f"{txid:012d}.{attempt}.{incarnation}.jsonl"

    def _files(self, incarnation: str) -> list[tuple[int, int]]:
        """Batch and attempt of each file of a log; of what others put into the folder nothing is said."""
        found = []
        for path in self.folder.glob(f"*.{incarnation}.jsonl"):
            match = _NAME.match(path.name)
            attempt = None if match is None else (int(match[1]), int(match[2]))
            if attempt is not None and path.name == self._path(*attempt, incarnation).name:
                found.append(attempt)
        return sorted(found)


def _ranges(data: Any) -> list[list[int]]:
    """Ranges as a request names them; ValueError or TypeError if they are none."""
    for first, end in data:
        if not (type(first) is type(end) is int and 0 <= first <= end):
            raise ValueError(f"{first!r} to {end!r} is no range")
    return list(data)


def _read(path: Path) -> list[DeadLetter]:
    """The letters in a file, none if there is no such file."""
    try:
        return [DeadLetter.of_line(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, CorruptValueError) as error:
        raise LogError(f"cannot read the dead letters in {path}: {error}") from error


def _write(path: Path, text: str) -> None:
    """Let a durable file appear, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:  # an error may say a lone surrogate
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def waiting(log: LogState) -> int:
    """Return how many dead letters there are that no committed batch has put back."""
    return log.totals.get("dead_letters", 0) - count_of(log.put_back)


def dead_letters_of(config: Config, topology: str) -> DeadLetters:
    """Return where a topology's dead letters are."""
    return DeadLetters(config.dead_letter_folder(topology), config.on_poison == "dead_letter")
