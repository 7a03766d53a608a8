"""Packages that only some uses need: if one is missing, the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trident.errors import EnvironmentProblem

__all__ = ["needs_package"]


@contextmanager
def needs_package(what: str, package: str, extra: str, module: str = "") -> Iterator[None]:
    """Import a package inside of this; `EnvironmentProblem` if it is missing.

    Parameters
    ----------
    what, package, extra
        For the message: "a log in ZooKeeper", the package's name, and the extra of this package that brings it.
    module
        The name that the package is imported by, if it is not its own; an import that fails for another module raises
        that error.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != (module or package):
            raise
        raise EnvironmentProblem(
            f"{what} needs the package {package} ({error}); pip install 'trident-spark[{extra}]'"
        ) from error
