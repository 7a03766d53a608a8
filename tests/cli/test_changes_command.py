"""`trident changes`: the changes of a state on the command line, and over HTTP as a browser follows them."""

import http.client
import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.harness.commands import started, trident, write_module
from tests.harness.servers import Server
from trident.cli.changes import ChangeServer, print_changes
from trident.errors import ConfigError, LogError

pytestmark = [pytest.mark.slow, pytest.mark.server]

MODULE = """
    from spouts import FixedBatchSpout
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Sum

    def made(*rows):
        topology = TridentTopology("sales")
        sales = topology.new_stream("sales", FixedBatchSpout("shop: string, euros: bigint", 1, *rows)).group_by("shop")
        state = RedisState.opaque("redis://{address}/0", prefix="{name}", changes={changes})
        sales.persistent_aggregate(state, "euros", Sum(), "revenue", state_name="revenue")
        return topology

    ROWS = [["oslo", 3], ["bergen", 1], ["oslo", 4], ["oslo", 2]]
    some, topology = made(*ROWS[:3]), made(*ROWS)
    many = made(*[["oslo", 1]] * 70)
"""
FIRST = {"txid": 1, "changes": [{"key": ["oslo"], "before": None, "after": 3}]}
SECOND = {"txid": 2, "changes": [{"key": ["bergen"], "before": None, "after": 1}]}
THIRD = {"txid": 3, "changes": [{"key": ["oslo"], "before": 3, "after": 7}]}
FOURTH = {"txid": 4, "changes": [{"key": ["oslo"], "before": 7, "after": 9}]}


@pytest.fixture
def folder(tmp_path: Path, redis_server: Server) -> Path:
    text = MODULE.format(address=redis_server.address, name=tmp_path.name[-30:], changes='"7d"')
    write_module(tmp_path, "sales", text)
    run(tmp_path, "some")
    return tmp_path


def run(folder: Path, name: str) -> None:
    done = trident("run", f"sales:{name}", "--once", "--conf", "engine=in_process", cwd=folder)
    assert done.returncode == 0, done.stderr


def changes(folder: Path, *words: str) -> Any:
    return trident("changes", "sales:some", "revenue", *words, cwd=folder)


def lines(text: str) -> list[Any]:
    """Return what lines say, without the positions, of which each has the txid and who committed it."""
    found = list(map(json.loads, text.splitlines()))
    for line in found:
        assert re.fullmatch(rf"{line['txid']}-\d+-[0-9a-f]+", line.pop("position"))
    return found


@pytest.mark.long
def test_changes_are_printed_a_line_a_batch_and_continue_behind_any(folder: Path) -> None:
    assert lines(changes(folder, "--since", "0").stdout) == [FIRST, SECOND, THIRD]
    assert lines(changes(folder, "--since", "2").stdout) == [THIRD]
    (snapshot,) = lines(changes(folder, "--snapshot").stdout)
    assert (snapshot["txid"], sorted(snapshot["rows"])) == (3, [["bergen", 1], ["oslo", 7]])
    wrong = changes(folder)
    assert (wrong.returncode, "say where to begin" in wrong.stderr) == (2, True)


@pytest.mark.long
def test_what_is_still_to_come_is_followed_until_ctrl_c(folder: Path) -> None:
    with started("changes", "sales:some", "revenue", "--since", "2", "--follow", cwd=folder) as following:
        assert lines(following.says(".*")) == [THIRD]
        run(folder, "topology")
        assert lines(following.says(".*")) == [FOURTH]
        following.signal(signal.SIGINT)
        code, _, problems = following.end()
    assert (code, "Traceback" in problems) == (130, False)


@pytest.mark.long
def test_a_browser_follows_events_and_comes_back_behind_the_last(folder: Path) -> None:
    with started("changes", "sales:some", "revenue", "--port", "0", cwd=folder) as serving:
        address = serving.says(r"http://[\d.:]+")
        assert ask(address, "/snapshot")[1]["txid"] == 3
        (_, first), (second_id, second), (third_id, third) = events(address, "/changes?since=0", 3)
        assert (first, second, third) == (FIRST, SECOND, THIRD)
        assert events(address, "/changes?since=0", 1, {"Last-Event-ID": second_id}) == [(third_id, THIRD)]
        status, problem = ask(address, "/changes", {"Last-Event-ID": third_id[:-1] + "x"})
        assert (status, problem["kind"]) == (410, "ChangesReplacedError")
        status, problem = ask(address, "/changes?since=soon")
        said = "since='soon': expected the number of a batch, or the position of a feed"
        assert (status, problem["error"]) == (400, said)
        assert ask(address, "/changes", {"Host": "evil.example"})[0] == 403
        with asked(address, "/changes") as answer:
            run(folder, "topology")
            assert event(answer)[1] == FOURTH
        serving.signal(signal.SIGTERM)
        assert serving.end()[0] == 143


@pytest.mark.parametrize(("error", "status"), [(ValueError(), 400), (ConfigError("no"), 400), (LogError("away"), 503)])
def test_a_client_is_told_whether_its_request_or_the_server_is_at_fault(error: Exception, status: int) -> None:
    def open_feed(since: str | None) -> Any:
        raise error

    with ChangeServer(open_feed) as server:
        assert ask(server.url, "/changes?since=1")[0] == status
        assert "GET /changes and GET /snapshot" in ask(server.url, "/no-such")[1]["error"]


@contextmanager
def asked(address: str, path: str, headers: dict[str, str] | None = None) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)) as connection:
        connection.request("GET", path, headers=headers or {})
        yield connection.getresponse()


def ask(address: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    with asked(address, path, headers) as answer:
        return answer.status, json.loads(answer.read())


def events(address: str, path: str, count: int, headers: dict[str, str] | None = None) -> list[tuple[str, Any]]:
    with asked(address, path, headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [event(answer) for _ in range(count)]


def event(answer: http.client.HTTPResponse) -> tuple[str, Any]:
    fields: dict[str, str] = {}
    while line := answer.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        fields[name] = value
    return fields["id"], json.loads(fields["data"])


def test_a_value_that_json_has_not_is_a_text_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    nan = float("nan")
    batch = SimpleNamespace(txid=2, as_mapping=lambda: {"changes": [{"key": ["\x9b"], "before": None, "after": nan}]})
    feed: Any = SimpleNamespace(
        snapshot=lambda: (1, [["a", nan]]),
        position="1-1-a",
        place_of=lambda txid: f"{txid}-1-a",
        read=iter([[batch], []]).__next__,
    )
    print_changes(feed, snapshot=True, follow=False)
    told = capsys.readouterr().out
    assert lines(told) == [
        {"txid": 1, "rows": [["a", "nan"]]},
        {"txid": 2, "changes": [{"key": ["\x9b"], "before": None, "after": "nan"}]},
    ]
    assert "\x9b" not in told
