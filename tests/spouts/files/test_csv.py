"""CsvFileSpout and JsonFileSpout: which rows are in which batch, and what is said of a line that is not a row."""

import csv
import gzip
import io
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spouts import CsvFileSpout, JsonFileSpout
from spouts.files.csv_lines import CsvGrammar
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import run_all
from tests.spouts.files.test_text_files import append, write
from tests.spouts.reading import batches, definitions, first_batch, rows, rows_of
from trident import TridentTopology
from trident.errors import BadDataError, BatchFailedError, ConfigError, ReplayMismatchError, SpoutError, TopologyError
from trident.operations import Sum

FIELDS = "id: bigint, name: string"


def test_the_fields_of_bad_lines_and_of_the_file_come_last(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"id,name\n1,x\n")
    spout = CsvFileSpout(tmp_path, FIELDS, with_file=True, bad_lines="bad")
    assert str(spout.get_output_fields()) == "id: bigint, name: string, bad: string, file: string"
    assert rows(spout) == [(1, "x", None, str(tmp_path / "a.csv"))]
    write(tmp_path / "a.jsonl", b'{"id": 1, "name": "x"}\n')
    assert rows(JsonFileSpout(tmp_path, FIELDS, with_file=True)) == [(1, "x", str(tmp_path / "a.jsonl"))]


def test_columns_are_found_by_the_header_of_each_file_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"id,name\n1,x\n")
    write(tmp_path / "b.csv", b"\xef\xbb\xbfother,name,other,id\r\n?,y,!,2\r\n")
    write(tmp_path / "c.csv", b'"name","id"\n"z",3\n')
    write(tmp_path / "d.txt", b"no,csv\n")
    write(tmp_path / "_temporary" / "e.csv", b"id,name\n9,unfinished\n")
    write(tmp_path / "day=1" / "_kind=2" / "f.csv", b"id,name\n4,w\n")
    assert rows(CsvFileSpout(tmp_path, FIELDS)) == [(1, "x"), (2, "y"), (3, "z"), (4, "w")]
    assert rows(CsvFileSpout(str(tmp_path / "**" / "*.csv"), FIELDS)) == [(1, "x"), (2, "y"), (3, "z"), (4, "w")]


def test_a_file_that_grows_is_read_by_the_header_at_its_beginning(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"name,id\n")
    spout = CsvFileSpout(tmp_path, FIELDS)
    coordinator, first = first_batch(spout)
    assert rows_of(spout, coordinator, first) == []
    append(path, b"x,1\ny,2\n")
    (second,) = definitions(coordinator, first, 2)
    append(path, b"z,3\n")
    (third,) = definitions(spout.get_coordinator({}), second, 3)
    assert [rows_of(spout, coordinator, one) for one in (second, third)] == [[("x", 1)[::-1], (2, "y")], [(3, "z")]]


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3, 7])
def test_ranges_and_parts_anywhere_in_the_file_have_the_same_rows(tmp_path: Path, parallelism: int) -> None:
    data = "id,name\n" + "".join(f'{k},"value {k}"\n' for k in range(200_000))
    write(tmp_path / "a.csv", data.encode())
    found = batches(CsvFileSpout(tmp_path, FIELDS, max_batch_bytes=3 << 20), parallelism=parallelism)
    assert len(found) == 2
    assert [row for batch in found for row in batch] == [(k, f"value {k}") for k in range(200_000)]


def test_types_nulls_and_empty_lines(tmp_path: Path) -> None:
    write(
        tmp_path / "a.csv",
        b"b,i,f,d,day,at,ntz,s,raw\n"
        b'true,1,1.5,2.50,2024-02-29,2024-02-29T12:00:00+01:00,2024-02-29 12:00:00,"",x\n'
        b"\n"
        b",,,,,,,,\n",
    )
    fields = "b: boolean, i: int, f: double, d: decimal(10,2), day: date, at: timestamp, ntz: timestamp_ntz"
    fields += ", s: string, raw: binary"
    one, two = rows(CsvFileSpout(tmp_path, fields))
    assert one[:4] == (True, 1, 1.5, Decimal("2.50"))
    assert (str(one[4]), str(one[5]), str(one[6])) == ("2024-02-29", "2024-02-29 11:00:00+00:00", "2024-02-29 12:00:00")
    assert one[7:] == ("", b"x")
    assert two == (None,) * 9


