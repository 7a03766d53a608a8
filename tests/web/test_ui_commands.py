"""`trident run --ui` and `trident ui`, as processes of their own."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.commands import environment, started, trident, until
from trident.cluster_state.cluster_address import open_cluster_state

pytestmark = pytest.mark.slow

WORDS = """
from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count

topology = TridentTopology("words")
words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["the"], ["cow"], cycle=True))
words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
"""


def run_words(folder: Path, *options: str) -> Any:
    (folder / "words.py").write_text(WORDS, encoding="utf-8")
    slow = ("--conf", "batch_emit_interval_ms=20", "--engine", "in_process")
    return ("run", "words.py:topology", *slow, "--ui", "--ui-port", "0", *options)


def test_a_run_with_a_page_prints_address_and_token_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with started(*run_words(tmp_path), cwd=tmp_path) as process:
        url = process.says(r"(?<=words: page at )http://127\.0\.0\.1:\d+$")
        token = process.says(r"(?<=need the token )[0-9a-f]{32}$")
        topology = f"{url}/api/v1/topology/words"
        until(lambda: httpx.get(topology).json()["txid"] > 3)
        assert "batch 2" in httpx.get(f"{topology}/log").json()["text"]
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.post(f"{topology}/deactivate").status_code == 401
        assert httpx.post(f"{topology}/deactivate", headers=headers).status_code == 200
        assert httpx.get(topology).json()["status"] == "INACTIVE"
        process.signal(signal.SIGINT)
        code, out, err = process.end()
        assert (code, "stopped after batch" in out) == (130, True)
        assert "committed" not in err  # what is logged for the page does not go to the terminal
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


@pytest.mark.long
def test_an_address_for_all_is_warned_of(tmp_path: Path) -> None:
    with started(*run_words(tmp_path, "--ui-host", "0.0.0.0"), cwd=tmp_path) as process:
        port = process.says(r"(?<=page at http://0\.0\.0\.0:)\d+$")
        assert httpx.get(f"http://127.0.0.1:{port}/api/v1/topology/words").status_code == 200
        process.signal(signal.SIGINT)
        _, _, err = process.end()
    assert "warning: anyone who reaches" in err


@pytest.mark.long
def test_the_page_of_a_cluster_says_that_no_nimbus_leads(tmp_path: Path) -> None:
    open_cluster_state(tmp_path / "cluster").close()
    with started("ui", "--cluster", str(tmp_path / "cluster"), "--port", "0", cwd=tmp_path) as process:
        url = process.says(r"(?<=page at )\S+$")
        assert httpx.get(f"{url}/api/v1/topology/summary").json() == {"topologies": []}
        assert httpx.get(f"{url}/api/v1/nimbus/summary").json() == {"nimbuses": []}
        assert httpx.get(f"{url}/api/v1/topology/none").status_code == 404
        process.signal(signal.SIGTERM)
        code, _, err = process.end()
        assert (code, "Traceback" in err) == (143, False)


def test_the_page_of_a_folder_without_a_cluster_makes_none(tmp_path: Path) -> None:
    done = trident("ui", "--cluster", "wrong", "--port", "0", cwd=tmp_path)
    assert (done.returncode, done.stderr.partition(".")[0]) == (1, f"error: there is no cluster in {tmp_path}/wrong")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address",
    [
        "ftp://x",
        pytest.param("zookeeper://127.0.0.1:1/storm", marks=pytest.mark.soak),
    ],  # that one waits for ten seconds
)
def test_a_wrong_cluster_is_one_line(tmp_path: Path, address: str) -> None:
    words = ("ui", "--cluster", address, "--port", "0")
    with started(*words, cwd=tmp_path, variables=environment(TRIDENT_TOKEN="known")) as process:
        code, _, err = process.end()
    assert code == 1
    assert "error: " in err
    assert "Traceback" not in err
