"""SQL texts at random: each function and operator of `trident.operations.sql` over columns with awkward values."""

import datetime as dt
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from trident import Fields

FIELDS = Fields(
    "a: int, b: bigint, h: smallint, x: double, y: float, m: decimal(10,2), k: decimal(38,18), s: string, t: string, "
    "n: string, j: string, p: boolean, q: boolean, d: date, u: timestamp, v: timestamp_ntz, w: struct<shop:string,euros:bigint>"
)
NAN, INF = float("nan"), float("inf")
DAYS = ["0001-01-01", "1582-10-15", "1899-12-31", "1900-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "2024-12-30",
        "2026-03-29", "2026-10-25", "9999-12-31"]  # fmt: skip
TIMES = ["00:00:00", "01:59:59.999999", "02:30:00", "12:30:59.5", "23:59:59.000001", "23:00:00.12"]
TEXTS = ["", " ", "a", "aa", "ab c", "Abc", "xxaxx", "\ta \n", "  two  ", "ß", "straße", "İstanbul", "ΟΔΟΣ", "ﬁn", "👍a👍",
         "e\u0301",
         "a_b%c", "a\\b", "$1", "100", "a\nb", "ŉ", "\u00a0a\u00a0", "z" * 40, "\u2028", "日本"]  # fmt: skip
NUMBERS = ["5", " 5 ", "+5", "-0", "0x1F", "abc", "", "NaN", "nan", "-Infinity", "inf", "1e3", "007", "9223372036854775807",
           "9223372036854775808", "-128", "5 5", "1_000", "+-5", "--5", "\t12\n", "-nan", "nan(1)"]  # fmt: skip
JSONS = ['{"a": {"b": [1, {"c": "x"}]}}', '{"a": 1.0, "b": 1e3, "c": [1.50, 2e5, 1e16, -0.0]}', '{"a": "é\\u00e9\\ty"}',
         "no json", "",
         '{"a": null}', '{"a": 1, "a": 2}', '{"a": [true, false, {"b": "q\\"", "c": null}]}', "[1, 2]",
                  '{"a": 12345678901234567890123}',
         '{"a": "1', '{"A": 1}', '{"a": {}}', '{"a": {"b": 1e-7, "c": "\\n"}}', '{"a": 01}', '{"a": NaN}']  # fmt: skip
AWKWARD: dict[str, list[Any]] = {
    "a": [0, 1, -1, 7, -7, 2**31 - 1, -(2**31)],
    "b": [0, 1, -1, 3, 45, 55, 2**62, 2**53 + 1, 2**63 - 1, -(2**63), 10**15 + 5],
    "h": [0, 1, -32768, 32767],
    "x": [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1.005, 2.675, 0.125, 1e-7, 1e7, 9999999.5, 1e10, 1e15 + 0.3, 1e22,
             1e300, 5e-324, NAN,
          INF, -INF, 123456.785, 0.1, 90071992547409.925, 0.001, 9.995e-4],
    "y": [0.0, -0.0, 0.5, 0.25, 1.5, 3.25, 1e10, -1e-5, 16777216.0, NAN, INF, -INF, 0.1, 0.35, 0.15],
    "m": [*map(Decimal, ["0", "0.01", "-0.01", "1.25", "-2.05", "99999999.99", "-99999999.99", "0.50", "1.50", "10"])],
    "k": [*map(Decimal, ["0", "1", "0.000000000000000001", "-0.0000001", "12345678901234567890.123456789012345678",
                         "-99999999999999999999.999999999999999999", "0.5"])],
    "s": TEXTS, "t": TEXTS, "n": NUMBERS, "j": JSONS, "p": [True, False], "q": [True, False],
    "d": [*map(dt.date.fromisoformat, DAYS)],
    "u": [dt.datetime.fromisoformat(f"{day}T{time}+00:00") for day in DAYS for time in TIMES],
    "v": [dt.datetime.fromisoformat(f"{day}T{time}") for day in DAYS for time in TIMES],
    "w": [{"shop": "oslo", "euros": 3}, {"shop": None, "euros": None}],
}  # fmt: skip

