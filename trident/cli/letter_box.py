"""`LetterBox`: the dead letters of a log, as `trident dead-letters` lists, shows and puts them back."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from trident.cli.console import problems, say, wrong_use
from trident.cli.log import opened_log
from trident.config import Config
from trident.log.log_state import LogState
from trident.log.records import numbers_of
from trident.naming import counted
from trident.read.written_values import edited_values, number_of
from trident.run.dead_letters import WAITING, DeadLetter, DeadLetters, Request, ranges_by_batch, state_of, waiting
from trident.state.encoding.codec import encode


@dataclass(frozen=True)
class LetterBox:
    """The dead letters of a log, as its readers see them."""

    NONE = "no dead letter waits"

    letters: DeadLetters
    log: LogState
    writer: str | None

    @staticmethod
    def open(log_dir: str, folder: Path | None) -> LetterBox:
        with opened_log(log_dir) as reader:
            log, writer = reader.refresh(), reader.holder()
        return LetterBox(DeadLetters(folder or Config(log_dir=log_dir).dead_letter_folder(log.topology)), log, writer)

    @cached_property
    def _discards(self) -> list[Request]:
        return [request for request in self.letters.requests(self.log) if request.reason is not None]

    def state_of(self, letter: DeadLetter) -> str:
        """Return its state, as the next driver has it: what is to be discarded does not wait."""
        state = state_of(letter, self.log)
        for request in self._discards if state == WAITING else ():
            if letter.number in numbers_of(request.letters.get(letter.txid, ())):
                return f"to be discarded: {request.reason}"
        return state

    def waiting(self) -> list[DeadLetter]:
        """Return the letters that wait; print how many others the log counts whose files are not here."""
        letters = [letter for letter in self.letters.all(self.log) if state_of(letter, self.log) == WAITING]
        if (away := waiting(self.log) - len(letters)) > 0:
            more = "1 more is waiting, but is" if away == 1 else f"{away:,} more are waiting, but are"
            say(f"{more} not in {self.letters.folder}: name the folder with --dead-letter-dir", "yellow", problems())
        return [letter for letter in letters if self.state_of(letter) == WAITING]

    def find(self, id_: str) -> DeadLetter:
        """Return a letter by its id. Raises `typer.BadParameter`: there is none."""
        batch = id_.partition("-")[0]
        for letter in self.letters.of_batch(self.log, int(batch)) if batch.isdecimal() else ():
            if letter.id == id_:
                return letter
        raise typer.BadParameter(
            f"there is no dead letter {id_!r} in {self.letters.folder}; `list` shows the ones that exist"
        )

    def select(self, ids: Sequence[str] | None) -> list[DeadLetter]:
        """Return the letters of batches and ids, or all that wait; `BadParameter` if one is named that does not."""
        if not ids:
            return self.waiting()
        with wrong_use(ValueError):
            return self.letters.waiting_letters(self.log, ids)

    def ask(self, letters: Sequence[DeadLetter], edited: Sequence[DeadLetter] = (), reason: str | None = None) -> None:
        """Ask that letters be put back, or discarded for a reason, and say by whom that is done."""
        if not letters:
            say(self.NONE)
            return
        self.letters.request(self.log, ranges_by_batch(letters), edited, reason)
        by = "by the next driver of the topology" if self.writer is None else f"by the running driver, {self.writer}"
        done = "put back" if reason is None else "discarded"
        say(f"asked for {counted(len(letters), 'dead letter')}, to be {done} {by}")

    def read_edited(self, file: Path) -> tuple[list[DeadLetter], int]:
        """Return the letters in a file with their values, and how many others wait no more; all lines are right, or none."""
        letters: dict[str, DeadLetter] = {}
        back = 0
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(
                f"{file} cannot be read: {error}. Nothing is put back", param_hint="--from"
            ) from error
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, parse_float=number_of)
                if not (isinstance(found, dict) and isinstance(found["tuple"], dict)):
                    raise ValueError("is not a line that `export` prints")
                letter = self.find(str(found["id"]))
                values = edited_values(found["tuple"], letter.left_out.values)
                if letter.id in letters:
                    raise ValueError(f"dead letter {letter.id} occurs twice")
            except (ValueError, KeyError, TypeError, typer.BadParameter) as error:
                what = f"no field {error}" if isinstance(error, KeyError) else error
                raise typer.BadParameter(
                    f"{file}, line {number}: {what}. Nothing is put back", param_hint="--from"
                ) from None
            if self.state_of(letter) == WAITING:
                letters[letter.id] = letter.with_values(values)
            else:
                back += 1
        return [*letters.values()], back

    def as_data(self, letter: DeadLetter) -> dict[str, Any]:
        """Return a letter as JSON has it: values as text, and all of them once more as bytes of the codec, typed."""
        return {
            "id": letter.id,
            "state": self.state_of(letter),
            "txid": letter.txid,
            "attempt": letter.attempt,
            "step": letter.failure.step,
            "error": letter.failure.cause,
            "details": letter.failure.details,
            "tuple": {name: repr(value) for name, value in letter.left_out.values.items()},
            "values": base64.b64encode(encode(dict(letter.left_out.values))).decode(),
        }
