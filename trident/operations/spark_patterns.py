"""Regular expressions of SQL text: Spark has Java's, we RE2's; what the two read differently is written again or refused."""

from __future__ import annotations

import re

from trident.operations.sql_nodes import SqlError


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
        made.append(_written(unit[0]) + times[0])
        at = times.end()
    return "".join(made)


def _written(unit: str) -> str:
    if unit.startswith("["):
        return unit.replace(r"\s", _SPACES)
    return {".": f"[^{_LINE_ENDS}]", r"\s": f"[{_SPACES}]", r"\S": f"[^{_SPACES}]"}.get(unit, unit)


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
_LINE_ENDS = "\n\r\x85\u2028\u2029"
_ESCAPE = r"\\[dDwWtnrf^$|?*+()\[\]{}\\/.,:;'\"#@&%!=<>~-]"
_UNIT = re.compile(
    rf"{_ESCAPE}|\\[sSbB]|[.|^$)]|\((?!\?)|\(\?(?::|i\))|\[\^?(?:[^\[\]\\^&]|(?<!\[)\^|&(?!&)|{_ESCAPE}|\\s)+\]|[^\\.*+?()\[\]{{}}|^$]"
)
_TIMES = re.compile(r"(?:(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??)?(?![*+?{])")
"""A piece of a pattern that Java and RE2 read alike, but for white space and what `.` stands for, and how often it is found."""
_ESCAPED = re.compile(r"\$\d|\\.", re.DOTALL)
_REPLACEMENT = re.compile(r"(?:[^$\\]|\$\d(?!\d)|\\[$\\])*", re.DOTALL)