LEAVES: dict[str, list[str]] = {
    "big": ["b", "b", "cast(a as bigint)", "3000000000", "7L", "w.euros"],
    "int": ["a", "b", "h", "1", "-1", "9223372036854775807", "2147483648"],
    "intlit": ["0", "1", "-1", "7", "10", "100000"],
    "double": ["x", "x", "x", "cast(y as double)", "1.5D", "1e3", "double('NaN')", "-0.5D"],
    "finite": ["if(abs(x) < 1e15, x, 2.5D)", "if(abs(y) < 1e9, y, 0)", "-0.5D", "1e3"],
    "float": ["x", "y", "y"],
    "dec": ["m", "m", "1.5", "0.005", "-99999999.99", ".5", "2BD", "cast(a as decimal(12,0))"],
    "long": ["k"],
    "num": ["a", "b", "x", "y", "m", "k", "h", "1", "0.1", "1.5", "2e0"],
    "numlit": ["0", "1", "0.1", "1.5", "0.5D", "1e7", "-0.0D", "0.125", "2.50"],
    "text": ["s", "t", "s", "'ab'", "''", "' \\t'", "'\\u00e9\\''", "w.shop"],
    "textlit": ["'a'", "''", "'ab'", "'ß'", "'👍'", "'\\t'", "' '", "'xy'", "'.'"],
    "number": ["n"],
    "json": ["j"],
    "bool": ["p", "q", "true"],
    "date": ["d", "date '2024-02-29'"],
    "time": ["u"],
    "ntz": ["v"],
    "pattern": ["'%'", "'a%'", "'%b'", "'_'", "'%\\\\%%'", "'a\\\\_b%'", "'%\\\\\\\\%'", "''", "'a_b'", "'%ß%'"],
    "regex": ["'a'", "'^a'", "'[a-c]+'", "'a|x'", "'\\\\s+'", "'.'", "'(a)(b)?'", "'\\\\d{2,3}'", "'[^a\\\\s]'", "'x*?a'",
             "'\\\\.'", "'\\\\S'",
              "'(?:a.)+'", "'\\\\w'"],
    "grouped": ["'(a)'", "'(x*)a'", "'a(b)?'", "'(.)b'", "'(\\\\s)'"],
    "new": ["'-'", "''", "'[$0]'", "'\\\\$'", "'a\\\\\\\\'"],
    "digits": ["0", "1", "2", "3", "-1", "-2", "5", "-18", "20"],
    "path": ["'$.a'", "'$.a.b'", "'$.a[0]'", "'$.a.b[1].c'", "'$[1]'", "'$.b'", "'$.c'", "'$.a[2]'"],
    "part": ["year", "quarter", "month", "mon", "week", "day", "dayofweek", "dow", "doy"],
    "clock": ["hour", "minute"],
    "modern": ["if(year(u) between 1900 and 2030, u, null)"],
    "zone": ["'UTC'", "'+05:30'", "'Europe/Berlin'", "'America/Lima'"],
    "unit": ["'year'", "'QUARTER'", "'mon'", "'mm'", "'week'", "'yyyy'", "'yy'", "'month'"],
    "fine": ["'day'", "'dd'", "'hour'", "'minute'", "'second'"],
    "sign": ["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"],
}  # fmt: skip

_OF_ANY = [  # what takes values of one type
    "coalesce({0}, {0})", "nvl({0}, {0})", "ifnull({0}, {0})", "nullif({0}, {0})", "greatest({0}, {0}, {0})",
    "least({0}, {0})", "if({bool}, {0}, {0})", "case when {bool} then {0} when {bool} then {0} else {0} end",
    "case {0} when {0} then {0} end",
]  # fmt: skip
_SAME = ["big", "double", "dec", "text", "date", "time", "ntz", "bool"]
_IS = [  # what tells something of values of one type
    "({0} {sign} {0})", "({0} between {0} and {0})", "({0} not between {0} and {0})", "({0} is null)", "({0} is not null)",
    "isnull({0})", "isnotnull({0})", "({0} is distinct from {0})", "({0} is not distinct from {0})",
]  # fmt: skip