def test_how_values_are_written_may_be_said(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "1;'a;b';2,5;01.02.2024\n2;NULL;-;\n3;'NULL';0,5;\n".encode("latin-1"))
    spout = CsvFileSpout(
        tmp_path, "price: double, name: string, day: timestamp_ntz", header=["id", "name", "price", "day"], delimiter=";",
        quote="'", null_values=["NULL", "-", ""], decimal_point=",", timestamp_formats=["%d.%m.%Y"], encoding="latin-1",
    )  # fmt: skip
    assert [(row[0], row[1], str(row[2])) for row in rows(spout)] == [
        (2.5, "a;b", "2024-02-01 00:00:00"),
        (None, None, "None"),
        (0.5, "NULL", "None"),
    ]
    assert rows(CsvFileSpout(write(tmp_path / "b.csv", b"1,x\n"), FIELDS, header=False)) == [(1, "x")]
    write(tmp_path / "c.csv", b'1,5" pipe\n2,a\\,b\\"\n')
    assert rows(CsvFileSpout(tmp_path / "c.csv", FIELDS, header=False, escape="\\")) == [(1, '5" pipe'), (2, 'a,b"')]


BAD = [
    (b"7", r"Expected 2 columns, got 1: 7"),
    (b"7,x,y", r"Expected 2 columns, got 3: 7,x,y"),
    (b"seven,x", r"column 'id': CSV conversion error to int64: invalid value 'seven'"),
    (b'7,"x', "it is not complete: a quoted value does not end in this line"),
    (b"7,x\r8,y", "it is more than one row"),
    (b'7,"a"b', "a value goes on after the quote that ends it"),
    (b'7,""a', "a value goes on after the quote that ends it"),
    (rb'7,"say \"so\""', r"if quotes are written as \", give escape='\\'"),  # as Spark writes it
]


@pytest.mark.parametrize(("line", "cause"), BAD)
@pytest.mark.parametrize("before", [0, 1, 50_000])
def test_a_line_that_is_no_row_is_named_with_file_line_byte_and_cause(
    tmp_path: Path, line: bytes, cause: str, before: int
) -> None:
    good = b"".join(b'%d,"a, b"\r\n' % k for k in range(before))
    path = write(tmp_path / "a.csv", b"id,name\r\n" + good + line + b"\r\n9,z\r\n")
    spout = CsvFileSpout(tmp_path, FIELDS)
    with pytest.raises(SpoutError) as caught:
        batches(spout)
    told = str(caught.value)
    assert told.startswith(f"line {before + 2} of {path} (at byte {9 + len(good)}) is not a row: ")
    assert cause in told
    assert "bad_lines='bad_line'" in told


@pytest.mark.parametrize(("line", "cause"), BAD)
def test_bad_lines_may_have_a_field_of_their_own(tmp_path: Path, line: bytes, cause: str) -> None:
    write(tmp_path / "a.csv", b"id,name\n" + b"1,x\n" * 999 + line + b"\n" + b"2,y\n" * 999 + line)
    found = rows(CsvFileSpout(tmp_path, FIELDS, bad_lines="bad", follow=False))
    bad = (None, None, line.decode())
    assert found == [(1, "x", None)] * 999 + [bad] + [(2, "y", None)] * 999 + [bad]


def test_a_line_that_is_no_row_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.csv", b"id,name\n7,x,y\n1,x")  # its end was looked at before the format goes to a worker
    assert rows(CsvFileSpout(tmp_path, FIELDS, bad_lines="bad")) == [(None, None, "7,x,y"), (1, "x", None)]
    assert capfd.readouterr().err == ""


def test_a_quoted_value_that_does_not_end_takes_no_empty_lines_along(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b'id,name\n4,"open\n\n\n')
    assert rows(CsvFileSpout(tmp_path, FIELDS, bad_lines="bad")) == [(None, None, '4,"open')]


def test_a_header_without_a_line_end_is_a_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name,price")
    (tmp_path / "b.csv").write_text("id,name,price\n1,x,2.5")
    spout = CsvFileSpout(tmp_path, "id: bigint, name: string", multiline=True, follow=False)
    assert batches(spout) == [[(1, "x")]]
    (tmp_path / "c.csv").write_text('id,name,price\n\n1,"x\n')
    with pytest.raises(BadDataError, match=r"c.csv cannot be read: a quoted value does not end \(line 3\)"):
        batches(spout)


