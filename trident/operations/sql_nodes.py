"""How a tree of sqlglot's is read: part by part, and what no rule takes is refused.

sqlglot knows more of SQL than there are expressions for, and the words of other dialects. So a text is read only if each of its
functions is one that is compared with Spark, and each part of each node was asked for by the rule of that node.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trident.moments import MOMENTS
from trident.operations.expressions import Expression

Rule = Callable[["SqlNode"], Expression]


class SqlError(Exception):
    """What there is no expression for."""


class SqlNode:
    """A node of sqlglot's tree. `take` gives a part of it; a part that no rule takes is an error."""

    def __init__(self, node: Any, rules: Mapping[str, Rule]) -> None:
        self.kind = type(node).__name__
        self._node, self._rules = node, rules
        self._waiting = [name for name, value in node.args.items() if value not in (None, False, [])]

    def __str__(self) -> str:
        return str(self._node.sql(dialect="spark"))

    def take(self, *names: str) -> Any:
        """Return a part as it is, None if it is not there; of several names the first part that is there."""
        found = [self._node.args[name] for name in names if name in self._waiting]
        self._waiting = [name for name in self._waiting if name not in names]
        return found[0] if found else None

    def node(self, name: str) -> SqlNode:
        """Return a part that has parts of its own, which are taken too."""
        found = self.take(name)
        if found is None:
            raise SqlError(f"{self} takes more arguments")
        return self.inner(found)

    def nodes(self, name: str = "expressions") -> list[SqlNode]:
        return [self.inner(one) for one in self.take(name) or ()]

    def has(self, name: str) -> bool:
        return name in self._waiting

    def inner(self, part: Any) -> SqlNode:
        return SqlNode(part, self._rules)

    def without_date_cast(self, name: str) -> Expression:
        """Return the expression that a part is without the cast to a date that sqlglot has put around it."""
        made = self.node(name)
        return made.of("this") if made.kind == "TsOrDsToDate" and not made.has("safe") else made.expression()

    def of(self, name: str) -> Expression:
        return self.node(name).expression()

    def all_of(self, name: str = "expressions") -> list[Expression]:
        return [one.expression() for one in self.nodes(name)]

    def literal(self, name: str, otherwise: Any = None) -> Any:
        """Return the plain value that a part is; `otherwise` if it is not there and there is one."""
        if otherwise is not None and not self.has(name):
            return otherwise
        found = self.node(name).plain()
        if found is None:  # here None would be a part that is not there
            raise SqlError(f"{self} is always null, because its {name} is")
        return found

    def plain(self) -> Any:
        made = self.expression()
        if made.kind != "lit":
            raise SqlError(f"{self} has to be a plain value")
        return made.options[0]

    def expression(self) -> Expression:
        rule = self._rules.get(self.kind)
        if rule is None:
            raise SqlError(f"there is no expression for {self} here")
        made = rule(self)
        self.end()
        return made

    def end(self) -> None:
        for name in self._waiting:
            value = self._node.args[name]
            if isinstance(value, (bool, str, list)):
                raise SqlError(f"there is no expression for {name} {value}, of {self}")
            starts = [node.meta["start"] for node in value.walk() if "start" in node.meta]
            place = f" at character {min(starts) + 1}" if starts else ""
            raise SqlError(f"there is no expression for {name} {value.sql(dialect='spark')}{place}, of {self}")


def check_words(text: str, tokens: list[Any], functions: Collection[str]) -> None:
    """Refuse a function that is none of those that are compared with Spark, and what Spark reads as another text."""
    known = {*functions, *_NO_FUNCTIONS}
    kinds = [*(token.token_type.name for token in tokens), "", ""]
    for token, kind, follower, third in zip(tokens, kinds, kinds[1:], kinds[2:], strict=False):
        raw = text[token.start : token.end + 1]
        name = raw.strip("`").lower()
        if follower == "L_PAREN" and _NAME.fullmatch(name) and name not in known:
            raise SqlError(no_such(name, functions))
        if (follower, third) == ("STRING", "DCOLON") and name in (*MOMENTS, "timestamp_ltz"):
            raise SqlError(
                f"Spark casts the {name}, not its text: put parentheses around it at character {token.start + 1}"
            )
        if (name, follower) == ("at", "TIME"):
            raise SqlError("Spark has no AT TIME ZONE: write from_utc_timestamp(at, 'Europe/Berlin')")
        if kind == "STRING" and (strange := _STRANGE.search(raw)):
            raise SqlError(f"Spark reads {strange[0]} in the text at character {token.start + 1} in its own way")
        if kind == follower == "STRING" and text[token.end + 1] in "'\"":
            raise SqlError(f"two texts in one at character {token.start + 1}: a quote in a text is \\'")


def check_signs(tokens: list[Any]) -> None:
    """Refuse what sqlglot drops: a + before what is no number, of which Spark makes one, and a comma without an argument."""
    kinds = ["L_PAREN", *(token.token_type.name for token in tokens), ""]
    for token, before, kind, following in zip(tokens, kinds, kinds[1:], kinds[2:], strict=False):
        if kind == "COMMA" and (before in ("L_PAREN", "COMMA") or following == "R_PAREN"):
            raise SqlError(f"an argument is missing beside the comma at character {token.start + 1}")
        if kind == "PLUS" and before in _OPERATORS and following != "NUMBER":
            raise SqlError(
                f"there is no expression for the + without a number at character {token.start + 1}: leave it out"
            )


