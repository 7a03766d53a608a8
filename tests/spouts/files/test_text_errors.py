"""TextFileSpout: what it refuses, with what it says."""

import errno
import gzip
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from spouts import TextFileSpout
from states.delta import DeltaState
from tests.spouts.files.test_text_files import append, lines, write
from tests.spouts.reading import begun, definitions, refuse_both, rows_of
from trident import TridentTopology
from trident.errors import ReplayMismatchError, SpoutError
from trident.operations import Count
from trident.spout import Definition, TransactionAttempt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_bytes": 0}, "max_batch_bytes=0 of TextFileSpout: give a whole number of at least 1"),
        ({"max_batch_bytes": float("nan")}, "max_batch_bytes=nan of TextFileSpout: give a whole number of at least 1"),
        ({"max_batch_bytes": float("inf")}, "max_batch_bytes=inf of TextFileSpout: give a whole number of at least 1"),
        ({"max_batch_bytes": None}, "max_batch_bytes=None of TextFileSpout: give a whole number of at least 1"),
        ({"max_line_bytes": 0}, "max_line_bytes=0 of TextFileSpout: give a whole number from 1 to 536870912"),
        ({"max_line_bytes": 1 << 30}, "max_line_bytes=1073741824 of TextFileSpout: give a whole number from 1 to"),
        ({"errors": "ignore"}, "errors='ignore' of TextFileSpout: give 'replace' or 'strict'"),
        ({"tail": -1}, "tail=-1 of TextFileSpout: give seconds of at least 0 or 'hold'"),
        ({"tail": "wait"}, "tail='wait' of TextFileSpout: give seconds of at least 0 or 'hold'"),
        ({"encoding": "klingon"}, "encoding 'klingon' is not known"),
        ({"encoding": "utf-16"}, "encoding 'utf-16' does not write ASCII as ASCII"),
        ({"encoding": "cp037"}, "encoding 'cp037' does not write ASCII as ASCII"),
        ({"encoding": "base64"}, "encoding 'base64' does not write ASCII as ASCII"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextFileSpout("anything", **options)


@pytest.mark.parametrize("paths", [[], "", ["books", ""]])
def test_no_path_and_an_empty_one_are_refused(paths: Any) -> None:
    """An empty text is what a variable holds that is not set, and not the working directory."""
    with pytest.raises(ValueError, match=f"paths={re.escape(repr(paths))}; name a directory"):
        TextFileSpout(paths)


def test_a_start_without_any_file_names_the_pattern(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"1\n")
    with pytest.raises(SpoutError, match=rf"no text file to read in {tmp_path} \(files that match '\*.csv'\). Correct"):
        TextFileSpout(tmp_path, pattern="*.csv").get_coordinator({})
    with pytest.raises(SpoutError, match=rf"no text file to read in {tmp_path}/\*.log. Correct the path"):
        TextFileSpout(tmp_path / "*.log").get_coordinator({})
    with pytest.raises(SpoutError, match=rf"cannot read files from {tmp_path}/b.txt: there is no such file"):
        TextFileSpout([tmp_path / "a.txt", tmp_path / "b.txt"]).get_coordinator({})


def test_what_is_no_regular_file_is_refused_by_name_and_passed_over_in_a_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SpoutError, match="fifo: it is neither a regular file nor a directory"):
        TextFileSpout(tmp_path / "fifo").get_coordinator({})
    write(tmp_path / "a", b"1\n")
    assert lines(TextFileSpout(tmp_path)) == ["1"]


@pytest.mark.parametrize("end", [b"\n", b"\n\n", b"", b"more"])
def test_a_line_that_is_too_long_is_named_when_the_batch_is_defined(tmp_path: Path, end: bytes) -> None:
    path = write(tmp_path / "a", b"ok\n" + b"x" * 101 + end)
    coordinator = TextFileSpout(path, max_batch_bytes=10, max_line_bytes=100).get_coordinator({})
    first = coordinator.initialize_transaction(1, None)
    message = rf"the line at byte 3 of {path} is longer than max_line_bytes=100. Raise max_line_bytes, or leave"
    with pytest.raises(SpoutError, match=message):
        coordinator.initialize_transaction(2, first)


