"""What the parsers of CSV and JSON make of lines that are not what they seem, and of random ones, beside Python's readers."""

import csv
import io
import json
import math
import random
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import CsvFileSpout, JsonFileSpout, TextFileSpout
from spouts.files.parsed_columns import JsonFormat
from spouts.kafka import Json
from spouts.redis.stream_server import Entry, EntryTables
from tests.spouts.files.test_text_files import write
from tests.spouts.reading import rows
from trident.arrow import schema_of
from trident.errors import BadDataError
from trident.fields import Fields
from trident.types import NO_VALUE, simple_type

NO_ROWS = [
    b"null", b"[1]", b"1", b'"x"', b"true", b"\0", b'{"v":1}x', b'{"v":1} {"v":2}', b'{"v":1,"v":2}',
    b'{"v":1.5}', b'{"v":1e3}', b'{"v":9223372036854775808}', b'{"v":"1"}', b'{"v":true}', b'{"v":NaN}', b'{"f":1e39}',
    b'{"s":[{"f":-1e39}]}', b'{"f":1e-50}', b'{"s":[{"f":0},{"f":-1E-46}]}', b'{"d":1e-400}', b'{"d":0.' + b"0" * 400 + b"1}",
    b'{"d":-10e-0400}', b'{"b":"a"}', b'{"b":"aGk"}', b'{"b":"aG k="}', b'{"b":"\xc3\xa9"}', b'{"b":1}', b"{", b"}", b'{"v":1',
]  # fmt: skip


@pytest.mark.parametrize("line", NO_ROWS)
@pytest.mark.parametrize("before", [b"", b'{"v":1}\n', b"\n", b' {"v":1} \n'])
def test_a_line_that_is_not_one_object_of_the_declared_types_is_a_bad_line(
    tmp_path: Path, line: bytes, before: bytes
) -> None:
    fields = "v: bigint, f: float, s: array<struct<f:float>>, d: double, b: binary"
    write(tmp_path / "a.json", before + line + b'\n\n{"f":-Infinity}\n')
    found = rows(JsonFileSpout(tmp_path, fields, bad_lines="bad"))
    assert found[-2:] == [(*(None,) * 5, line.decode()), (None, float("-inf"), *(None,) * 4)]
    assert len(found) == 2 + before.count(b"v")
    with pytest.raises(BadDataError, match=r"line [12] of .*a.json \(at byte \d+\) is not a row: "):
        rows(JsonFileSpout(tmp_path, fields))


@pytest.mark.parametrize("text", [b'{"v":1}{"v":2}\n\n', b'{"s":\n[]}\n{}{}\n', b'{"o":\n{"v":1}}\n{"v":1}{"v":2}\n'])
def test_lines_with_no_object_do_not_make_up_for_lines_with_two(tmp_path: Path, text: bytes) -> None:
    write(tmp_path / "a.json", text)
    with pytest.raises(BadDataError, match="line 1 of"):
        rows(JsonFileSpout(tmp_path, "v: bigint"))


@pytest.mark.parametrize("size", [200_000, 5_000_000])
def test_a_value_of_any_length_is_read_and_hides_no_error_behind_it(tmp_path: Path, size: int) -> None:
    fields, row = "s: string, f: double", ("x" * size, 1.0)
    line = f'{{"s":"{row[0]}","f":1}}\n'.encode()
    write(tmp_path / "a.json", line)
    assert rows(TextFileSpout(tmp_path)) == [(line.decode()[:-1],)]
    assert rows(JsonFileSpout(tmp_path, fields)) == [row]
    assert [one.to_pylist() for one in Json(fields).read(pa.array([line]))] == [[one] for one in row]
    entry = Entry("stream", "1-0", {b"s": row[0].encode(), b"f": b"1"})
    assert list(EntryTables(fields, False).table([entry]).to_pylist()[0].values()) == [*row, "1-0"]
    write(tmp_path / "b.json", line.replace(b":1}", b":1e-400}"))
    with pytest.raises(BadDataError, match="b.json .* too near to 0"):
        rows(JsonFileSpout(tmp_path, fields))
    for multiline in (False, True):
        spout = CsvFileSpout(tmp_path, fields, header=False, multiline=multiline, follow=False)
        for last, error in (('5" pipe,1', ""), ('"a"b,1', "a value goes on after the quote"), ("a,1e-400", "'1e-400'")):
            write(tmp_path / "a.csv", f'"{row[0]}",1\n{last}\n'.encode())
            with pytest.raises(BadDataError, match=error) if error else nullcontext():
                assert rows(spout) == [row, ('5" pipe', 1.0)]


