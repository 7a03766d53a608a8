"""Manifests: which chunks belong together, and whose they are. A folder has one; it only changes to "the rows are deleted"."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spouts.spark.chunks import Chunk, sync_folder
from trident.errors import CheckpointMismatchError, SpoutError, describe
from trident.fields import Fields

_VERSION = 1
_NAME = "manifest.json"
_ROWS = "rows-"


@dataclass(frozen=True)
class Manifest:
    """The rows of a DataFrame, as they were written once.

    `id`: unique; also in the name of the folder of the chunks.
    `fields`: names and types, as text.
    `consumed`: whether all rows were committed and deleted.
    `owner`: whose rows they are, as `owner_of` says it; empty if a coordinator was opened by hand.
    """

    id: str
    fields: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    consumed: bool = False
    owner: str = ""

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


def owner_of(conf: Mapping[str, Any]) -> str:
    """Return the stream and the topology that a coordinator was opened for; empty if it was opened by hand."""
    return f"the stream {conf['stream']!r} of the topology {conf['topology']!r}" if "topology" in conf else ""


def check_owner(folder: str, manifest: Manifest, owner: str) -> None:
    """Raise `CheckpointMismatchError` for rows of another stream."""
    if manifest.owner and owner and manifest.owner != owner:
        raise CheckpointMismatchError(
            f"the rows in {folder} belong to {manifest.owner}, and this is {owner}: it would read them in place of its own. "
            "Give each stream a folder of its own; or remove this one, if its rows are no longer needed"
        )


def read_manifest(folder: str) -> Manifest | None:
    """Return the manifest of a folder, None if it has none."""
    path = Path(folder, _NAME)
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if values["version"] != _VERSION:
            raise ValueError(
                f"it is of version {values['version']}; this version of the software reads version {_VERSION}"
            )
        chunks = tuple(Chunk(*chunk) for chunk in values["chunks"])
        return Manifest(values["id"], tuple(values["fields"]), chunks, values["consumed"], values["owner"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpoutError(
            f"{path} cannot be read as the manifest of a DataFrame's rows: {describe(error)}. Restore it, or begin again "
            "with a new folder, a new log_dir and empty states"
        ) from error


def write_manifest(folder: str, id_: str, fields: Fields, chunks: Sequence[Chunk], owner: str = "") -> Manifest:
    """Write the manifest of a folder and return it; if another process was faster, return that one's and delete these rows.

    The rows of others stay: a driver that was replaced does not know which ones its successor is writing.
    """
    made = Manifest(id_, fields_as_text(fields), tuple(chunks), owner=owner)
    with suppress(FileExistsError):
        _put(folder, made)
    sync_folder(folder)
    manifest = read_manifest(folder) or made
    if manifest.id != id_:
        shutil.rmtree(made.rows_folder(folder), ignore_errors=True)
    return manifest


def _put(folder: str, manifest: Manifest) -> None:
    """Write a manifest where there is none; `FileExistsError` if there is one."""
    new, path = _written(folder, manifest), Path(folder, _NAME)
    try:
        path.hardlink_to(new)  # it is there whole or not at all, and unlike a rename this fails if there is one
    except FileExistsError:
        raise
    except OSError:  # no hard links here, as on many shared folders: a crash in this instant leaves one that is cut
        _write(path, new.read_text(encoding="utf-8"))
    finally:
        new.unlink(missing_ok=True)


def remove_others(folder: str, id_: str) -> None:
    """Delete the rows of starts that ended before they had written a manifest, once a log has committed rows of this one."""
    for other in Path(folder).glob(f"{_ROWS}*"):
        if other.name != _ROWS + id_:
            shutil.rmtree(other, ignore_errors=True)


def remove_rows(folder: str, manifest: Manifest) -> None:
    """Delete the chunks, because all are committed; first the manifest says so, for a later start."""
    if not manifest.consumed:
        _written(folder, replace(manifest, consumed=True)).replace(Path(folder, _NAME))
        sync_folder(folder)
    shutil.rmtree(manifest.rows_folder(folder), ignore_errors=True)


def _written(folder: str, manifest: Manifest) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f".{_NAME}.{uuid.uuid4().hex}")
    _write(path, json.dumps({"version": _VERSION, **vars(manifest)}))
    return path


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