@pytest.mark.parametrize("data", [b"x" * 101 + b"\n", b"x" * 101])
def test_a_line_that_is_too_long_is_named_when_it_is_read(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "a", b"ok\n" + data)
    write(tmp_path / "b.gz", gzip.compress(b"ok\nok\n" + data))
    with pytest.raises(SpoutError, match="the line at byte 3 of .*a is longer than max_line_bytes=100"):
        lines(TextFileSpout(tmp_path / "a", max_line_bytes=100))
    with pytest.raises(SpoutError, match="the line at byte 6 of .*b.gz is longer than max_line_bytes=100"):
        lines(TextFileSpout(tmp_path / "b.gz", max_line_bytes=100))


def test_a_line_that_is_too_long_is_named_before_all_of_it_is_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "a.gz", gzip.compress(b"ok\n" + bytes(4_000_000))[:-50])  # so the end of it cannot be reached
    with pytest.raises(SpoutError, match="the line at byte 3 of .*a.gz is longer than max_line_bytes=1000"):
        lines(TextFileSpout(tmp_path, max_line_bytes=1000, follow=False))


@pytest.mark.parametrize("max_batch_bytes", [10, 1000])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_just_as_long_as_allowed_is_read(tmp_path: Path, max_batch_bytes: int, end: bytes) -> None:
    write(tmp_path / "a", b"x" * 100 + end)
    assert lines(TextFileSpout(tmp_path, max_batch_bytes=max_batch_bytes, max_line_bytes=100)) == ["x" * 100]


def test_broken_utf8_is_replaced_and_said_once_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a", b"good\nb\xffd\nb\xe2\x82\nq\xed\xa0\x80\n")
    with caplog.at_level(logging.WARNING):
        assert lines(TextFileSpout(path)) == ["good", "b\ufffdd", "b\ufffd", "q\ufffd\ufffd\ufffd"]
        lines(TextFileSpout(path))
    assert [one.getMessage() for one in caplog.records] == [
        f"{path} is not all utf-8 text: the first broken byte seen is byte 6; 5 characters around there are U+FFFD now"
    ]


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("euc_jp", b"one\ntwo\x8f\nthree\n", ["one", "two\ufffd", "three"]),
        ("euc_jp", b"one\ntwo\x8f", ["one", "two\ufffd"]),
        ("gb18030", b"one\ntwo\xfe0\n", ["one", "two\ufffd"]),
        ("iso2022_jp", b"one\n\x1b$B\xff\ntwo\n", ["one", "\ufffd", "two"]),
    ],
)
def test_a_broken_character_does_not_take_the_line_end_along(
    encoding: str, text: bytes, expected: list[str], tmp_path: Path
) -> None:
    write(tmp_path / "a", text)
    write(tmp_path / "b", b"last\n")
    assert lines(TextFileSpout(tmp_path, encoding=encoding, follow=False)) == [*expected, "last"]


def test_strict_refuses_broken_text_with_file_and_byte(tmp_path: Path) -> None:
    write(tmp_path / "a", b"good\n")
    path = write(tmp_path / "b", b"\xef\xbb\xbfgood\nb\xffd\n")
    with pytest.raises(SpoutError, match=rf"byte 9 of {path} is not utf-8 text \(invalid start byte\). Give the right"):
        lines(TextFileSpout(tmp_path, errors="strict"))
    with pytest.raises(SpoutError, match=rf"byte 0 of {path} is not ascii text \(ordinal not in range"):
        lines(TextFileSpout(path, errors="strict", encoding="ascii"))


def test_a_damaged_compressed_file_is_named_with_the_offset(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(range(32, 127)) * 1000 + b"\n")
    cases = {
        "cut.gz": (whole[:-20], "Compressed file ended before the end-of-stream"),
        "not.gz": (b"plain\n", "Not a gzipped file"),
        "bits.gz": (whole[:60] + b"\xff" * 40 + whole[100:], "Error -3|CRC check failed"),
    }
    for name, (data, cause) in cases.items():
        path = write(tmp_path / name, data)
        message = (
            rf"the compressed file {path} is damaged or not complete: .*({cause}).* \(at byte \d+ of {len(data)}, \d+"
        )
        with pytest.raises(SpoutError, match=message):
            lines(TextFileSpout(path, follow=False))


