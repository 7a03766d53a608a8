"""TextFileSpout: whatever comes, grows and restarts, each line is in exactly one batch, and batches do not change."""

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import TextFileSpout
from spouts.files.ranges import Position, Positions
from tests.spouts.files.test_text_files import append, write
from tests.spouts.reading import rows_of
from trident.spout import Definition

line = st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"").replace(b"\xef", b"."))
text = st.lists(st.tuples(line, st.sampled_from([b"\n", b"\r\n"])), max_size=12).map(
    lambda found: b"".join(one + end for one, end in found)
)
whole = st.binary(max_size=40).map(
    lambda data: data if data.endswith(b"\n") or not data else data + b"."
)  # no half character
name = st.sampled_from(["a", "b", "c/a", "c/b", "d", "c.gz-not", "c/d/e"])
step = st.one_of(
    st.tuples(st.just("write"), name, text),
    st.tuples(st.just("batch"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(st.just("fall back"), st.none(), st.none()),
)


def plain(root: Path) -> list[str]:
    """Return the lines of all files as plain Python reads them, sorted."""
    data = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    return sorted(one.decode("utf-8", "replace").removesuffix("\r") for text in data for one in text.split(b"\n")[:-1])


@pytest.mark.slow
@given(st.lists(step, max_size=25), st.integers(1, 80), st.dictionaries(name, text, max_size=5), st.booleans())
def test_each_line_is_in_exactly_one_batch(
    steps: list[tuple[str, str, bytes]], max_batch_bytes: int, files: dict[str, bytes], unended: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for one, data in files.items():
            write(root / one, data)
        spout = TextFileSpout(root, max_batch_bytes=max_batch_bytes, allow_empty=True)
        coordinator = spout.get_coordinator({})
        chain: list[tuple[Definition, list[tuple[str]]]] = []

        def batch() -> bool:
            definition = coordinator.initialize_transaction(len(chain) + 1, chain[-1][0] if chain else None)
            if definition is not None:
                chain.append((pickle.loads(pickle.dumps(definition)), rows_of(spout, coordinator, definition)))
            return definition is not None

        for what, where, data in steps:
            if what == "write":
                (append if (root / where).exists() else write)(root / where, data)
            elif what == "batch":
                batch()
            elif what == "restart":
                coordinator = pickle.loads(pickle.dumps(spout)).get_coordinator({})
            elif chain:
                chain.pop()  # a definition that never got into the log
        if unended:
            write(root / "z", b"ended\nwithout end")
        while batch():
            pass
        expected = plain(root) + (["without end"] if unended else [])
        assert sorted(one for _, rows in chain for (one,) in rows) == sorted(expected)
        append(root / "a", b"more\n") if (root / "a").exists() else write(root / "a", b"new\n")
        again = spout.get_coordinator({})
        assert [rows_of(spout, again, definition) for definition, _ in chain] == [rows for _, rows in chain]


@pytest.mark.slow
@given(st.lists(whole, max_size=6), st.integers(1, 60), st.booleans(), st.integers(1, 4))
def test_a_restart_from_any_definition_gives_the_same_rest(
    contents: list[bytes], max_batch_bytes: int, follow: bool, parallelism: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for k, data in enumerate(contents):
            write(Path(directory, f"{k}"), data)
        spout = TextFileSpout(directory, max_batch_bytes=max_batch_bytes, follow=follow, allow_empty=True)

        def rest(previous: Definition | None) -> list[Definition]:
            coordinator = spout.get_coordinator({})
            found: list[Definition] = []
            while (previous := coordinator.initialize_transaction(len(found) + 1, previous)) is not None:
                found.append(previous)
            return found

        whole = rest(None)
        for at, definition in enumerate(whole):
            ranges = [(one["base"], one["ranges"]) for one in rest(definition)]
            assert ranges == [(one["base"], one["ranges"]) for one in whole[at + 1 :]]
        covered = sum(end - start for one in whole for _, start, end, _ in one["ranges"])
        assert covered == sum(len(data) for data in contents)
        coordinator = spout.get_coordinator({})
        found = [row[0] for one in whole for row in rows_of(spout, coordinator, one, parallelism)]
        assert found == [one for data in contents for one in plain_lines(data)]


def plain_lines(data: bytes) -> list[str]:
    found = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\n")
    last = found.pop()
    found += [last.removesuffix(b"\r")] if last else []
    return [one.decode("utf-8", "replace") for one in found]


paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5)
position = st.builds(Position, st.integers(1, 2**63), st.integers(0, 2**32 - 1))


@given(st.lists(st.tuples(paths, st.one_of(position, st.none())), max_size=60), st.integers(1, 9))
def test_packed_positions_are_the_positions(changes: list[tuple[str, Position | None]], times: int) -> None:
    table, model, chunks = Positions(), dict[str, Position](), list[bytes]()
    for round_ in range(times):
        for path, changed in changes:
            key = f"{path}/{round_ % 3}"
            if changed is None:
                table.forget(key)
                model.pop(key, None)
            else:
                table.set(key, changed)
                model[key] = changed
        chunks = table.to_chunks()
        if round_ == times // 2:
            table = Positions(chunks)
    again = Positions(chunks)
    assert {path: again.get(path) for path in again} == model == {path: table.get(path) for path in table}


def entries_in(chunks: list[bytes]) -> int:
    return sum(int.from_bytes(chunk[:4], "little") for chunk in chunks)


@pytest.mark.long
@pytest.mark.slow
def test_an_entry_that_changes_all_the_time_is_not_sealed_again_and_again() -> None:
    table = Positions()
    for k in range(3000):
        table.set(str(k), Position(1, 1))
        table.set("hot", Position(k + 1, 1))
        table.to_chunks()
    assert entries_in(table.to_chunks()) == 3001


def test_restarts_do_not_make_the_table_grow() -> None:
    table = Positions()
    for round_ in range(12):
        for k in range(1000):
            table.set(str(k), Position(round_ + 1, 1))
        table = Positions(table.to_chunks())
        assert entries_in(table.to_chunks()) <= 2 * 1000 + 512
    assert table.get("7") == Position(12, 1)


def test_a_table_of_many_files_is_sealed_in_chunks_and_does_not_grow_with_changes() -> None:
    table = Positions()
    for k in range(3000):
        table.set(f"/data/logs/part-{k:05}.txt", Position(k * 7919 % 100_000 + 1, k * 2654435761 % 2**32))
    first = table.to_chunks()
    table.set("/data/logs/part-00001.txt", Position(5, 5))
    assert table.to_chunks()[:-1] == first[:-1]
    assert sum(map(len, first)) < 3000 * 12
    for round_ in range(20):
        for k in range(3000):
            table.set(f"/data/logs/part-{k:05}.txt", Position(k + round_ + 1, k))
        assert sum(map(len, table.to_chunks())) < 3000 * 30
    assert Positions(table.to_chunks()).get("/data/logs/part-00007.txt") == Position(7 + 19 + 1, 7)
