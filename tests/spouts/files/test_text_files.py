"""TextFileSpout: which lines are in which batch."""

import gzip
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from spouts import TextFileSpout
from spouts.files.file_coordinator import FileCoordinator
from spouts.files.ranges import FileRange, cut
from tests.spouts.reading import batches, begun, definitions, first_batch, is_plain, rows, rows_of
from trident.spout import Definition, TransactionAttempt

LONG_AGO = 1_000_000_000


def write(path: Path, data: bytes, at: float = LONG_AGO) -> Path:
    """Write a file that was last changed long ago, unless said otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))
    return path


def append(path: Path, data: bytes, at: float = LONG_AGO) -> None:
    with path.open("ab") as file:
        file.write(data)
    os.utime(path, (at, at))


def lines(spout: TextFileSpout) -> list[Any]:
    return [row[0] if len(row) == 1 else row for row in rows(spout)]


def test_the_lines_of_all_files_come_by_path_and_directories_are_entered(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", b"3\n4\n")
    write(tmp_path / "a.txt", b"1\n2\n")
    write(tmp_path / "c" / "d" / "e.txt", b"5\n")
    assert lines(TextFileSpout(tmp_path)) == ["1", "2", "3", "4", "5"]
    assert lines(TextFileSpout(tmp_path, recursive=False)) == ["1", "2", "3", "4"]


def test_pattern_glob_and_list_choose_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.log", "c/d.txt", ".hidden.txt"):
        write(tmp_path / name, name.encode() + b"\n")
    assert lines(TextFileSpout(tmp_path, pattern="*.txt")) == ["a.txt", "c/d.txt"]
    assert lines(TextFileSpout(tmp_path, pattern=".*")) == [".hidden.txt"]
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert lines(TextFileSpout(str(tmp_path / "*"))) == ["a.txt", "b.log"]
    assert lines(TextFileSpout(str(tmp_path / "**" / "*.txt"))) == ["a.txt", "c/d.txt"]
    assert lines(TextFileSpout([tmp_path / "b.log", tmp_path / "a.txt", tmp_path / "a.txt"])) == ["a.txt", "b.log"]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    write(tmp_path / "a[1].txt", b"x\n")
    write(tmp_path / "a1.txt", b"y\n")
    assert lines(TextFileSpout(tmp_path / "a[1].txt")) == ["x"]


def test_links_are_read_once_and_loops_end(tmp_path: Path) -> None:
    write(tmp_path / "z" / "a.txt", b"1\n")
    other = write(tmp_path.parent / (tmp_path.name + "-other") / "b.txt", b"2\n")
    (tmp_path / "z" / "loop").symlink_to(tmp_path)
    (tmp_path / "a-link").symlink_to(tmp_path / "z")
    (tmp_path / "current.txt").symlink_to(tmp_path / "z" / "a.txt")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "elsewhere").symlink_to(other.parent)
    found = lines(TextFileSpout(tmp_path, with_source=True))
    assert [(line, os.path.relpath(path, tmp_path)) for line, path, _ in found] == [
        ("2", "elsewhere/b.txt"), ("1", "z/a.txt")
    ]  # fmt: skip


def test_a_file_that_a_glob_finds_behind_a_link_as_well_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "z" / "a.txt", b"1\n")
    (tmp_path / "link").symlink_to(tmp_path / "z")
    assert lines(TextFileSpout(str(tmp_path / "**" / "*.txt"))) == ["1"]


@pytest.mark.parametrize("follow", [False, True])
def test_a_file_of_several_names_is_read_once_also_as_names_come_and_go(tmp_path: Path, follow: bool) -> None:
    path = write(tmp_path / "b", b"1\n")
    (tmp_path / "c").hardlink_to(path)
    spout = TextFileSpout([tmp_path, tmp_path / "b"], follow=follow, with_source=True)
    coordinator, first = begun(spout)
    assert rows_of(spout, coordinator, first) == [("1", str(path), 0)]
    if follow:
        (tmp_path / "a").hardlink_to(path)  # before it by path
        assert coordinator.initialize_transaction(2, first) is None
        append(path, b"2\n")
    for again in (coordinator, spout.get_coordinator({})):
        second = again.initialize_transaction(2, first)
        assert (second is not None) == follow
        if second is not None:
            assert rows_of(spout, again, second) == [("2", str(path), 2)]


def test_a_file_that_gets_another_name_before_its_own_is_read_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "b", b"1\n2\n3\n")
    spout = TextFileSpout(tmp_path, max_batch_bytes=2, follow=False)
    first = spout.get_coordinator({}).initialize_transaction(1, None)
    (tmp_path / "a").hardlink_to(path)
    assert [row for batch in batches(spout, first) for row in batch] == [("2",), ("3",)]


def test_a_line_longer_than_a_batch_is_a_batch_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "a", b"x\n" + b"y" * 50 + b"\nz\n" + b"w" * 20)
    found = [[len(line) for (line,) in one] for one in batches(TextFileSpout(tmp_path, max_batch_bytes=5))]
    assert found == [[1], [50], [1], [20]]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\na\n", ["", "", "a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\r\r\n", ["a\rb\r"]),
        (b"last", ["last"]),
        (b"a\nlast\r", ["a", "last"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"a\xef\xbb\xbf\n", ["a\ufeff"]),
        (b"nul\0inside\n\0\n", ["nul\0inside", "\0"]),
        ("é\u2028ü\x85\x0c\v\n日本".encode(), ["é\u2028ü\x85\x0c\v", "日本"]),
        (b"x" * 3_000_000 + b"\n" + b"y\n", ["x" * 3_000_000, "y"]),
    ],
)
def test_what_a_line_is(tmp_path: Path, data: bytes, expected: list[str]) -> None:
    write(tmp_path / "a", data)
    assert lines(TextFileSpout(tmp_path)) == expected


def test_a_byte_order_mark_is_one_at_the_beginning_of_a_file_only(tmp_path: Path) -> None:
    write(tmp_path / "a", "\ufeffa\n\ufeffb\n".encode())
    assert lines(TextFileSpout(tmp_path, max_batch_bytes=5)) == ["a", "\ufeffb"]


def test_other_encodings_become_utf8(tmp_path: Path) -> None:
    write(tmp_path / "a", "é\r\nß\n".encode("latin-1"))
    found = lines(TextFileSpout(tmp_path, encoding="latin-1", with_source=True))
    assert [(line, at) for line, _, at in found] == [("é", 0), ("ß", 3)]


def test_source_and_offset_of_each_line(tmp_path: Path) -> None:
    a = write(tmp_path / "a", b"\xef\xbb\xbfx\r\n\xffyy\nz")
    b = write(tmp_path / "b.gz", gzip.compress(b"1\n22\n3\n"))
    spout = TextFileSpout(tmp_path, with_source=True)
    assert str(spout.get_output_fields()) == "line: string, file: string, offset: bigint"
    assert lines(spout) == [
        ("x", str(a), 3), ("\ufffdyy", str(a), 6), ("z", str(a), 10), ("1", str(b), 0), ("22", str(b), 2),
        ("3", str(b), 5),
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
def test_offsets_lead_to_the_lines_however_the_file_is_cut(tmp_path: Path) -> None:
    random_ = random.Random(1)
    data = b"".join(b"%d" % k * random_.randrange(9) + random_.choice([b"\n", b"\r\n"]) for k in range(400_000))
    path = write(tmp_path / "a", data)
    (batch,) = batches(TextFileSpout(path, with_source=True, max_batch_bytes=1 << 30), parallelism=5)
    assert [line for line, _, _ in batch] == data.decode().replace("\r\n", "\n").split("\n")[:-1]
    assert all(data[at:].startswith(line.encode() + b"\n") or data[at:].startswith(line.encode() + b"\r\n")
               for line, _, at in random_.sample(batch, 500))  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_parts_have_about_equal_bytes_and_together_each_line_once(tmp_path: Path, parallelism: int) -> None:
    random_ = random.Random(parallelism)
    for name in "abc":
        write(
            tmp_path / name,
            b"".join(b"%s %d " % (name.encode(), k) * random_.randrange(20) + b"\n" for k in range(40_000)),
        )
    spout = TextFileSpout(tmp_path, max_batch_bytes=1 << 30)
    coordinator, definition = first_batch(spout)
    parts = coordinator.parts(TransactionAttempt(1, 0), definition, parallelism)
    sizes = [sum(piece.end - piece.start for piece in part) for part in parts]
    assert len(parts) == parallelism
    assert max(sizes) - min(sizes) <= parallelism
    whole = b"".join((tmp_path / name).read_bytes() for name in "abc").decode().split("\n")[:-1]
    assert [line for (line,) in rows_of(spout, coordinator, definition, parallelism)] == whole


def test_a_line_may_be_longer_than_several_parts(tmp_path: Path) -> None:
    data = b"a\n" + b"b" * 2_000_000 + b"\nc\n"
    write(tmp_path / "a", data)
    (batch,) = batches(TextFileSpout(tmp_path), parallelism=6)
    assert [len(line) for (line,) in batch] == [1, 2_000_000, 1]


def test_a_cut_just_before_or_after_a_line_end_loses_and_repeats_nothing(tmp_path: Path) -> None:
    for shift in range(-3, 4):
        first = 300_000 + shift
        write(tmp_path / "a", b"a" * (first - 1) + b"\n" + b"b" * (600_000 - first - 1) + b"\n")
        (batch,) = batches(TextFileSpout(tmp_path / "a"), parallelism=2)
        assert [len(line) for (line,) in batch] == [first - 1, 600_000 - first - 1]


def test_compressed_files_are_not_cut_and_the_rest_is_shared_by_the_other_tasks() -> None:
    ranges = [FileRange(*one, 0) for one in (("a", 0, 10), ("b.gz", 0, 6 << 20), ("c", 0, 1 << 20), ("d", 5, 1 << 20))]
    parts = cut(ranges, 8, lambda path: path.endswith(".gz"))
    found = [(piece.range.path, piece.start, piece.end) for part in parts for piece in part]
    assert found[:2] == [("a", 0, 10), ("b.gz", 0, 6 << 20)]
    assert len(parts) == 3
    assert all(parts)
    for one in ranges:
        pieces = [piece for part in parts for piece in part if piece.range == one]
        assert [piece.start for piece in pieces] == [one.start, *(piece.end for piece in pieces[:-1])]
        assert pieces[-1].end == one.end


def test_small_batches_are_one_part(tmp_path: Path) -> None:
    write(tmp_path / "a", b"x" * 511 + b"\n" * ((512 << 10) - 512))
    coordinator = TextFileSpout(tmp_path).get_coordinator({})
    (definition,) = definitions(coordinator)
    assert len(coordinator.parts(TransactionAttempt(1, 0), definition, 8)) == 1


def test_without_follow_nothing_is_looked_for_again(tmp_path: Path) -> None:
    write(tmp_path / "a", b"1\n")
    spout = TextFileSpout(tmp_path, follow=False)
    coordinator, definition = begun(spout)
    write(tmp_path / "b", b"2\n")
    append(tmp_path / "a", b"3\n")
    assert rows_of(spout, coordinator, definition) == [("1",)]
    assert coordinator.initialize_transaction(2, definition) is None


def test_a_file_that_grows_while_it_is_read_gives_what_was_defined(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"".join(b"%d\n" % k for k in range(500_000)))
    spout = TextFileSpout(path)
    coordinator, definition = begun(spout)
    found: list[Any] = []
    for part in coordinator.parts(TransactionAttempt(1, 0), definition, 2):
        for data in spout.get_emitter({}).emit(part):
            found += data.column(0).to_pylist()
            append(path, b"more\nand more")
    assert found == [str(k) for k in range(500_000)]
    assert {line for one in definitions(coordinator, definition) for (line,) in rows_of(spout, coordinator, one)} == {
        "more", "and moremore", "and more",
    }  # fmt: skip


def test_the_end_of_a_line_that_was_taken_without_is_no_line(tmp_path: Path) -> None:
    for end in (b"\n", b"\r\n"):
        path = write(tmp_path / "a", b"1\n2")
        spout = TextFileSpout(path)
        coordinator, definition = begun(spout)
        append(path, end)
        assert coordinator.initialize_transaction(2, definition) is None
        append(path, b"3\n")
        for one in (coordinator, spout.get_coordinator({})):
            assert rows_of(spout, one, one.initialize_transaction(2, definition)) == [("3",)]


def test_a_real_clock_takes_the_last_line_of_a_file_just_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    assert lines(TextFileSpout(tmp_path, tail=0)) == ["1", "2"]


def test_directories_are_listed_only_when_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(20):
        write(tmp_path / f"{k:02}", b"x\n")
    listed: list[str] = []
    scandir = os.scandir

    def counting(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    coordinator = TextFileSpout(tmp_path, max_batch_bytes=2).get_coordinator({})
    previous = None
    for txid in range(1, 21):
        previous = coordinator.initialize_transaction(txid, previous)
        assert previous is not None
    assert len(listed) == 2  # one to see that there are files, one to begin
    assert coordinator.initialize_transaction(21, previous) is None
    assert len(listed) == 3


def test_a_removed_file_that_was_not_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        write(tmp_path / name, name.encode() + b"\n")
    spout = TextFileSpout(tmp_path, max_batch_bytes=2)
    coordinator, first = begun(spout)
    (tmp_path / "b").unlink()
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(2, first)) == [("c",)]
    assert f"the file {tmp_path / 'b'} was removed: nothing of it was read" in caplog.text


def test_a_removed_file_is_forgotten_but_a_volume_that_is_not_mounted_is_not(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "a", b"1\n")
    write(tmp_path / "logs" / "b", b"2\n")
    write(tmp_path / "volume" / "c", b"3\n")
    spout = TextFileSpout([tmp_path / "logs", tmp_path / "volume"])
    coordinator, first = begun(spout)
    (tmp_path / "logs" / "a").unlink()
    (tmp_path / "volume" / "c").unlink()
    write(tmp_path / "logs" / "d", b"4\n")
    second = coordinator.initialize_transaction(2, first)
    assert rows_of(spout, coordinator, second) == [("4",)]
    write(tmp_path / "logs" / "a", b"5\n")
    write(tmp_path / "volume" / "c", b"3\n")
    again = spout.get_coordinator({})
    assert rows_of(spout, again, again.initialize_transaction(3, second)) == [("5",)]


def test_a_file_that_the_pattern_leaves_out_for_a_while_is_not_read_again(tmp_path: Path) -> None:
    write(tmp_path / "a.log", b"1\n")
    write(tmp_path / "b.txt", b"2\n")
    first = TextFileSpout(tmp_path).get_coordinator({}).initialize_transaction(1, None)
    narrow = TextFileSpout(tmp_path, pattern="*.txt").get_coordinator({})
    assert narrow.initialize_transaction(2, first) is None
    append(tmp_path / "b.txt", b"3\n")
    second = narrow.initialize_transaction(2, first)
    assert TextFileSpout(tmp_path).get_coordinator({}).initialize_transaction(3, second) is None


def test_names_of_any_bytes_are_read_and_their_definitions_are_plain(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff\xfe.txt", "wb") as file:  # noqa: PTH123 - no Path has such a name
        file.write(b"1\n")
    write(tmp_path / "日本", b"2\n")
    for follow in (True, False):
        spout = TextFileSpout(tmp_path, follow=follow, with_source=True, max_batch_bytes=2, tail=0)
        coordinator = spout.get_coordinator({})
        found = list(definitions(coordinator))
        assert sorted(line for one in found for line, _, _ in rows_of(spout, coordinator, one)) == ["1", "2"]
        assert all(is_plain(one) for one in found)


def test_definitions_are_small(tmp_path: Path) -> None:
    for k in range(600):
        write(tmp_path / f"part-{k:05}.txt", b"x" * (k + 1) + b"\n")
    sizes = {
        follow: [
            len(pickle.dumps(one))
            for one in definitions(TextFileSpout(tmp_path, follow=follow, max_batch_bytes=1000).get_coordinator({}))
        ]
        for follow in (True, False)
    }
    assert max(sizes[False][-100:]) < 400
    assert max(sizes[True]) < 600 * 15 + 1000


def test_follow_may_be_turned_on_and_off_between_starts(tmp_path: Path) -> None:
    for name in "abcdef":
        write(tmp_path / name, name.encode() + b"\n")
    found, previous = [], None
    for txid, follow in enumerate([False, False, False, True, True, False], 1):
        spout = TextFileSpout(tmp_path, follow=follow, max_batch_bytes=2)
        coordinator = spout.get_coordinator({})
        previous = coordinator.initialize_transaction(txid, previous)
        found += rows_of(spout, coordinator, previous)
    assert found == [(name,) for name in "abcdef"]


def test_what_was_read_with_follow_is_not_read_again_without(tmp_path: Path) -> None:
    write(tmp_path / "m", b"1\n")
    first = TextFileSpout(tmp_path).get_coordinator({}).initialize_transaction(1, None)
    write(tmp_path / "a", b"2\n")
    spout = TextFileSpout(tmp_path, follow=False)
    coordinator = spout.get_coordinator({})
    second = coordinator.initialize_transaction(2, first)
    assert rows_of(spout, coordinator, second) == [("2",)]
    assert spout.get_coordinator({}).initialize_transaction(3, second) is None


def lags(coordinator: FileCoordinator, made: list[Definition]) -> list[int]:
    """Commit batches in order and say after each how many bytes are left."""
    found = []
    for txid, definition in enumerate(made, 1):
        coordinator.success(txid, definition)
        amount, unit = coordinator.lag(definition)
        assert unit == "bytes"
        found.append(amount)
    return found


@pytest.mark.parametrize("follow", [True, False])
def test_the_lag_is_what_was_listed_uncommitted_however_far_batches_reach(tmp_path: Path, follow: bool) -> None:
    write(tmp_path / "a", b"1\n2\n3\n")
    write(tmp_path / "b", b"4\n5\n")
    coordinator = TextFileSpout(tmp_path, max_batch_bytes=4, follow=follow).get_coordinator({})
    assert lags(coordinator, list(definitions(coordinator))) == [6, 2, 0]


def test_what_is_added_is_ahead_once_it_was_listed_and_a_restart_knows_what_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n")
    spout = TextFileSpout(tmp_path, max_batch_bytes=2)
    coordinator = spout.get_coordinator({})
    (first, second) = definitions(coordinator)
    assert lags(coordinator, [first, second]) == [2, 0]
    append(path, b"3\n4\n5\n")
    third = coordinator.initialize_transaction(3, second)
    coordinator.success(3, third)
    assert coordinator.lag(third) == (4, "bytes")

    again = spout.get_coordinator({})
    fourth = again.initialize_transaction(4, third)
    again.success(4, fourth)
    assert again.lag(fourth) == (2, "bytes")
