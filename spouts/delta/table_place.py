"""Where a table is, and its files: a local folder, or an object store through delta-rs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from trident.errors import SourceAwayError, SpoutError
from trident.extras import needs_package
from trident.object_stores import is_unanswered, short
from trident.redaction import redacted

if TYPE_CHECKING:
    from deltalake import DeltaTable


def delta_rs() -> Any:
    """Return the package `deltalake`."""
    with needs_package("a Delta source", "delta", "deltalake"):
        import deltalake
        import deltalake.exceptions
    return deltalake


class TablePlace:
    """A path or URL, with the settings of its object store.

    `uri`: a folder, a `file://` URL, or the URL of an object store.
    `storage_options`: as delta-rs has them.
    `name`, `is_local`: for messages, without secrets; whether it is a folder.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None) -> None:
        self.name = redacted(uri)
        self._options = None if storage_options is None else dict(storage_options)
        self.is_local = "://" not in uri or uri.startswith("file://")
        local = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
        self._uri = str(Path(local).expanduser().absolute()) if self.is_local else uri

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_files"}

    @cached_property
    def _files(self) -> pafs.FileSystem:
        if self.is_local:
            return pafs.SubTreeFileSystem(self._uri, pafs.LocalFileSystem())
        delta_rs()
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self._uri, self._options))

    def table(self, version: int | None = None) -> DeltaTable:
        """Open the table at a version (None: the newest); `SpoutError` if there is none, or that is gone."""
        package = delta_rs()
        try:
            table: DeltaTable = package.DeltaTable(self._uri, version=version, storage_options=self._options)
        except package.exceptions.TableNotFoundError as error:
            raise SpoutError(
                f"there is no Delta table at {self.name}: {short(error)}. Correct the path, or create it"
            ) from error
        except (package.exceptions.DeltaError, OSError, ValueError) as error:
            at = "" if version is None else f" at version {version}"
            raise not_read(f"the Delta table {self.name} cannot be opened{at}", error) from error
        return table

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Return what is another one as soon as a file was replaced; None if it is not there."""
        with self.asked(path):
            (info,) = self._files.get_file_info([path])
        return None if info.type is pafs.FileType.NotFound else (info.mtime_ns or 0, info.size or 0)

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if it is not there."""
        with self.asked(path):
            try:
                with self._files.open_input_file(path) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        with self.asked(folder):
            return [info.base_name for info in self._files.get_file_info(pafs.FileSelector(folder))]

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Turn what file systems and delta-rs raise into errors: no answer is not the answer that nothing is there."""
        try:
            yield
        except (delta_rs().exceptions.DeltaError, OSError) as error:
            raise not_read(f"{what} of the Delta table {self.name} cannot be read", error) from error

    def open(self, path: str) -> pa.NativeFile:
        """Open a data file."""
        return self._files.open_input_file(unquote(path))


def not_read(what: str, error: Exception) -> SpoutError:
    """Return the error that says what could not be read: `SourceAwayError` if the object store is away."""
    return (SourceAwayError if is_unanswered(error) else SpoutError)(f"{what}: {short(error).strip(' .')}")
