"""Where tuples go whose operation raises on the last try of their batch (`on_poison="dead_letter"`)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from trident.config import Config
from trident.errors import LogError
from trident.runtime.rows import Failure
from trident.spout.interfaces import TransactionAttempt

__all__ = ["DeadLetters", "dead_letters_of"]


class DeadLetters:
    """One JSON-lines file per batch in a folder: `{"txid", "step", "tuple", "error"}`.

    The file is named by the txid and written before the batch's record, so a batch that is tried again replaces it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def write(self, attempt: TransactionAttempt, captured: Sequence[Failure]) -> None:
        """Make a batch's dead letters durable; `LogError` if that cannot be done."""
        path = self._folder / f"{attempt.txid:012d}.jsonl"
        lines = [
            json.dumps(
                {"txid": attempt.txid, "step": one.step, "tuple": one.row, "error": one.cause}, ensure_ascii=False
            )
            for one in captured
        ]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            with temporary.open("w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise LogError(
                f"cannot write {len(captured)} dead letters of batch {attempt.txid} to {path}: {error}. The batch is "
                "not committed; make room or change dead_letter_dir, and start again"
            ) from error


def dead_letters_of(config: Config, topology: str) -> DeadLetters | None:
    """Return where a topology's dead letters go; None if it has none."""
    return DeadLetters(config.dead_letter_folder(topology)) if config.on_poison == "dead_letter" else None