@given(st.text('",\na\\', max_size=16), st.integers(1, 5), st.sampled_from([None, "\\"]))
@example(r'a\,",","x,b\,",z', 5, "\\")
@example('a\\\n",","x,b\\\n",z', 5, "\\")
def test_a_value_that_goes_on_after_its_quote_is_refused_as_by_strict_csv(
    text: str, block: int, escape: str | None
) -> None:
    data, refused = f"{text}\n".encode(), list[bool]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spouts.files.csv_lines.CACHED", block)
        cut = CsvGrammar(",", '"', escape).cut((data[at : at + block] for at in range(0, len(data), block)), 99)
        by_python = csv.reader(io.StringIO(f"{text}\n", newline=""), strict=True, escapechar=escape)
        for rows_, refusal in (cut, "a value goes on after the quote"), (by_python, "expected after"):
            try:
                list(rows_)
                refused.append(False)
            except (csv.Error, pa.ArrowInvalid) as error:
                refused.append(refusal in str(error))
    assert refused in ([True, True], [False, False])


def test_a_quoted_line_end_is_refused_at_any_cut_and_read_with_multiline(tmp_path: Path) -> None:
    content = b'id,name\n1,"a\nb"\n2,"c\n\n""d"""\n'
    path = write(tmp_path / "a.csv", content)
    for limit in range(8, len(content) + 1):
        with pytest.raises(SpoutError, match="line 2 of .* is not a row: it is not complete: a .*value"):
            batches(CsvFileSpout(tmp_path, FIELDS, max_batch_bytes=limit))
    expected = [(1, "a\nb"), (2, 'c\n\n"d"')]
    assert batches(CsvFileSpout(tmp_path, FIELDS, multiline=True, max_batch_bytes=5), parallelism=4) == [expected]
    path.rename(tmp_path / "a.txt")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + content))
    (spout := CsvFileSpout(tmp_path, FIELDS, multiline=True, with_file=True, tail=0)).get_coordinator({})
    assert rows(spout) == [(*row, str(tmp_path / "b.csv.gz")) for row in expected]


def test_a_whole_file_that_changes_or_is_no_csv_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"id,name\n1,x\n")
    spout = CsvFileSpout(tmp_path, FIELDS, multiline=True)
    coordinator, first = first_batch(spout)
    append(path, b"2,y\n")
    with pytest.raises(ReplayMismatchError, match="it was truncated or replaced"):
        rows_of(spout, coordinator, first)
    with pytest.raises(ReplayMismatchError, match="such files are read once, whole"):
        coordinator.initialize_transaction(2, first)
    write(path, b"id,name\nx,y\n")
    with pytest.raises(SpoutError, match=r"a.csv cannot be read: .*invalid value 'x'.* Fix it, change the fields"):
        rows(spout)


def test_gz_files_are_read_with_their_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"name,id\n" + b"x,1\n" * 500_000))
    assert rows(CsvFileSpout(tmp_path, FIELDS, tail=0)) == [(1, "x")] * 500_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"name,id\nx,1\nx\n"))
    with pytest.raises(SpoutError, match=r"line 3 of .*a.csv.gz \(at byte 12\) is not a row"):
        rows(CsvFileSpout(tmp_path, FIELDS, tail=0))


def test_a_header_without_a_field_is_refused_with_the_choices_or_gives_null(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"ID,name\n1,x\n")
    with pytest.raises(SpoutError, match=r"header of .*csv has no column 'id': \['ID', 'name'\]; did you mean 'ID'\?"):
        rows(CsvFileSpout(tmp_path, FIELDS))
    assert rows(CsvFileSpout(tmp_path, FIELDS, missing_columns="null")) == [(None, "x")]
    write(tmp_path / "a.csv", b"id,id,name\n1,1,x\n")
    with pytest.raises(SpoutError, match="has the column 'id' 2 times"):
        rows(CsvFileSpout(tmp_path, FIELDS))


def test_a_header_is_one_line_and_a_mark_before_a_quoted_name_is_no_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'\xef\xbb\xbf"id",name,"a\nb,c"\n1,x,2\n')
    assert rows(CsvFileSpout(path, FIELDS, multiline=True)) == [(1, "x")]
    with pytest.raises(BadDataError, match=r"header of .*csv cannot be read \(a quoted name goes on in the next line"):
        rows(CsvFileSpout(path, FIELDS))


def test_rows_below_a_header_that_is_an_empty_line_are_bad_and_none_is_taken_for_names(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"\nid,name\n1,x\r2,y\n3")
    spout = CsvFileSpout(tmp_path, FIELDS, missing_columns="null", bad_lines="bad")
    assert [row[2] for row in rows(spout)] == ["id,name", "1,x\r2,y", "3"]
    with pytest.raises(BadDataError, match="line 2 of .* is not a row: the header of its file is an empty line"):
        rows(CsvFileSpout(tmp_path, FIELDS, missing_columns="null"))
    with pytest.raises(BadDataError, match=r"a.csv cannot be read: the header of its file is an empty line"):
        rows(CsvFileSpout(tmp_path, FIELDS, missing_columns="null", multiline=True, follow=False))
    write(tmp_path / "a.csv", b"\n")
    assert rows(CsvFileSpout(tmp_path, FIELDS, missing_columns="null")) == []


