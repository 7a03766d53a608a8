"""Operations over Arrow arrays: called once for many tuples instead of once for each.

A function must treat every tuple by itself: how many tuples it is given at once is not defined, and where it raises it is
called again with halves of them, down to the tuples that are to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.operations.interfaces import Operation
from trident.operations.names import function_name


class ArrowFunction(Operation):
    """A function over Arrow arrays; subclass it where it needs `prepare`, else write a function with `arrow_function`.

    Attributes
    ----------
    output
        What it gives: names and types.
    flat
        False: one output row per input row, in order. True: any number.
    """

    output: Fields = Fields()
    flat: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def apply(self, *columns: Any) -> Any:
        """Process many tuples.

        Parameters
        ----------
        columns
            In `each` a `pyarrow.Array` per input field; in `map` and `flat_map` one `pyarrow.RecordBatch`.

        Returns
        -------
        An array, or for several fields a tuple of arrays, a struct array or a record batch. If `flat`: a list array with a
        list per tuple, or `(parents, columns)` where `parents` says for each output row which input row it comes from; in
        `flat_map` also plain columns of any length.
        """
        raise NotImplementedError


class ArrowFilter(Operation):
    """A filter over Arrow arrays; subclass it where it needs `prepare`, else write a function with `arrow_filter`."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def mask(self, *columns: Any) -> Any:
        """Return a boolean array with a value per tuple; false and null drop it.

        `columns` are arrays of the given fields; in `filter(predicate)`, without fields, one `pyarrow.RecordBatch`.
        """
        raise NotImplementedError


class _Decorated(Operation):
    """A decorated function, which may still be called as if it were not."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return function_name(self.function)

    def __call__(self, *columns: Any) -> Any:
        return self.function(*columns)


class _PlainArrowFunction(_Decorated, ArrowFunction):
    def __init__(self, function: Callable[..., Any], output: Fields, flat: bool) -> None:
        self.function, self.output, self.flat = function, output, flat

    apply = _Decorated.__call__


class _PlainArrowFilter(_Decorated, ArrowFilter):
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    mask = _Decorated.__call__


def arrow_function(output: FieldsLike, flat: bool = False) -> Callable[[Callable[..., Any]], ArrowFunction]:
    """Make a function over Arrow arrays an operation for `each`, `map` and `flat_map`.

    Parameters
    ----------
    output
        The fields that it gives, with types: `"length: int"`. The names may be changed where it is used.
    flat
        Whether it gives any number of rows per tuple; see `ArrowFunction.apply`.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> from trident.operations import arrow_function
    >>> @arrow_function("length: int")
    ... def length(word):
    ...     return pc.utf8_length(word)
    >>> length.output.types
    ('int',)
    """
    fields = Fields(output) if not callable(output) else Fields()
    if not len(fields) or None in fields.types:
        raise TopologyError(
            f"arrow_function takes the fields that the function gives, each with its type, got {output!r}; "
            'write @arrow_function("length: int")'
        )

    def decorate(function: Callable[..., Any]) -> ArrowFunction:
        return _PlainArrowFunction(_called("arrow_function", function), fields, flat)

    return decorate


def arrow_filter(function: Callable[..., Any]) -> ArrowFilter:
    """Make a function that returns a boolean array a filter: `@arrow_filter`, without parentheses."""
    return _PlainArrowFilter(_called("arrow_filter", function))


def _called(decorator: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function) or isinstance(function, type):
        raise TopologyError(f"{decorator} decorates a function, got {function!r}")
    return function
