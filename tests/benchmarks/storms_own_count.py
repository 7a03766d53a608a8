"""The word count of Storm's own Trident, for comparison: compiled from `StormWords.java` and run in a JVM of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

__all__ = ["JARS", "words_per_s"]

JARS = Path(__file__).parents[2] / "build" / "services" / "storm"
"""Where `make build/services/storm` puts Storm's jars."""

_SOURCE = Path(__file__).with_name("StormWords.java")
_TASKS = 2  # of the steps and of the state


def words_per_s(batch: int, batches: int, jars: Path = JARS) -> float:
    """Count batches of so many sentences with the state in memory; return the words per second of the second half."""
    path = f"{jars}/*"
    with tempfile.TemporaryDirectory(prefix="trident-storm-") as folder:
        subprocess.run(["javac", "-cp", path, "-d", folder, str(_SOURCE)], check=True)
        program = ["java", "-Xmx2g", "-cp", f"{folder}:{path}", "StormWords", str(batch), str(batches), str(_TASKS)]
        ended = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(program)} printed no figures:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    return float(json.loads(lines[-1])["warm_words_per_s"])
