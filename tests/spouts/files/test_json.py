"""JsonFileSpout: which objects are in which batch, and what is said of a line that is none."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest

from spouts import JsonFileSpout
from tests.spouts.files.test_text_files import write
from tests.spouts.reading import rows
from trident.errors import SpoutError, TopologyError

FIELDS = "id: bigint, name: string"


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


BAD = [
    (b'{"id": "one"}', "id is of type string, and not number"),
    (b'{"id": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
    (b'{"id": 1', "Missing a comma or '}' after an object member."),
    (b'{"id": 1}{"id": 2}', "it is more than one row"),
    (b'{"id": 1}\r{"id": 2}', "it is more than one row"),
    (b"[1, 2]", "it is not an object: an object begins with {"),
    (b"{", "Missing a name for object member."),
]


@pytest.mark.parametrize(("line", "cause"), BAD)
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


def test_a_wrong_argument_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        TopologyError, match="field 'a' is of type map<string,int>, which Arrow does not read from JSON"
    ):
        JsonFileSpout(tmp_path, "a: map<string, int>")
    with pytest.raises(ValueError, match="unknown_fields='drop' of JsonFileSpout: give 'ignore' or 'error'"):
        JsonFileSpout(tmp_path, FIELDS, unknown_fields="drop")  # type: ignore[arg-type]
    with pytest.raises(SpoutError, match=r"no JSON file to read in .* \(files that match '\*.json' or '\*.json.gz' or"):
        JsonFileSpout(tmp_path, FIELDS).get_coordinator({})