def test_a_compressed_file_that_grew_after_it_was_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", gzip.compress(b"1\n"))
    coordinator = TextFileSpout(path).get_coordinator({})
    (first,) = definitions(coordinator)
    append(path, gzip.compress(b"2\n"))
    with pytest.raises(ReplayMismatchError, match="such files are read once, whole"):
        coordinator.initialize_transaction(2, first)
    with pytest.raises(ReplayMismatchError, match="it was truncated or replaced"):
        rows_of(TextFileSpout(path), coordinator, first)


def test_a_defined_file_that_shrank_changed_or_went_is_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n3\n")
    spout = TextFileSpout(path)
    coordinator, definition = begun(spout)
    write(path, b"1\n2\n")
    message = f"was defined as bytes 0 to 6 of {path}, which has 4 bytes now, and it was truncated or replaced. Put the"
    with pytest.raises(ReplayMismatchError, match=message):
        rows_of(spout, coordinator, definition)
    write(path, b"1\n2\n4\n5\n")
    message = "which has 8 bytes now, and the bytes before 6 are different: it was replaced. Put the"
    with pytest.raises(ReplayMismatchError, match=message):
        rows_of(spout, coordinator, definition)
    path.unlink()
    message = f"cannot read the batch defined as bytes 0 to 6: the file {path} is gone; put it back"
    with pytest.raises(SpoutError, match=message):
        rows_of(spout, coordinator, definition)
    write(path, b"1\n2\n3\n")
    assert rows_of(spout, coordinator, definition) == [("1",), ("2",), ("3",)]


def test_a_file_system_that_gives_less_than_is_asked_for_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pread = write(tmp_path / "a", b"0123456789\n" * 9), os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 7), at))
    assert lines(TextFileSpout(path, follow=False)) == ["0123456789"] * 9


def test_a_file_that_is_truncated_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"0123456\n" * 500_000)
    spout = TextFileSpout(path)
    coordinator = spout.get_coordinator({})
    (part,) = coordinator.parts(TransactionAttempt(1, 0), coordinator.initialize_transaction(1, None), 1)
    emitted = iter(spout.get_emitter({}).emit(part))
    next(emitted)
    os.truncate(path, 2_000_000)
    with pytest.raises(ReplayMismatchError, match="ended at byte 2000000 while it was read: it was truncated"):
        list(emitted)


@pytest.mark.parametrize("how", ["anew", "in place", "with its old times"])
def test_a_file_that_was_read_and_replaced_by_one_of_the_same_size_is_found(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "a", b"1\n2\n")
    write(tmp_path / "b", b"3\n")
    spout = TextFileSpout(tmp_path)
    coordinator, first = begun(spout)
    assert coordinator.initialize_transaction(2, first) is None
    times = path.stat()
    if how == "in place":
        path.write_bytes(b"1\n5\n")
    else:
        write(tmp_path / ".new", b"1\n5\n").rename(path)
    if how == "with its old times":
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    # A new coordinator is one of a start after it happened.
    said = f"{path} was read up to byte 4, and the bytes before that are different"
    refuse_both(spout, coordinator, first, ReplayMismatchError, said)
    write(tmp_path / ".new", b"1\n2\n").rename(path)
    for each in (coordinator, spout.get_coordinator({})):
        assert each.initialize_transaction(2, first) is None


def test_a_file_that_was_read_is_compared_again_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a", b"1\n")
    coordinator = TextFileSpout(tmp_path).get_coordinator({})
    first = coordinator.initialize_transaction(1, None)
    opened: list[Any] = []
    real = os.open

    def counting(path: Any, *options: Any) -> int:
        opened.append(path)
        return real(path, *options)

    monkeypatch.setattr(os, "open", counting)
    assert coordinator.initialize_transaction(2, first) is None
    assert opened == []
    path.chmod(0o600)
    for _ in range(2):
        assert coordinator.initialize_transaction(2, first) is None
    assert opened == [str(path)]


