"""Seeded sentences of ten words, uniform over a vocabulary, one text file per batch; made before anything is measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["WORDS_PER_SENTENCE", "Corpus"]

WORDS_PER_SENTENCE = 10


@dataclass(frozen=True)
class Corpus:
    """Batches on disk and what they must count to.

    Attributes
    ----------
    files
        One per batch, in order; every line is a sentence of the same length in bytes.
    bytes_per_batch
        Size of a full batch's file.
    counts
        Occurrences of each word, counted when the sentences were made.
    """

    folder: Path
    files: tuple[Path, ...]
    bytes_per_batch: int
    sentences: int
    counts: Counter[str]

    @property
    def words(self) -> int:
        """Number of words of all batches."""
        return self.sentences * WORDS_PER_SENTENCE

    @staticmethod
    def make(folder: Path, sentences: int, batch: int, vocabulary: int, seed: int = 7) -> Corpus:
        """Write the batches into `folder`."""
        random = np.random.default_rng(seed)
        names = np.array([f"w{number:06d}" for number in range(vocabulary)])
        totals = np.zeros(vocabulary, dtype=np.int64)
        files: list[Path] = []
        for start in range(0, sentences, batch):
            size = min(batch, sentences - start)
            drawn = random.integers(0, vocabulary, size=(size, WORDS_PER_SENTENCE))
            totals += np.bincount(drawn.ravel(), minlength=vocabulary)
            path = folder / f"batch-{len(files):06d}.txt"
            path.write_text("\n".join(" ".join(row) for row in names[drawn]) + "\n", encoding="ascii")
            files.append(path)
        counts = Counter({str(name): int(count) for name, count in zip(names, totals, strict=True) if count})
        return Corpus(folder, tuple(files), files[0].stat().st_size, sentences, counts)