RULES: list[tuple[str, str]] = [
    *[(kind, rule.replace("{0}", f"{{{kind}}}")) for kind in _SAME for rule in _OF_ANY],
    *[("bool", rule.replace("{0}", f"{{{kind}}}")) for kind in ["num", "float", *_SAME] for rule in _IS
      if "is distinct" not in rule],
    *[("big", f"({{big}} {sign} {{int}})") for sign in "+-*%"], ("big", "mod({big}, {int})"), ("big", "-({big})"),
    *[("double", f"({{double}} {sign} {{double}})") for sign in "+-*/%"], ("double", "({big} / {int})"),
    ("double", "-({double})"), *[("dec", f"({{dec}} {sign} {{dec}})") for sign in "+-*/%"],
    ("dec", "({dec} * {intlit})"), ("dec", "(m + b)"), ("dec", "-({dec})"), ("dec", "(m / a)"), ("dec", "(b % m)"),
    ("long", "(k / m)"), ("dec", "(k % 1)"), ("double", "(m * {double})"), ("double", "(y + x)"), ("big", "abs({big})"),
    ("double", "abs({double})"), ("dec", "abs({dec})"), ("float", "abs(y)"), ("int", "abs(a)"),
    ("double", "round({double}, {digits})"), ("double", "round({double})"), ("float", "round(y, {digits})"),
    ("big", "round({big}, {digits})"), ("int", "round(a, {digits})"), ("dec", "round({dec}, {digits})"),
    ("long", "round(k, {digits})"), *[("big", f"{name}({{finite}})") for name in ("floor", "ceil", "ceiling")],
    *[("dec", f"{name}({{dec}})") for name in ("floor", "ceil")], ("long", "floor(k)"), ("big", "ceil({big})"),
    ("int", "floor(h)"), ("bool", "({bool} and {bool})"), ("bool", "({bool} or {bool})"), ("bool", "(not {bool})"),
    ("bool", "(not {num} = {num})"), ("bool", "(! {num} < {num})"), ("bool", "({bool} is true)"),
    ("bool", "({bool} is not false)"), ("bool", "({bool} or {bool} and not {bool})"),
    ("bool", "({big} in ({intlit}, {intlit}))"), ("bool", "({float} not in ({numlit}, {numlit}))"),
    ("bool", "({dec} in ({numlit}, {intlit}))"), ("bool", "({double} in ({numlit}, {intlit}))"),
    ("bool", "({text} in ({textlit}, {textlit}))"), ("bool", "(a in ({numlit}, 7))"),
    ("bool", "({text} like {pattern})"), ("bool", "({text} not like {pattern})"), ("bool", "({text} rlike {regex})"),
    ("bool", "regexp_like({text}, {regex})"), ("bool", "contains({text}, {textlit})"),
    ("bool", "startswith({text}, {textlit})"), ("bool", "endswith({text}, {textlit})"),
    *[("text", f"{name}({{text}})") for name in ("upper", "ucase", "lower", "lcase", "trim", "ltrim", "rtrim", "btrim")],
    *[("text", f"trim({side} {{textlit}} from {{text}})") for side in ("both", "leading", "trailing", "")],
    ("text", "trim(leading from {text})"), ("text", "ltrim({textlit}, {text})"), ("text", "rtrim({textlit}, {text})"),
    ("text", "trim({textlit}, {text})"), ("text", "btrim({text}, {textlit})"),
    *[("int", f"{name}({{text}})") for name in ("length", "len", "char_length", "character_length")],
    ("text", "concat({text}, {text}, {text})"), ("text", "({text} || {text})"), ("text", "'a' 'b'"),
    ("text", "concat({text})"), ("text", "substring({text}, 2, 3)"), ("text", "substr({text}, 2)"),
    ("text", "substring({text} from 1 for 2)"), ("text", "left({text}, 2)"), ("text", "substring({text}, 9, 0)"),
    ("text", "replace({text}, {textlit}, {textlit})"), ("text", "replace({text}, {textlit})"),
    ("text", "regexp_replace({text}, {grouped}, {new})"), ("text", "regexp_replace({text}, '(a)(.)', '$2$1')"),
    ("text", "regexp_extract({text}, {grouped}, 0)"), ("text", "regexp_extract({text}, {grouped})"),
    ("text", "get_json_object({json}, {path})"), ("text", "(w).shop"),
    *[("text", f"cast({{{kind}}} as string)") for kind in ["big", "dec", "long", "bool", "date", "time", "ntz"]],
    *[("power", rule) for rule in ("cast({float} as string)", "cast({double} as string)", "string({double})")],
    ("big", "bigint({int})"), ("double", "double({float})"), ("int", "int({big})"), ("int", "smallint({int})"),
    ("int", "tinyint({int})"), ("bool", "boolean({int})"), ("float", "float({double})"), ("date", "date({time})"),
    *[("num", f"cast({{number}} as {type_})") for type_ in ("int", "bigint", "double", "tinyint", "float", "decimal(20,0)")],
    ("dec", "cast({finite} as decimal(20,3))"), ("dec", "cast(if(abs(y) < 1e9, y, 0) as decimal(20,6))"),
    ("dec", "cast(float(if(abs(y) < 1e9, y, 0)) as decimal(30,20))"), ("dec", "cast({big} as decimal(20,0))"),
    ("dec", "cast(m as decimal(5,2))"), ("double", "cast({dec} as double)"), ("double", "cast(k as double)"),
    ("double", "a::double"), ("int", "cast({bool} as int)"), ("bool", "cast({double} as boolean)"),
    ("int", "cast(floor({finite} / 7) as int)"), ("time", "cast({date} as timestamp)"),
    ("ntz", "cast({date} as timestamp_ntz)"), ("date", "cast({ntz} as date)"),
    ("bool", "cast(cast({bool} as string) as boolean)"), ("date", "to_date({time})"),
    ("time", "date_trunc({unit}, {time})"), ("time", "date_trunc({fine}, {time})"), ("date", "trunc({date}, {unit})"),
    *[(kind, f"{name}({{modern}}, {{zone}})") for kind, name in [("time", "from_utc_timestamp"), ("time", "to_utc_timestamp")]],
    ("ntz", "convert_timezone({zone}, {modern})"), ("date", "trunc({time}, {unit})"),
    ("int", "extract({part} from {date})"), ("int", "extract({clock} from {time})"),
    ("int", "date_part('dow', {time})"), ("int", "date_part('quarter', {date})"),
    *[("int", f"{name}({{date}})") for name in ("year", "quarter", "month", "day")],
    *[("int", f"{name}({{date}})") for name in ("dayofmonth", "dayofweek", "dayofyear", "weekofyear")],
    *[("int", f"{name}({{{kind}}})") for name in ("year", "hour", "minute", "second") for kind in ("time", "ntz")],
]  # fmt: skip
"""What a text may be: the kind of its value, and how it is written, with holes for values of a kind."""

