"""Manifests: which chunks belong together. A folder has one, and it never changes but for "the rows are deleted"."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spouts.dataframes.chunks import Chunk, sync_folder
from trident.errors import SpoutError, describe
from trident.fields import Fields

__all__ = ["Manifest", "fields_as_text", "new_rows_folder", "read_manifest", "remove_rows", "write_manifest"]

_NAME = "manifest.json"
_ROWS = "rows-"


@dataclass(frozen=True)
class Manifest:
    """The rows of a DataFrame, as they were written once.

    Attributes
    ----------
    id
        Unique; also in the name of the folder of the chunks.
    fields
        Names and types, as text.
    consumed
        Whether all rows were committed and deleted.
    """

    id: str
    fields: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    consumed: bool = False

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return sum(chunk.rows for chunk in self.chunks)

    def rows_folder(self, folder: str) -> str:
        """Return where the chunks are."""
        return str(Path(folder, _ROWS + self.id))


def new_rows_folder(folder: str) -> tuple[str, str]:
    """Return a new id, and the folder for its chunks."""
    id_ = uuid.uuid4().hex
    return id_, str(Path(folder, _ROWS + id_))


def fields_as_text(fields: Fields) -> tuple[str, ...]:
    """Return fields as a manifest keeps them."""
    return tuple(f"{name}: {type_}" for name, type_ in zip(fields.names, fields.types, strict=True))


def read_manifest(folder: str) -> Manifest | None:
    """Return the manifest of a folder, None if it has none."""
    path = Path(folder, _NAME)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        chunks = tuple(Chunk(*chunk) for chunk in found["chunks"])
        return Manifest(found["id"], tuple(found["fields"]), chunks, found["consumed"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpoutError(
            f"{path} cannot be read as the manifest of a DataFrame's rows: {describe(error)}. Restore it, or begin again "
            "with a new folder, a new log_dir and empty states"
        ) from error


def write_manifest(folder: str, id_: str, fields: Fields, chunks: Sequence[Chunk]) -> Manifest:
    """Write the manifest of a folder and return it; if another process was faster, return that one's."""
    made = Manifest(id_, fields_as_text(fields), tuple(chunks))
    new = _written(folder, made)
    try:
        Path(folder, _NAME).hardlink_to(new)  # unlike a rename, it fails if there is one
    except FileExistsError:
        pass
    except OSError:  # no hard links here, as on many shared folders; then two first starts at once are not told apart
        new.replace(Path(folder, _NAME))
    new.unlink(missing_ok=True)
    sync_folder(folder)
    found = read_manifest(folder) or made
    for other in Path(folder).glob(f"{_ROWS}*"):  # of starts that were killed while they wrote
        if other.name != _ROWS + found.id:
            shutil.rmtree(other, ignore_errors=True)
    return found


def remove_rows(folder: str, manifest: Manifest) -> None:
    """Delete the chunks, because all are committed; first the manifest says so, for a later start."""
    if not manifest.consumed:
        _written(folder, replace(manifest, consumed=True)).replace(Path(folder, _NAME))
        sync_folder(folder)
    shutil.rmtree(manifest.rows_folder(folder), ignore_errors=True)


def _written(folder: str, manifest: Manifest) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f".{_NAME}.{uuid.uuid4().hex}")
    data = {"id": manifest.id, "fields": manifest.fields, "chunks": manifest.chunks, "consumed": manifest.consumed}
    with path.open("x", encoding="utf-8") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    return path