BENT = [
    ("double", "1e400"), ("double", "-1e400"), ("float", "1e39"), ("float", "1e-50"), ("double", "-1.0E-000000000400"),
    ("double", "0." + "0" * 400 + "1"), ("tinyint", "0xFF"), ("bigint", "0X10"), ("int", " 0x1"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value"), BENT)
def test_a_number_of_csv_is_not_bent(tmp_path: Path, type_: str, value: str) -> None:
    path = write(tmp_path / "a.csv", f"w,v\n0x1,1\n,\n2,{value}\n".encode())
    with pytest.raises(
        BadDataError, match=rf"line 4 of {path} .at byte 12. is not a row: column 'v': '{value}' is not of type "
    ):
        rows(CsvFileSpout(tmp_path, f"v: {type_}, w: string"))
    with pytest.raises(BadDataError, match=rf"{path} cannot be read: column 'v': '{value}' is not of type "):
        rows(CsvFileSpout(tmp_path, f"v: {type_}, w: string", multiline=True))


@pytest.mark.parametrize("type_", ["double", "float"])
@pytest.mark.parametrize("value", ["1.8e308", "-1.8E308", "9" * 400, "9" * 309 + ".5", "1e400"])
def test_a_number_of_json_is_not_infinite(tmp_path: Path, value: str, type_: str) -> None:
    write(tmp_path / "a.json", f'{{"v":Infinity,"w":"{value}","x":1}}\n{{"v":{value}}}\n'.encode())
    found = rows(JsonFileSpout(tmp_path, f"v: {type_}, w: string", bad_lines="bad"))
    assert found == [(math.inf, value, None), (None, None, f'{{"v":{value}}}')]


def test_a_decimal_with_more_digits_than_its_type_is_a_bad_line(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"v\n9999.9\n10000\n-1e4\n")
    good = (Decimal("9999.90"), None)
    assert rows(CsvFileSpout(tmp_path, "v: decimal(6,2)", bad_lines="bad")) == [good, (None, "10000"), (None, "-1e4")]
    with pytest.raises(BadDataError, match=r"line 3 of .* is not a row: column 'v': a number has more digits than dec"):
        rows(CsvFileSpout(tmp_path, "v: decimal(6,2)"))
    write(tmp_path / "a.json", b'{"v":9999.9}\n{"v":10000}\n{"s":[{"d":1}]}\n')
    found = rows(JsonFileSpout(tmp_path, "v: decimal(6,2), s: array<struct<d:decimal(5,5)>>", bad_lines="bad"))
    assert found == [(good[0], None, None), (None, None, '{"v":10000}'), (None, None, '{"s":[{"d":1}]}')]


ODD_NUMBERS = [
    "9" * 41,
    "1" + "0" * 60,
    "-" + "9" * 40,
    "9223372036854775808",
    "20240101",
    "99999",
    "1e-39",
    "-264e-41",
    "1e45",
    "0." + "1" * 39,
]
DECIMALS = ["decimal(38,0)", "decimal(38,38)", "decimal(38,10)", "decimal(5,2)", "decimal(9,0)"]


def decimal_texts(random_: random.Random) -> list[str]:
    made = []
    for _ in range(150):
        digits = "".join(random_.choices("0123456789", k=random_.randrange(1, random_.choice([5, 60]))))
        at = random_.randrange(1, len(digits) + 1)
        power = f"e{random_.randrange(-50, 50)}" if random_.random() < 0.3 else ""
        made.append(
            f"{random_.choice(['', '-'])}{digits[:at].lstrip('0') or '0'}{'.' * (at < len(digits))}{digits[at:]}{power}"
        )
    return made


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ddl", DECIMALS)
def test_a_number_is_the_decimal_that_is_written_or_a_bad_line(tmp_path: Path, ddl: str, seed: int) -> None:
    texts, type_ = ODD_NUMBERS + decimal_texts(random.Random(seed)), simple_type(ddl)
    assert type_ is not None
    fitting = {text: value for text in texts if (value := type_.form(Decimal(text))) is not NO_VALUE}
    write(tmp_path / "a.csv", "".join(f"{text}\n" for text in ["v", *texts]).encode())
    write(tmp_path / "b.csv", "".join(f"{text.replace('.', ',')};x\n" for text in ["v", *texts]).encode())
    read = rows(CsvFileSpout(tmp_path / "a.csv", f"v: {ddl}", bad_lines="bad"))
    assert [
        one for one, (value, bad) in zip(texts, read, strict=True) if bad is None and value != fitting.get(one)
    ] == []
    commas = CsvFileSpout(
        tmp_path / "b.csv", f"v: {ddl}", header=["v", "x"], delimiter=";", decimal_point=",", bad_lines="bad"
    )
    assert [(value, bad and bad.partition(";")[0].replace(",", ".")) for value, bad in rows(commas)][1:] == read
    for quote in ("", '"'):
        lines = [f'{{"v":{quote}{one}{quote},"s":[{{"d":{quote}{one}{quote}}}],"u":"0e0-123e4567"}}' for one in texts]
        write(tmp_path / "a.json", "".join(f"{line}\n" for line in lines).encode())
        found = rows(
            JsonFileSpout(tmp_path / "a.json", f"v: {ddl}, s: array<struct<d:{ddl}>>, u: string", bad_lines="bad")
        )
        assert len(found) == len(texts)
        for one, (value, inner, _, bad) in zip(texts, found, strict=True):
            assert bad is not None or (value == fitting.get(one) is not None and inner == [{"d": value}]), one


def test_a_file_read_whole_with_a_decimal_that_wraps_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"v,w\n0,a\n0.5,b\n-9223372036854775808,c\n")
    with pytest.raises(BadDataError, match=r"column 'v': a number has more digits than decimal128\(38, 38\): '-9223"):
        rows(CsvFileSpout(tmp_path, "v: decimal(38,38)", multiline=True, follow=False))


def test_infinite_numbers_that_are_written_as_such_and_marks_within_a_file_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"v,w\ninf,1\n-Infinity,2\n")
    assert rows(CsvFileSpout(tmp_path / "a.csv", "v: double")) == [(float("inf"),), (float("-inf"),)]
    write(tmp_path / "b.csv", "v\n\ufeffa\n\ufeffb\n".encode())
    spout = CsvFileSpout(tmp_path / "b.csv", "v: string", max_batch_bytes=5)
    assert rows(spout) == [("\ufeffa",), ("\ufeffb",)]