def test_a_file_that_was_read_in_part_and_is_another_now_stops_the_spout(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n3\n")
    spout = TextFileSpout(path, max_batch_bytes=4)
    coordinator, first = begun(spout)
    write(path, b"1\n")
    said = f"{path} was read up to byte 4 and has 2 bytes now: it was truncated"
    refuse_both(spout, coordinator, first, ReplayMismatchError, said)
    write(path, b"5\n6\n7\n8\n")
    said = f"{path} was read up to byte 4, and the bytes before that are different"
    refuse_both(spout, coordinator, first, ReplayMismatchError, said)


def test_an_error_while_a_batch_is_defined_loses_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "b", b"1\n2\n")
    spout = TextFileSpout(tmp_path)
    coordinator, first = begun(spout)
    write(tmp_path / "a", b"3\n")  # found before the file that raises
    write(path, b"1\n")
    for _ in range(2):
        with pytest.raises(ReplayMismatchError, match="was read up to byte 4 and has 2 bytes now"):
            coordinator.initialize_transaction(2, first)
    write(path, b"1\n2\n4\n")
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(2, first)) == [("3",), ("4",)]


def test_a_definition_of_another_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", b"1\n")
    for chunk in (b"", b"rubbish", b"\x05\0\0\0rubbish"):
        with pytest.raises(SpoutError, match="the file positions in the definition of the batch before cannot be read"):
            TextFileSpout(tmp_path).get_coordinator({}).initialize_transaction(2, {"done": [chunk]})


