"""The errors where versions of a table are gone: what was read, what is there, and the choices."""

from __future__ import annotations

from trident.errors import ReplayMismatchError, SpoutError

__all__ = ["cleaned_up", "not_there", "other_table"]


def not_there(table: str, version: int, newest: int) -> SpoutError:
    """Say that the first version to be read is not in the log."""
    if version > newest:
        return SpoutError(
            f"starting_version={version}, but the newest version of the Delta table {table} is {newest}. Give a version that "
            "is there, the next one, 'latest' or 'earliest'"
        )
    return SpoutError(
        f"starting_version={version} of the Delta table {table} is no longer in its log, whose newest version is {newest}: the "
        "log was cleaned up. Give a later one, or 'earliest', which begins with the table as it is; a longer "
        "delta.logRetentionDuration keeps more"
    )


def cleaned_up(table: str, version: int) -> SpoutError:
    """Say that a version is gone that was not read yet."""
    return SpoutError(
        f"version {version} of the Delta table {table} was not read to its end and is no longer in its log: the log was "
        "cleaned up. Restore its entry and start again; or begin with a new log_dir, starting_version='earliest' (the table as "
        "it is) and empty states. A longer delta.logRetentionDuration leaves a stream more time"
    )


def other_table(table: str, read_id: str, read_version: int, version: int, id_: str) -> ReplayMismatchError:
    """Say that what is at the place of a table is not what was read."""
    replaced = (
        "" if id_ != read_id else ", or a writer that is not atomic had not finished this version when it was read"
    )
    return ReplayMismatchError(
        f"the Delta table {table} was read up to version {read_version} as table {read_id}, and is another one now (version "
        f"{version}, table {id_}): it was made again, or restored from a copy{replaced}. Put back the table that was read; or "
        "begin with a new log_dir and empty states"
    )