def test_numbers_that_are_0_or_nearly_so_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"v,w,s\n0e-99,0.0,1e-400\n1e-45,1e-320,\n-0.00000000000000000000000,7,8e-4512-\n")
    expected = [(0.0, 0.0, "1e-400"), (1.401298464324817e-45, 1e-320, None), (-0.0, 7.0, "8e-4512-")]
    assert rows(CsvFileSpout(tmp_path, "v: float, w: double, s: string")) == expected
    lines = (
        b'{"v":0e-99,"w":0.0,"s":"1e-400","x":1e-400}\n{"v":1e-45,"w":1e-320}\n{"v":-0.0e-77,"w":7,"s":"8e-4512-"}\n'
    )
    write(tmp_path / "a.json", lines)
    assert rows(JsonFileSpout(tmp_path, "v: float, w: double, s: string")) == expected


FIELDS = Fields("i: bigint, s: string, f: double, b: boolean, l: array<bigint>, o: struct<i:int>")


def mutated(random_: random.Random, text: str, marks: str) -> str:
    for _ in range(random_.choice([0, 0, 1, 2])):
        at = random_.randrange(len(text) + 1)
        text = text[:at] + random_.choice(["", *marks]) + text[at + random_.randrange(2) :]
    return text.replace("\n", "")