def test_an_escape_that_is_the_quote_stands_for_doubled_quotes(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b'"id","name"\n1,"a ""b"", c"\n2,a""b\n')
    assert rows(CsvFileSpout(tmp_path, FIELDS, escape='"')) == [(1, 'a "b", c'), (2, 'a""b')]


def test_an_escaped_line_end_before_an_empty_line_is_no_value(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"id,name\n1,a\\\n\n2,b\\\\\n\n3,c\n")
    found = rows(CsvFileSpout(tmp_path, FIELDS, escape="\\", bad_lines="bad"))
    assert found == [(None, None, "1,a\\"), (2, "b\\", None), (3, "c", None)]


def test_bytes_that_are_no_text_are_refused_unless_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"id,name\n1,\xff\n")
    with pytest.raises(SpoutError, match="byte 10 of .*a.csv is not utf-8 text"):
        rows(CsvFileSpout(tmp_path, FIELDS))
    assert rows(CsvFileSpout(tmp_path, FIELDS, errors="replace")) == [(1, "\ufffd")]


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        ({"fields": "id: array<int>"}, TopologyError, "field 'id' is of type array<int>, which CSV cannot hold"),
        ({"fields": "id"}, TopologyError, "the type of field 'id' is not known"),
        ({"missing_columns": "?"}, ValueError, "missing_columns='\\?' of CsvFileSpout: give 'error' or 'null'"),
        ({"delimiter": ";;"}, ValueError, "delimiter is ';;'; it must be one ASCII character"),
        ({"quote": "\n"}, ValueError, "quote is '\\\\n'"),
        ({"delimiter": "'", "quote": "'"}, ValueError, 'delimiter is "\'", which is the quote or the escape too'),
        ({"multiline": True, "bad_lines": "bad"}, ValueError, "multiline=True does not go with bad_lines"),
        ({"header": ["id"]}, SpoutError, "header= has no column 'name'"),
        ({"max_batch_byte": 1}, ConfigError, "CsvFileSpout has no option 'max_batch_byte'; did you mean 'max_batch"),
        ({"max_batch_bytes": 0}, ValueError, "max_batch_bytes=0 of CsvFileSpout: give a whole number of at least 1"),
        ({"bad_lines": "id"}, TopologyError, "duplicate field 'id'"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(
    tmp_path: Path, arguments: dict[str, Any], kind: type[Exception], part: str
) -> None:
    with pytest.raises(kind, match=part):
        CsvFileSpout(tmp_path, **{"fields": FIELDS, **arguments}).get_output_fields()


cell = st.text(st.sampled_from("ab,\"' \r;é\\"), max_size=4)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-9, 9), cell), max_size=20), st.integers(1, 60), st.sampled_from(["\n", "\r\n"]))
def test_what_python_writes_is_read_however_it_is_cut(
    written: list[tuple[int, str]], max_batch_bytes: int, end: str
) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC).writerows([("id", "name"), *written])
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory, "a.csv"), text.getvalue().encode())
        assert rows(CsvFileSpout(directory, FIELDS, max_batch_bytes=max_batch_bytes)) == written


def test_the_advice_about_a_bad_line_goes_on_with_the_totals(tmp_path: Path) -> None:
    def declared(**options: Any) -> TridentTopology:
        topology = TridentTopology("t")
        spout = CsvFileSpout(tmp_path, "id: bigint, name: string", follow=False, **options)
        ids = topology.new_stream("s", spout).group_by("name")
        ids.persistent_aggregate(sqlite_state(str(tmp_path / "state.db")), "id", Sum(), "total", state_name="total")
        return topology

    log = {"log_dir": str(tmp_path / "log")}
    write(tmp_path / "a.csv", b"id,name\n1,x\n")
    run_all(declared(), "in_process", **log)
    write(tmp_path / "b.csv", b"id,name\n2,x\ny,y\n")
    with pytest.raises(BatchFailedError, match=r"or give bad_lines='bad_line', .* into a field of that name\. Nothing"):
        run_all(declared(), "in_process", **log)
    running = run_all(declared(bad_lines="bad_line"), "in_process", **log)
    assert running.state("total").multi_get(["x"]) == [3]


