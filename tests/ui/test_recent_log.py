"""The log of the page: its last part, what comes, and characters that are not cut."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from trident.ui.log_pages import TAIL_BYTES, RecentLog, page_of_log


@given(st.text(), st.integers(0, 50))
def test_what_comes_in_pieces_of_bytes_is_read_whole(text: str, cut: int) -> None:
    data = text.encode("utf-8", errors="replace")
    first = page_of_log(data[:cut], 0, 0)
    rest = page_of_log(data, 0, first["next"])
    assert first["text"] + rest["text"] == data.decode()
    assert rest["next"] == len(data)


def test_the_last_part_is_told_if_no_offset_is_given() -> None:
    kept = b"x" * TAIL_BYTES + b"last"
    page = page_of_log(kept, 100, None)
    assert (len(page["text"]), page["text"][-4:], page["next"]) == (TAIL_BYTES, "last", 100 + len(kept))


def test_an_offset_that_is_forgotten_or_of_another_log_says_where_it_begins() -> None:
    assert page_of_log(b"abc", 100, 5)["offset"] == 100
    assert page_of_log(b"abc", 100, 5000) == {"text": "abc", "offset": 100, "next": 103}


def test_much_is_told_in_several_pages() -> None:
    kept, offset, told = b"ab\n" * TAIL_BYTES, 0, ""
    while page := page_of_log(kept, 0, offset):
        if page["next"] == offset:
            break
        told, offset = told + page["text"], page["next"]
    assert told == kept.decode()


def test_old_lines_are_forgotten_and_offsets_go_on() -> None:
    logger = logging.getLogger("trident.tests.recent")
    with RecentLog("trident.tests.recent") as log:
        for _ in range(30):
            logger.warning("%s", "x" * 50_000)
        begins = log.page(0)["offset"]
        assert begins > 0
        logger.warning("the last")
        assert log.page()["text"].endswith("the last\n")
    logger.warning("after it was closed")
    assert "after it was closed" not in log.page()["text"]
