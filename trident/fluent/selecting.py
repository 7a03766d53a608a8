"""Expressions on streams: `select` and `where`."""

import re
from typing import Any, Self

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.base import StreamBase, is_fields
from trident.graph import FilterNode, SelectNode
from trident.operations.expression_types import type_of
from trident.operations.expressions import Expression, col
from trident.operations.sql import named_sql, sql


def is_sql(field: Any) -> bool:
    return isinstance(field, str) and _NAMED.search(field) is not None


_NAMED = re.compile(r"\sas\s+(\w+|`[^`]+`)\s*$", re.IGNORECASE)


def sql_texts(fields: tuple[Any, ...]) -> tuple[list[tuple[str, Expression]], tuple[Any, ...]]:
    texts = [one for one in fields if is_sql(one)]
    made = []
    for text in texts:
        name, expression = named_sql(text)
        assert name is not None, text
        made.append((name, expression))
    return made, tuple(one for one in fields if one not in texts)


class Selecting(StreamBase):
    """The calls of `Stream` that take expressions over its fields."""

    def select(self, *fields: FieldsLike, **expressions: Any) -> Self:
        """Replace every tuple: the named fields, then each expression under its name. `"*"` names all fields.

        SQL text with a name counts as an expression: `select("shop", "price * n AS total")`.

        Examples
        --------
        `select("word", upper=col("word").upper())`, `select("*", total=col("price") * col("n"))`
        """
        texts, rest = sql_texts(fields)
        columns = {name: col(name) for name in self._selected_names(rest)}
        for name, given in [*texts, *expressions.items()]:
            if name in columns:
                raise self._wrong(f"select names field {name!r} twice")
            if not isinstance(given, Expression):
                raise self._wrong(
                    f"{name}={given!r} is not an expression; use col(name) for a field, lit(value) for a value"
                )
            columns[name] = given
        if not columns:
            raise self._wrong("select needs at least one field")
        types = [self._type_of(name, expression) for name, expression in columns.items()]
        exploded = [name for name, expression in columns.items() if expression.kind == "explode"]
        if len(exploded) > 1:
            raise self._wrong(f"select explodes one column, not {exploded}")
        return self._then("select", SelectNode, Fields.of(list(columns), types), expressions=tuple(columns.values()))

    def where(self, condition: Expression | str) -> Self:
        """Keep the tuples for which a condition is true: `where(col("n") > 3)`; false and null drop them.

        A text is SQL: `where("n > 3 and shop in ('Oslo')")`.
        """
        stream = self.get_name()
        if isinstance(condition, str):
            condition = sql(condition)
        if not isinstance(condition, Expression):
            raise TopologyError(f"stream {stream!r}: where takes an expression such as col('n') > 3, got {condition!r}")
        type_ = type_of(condition, self.fields, stream)
        if type_ != "boolean":
            raise TopologyError(f"stream {stream!r}: where takes a boolean, but {condition!r} is {type_}")
        inputs = self.fields.select(list(dict.fromkeys(condition.fields())))
        return self._then("where", FilterNode, self.fields, inputs=inputs, filter=condition)

    def _selected_names(self, fields: tuple[Any, ...]) -> list[str]:
        names: list[str] = []
        for one in fields:
            if not is_fields(one):
                raise self._wrong(
                    f"select takes names of fields, and expressions with a name (select(name={one!r})); got {one!r} without one"
                )
            names += self.fields.names if one == "*" else self._select(one).names
        double = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if double is not None:
            raise self._wrong(f"select names field {double!r} twice")
        return names

    def _type_of(self, name: str, expression: Expression) -> str:
        stream = self.get_name()
        if expression.kind != "explode":
            found = type_of(expression, self.fields, stream)
            if found == "void":
                raise TopologyError(f"stream {stream!r}: {name}={expression!r} has no type; give it one with cast")
            return found
        found = type_of(expression.operands[0], self.fields, stream)
        if not found.startswith("array<"):
            raise TopologyError(
                f"stream {stream!r}: cannot compute {expression!r}: explode takes an array, but "
                f"{expression.operands[0]!r} is {found}"
            )
        return found[len("array<") : -1]
