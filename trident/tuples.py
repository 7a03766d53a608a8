"""TridentTuple, what user code sees of a row, and the collector that it emits to."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from trident.errors import TopologyError
from trident.fields import Fields

T = TypeVar("T")


class TypedValues(Sequence[Any]):
    """Getters that check the type of a value, for tuples whose `self[index]` takes an index or a field's name."""

    __slots__ = ()

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return a value by index or by field name."""

    def get_value_by_field(self, name: str) -> Any:
        """Return the value of a field."""
        return self[name]

    def get_long(self, index: int | str) -> int | None:
        """Return an integer value (None stays None); TypeError for anything else."""
        return self._value_of_type(index, int)

    get_integer = get_long

    def get_double(self, index: int | str) -> float | None:
        """Return a floating-point value (None stays None); TypeError for anything else."""
        return self._value_of_type(index, float)

    def get_string(self, index: int | str) -> str | None:
        """Return a text value (None stays None); TypeError for anything else."""
        return self._value_of_type(index, str)

    def get_boolean(self, index: int | str) -> bool | None:
        """Return a truth value (None stays None); TypeError for anything else."""
        return self._value_of_type(index, bool)

    def get_binary(self, index: int | str) -> bytes | None:
        """Return a binary value (None stays None); TypeError for anything else."""
        return self._value_of_type(index, bytes)

    def _value_of_type(self, index: int | str, type_: type[T]) -> T | None:
        value: T | None = self[index]
        if value is None or (isinstance(value, type_) and (type_ is bool or not isinstance(value, bool))):
            return value
        raise TypeError(f"value {index!r} of {self!r} is {type(value).__name__}, not {type_.__name__}")


class TridentTuple(TypedValues):
    """The values of one row, by index, by field name (`tuple["word"]`) or by typed getter (`tuple.get_long(0)`).

    Equal to a plain tuple or list of the same values. `TopologyError`: there are more values than fields, or fewer.
    """

    __slots__ = ("_fields", "_values")

    def __init__(self, fields: Fields, values: tuple[Any, ...]) -> None:
        if len(values) != len(fields.names):
            raise TopologyError(f"{len(values)} values {values!r} for the {len(fields)} fields {list(fields.names)}")
        self._fields, self._values = fields, values

    @property
    def fields(self) -> Fields:
        """The names (and types) of the values."""
        return self._fields

    @property
    def values(self) -> tuple[Any, ...]:
        """All values, in field order."""
        return self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._values[self._fields.position(index)]
        return self._values[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TridentTuple):
            return self._values == other._values
        return isinstance(other, (tuple, list)) and self._values == tuple(other)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return "[" + ", ".join(f"{n}={v!r}" for n, v in zip(self._fields.names, self._values, strict=True)) + "]"


class TridentCollector(Protocol):
    """Where user code puts what it emits."""

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one list of values, one per output field."""