def test_members_are_read_by_name_missing_ones_are_null_and_others_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"name": "x", "more": [1, {"a": 2}], "id": 1}\r\n\n  \n{"id": null}\n{}\n')
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(b'{"id": 2, "name": "\\u00e9\\n"}'))
    assert rows(JsonFileSpout(tmp_path, FIELDS, tail=0)) == [(1, "x"), (None, None), (None, None), (2, "é\n")]
    with pytest.raises(SpoutError, match=r"line 1 of .*a.json \(at byte 0\) is not a row: unexpected field"):
        rows(JsonFileSpout(tmp_path, FIELDS, unknown_fields="error"))


def test_nested_members_and_all_types(tmp_path: Path) -> None:
    fields = (
        "who: struct<name:string,days:array<date>>, tags: array<string>, at: timestamp, day: date, price: decimal(10,2), "
        "share: double, raw: binary, yes: boolean, small: int"
    )
    write(
        tmp_path / "a.json",
        b'{"who": {"name": "x", "days": ["2024-02-29", null], "extra": 1}, "tags": ["a", null], "at": "2024-01-01T00:00:00Z", '
        b'"day": "2024-01-02", "price": 2.50, "share": 1, "raw": "aMO8aA==", "yes": true, "small": 7}\n{"who": {"days": []}}\n',
    )
    one, two = rows(JsonFileSpout(tmp_path, fields))
    assert (one[0]["name"], [str(day) for day in one[0]["days"]], one[1]) == ("x", ["2024-02-29", "None"], ["a", None])
    assert (str(one[2]), str(one[3])) == ("2024-01-01 00:00:00+00:00", "2024-01-02")
    assert one[4:] == (Decimal("2.50"), 1.0, b"h\xc3\xbch", True, 7)
    assert two == ({"name": None, "days": []}, *(None,) * 8)


BAD_JSON = [
    (b'{"id": "one"}', "id is of type string, and not number"),
    (b'{"id": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
    (b'{"id": 1', "Missing a comma or '}' after an object member."),
    (b'{"id": 1}{"id": 2}', "it is more than one row"),
    (b'{"id": 1}\r{"id": 2}', "it is more than one row"),
    (b"[1, 2]", "it is not an object: an object begins with {"),
    (b"{", "Missing a name for object member."),
]


@pytest.mark.parametrize(("line", "cause"), BAD_JSON)
@pytest.mark.parametrize("before", [0, 30_000])
def test_a_line_that_is_no_object_is_named_or_has_a_field_of_its_own(
    tmp_path: Path, line: bytes, cause: str, before: int
) -> None:
    good = b'{"id": 1, "name": "x"}\n'
    path = write(tmp_path / "a.json", good * before + line + b"\n" + good)
    with pytest.raises(SpoutError) as caught:
        rows(JsonFileSpout(tmp_path, FIELDS))
    told = str(caught.value)
    assert told.startswith(f"line {before + 1} of {path} (at byte {before * len(good)}) is not a row: ")
    assert cause in told
    found = rows(JsonFileSpout(tmp_path, FIELDS, bad_lines="bad"), parallelism=2)
    assert found == [(1, "x", None)] * before + [(None, None, line.decode()), (1, "x", None)]


def test_an_object_of_several_lines_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", json.dumps([{"id": 1}], indent=1).encode())
    with pytest.raises(SpoutError, match=r"line 1 of .*a.json \(at byte 0\) is not a row"):
        rows(JsonFileSpout(tmp_path, FIELDS, tail=0))
    write(tmp_path / "a.json", b'{"id": 1,\n"name": "x"}\n')
    for limit in (5, 100):
        with pytest.raises(SpoutError, match=r"line 1 of .*a.json \(at byte 0\) is not a row"):
            rows(JsonFileSpout(tmp_path, FIELDS, max_batch_bytes=limit))


def test_a_wrong_argument_of_a_json_spout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="'a' is of type map<string,int>, which Arrow does not read from JSON"):
        JsonFileSpout(tmp_path, "a: map<string, int>")
    with pytest.raises(ValueError, match="unknown_fields='drop' of JsonFileSpout: give 'ignore' or 'error'"):
        JsonFileSpout(tmp_path, FIELDS, unknown_fields="drop")  # type: ignore[arg-type]
    with pytest.raises(SpoutError, match=r"no JSON file to read in .* \(files that match '\*.json' or '\*.json.gz' or"):
        JsonFileSpout(tmp_path, FIELDS).get_coordinator({})
