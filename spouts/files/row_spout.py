"""RowFileSpout: what the spouts of files have in common whose rows are lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spouts.files.cutting import CuttingClock, FileCoordinator
from spouts.files.file_settings import ChosenFiles
from spouts.files.row_reading import LineEmitter, RowFormat, RowOptions
from trident.fields import Fields
from trident.spout.interfaces import Emitter, SpoutType

__all__ = ["RowFileSpout"]


class RowFileSpout:
    """Emits each row of files once. Transactional.

    Parameters
    ----------
    files
        Which files, and in what batches.
    format_
        How a line is read.
    options
        What becomes of the rows.
    """

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(self, files: ChosenFiles, format_: RowFormat, options: RowOptions) -> None:
        self._files, self._format, self._options = files, format_, options

    def get_output_fields(self) -> Fields:
        """Return the fields with their types."""
        return self._options.emitted_fields

    def get_coordinator(self, conf: Mapping[str, Any], clock: CuttingClock | None = None) -> FileCoordinator:
        """Open the driver's side; `SpoutError` if there is no file to read."""
        return self._files.coordinator(self._options.text.files, clock)

    def get_emitter(self, conf: Mapping[str, Any]) -> Emitter:
        """Return the worker's side."""
        return LineEmitter(self._format, self._options)
