"""Seeded sentences of ten words, uniform over a vocabulary, in text files that are cut into equal batches; made before
anything is measured."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORDS_PER_SENTENCE = 10
_SMALLEST_FILE = 1_000  # sentences: a folder with a file for each batch of one sentence would measure the listing


@dataclass(frozen=True)
class Corpus:
    """Batches on disk and what they must count to.

    `files`: in order, each of whole batches; every line is a sentence of the same length in bytes.
    `bytes_per_batch`: size of a full batch.
    `counts`: occurrences of each word, counted when the sentences were made.
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
    def make(
        folder: Path, sentences: int, batch: int, vocabulary: int, seed: int = 7, distinct: int | None = None
    ) -> "Corpus":
        """Write the batches into `folder`, a file each.

        With `distinct` all files but so many are copies, which are made faster, and small batches share a file.
        """
        random = np.random.default_rng(seed)
        names = np.array([f"w{number:06d}" for number in range(vocabulary)])
        totals = np.zeros(vocabulary, dtype=np.int64)
        files: list[Path] = []
        made: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        per_file = batch * (1 if distinct is None else max(1, _SMALLEST_FILE // batch))
        for start in range(0, sentences, per_file):
            size = min(per_file, sentences - start)
            path = folder / f"batch-{len(files):06d}.txt"
            if distinct is not None and len(made) >= distinct and size == per_file:
                shutil.copyfile(files[len(files) % distinct], path)
                totals += made[len(files) % distinct]
            else:
                drawn = random.integers(0, vocabulary, size=(size, WORDS_PER_SENTENCE))
                found = np.bincount(drawn.ravel(), minlength=vocabulary)
                totals += found
                made += [found] if distinct is not None else []  # of thousands of files they would take 240 MB
                path.write_text("\n".join(" ".join(row) for row in names[drawn]) + "\n", encoding="ascii")
            files.append(path)
        counts = Counter({str(name): int(count) for name, count in zip(names, totals, strict=True) if count})
        bytes_per_batch = files[0].stat().st_size * batch // min(per_file, sentences)
        return Corpus(folder, tuple(files), bytes_per_batch, sentences, counts)