FLAT: dict[str, list[str]] = {
    "flat": ["{both}", "{both}", "{both} and {both}", "{both} or not {both}", "{both} or {both} and {both}", "not {both}"],
    "both": ["{yes}", "{same}", "{told}", "{sum} {sign} {sum}", "{yes} {sign} {yes}", "! {yes}", "{yes} {sign} {told}",
             "{sum} {sign} {sum} {sign} {yes}", "{yes} {sign} {sum} {sign} {sum}", "{told} {sign} {yes}"],
    "told": ["{yes} is null", "{sum} is not null", "{yes} is not true", "{sum} between {sum} and {sum}", "{sum} in (1, 2, -3)",
             "{yes} not between {yes} and {yes}", "s || t like 'a%'", "{yes} not in (true)", "p is not distinct from {yes}"],
    "yes": ["p", "q", "true", "(p)", "case when {both} then {yes} end"],
    "same": ["s || t = t", "s < t || 'a'", "not s = t"],
    "sum": ["{term}", "{term} + {term}", "{term} - {term} - {term}", "{term} * {term} + {term}", "{term} - {term} % 7"],
    "term": ["w.euros", "(a % 9)", "1", "-2", "3", "- w.euros", "+w.euros", "- -w.euros", "(w.euros + 1)", "w.euros % 5",
             "w.euros * 2 % 3"],
    "sign": ["=", "<", "<=", ">", ">=", "<>", "<=>", "!="],
}  # fmt: skip
"""Texts of few parentheses, whose operators have to be taken in Spark's order."""

