"""Packages that only some uses need: if one is missing, the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trident.errors import EnvironmentProblem

__all__ = ["needs_package"]


_OURS = ("", "trident", "states", "spouts")


@contextmanager
def needs_package(what: str, extra: str, package: str = "", module: str = "") -> Iterator[None]:
    """Import packages inside of this; `EnvironmentProblem` if one is missing.

    Parameters
    ----------
    what, extra
        For the message: "a log in ZooKeeper", and the extra of this package that brings what is missing.
    package, module
        The package, and the name that it is imported by, if it is not its own: an import that fails for another module
        raises that error. By default any package that is missing is meant.
    """
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS or (package and missing != (module or package)):
            raise
        raise EnvironmentProblem(
            f"{what} needs the package {package or missing} ({error}); pip install 'trident-spark[{extra}]'"
        ) from error