NOT_ALLOWED = """
import os, sys
from spouts import TextFileSpout
from trident.errors import SpoutError
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    TextFileSpout(sys.argv[1]).get_coordinator({}).initialize_transaction(1, None)
except SpoutError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_file_or_directory_that_may_not_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        secret = write(directory / "secret", b"1\n")
        secret.chmod(0)
        (directory / "closed").mkdir(mode=0)

        def said(path: Path) -> str:
            return subprocess.run(
                [sys.executable, "-c", NOT_ALLOWED, path], capture_output=True, text=True, check=True
            ).stdout

        assert f"cannot define a batch: the file {secret} may not be read by user id" in said(secret)
        assert f"cannot list the directory {directory / 'closed'}: Permission denied; make it readable" in said(
            directory
        )


@pytest.mark.parametrize("named", ["folder", "glob"])
@pytest.mark.parametrize("follow", [True, False])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, named: str, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    spout = TextFileSpout(tmp_path if named == "folder" else tmp_path / "*.txt", follow=follow)
    coordinator, scan = spout.get_coordinator({}), os.scandir

    def refuse(path: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SpoutError, match=f"cannot list the directory {tmp_path}: Input/output error"):
        coordinator.initialize_transaction(1, None)
    monkeypatch.setattr(os, "scandir", scan)
    assert [row[0] for row in rows_of(spout, coordinator, coordinator.initialize_transaction(1, None))] == ["one"]


@pytest.mark.parametrize("follow", [True, False])
def test_a_link_whose_file_does_not_answer_is_not_taken_for_a_dangling_one(
    tmp_path: Path, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "away.txt").write_bytes(b"one\n")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "away.txt")
    (tmp_path / "in" / "dangling.txt").symlink_to(tmp_path / "nowhere")
    spout = TextFileSpout(tmp_path / "in", follow=follow)
    coordinator, ask = spout.get_coordinator({}), os.stat

    def refuse(path: Any, **options: Any) -> Any:
        if str(path).endswith("link.txt"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return ask(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(SpoutError, match=r"cannot read files from .*/in/link.txt: Stale file handle"):
        coordinator.initialize_transaction(1, None)
    monkeypatch.setattr(os, "stat", ask)
    assert [row[0] for row in rows_of(spout, coordinator, coordinator.initialize_transaction(1, None))] == ["one"]


@pytest.mark.parametrize(
    ("source", "state", "log", "refused"),
    [
        ("in/state", "in/state", "log", "in/state"), ("in", "in/state", "log", "in/state"), ("in", "state", "in/log", "in/log"),
        ("link", "in/state", "log", "in/state"), ("in", "in/.state", "log", None),
        ("in", "in-2", "log", None),
    ],
)  # fmt: skip
def test_files_that_the_topology_writes_itself_are_refused(
    source: str, state: str, log: str, refused: str | None, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "in").mkdir()
    (tmp_path / source).mkdir(parents=True, exist_ok=True)

    def run(**files: Any) -> None:
        topology, lines = TridentTopology("t"), TextFileSpout(tmp_path / source, allow_empty=True, **files)
        spec = DeltaState.opaque(str(tmp_path / state))
        topology.new_stream("s", lines).group_by("line").persistent_aggregate(spec, Count(), "count")
        with topology.start(engine="in_process", log_dir=str(tmp_path / log)) as running:
            running.process_all_available()

    if refused is None:
        return run()
    with pytest.raises(SpoutError, match=f"has {tmp_path / refused} in it, where the topology itself writes"):
        run()
    return run(pattern="*.txt")


def place_changes(before: Path, after: Path, follow: bool = True) -> Definition | None:
    """Read all of one place, then go on with another one."""
    coordinator, last = TextFileSpout(before, follow=follow).get_coordinator({}), None
    while (made := coordinator.initialize_transaction(1, last)) is not None:
        last = made
    assert last is not None
    if not after.exists():
        before.rename(after)
    return TextFileSpout(after, follow=follow).get_coordinator({}).initialize_transaction(2, last)


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("place", ["a moved folder", "moved"])
def test_files_that_were_read_in_another_place_are_not_counted_again(tmp_path: Path, place: str, follow: bool) -> None:
    write(tmp_path / "books" / "one.txt", b"a\nb\n")
    write(tmp_path / "books" / "two.txt", b"c\n")
    with pytest.raises(ReplayMismatchError, match=f"{place}/.* is the file that was read as .*books/.*counted again"):
        place_changes(tmp_path / "books", tmp_path / place, follow)


def test_files_behind_a_link_are_those_that_were_read_without_it(tmp_path: Path) -> None:
    write(tmp_path / "v1" / "one.txt", b"a\nb\n")
    (tmp_path / "books").symlink_to(tmp_path / "v1")
    with pytest.raises(ReplayMismatchError, match=r"v1/one.txt is the file that was read as .*books/one.txt"):
        place_changes(tmp_path / "books", tmp_path / "v1")


def test_the_advice_about_moved_files_leads_on(tmp_path: Path) -> None:
    write(tmp_path / "books" / "one.txt", b"a\n")
    coordinator = TextFileSpout(tmp_path / "books").get_coordinator({})
    first = coordinator.initialize_transaction(1, None)
    (tmp_path / "books").rename(tmp_path / "moved")
    (tmp_path / "books").symlink_to(tmp_path / "moved")
    write(tmp_path / "moved" / "two.txt", b"b\n")
    spout = TextFileSpout(tmp_path / "books")
    coordinator = spout.get_coordinator({})
    made = coordinator.initialize_transaction(2, first)
    assert made is not None
    assert rows_of(spout, coordinator, made) == [("b",)]


def test_other_files_in_another_place_are_new(tmp_path: Path) -> None:
    write(tmp_path / "monday" / "one.txt", b"a\nb\n")
    write(tmp_path / "tuesday" / "one.txt", b"c\nd\n")
    assert place_changes(tmp_path / "monday", tmp_path / "tuesday") is not None


def test_files_that_would_be_left_out_in_another_place_are_said(tmp_path: Path) -> None:
    write(tmp_path / "tuesday" / "one.txt", b"a\nb\n")
    write(tmp_path / "monday" / "one.txt", b"c\nd\n")
    with pytest.raises(ReplayMismatchError, match=r"monday/one.txt is before it by its path, and would be left out"):
        place_changes(tmp_path / "tuesday", tmp_path / "monday", follow=False)
    assert place_changes(tmp_path / "tuesday", tmp_path / "monday") is not None
