"""The log: its last part and what comes, by level and text, as a file, and in bounded pieces, whatever is asked for."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web.page_servers import NASTY, TOKEN
from trident.cluster.machine_folder import MachineFolder
from trident.cluster.machine_supervisor import MachinePages
from trident.web.cluster_pages import LogOf, OneTopology, Page
from trident.web.log_pages import SEARCHED_BYTES, TAIL_BYTES, RecentLog, end_of_log, matching, page_of_log
from trident.web.rest import UIServer

LINES = """\
2026-11-26 02:00:00,001 INFO    trident.events: batch 1 committed
2026-11-26 02:00:01,001 WARNING trident.events: batch 2 failed (Größe)
Traceback (most recent call last):
  File "jobs.py", line 3, in execute
ValueError: boom
2026-11-26 02:00:02,001 INFO    trident.events: batch 2 committed
26/11/26 02:00:03 ERROR TaskSetManager: Lost task 0.0
2026-11-26 02:00:04,001 INFO    trident.events: boom is a word
"""


class Stored:
    """A log, and how much of it was read."""

    def __init__(self, text: str) -> None:
        self.data, self.read_bytes = text.encode(), 0

    def read(self, offset: int | None) -> Page:
        page = page_of_log(self.data, 0, offset)
        self.read_bytes += page["next"] - page["offset"]
        return page


def found(text: str, level: str | None = None, search: str = "", offset: int | None = None) -> list[str]:
    """The first words of the messages that are found."""
    page = matching(Stored(text).read, offset, level, search)
    return [line.split(": ", 1)[1][:7] for line in page["text"].splitlines() if line.startswith("2")]


@pytest.mark.parametrize(("level", "search", "wanted"), [
    ("WARNING", "", ["batch 2", "Lost ta"]), ("ERROR", "", ["Lost ta"]), ("CRITICAL", "", []),
    ("INFO", "committed", ["batch 1", "batch 2"]), (None, "BOOM", ["batch 2", "boom is"]),
    ("WARNING", "boom", ["batch 2"]), (None, "größe", ["batch 2"]), (None, "no such text", []),
])  # fmt: skip
def test_records_are_found_by_level_text_and_stack_trace(level: str | None, search: str, wanted: list[str]) -> None:
    assert found(LINES, level, search) == wanted


def test_a_stack_trace_comes_with_its_record() -> None:
    page = matching(Stored(LINES).read, None, "WARNING", "boom")
    assert page["text"].splitlines()[-1] == "ValueError: boom"
    assert (page["found"], page["offset"], page["next"]) == (1, 0, len(LINES.encode()))


def test_lines_without_a_level_are_found_by_text_only() -> None:
    assert matching(Stored("printed\nsaid\n").read, None, None, "said")["text"] == "said\n"
    assert matching(Stored("printed\nsaid\n").read, None, "DEBUG", "")["found"] == 0


def test_what_comes_is_found_once_also_where_a_line_had_not_ended() -> None:
    stored, told, offset = Stored(""), "", None
    for end in (30, 100, 150, 233, len(LINES.encode())):
        stored.data = LINES.encode()[:end]
        page = matching(stored.read, offset, "INFO", "batch")
        told, offset = told + page["text"], page["next"]
    assert [line[48:55] for line in told.splitlines() if "batch" in line] == ["batch 1", "batch 2", "batch 2"]


def test_a_line_that_has_not_ended_and_is_no_text_begins_where_it_began() -> None:
    stored = Stored(LINES)
    stored.data += b"\xff\xfe half"
    page = matching(stored.read, None, "ERROR", "")
    assert (page["found"], page["next"]) == (1, len(LINES.encode()))
    stored.data += b" a line\n"
    assert matching(stored.read, page["next"], None, "half a line")["text"] == "\ufffd\ufffd half a line\n"


def test_only_the_end_of_a_large_log_is_searched() -> None:
    line = "2026-11-26 02:00:00,001 INFO    trident: filler\n"
    stored = Stored(LINES + line * (3 * SEARCHED_BYTES // len(line)) + LINES)
    page = matching(stored.read, None, "WARNING", "")
    assert (page["found"], page["text"].count("Lost task")) == (2, 1)
    assert stored.read_bytes <= SEARCHED_BYTES + 2 * TAIL_BYTES
    everything = matching(stored.read, None, "INFO", "")
    assert len(everything["text"].encode()) <= TAIL_BYTES
    assert everything["text"].endswith("boom is a word\n")
    assert everything["found"] > 20_000


def test_a_line_without_an_end_is_not_waited_for() -> None:
    stored = Stored("x" * 200_000)
    page = matching(stored.read, None, None, "x")
    assert len(page["text"]) <= TAIL_BYTES + 1
    assert page["next"] == 200_000


def test_a_download_is_the_end_of_the_log_and_ends_while_more_is_logged() -> None:
    stored = Stored("a" * 300_000)
    pieces = []
    for page in islice(end_of_log(stored.read, 128 << 10), 9):
        pieces.append(page["text"])
        stored.data += b"b" * TAIL_BYTES
    assert len(pieces) == 3
    assert stored.read_bytes <= 5 * TAIL_BYTES


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with RecentLog("trident.tests.searched") as log:
        logger = logging.getLogger("trident.tests.searched")
        logger.setLevel(logging.INFO)
        for number in range(300):
            logger.info("line %d", number)
        logger.warning("%s at redis://me:hush@cache/0", NASTY)
        nothing: Any = SimpleNamespace()
        with UIServer(OneTopology(f"../{NASTY}", nothing, log.page), port=0) as server:
            yield httpx.Client(base_url=f"{server.url}/api/v1/topology/{quote(f'../{NASTY}', safe='')}")


def test_the_log_is_searched_over_http(client: httpx.Client) -> None:
    page = client.get("/log", params={"search": "LINE 29"}).json()
    assert page["found"] == 11
    page = client.get("/log", params={"level": "WARNING"}).json()
    assert NASTY in page["text"]
    assert "redis://***@cache/0" in page["text"]
    assert client.get("/log", params={"level": "WARNING", "offset": page["next"]}).json()["text"] == ""


def test_a_download_is_a_file_of_text_and_never_markup(client: httpx.Client) -> None:
    answer = client.get("/log/download")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    name = "..-script-alert-1-script-img-src-x-onerror-alert-2-.log"  # without a path, and without quotation marks
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert len(answer.text.splitlines()) == 301
    assert "hush" not in answer.text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("log?level=LOUD", "level='LOUD': expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("log?of=/etc/passwd", "of='/etc/passwd': expected driver, or output"),
        ("log/download?of=../x", "of='../x': expected driver, or output"),
        ("log?offset=-1", "offset='-1': expected a number of bytes"),
    ],
)
def test_what_cannot_be_asked_so_is_refused(client: httpx.Client, asked: str, said: str) -> None:
    answer = client.get(f"/{asked}")
    assert (answer.status_code, answer.json()["errorMessage"]) == (400, said)


def test_a_download_of_no_topology_is_an_error_and_no_file(client: httpx.Client) -> None:
    answer = client.get(client.base_url.join("../other/log/download"))
    assert (answer.status_code, answer.json()["kind"]) == (404, "NoSuchTopology")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    above = tmp_path_factory.mktemp("supervisor")
    (above / "secret.log").write_text("hush")
    folder = MachineFolder(above / "machine")
    folder.log_file("t-1-5").write_text(LINES)
    folder.output_file("t-1-5").write_text("printed\n")
    (folder.path / "token.log").write_text("hush")
    with UIServer(MachinePages(folder), port=0, token=TOKEN, token_for_all=True) as server:
        yield server
    folder.close()


def of_machine(server: UIServer, path: str) -> httpx.Response:
    return httpx.get(f"{server.url}/api/v1/topology/{path}", headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.mark.slow
def test_what_a_driver_prints_is_beside_its_log(machine: UIServer) -> None:
    assert of_machine(machine, "t-1-5/log").json()["text"] == LINES
    assert of_machine(machine, "t-1-5/log?of=output").json()["text"] == "printed\n"
    assert of_machine(machine, "t-1-5/log?level=ERROR").json()["found"] == 1
    assert of_machine(machine, "t-1-5/log/download").text == LINES
    assert httpx.get(f"{machine.url}/api/v1/topology/t-1-5/log/download").status_code == 401


@pytest.mark.long
def test_what_is_printed_is_shown_without_secrets_also_where_a_piece_of_it_ends(tmp_path: Path) -> None:
    folder = MachineFolder(tmp_path)
    lines = "".join(f"{n} ü\ufffd: redis://me:hush@cache:{n}/0 answers\n" for n in range(4000)) + "the end"
    folder.output_file("t").write_bytes(lines.encode().replace("\ufffd".encode(), b"\xff"))
    pages = MachinePages(folder)
    told = "".join(each["text"] for each in end_of_log(lambda offset: pages.log("t", offset, "output")))
    assert told == lines.replace("me:hush", "***")
    folder.close()


@pytest.mark.sample(8)
@pytest.mark.parametrize("of", ["driver", "output"])
@pytest.mark.parametrize("name", [
    "..%2F..%2Fsecret", "..%2Ftoken", "%2Fetc%2Fpasswd", "..", "%2E%2E%2F%2E%2E%2Fsecret", "..%5C..%5Csecret",
    "logs%2F..%2F..%2Ftoken", "t-1-5%00", "%00", ".", "t-1-5.log%2F..%2F..%2Ftoken",
])  # fmt: skip
def test_no_name_leads_out_of_the_folder_of_logs(machine: UIServer, name: str, of: LogOf) -> None:
    for page in ("log", "log/download"):
        answer = of_machine(machine, f"{name}/{page}?of={of}")
        assert "hush" not in answer.text
        assert "root:" not in answer.text
        assert answer.status_code in (200, 400, 404)


@pytest.mark.slow
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
    assert page_of_log(b"abc", 100, 5000) == {"text": "abc", "offset": 100, "next": 103, "lineEnd": 100}


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