def check_order(tokens: list[Any]) -> None:
    """Refuse comparisons beside each other that Spark reads in another order than sqlglot.

    Spark computes comparisons from left to right, and IS, IN, LIKE and BETWEEN of all that stands before them. In sqlglot `<`
    comes before `=`, and these before either.
    """
    outer: list[tuple[str, bool]] = []
    operators = ""  # between two words such as AND, within the same parentheses: = and <, P for another one
    is_between = False
    for token in tokens:
        kind = token.token_type.name
        if kind in _OPENING:
            outer.append((operators, is_between))
            operators, is_between = "", False
        elif kind in _CLOSING and outer:
            operators, is_between = outer.pop()
        elif kind in _PARTING and not (kind == "AND" and is_between):
            operators = ""
        else:
            operators += _ORDERED.get(kind, "")
            is_between = kind == "BETWEEN" or (is_between and kind != "AND")
        if _MIXED.search(operators):
            raise SqlError(
                f"Spark reads comparisons before character {token.end + 2} in another order: put parentheses there"
            )


_OPENING, _CLOSING = frozenset({"L_PAREN", "CASE"}), frozenset({"R_PAREN", "END"})
_PARTING = frozenset({"AND", "OR", "COMMA", "WHEN", "THEN", "ELSE", "ALIAS"})
_ORDERED = {
    **dict.fromkeys(("EQ", "NEQ"), "="), **dict.fromkeys(("LT", "LTE", "GT", "GTE"), "<"),
    **dict.fromkeys(("NULLSAFE_EQ", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN"), "P"),
}  # fmt: skip
_MIXED = re.compile("=<|P.|.P")
_OPERATORS = {*_OPENING, *_PARTING, *_ORDERED, "NOT", "PLUS", "DASH", "STAR", "SLASH", "MOD", "DPIPE"}


def no_such(name: str, functions: Collection[str]) -> str:
    near = difflib.get_close_matches(name, functions, n=1, cutoff=0.75)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(functions)}"
    return f"there is no function {name} here{hint}"


_NAME = re.compile(r"\w+")
_STRANGE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?!u[0-9a-fA-F]{4})[^\\nrtb'\"%_])")
_NO_FUNCTIONS = frozenset({
    "and", "as", "between", "case", "decimal", "else", "from", "in", "is", "like", "not", "or", "regexp", "rlike", "then",
    "when",
})  # fmt: skip
"""Words before a parenthesis that are no functions."""


def spark_pattern(pattern: str) -> str:
    """Return a pattern of RE2 that finds what Java's does; `SqlError` if it has what RE2 lacks or reads differently."""
    if not isinstance(pattern, str):
        raise SqlError(f"a regular expression is a text, not {pattern!r}")
    made, at = [], 0
    while at < len(pattern):
        unit = _UNIT.match(pattern, at)
        times = unit and _TIMES.match(pattern, unit.end())
        if not unit or not times or (unit[0] == "(?i)" and at):
            raise SqlError(
                f"{pattern!r} is not a regular expression that means the same in RE2, from character {at + 1} on"
            )
        in_re2 = unit[0].replace(r"\s", _SPACES) if unit[0].startswith("[") else _DIFFERENT.get(unit[0], unit[0])
        made.append(in_re2 + times[0])
        at = times.end()
    return "".join(made)


def spark_replacement(pattern: str, replacement: str) -> str:
    r"""Return the replacement of RE2, with `\1`, for one of Java's, with `$1`; `SqlError` if Spark replaces in its own way."""
    if not isinstance(replacement, str):
        raise SqlError(f"a replacement is a text, not {replacement!r}")
    if re.search(pattern, "") is not None:
        raise SqlError(f"the regular expression {pattern!r} matches an empty text, which cannot be replaced")
    groups = re.compile(pattern).groups
    if _REPLACEMENT.fullmatch(replacement) is None or any(int(n) > groups for n in re.findall(r"\$(\d)", replacement)):
        raise SqlError(f"the replacement {replacement!r} has an unknown group, or a $ or \\ without a meaning")
    return _ESCAPED.sub(lambda found: _in_re2(found[0]), replacement)


def _in_re2(found: str) -> str:
    if found[0] == "$":
        return f"\\{found[1]}"
    return "\\\\" if found[1] == "\\" else found[1]


_SPACES = r"\t-\r "
_DIFFERENT = {".": "[^\n\r\x85\u2028\u2029]", r"\s": f"[{_SPACES}]", r"\S": f"[^{_SPACES}]"}
_ESCAPE = r"\\[dDwWtnrf^$|?*+()\[\]{}\\/.,:;'\"#@&%!=<>~-]"
_UNIT = re.compile(
    rf"{_ESCAPE}|\\[sSbB]|[.|^$)]|\((?!\?)|\(\?(?::|i\))|\[\^?(?:[^\[\]\\^&]|(?<!\[)\^|&(?!&)|{_ESCAPE}|\\s)+\]|[^\\.*+?()\[\]{{}}|^$]"
)
_TIMES = re.compile(r"(?:(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??)?(?![*+?{])")
"""A piece of a pattern that Java and RE2 read alike, but for white space and what `.` stands for, and how often it is found."""
_ESCAPED = re.compile(r"\$\d|\\.", re.DOTALL)
_REPLACEMENT = re.compile(r"(?:[^$\\]|\$\d(?!\d)|\\[$\\])*", re.DOTALL)
