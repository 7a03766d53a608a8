"""The partitioned sources of docs/writing-a-spout.md: short, and exact where a real source is unkind."""

import ast
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.harness.commands import until
from tests.harness.topology_runs import keep, start
from tests.spout.partition_source import emitted
from tests.test_docs import DOCS, blocks
from trident import BatchFailedError, TridentTopology

pytestmark = pytest.mark.slow

MOST_LINES = 40


def source_of(name: str) -> str:
    """Return the imports and the class of a source of the page."""
    (code,) = (code for code in blocks(DOCS / "writing-a-spout.md", "python") if f"class {name}(" in code)
    kept = [
        node
        for node in ast.parse(code).body
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.ClassDef) and node.name == name)
    ]
    return "\n".join(ast.get_source_segment(code, node) or "" for node in kept)


def class_of(name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(source_of(name), namespace)
    return namespace[name]


@pytest.mark.parametrize("name", ["CsvFolder", "Payments"])
def test_a_source_of_the_page_is_short(name: str) -> None:
    code = source_of(name)
    assert len(code[code.index(f"class {name}(") :].splitlines()) <= MOST_LINES


def test_csv_files_that_grow_are_read_line_by_line_once(tmp_path: Path) -> None:
    topology, file = TridentTopology("t"), tmp_path / "a.csv"
    rows = keep(topology.new_stream("s", class_of("CsvFolder")(tmp_path, "name: string, n: bigint", 64)))
    file.write_text("name,n\n")
    with start(topology, "in_process") as running:
        for text in ("x,1\nhalf", ",2\n", '"a, b",3\ny,', "4", "\n", "".join(f"z,{n}\n" for n in range(5, 40))):
            with file.open("a") as writer:
                writer.write(text)
            running.process_all_available()
        (tmp_path / "b.csv").write_text("name,n\nlate,40\n")
        running.process_all_available()
    assert [n for _, n in rows.rows] == list(range(1, 41))
    assert [name for name, _ in rows.rows][:4] == ["x", "half", "a, b", "y"]


def test_a_line_that_does_not_fit_is_an_error_and_no_silence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,n\nlonger than sixteen bytes,1\n")
    with pytest.raises(BatchFailedError, match="the line at byte 7 is longer than 16 bytes"):
        emitted(class_of("CsvFolder")(tmp_path, "name: string, n: bigint", 16))


def test_a_folder_that_is_not_there_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topology, folder = TridentTopology("t"), tmp_path / "late"
    rows = keep(topology.new_stream("s", class_of("CsvFolder")(folder, "name: string, n: bigint")))
    with start(topology, "in_process", max_batch_attempts=2) as running:
        until(lambda: caplog.text.count(f"SourceAwayError: there is no folder {folder}") >= 5, "it is asked for again")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "a.csv").write_text("name,n\na,1\n")
        (tmp_path / "new").rename(folder)
        running.process_all_available()
    assert rows.rows == [("a", 1)]


class Api(ThreadingHTTPServer):
    """Payments behind a cursor; every third answer is an error, and a page may have grown when it is asked for again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.payments: dict[str, list[int]] = {"ann": list(range(1, 30)), "bob": [100]}
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.asked % 3 == 0:
            self.server.payments["bob"].append(self.server.asked) if self.server.asked < 20 else None
            self.send_error(503)
            return
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        start = int(query.get("after", ["0"])[0])
        given = self.server.payments[url.path[1:]][start : start + int(query["limit"][0])]
        answer = json.dumps({"payments": given, "cursor": str(start + len(given))}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield api
    api.shutdown()
    thread.join()
    api.server_close()


@pytest.mark.parametrize("pending", [1, 3])
def test_an_api_that_fails_at_times_is_read_once(pending: int, api: Api) -> None:
    topology = TridentTopology("t")
    rows = keep(topology.new_stream("s", class_of("Payments")(api.url, ["ann", "bob"], 4)))
    with start(topology, "in_process", max_batch_attempts=50, max_spout_pending=pending) as running:
        running.process_all_available()
        api.payments["ann"].append(1000)
        running.process_all_available()
        for account, payments in api.payments.items():
            assert [cents for name, cents in rows.rows if name == account] == payments
    assert api.asked > 20


def test_an_api_that_is_away_is_an_error_that_names_it() -> None:
    with pytest.raises(
        BatchFailedError,
        match=r"failed 3 times in step 's': SpoutError: Payments: .* of partition 'ann': URLError: .*refused",
    ):
        emitted(class_of("Payments")("http://127.0.0.1:9", ["ann"]))