def an_object(random_: random.Random) -> dict[str, Any]:
    values = {
        "i": random_.randrange(-(2**63), 2**63), "s": random_.choice(["", "é", "a\"b", "{}"]), "f": random_.random() * 1e9,
        "b": random_.random() < 0.5, "l": [1, None, 2][: random_.randrange(4)], "o": {"i": random_.randrange(-9, 9)}, "x": [{}],
    }  # fmt: skip
    chosen = random_.sample(list(values), random_.randrange(len(values)))
    return {name: values[name] if random_.random() < 0.9 else None for name in chosen}


def fits(name: str, value: Any) -> bool:
    if value is None:
        return True
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match name:
        case "i":
            return number and isinstance(value, int) and -(2**63) <= value < 2**63
        case "f":
            return number
        case "s" | "b":
            return isinstance(value, str if name == "s" else bool)
        case "l":
            return isinstance(value, list) and all(fits("i", one) for one in value)
        case "o":
            return isinstance(value, dict) and fits("i", value.get("i")) and abs(value.get("i") or 0) < 2**31
    return True


def by_python(line: str) -> tuple[Any, ...] | None:
    """Return the row of a line as Python reads it; None if it is none."""
    try:
        pairs = json.loads(line, object_pairs_hook=list)
        value = json.loads(line)
    except ValueError:
        return None
    names = [name for name, _ in pairs] if isinstance(value, dict) else []
    is_twice = any(names.count(name) > 1 for name in FIELDS.names)
    if not isinstance(value, dict) or is_twice or not all(fits(name, value.get(name)) for name in FIELDS.names):
        return None
    row = [value.get(name) for name in FIELDS.names]
    number, inner = row[2], row[5]
    return (
        *row[:2],
        number if number is None else float(number),
        *row[3:5],
        None if inner is None else {"i": inner.get("i")},
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 60))])
def test_random_lines_of_json_are_the_rows_that_python_reads_or_none(seed: int) -> None:
    random_, parser = random.Random(seed), JsonFormat(schema_of(FIELDS), "ignore")
    for _ in range(250):
        line = mutated(
            random_, json.dumps(an_object(random_), ensure_ascii=random_.random() < 0.5), '{}[]:,"\\0 nul1-e.\t'
        )
        expected = by_python(line)
        try:
            found = parser.parse(line.encode() + b"\n").to_pylist()
        except pa.ArrowException:
            found = []
        if found:  # what Arrow refuses is a bad line; what it reads must be right
            assert [tuple(row.values()) for row in found] == [expected], line
        elif line.strip() and expected is not None:
            assert set(line) & set("\\-."), f"refused: {line}"


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_random_lines_of_csv_are_the_rows_that_python_reads_or_none(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    values = ["", "a", '"', ",", "a b", "'", "é", 'a"b', " ", "x\\", "\ufeff"]
    lines = []
    for _ in range(150):
        text = io.StringIO()
        csv.writer(text, lineterminator="", quoting=random_.choice([0, 1])).writerow(random_.choices(values, k=3))
        lines.append(mutated(random_, text.getvalue(), '",a \0'))
    write(tmp_path / "a.csv", b"a,b,c\n" + "".join(f"{line}\n" for line in lines).encode())
    found = rows(CsvFileSpout(tmp_path, "a: string, b: string, c: string", bad_lines="bad", null_values=["\1"]))
    kept = [line for line in lines if line]
    assert len(found) == len(kept)
    for line, row in zip(kept, found, strict=True):
        if row[3] is not None:
            assert row == (None, None, None, line)
        else:
            assert [list(row[:3])] == list(csv.reader([line])), line
