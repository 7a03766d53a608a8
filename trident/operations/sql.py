"""SQL text as expressions: `"euros > 1 and shop in ('Oslo')"`, in Spark's dialect, read by sqlglot.

A text means what it means in Spark with ANSI mode and its session in UTC, or it is refused, or a tuple fails: each function is
compared with Spark over awkward values. docs/streams.md has a table of what differs on purpose.
"""

from __future__ import annotations

from trident.errors import TopologyError
from trident.extras import needs_package
from trident.operations.expressions import Expression
from trident.operations.sql_nodes import SqlError, SqlNode, check_words
from trident.operations.sql_rules import RULES, SQL_FUNCTIONS

__all__ = ["SQL_FUNCTIONS", "named_sql", "sql"]


def sql(text: str) -> Expression:
    """Return the expression that SQL text stands for: `select("shop", total=sql("price * n"))`; `where` takes the text itself.

    Raises
    ------
    TopologyError
        It is not SQL, or uses something that no expression covers.
    """
    name, expression = named_sql(text)
    if name is not None:
        raise TopologyError(f"{text!r} names its column {name!r}; give it to select as it is, select({text!r})")
    return expression


def named_sql(text: str) -> tuple[str | None, Expression]:
    """Return the name that an SQL text gives with `AS`, None if it gives none, and its expression."""
    with needs_package("SQL text", "sql"):
        import sqlglot
        from sqlglot.errors import SqlglotError
    try:
        check_words(text, sqlglot.tokenize(text, read="spark"), SQL_FUNCTIONS)
        node = SqlNode(sqlglot.parse_one(text, read="spark"), RULES)
        if node.kind != "Alias":
            return None, node.expression()
        named = str(node.take("alias").name), node.of("this")
        node.end()
    except SqlglotError as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise TopologyError(f"{text!r} is not an SQL expression: {said}") from None
    except SqlError as error:
        raise TopologyError(f"{text!r}: {error}") from None
    return named