LEFT_OUT = {
    "explode": "a row per element, not a value",
    "to_timestamp": "of texts that are moments, see `moment_texts`",
}


def texts(seed: int, each: int) -> Iterator[str]:
    """Give texts: each rule so often at the top, with others in its holes."""
    draw = random.Random(seed)
    for _ in range(each):
        for _, rule in RULES:
            yield _filled(rule, draw, 1)


def flat_texts(seed: int, count: int) -> list[str]:
    """Give texts of several operators without parentheses."""
    draw = random.Random(seed)

    def filled(kind: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda hole: filled(hole[1]), draw.choice(FLAT[kind]))

    return list(dict.fromkeys(filled("flat") for _ in range(count)))


def moment_texts(seed: int, count: int) -> list[str]:
    """Give texts that Spark may read as moments: most of them in a form that is read, or nearly so."""
    draw = random.Random(seed)
    return [_moment_text(draw) for _ in range(count)]


def _moment_text(draw: random.Random) -> str:
    pieces = [
        draw.choice(["2024", "1999", "1582", "0002", "9998"] * 5 + ["24", "02024", ""]),
        *(draw.choice(["-01", "-12", "-02"] * 4 + ["-1", "-13", "/03", "-00"]), ),
        *(draw.choice(["-05", "-28", "-29"] * 4 + ["-5", "-30", "-00", "-31"]), ),
        draw.choice([" ", "T"] * 6 + ["t", "  ", "_"]) + draw.choice(["10", "00", "23"] * 4 + ["9", "24", ""]),
        *(draw.choice([":30", ":00", ":59"] * 4 + [":3", ":60", ":"]) for _ in range(2)),
        draw.choice(["", ".5", ".123456", ".12345600", ".1234567", "."]),
        draw.choice(["", "Z", "+02:00", "-0530", "+02"] * 3
        + ["z", "+2", "+18:00", "+18:01", "-19:00", " Europe/Berlin", "UTC", " UTC", "GMT+2", "+02:00:00", "+02:60", "+00"]),
    ]  # fmt: skip
    length = draw.choice([1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 8, 8, 8])
    blanks = [draw.choice([""] * 9 + [" ", "\t", "\n", "\u00a0"]) for _ in range(2)]
    zone = pieces[-1] if length < len(pieces) and draw.random() < 0.1 else ""  # an offset too early
    return f"{blanks[0]}{''.join(pieces[:length])}{zone}{blanks[1]}"


def _filled(rule: str, draw: random.Random, depth: int) -> str:
    return re.sub(r"\{(\w+)\}", lambda hole: _one(hole[1], draw, depth), rule)


def _one(kind: str, draw: random.Random, depth: int) -> str:
    inner = [rule for of, rule in RULES if of == kind] if depth < 3 and draw.random() < 0.35 else []
    return _filled(draw.choice(inner), draw, depth + 1) if inner else draw.choice(LEAVES[kind])


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Give rows of awkward values; one value in ten is None."""
    draw = random.Random(seed)
    drawn = [
        {name: None if draw.random() < 0.1 else draw.choice(AWKWARD[name]) for name in FIELDS.names}
        for _ in range(count)
    ]
    return [*drawn, dict.fromkeys(FIELDS.names)]
