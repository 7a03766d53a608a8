"""`trident run --ui` and `trident ui`, as processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ui.page_servers import until
from trident.ui.ui_server import UIServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORDS = """
from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count

topology = TridentTopology("words")
words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["the"], ["cow"], cycle=True))
words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
"""


@contextmanager
def command(folder: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200", **variables}
    started = subprocess.Popen(
        [sys.executable, "-m", "trident.cli", *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def said(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"it ended without saying {pattern!r}: {process.stderr and process.stderr.read()}")


def run_words(folder: Path, *options: str) -> Any:
    (folder / "words.py").write_text(WORDS, encoding="utf-8")
    slow = ("--conf", "batch_emit_interval_ms=20", "--engine", "in_process")
    return ("run", "words.py:topology", *slow, "--ui", "--ui-port", "0", *options)


def test_a_run_with_a_page_prints_address_and_token_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with command(tmp_path, *run_words(tmp_path)) as process:
        url = said(process, r"words: page at (http://127\.0\.0\.1:\d+)$")
        token = said(process, r"need the token ([0-9a-f]{32})$")
        topology = f"{url}/api/v1/topology/words"
        until(lambda: httpx.get(topology).json()["txid"] > 3)
        assert "batch 2" in httpx.get(f"{topology}/log").json()["text"]
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.post(f"{topology}/deactivate").status_code == 401
        assert httpx.post(f"{topology}/deactivate", headers=headers).status_code == 200
        assert httpx.get(topology).json()["status"] == "INACTIVE"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "stopped after batch" in out) == (130, True)
        assert "committed" not in err  # what is logged for the page does not go to the terminal
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


@pytest.mark.long
def test_kill_on_the_page_ends_the_run(tmp_path: Path) -> None:
    with command(tmp_path, *run_words(tmp_path), TRIDENT_TOKEN="known") as process:
        url = said(process, r"page at (\S+)$")
        killed = httpx.post(f"{url}/api/v1/topology/words/kill/0", headers={"Authorization": "Bearer known"})
        assert killed.status_code == 200
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, "need the token" in out) == (0, False)


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    noted: Any = None
    with UIServer(noted, port=0) as server:
        words = [*run_words(tmp_path), "--ui-port", str(server.port)]
        (tmp_path / "words.py").unlink()  # the port is refused before the module is looked for
        with command(tmp_path, *words) as process:
            _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cannot be served at 127.0.0.1:{server.port}" in err
    assert "Traceback" not in err


@pytest.mark.long
def test_the_page_of_the_setting_can_only_be_read(tmp_path: Path) -> None:
    words = [word for word in run_words(tmp_path, "--conf", "ui_port=0") if word != "--ui"]
    words[words.index("--ui-port") : words.index("--ui-port") + 2] = []
    with command(tmp_path, *words) as process:
        url = said(process, r"words: page at (http://127\.0\.0\.1:\d+)$")
        assert httpx.get(f"{url}/api/v1/topology/words").json()["name"] == "words"
        assert httpx.post(f"{url}/api/v1/topology/words/kill/0").status_code == 403
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, "need the token" in out) == (130, False)


@pytest.mark.long
def test_an_address_for_all_is_warned_of(tmp_path: Path) -> None:
    with command(tmp_path, *run_words(tmp_path, "--ui-host", "0.0.0.0")) as process:
        port = said(process, r"page at http://0\.0\.0\.0:(\d+)$")
        assert httpx.get(f"http://127.0.0.1:{port}/api/v1/topology/words").status_code == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "warning: anyone who reaches" in err


@pytest.mark.long
def test_the_page_of_a_cluster_says_that_no_nimbus_leads(tmp_path: Path) -> None:
    with command(tmp_path, "ui", "--cluster", str(tmp_path / "cluster"), "--port", "0") as process:
        url = said(process, r"page at (\S+)$")
        assert httpx.get(f"{url}/api/v1/topology/summary").json() == {"topologies": []}
        assert httpx.get(f"{url}/api/v1/nimbus/summary").json() == {"nimbuses": []}
        assert httpx.get(f"{url}/api/v1/topology/none").status_code == 404
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in err) == (143, False)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://x",
        pytest.param("zookeeper://127.0.0.1:1/storm", marks=pytest.mark.soak),
    ],  # that one waits for ten seconds
)
def test_a_wrong_cluster_is_one_line(tmp_path: Path, address: str) -> None:
    with command(tmp_path, "ui", "--cluster", address, "--port", "0", TRIDENT_TOKEN="known") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: " in err
    assert "Traceback" not in err
