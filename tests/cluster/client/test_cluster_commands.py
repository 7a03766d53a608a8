"""The commands for clusters as users type them, against a Nimbus and a supervisor that are processes of their own."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.harness.cluster_machines import TOKEN, MachineCluster
from tests.harness.commands import last_txid, started, trident, until, write_module
from trident.cli.app import app

pytestmark = [pytest.mark.slow, pytest.mark.server]

QUICK = ("--conf", "engine=in_process", "--conf", "batch_emit_interval_ms=500")
WAIT = ("--wait", "--timeout", "80")

NAMES = ("words", "told", "upgraded", "followed", "back")
_MADE = "{0} = made('{0}')\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with MachineCluster(folder, str(folder / "state")) as made:
        made.up()
        write_module(folder, "several", f"from counting import made\n{''.join(map(_MADE.format, NAMES))}")
        yield made


def invoke(cluster: MachineCluster, *words: str, token: str = TOKEN, code: int = 0) -> Result:
    variables = {"TRIDENT_CLUSTER": cluster.address, "TRIDENT_TOKEN": token, "COLUMNS": "300", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, list(words), env={**variables, "TERM": "dumb"})
    assert result.exit_code == code, result.output
    return result


def target(cluster: MachineCluster, name: str) -> str:
    return f"{cluster.folder}/several.py:{name}"


def test_a_topology_is_submitted_looked_at_steered_and_killed(cluster: MachineCluster) -> None:
    result = invoke(cluster, "submit", target(cluster, "words"), *QUICK, *WAIT)
    [line] = result.stdout.splitlines()
    storm_id = line.removeprefix("submitted words as ")
    assert storm_id.startswith("words-")
    listed = invoke(cluster, "list").stdout.splitlines()
    assert listed[0].split() == ["name", "status", "driver", "where", "workers", "submitted", "(UTC)", "id"]
    assert listed[1].split()[:4] == ["words", "active", "active", "for"]
    [found] = json.loads(invoke(cluster, "list", "--json").stdout)
    assert (found["id"], found["driver"], found["conf"]["engine"]) == (storm_id, "active", "in_process")
    shown = invoke(cluster, "show", storm_id).stdout
    assert "settings   batch_emit_interval_ms=500, engine=in_process" in shown
    assert f"topology {storm_id} runs" in invoke(cluster, "logs", "words").stdout
    assert invoke(cluster, "errors", "words").stdout == "no errors\n"
    assert invoke(cluster, "deactivate", "words").stdout == "words is inactive: what has begun is finished\n"
    until(lambda: json.loads(invoke(cluster, "show", "words", "--json").stdout)["driver"] == "inactive", "it is paused")
    assert invoke(cluster, "activate", "words").stdout == "words is active\n"
    assert json.loads(invoke(cluster, "rebalance", "words", "-n", "2", "-w", "1", "--json").stdout)["workers"] == 2
    killed = invoke(cluster, "kill", "words", "-w", "0").stdout
    assert killed == "words ends; what has begun may take 0 s\n"
    until(lambda: "no topologies" in invoke(cluster, "list").stdout, "it is forgotten")


@pytest.mark.long
def test_a_state_and_a_log_are_read_under_the_name_that_was_submitted(cluster: MachineCluster) -> None:
    invoke(cluster, "submit", target(cluster, "told"), "--name", "renamed", *QUICK, *WAIT)
    log_dir = cluster.log_address("renamed")
    until(lambda: last_txid(Path(log_dir)) >= 2, "two batches are committed")
    get = ("get", target(cluster, "told"), "counts", "the")
    assert "belongs to topology 'renamed'" in invoke(cluster, *get, "--log-dir", log_dir, code=1).stderr
    assert json.loads(invoke(cluster, "log", "renamed", "--json").stdout)["path"] == log_dir
    states = f"{cluster.folder}/states"
    words = (*get, "--name", "renamed", "--json")
    read = trident(*words, cwd=Path("/"), TRIDENT_CLUSTER=cluster.address, COUNTING_FOLDER=states)
    found = json.loads(read.stdout)
    assert found["values"] == [{"key": ["the"], "value": 2 * found["txid"]}]
    invoke(cluster, "kill", "renamed", "-w", "0")


@pytest.mark.long
def test_an_upgrade_is_compared_with_the_log(cluster: MachineCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTING_FOLDER", str(cluster.folder / "states"))
    source = (cluster.folder / "counting.py").read_text(encoding="utf-8")
    invoke(cluster, "submit", target(cluster, "upgraded"), *QUICK, *WAIT)
    until(lambda: "committed" in invoke(cluster, "logs", "upgraded").stdout, "a batch is committed")
    same = invoke(cluster, "upgrade", "upgraded", target(cluster, "upgraded")).stdout
    assert same == "upgraded: it already has this code and these settings; nothing was done\n"
    source += "upgraded = made('upgraded')\n"
    write_module(cluster.folder, "wrong", source.replace('"word")\n', '"w")\n').replace('by("word")', 'by("w")'))
    refused = invoke(cluster, "upgrade", "upgraded", f"{cluster.folder}/wrong.py:upgraded", code=1)
    assert "does not fit its log:\n  state 'counts': key word -> w" in refused.stderr
    rehearsed = invoke(cluster, "upgrade", "upgraded", f"{cluster.folder}/wrong.py:upgraded", "--rehearse", "2", code=4)
    assert rehearsed.stdout.startswith("refused: state 'counts': key word -> w\n")
    write_module(cluster.folder, "right", source.replace('["the moon"]', '["the moon"], ["the end"]'))
    words = ("upgrade", "upgraded", f"{cluster.folder}/right.py:upgraded", *WAIT)
    log_dir = Path(cluster.log_address("upgraded"))
    until(lambda: last_txid(log_dir) >= 3, "three batches are committed")
    write_module(cluster.folder, "fewer", source.replace('"word")\n', '"word").where("word != \'cow\'")\n'))
    fewer = ("upgrade", "upgraded", f"{cluster.folder}/fewer.py:upgraded")
    told = invoke(cluster, *fewer, "--rehearse", "2", code=4).stdout
    alike = "the totals go on: no state or stream is declared differently\n"
    assert re.match(rf"{alike}counts: 1 of 3 keys would be another, by batches \d+ to \d+\n", told)
    same = invoke(cluster, "upgrade", "upgraded", target(cluster, "upgraded"), "--rehearse", "2").stdout
    assert re.match(rf"{alike}counts: the same: 3 keys, by batches \d+ to \d+\n", same)
    assert json.loads(invoke(cluster, "show", "upgraded", "--json").stdout)["target"] == "several.py:upgraded"
    done = invoke(cluster, *words)
    assert done.stdout == "upgraded: generation 2 runs the new code, which fits its log\n"
    assert json.loads(invoke(cluster, "show", "upgraded", "--json").stdout)["target"] == "right.py:upgraded"
    invoke(cluster, "kill", "upgraded", "-w", "0")


@pytest.mark.long
def test_what_fails_is_told_while_one_waits_and_by_errors(cluster: MachineCluster) -> None:
    write_module(
        cluster.folder,
        "failing",
        """
        import os
        from counting import made

        def topology():
            if "trident-package" not in os.getcwd():
                raise ValueError("it fails where it runs")
            return made("failing")
        """,
    )
    result = invoke(cluster, "submit", f"{cluster.folder}/failing.py:topology", *QUICK, *WAIT, code=1)
    assert "submitted failing as failing-" in result.stdout
    assert "error: topology 'failing' is failed: " in result.stderr
    assert "it fails where it runs" in result.stderr
    assert "it fails where it runs" in invoke(cluster, "list").stdout
    assert "it fails where it runs" in invoke(cluster, "errors", "failing").stdout
    [error, *_] = json.loads(invoke(cluster, "errors", "failing", "--json").stdout)
    assert "it fails where it runs" in error["error"]
    invoke(cluster, "kill", "failing", "-w", "0")


@pytest.mark.long
def test_an_upgrade_that_was_taken_back_is_no_success(cluster: MachineCluster) -> None:
    invoke(cluster, "submit", target(cluster, "back"), *QUICK, *WAIT)
    write_module(
        cluster.folder,
        "later",
        """
        import os
        from counting import made
        back = made("back")
        if "TRIDENT_DRIVER_RUN" in os.environ:
            raise RuntimeError("the table is of next year")
        """,
    )
    result = invoke(cluster, "upgrade", "back", f"{cluster.folder}/later.py:back", *WAIT, code=1)
    assert "is back on its former code, because the new code cannot run: " in result.stderr
    assert "the table is of next year" in result.stderr
    invoke(cluster, "kill", "back", "-w", "0")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "none"), 1, "there is no topology 'none' in this cluster; its topologies are: "),
        (("kill", "none"), 1, "there is no topology 'none'"),
        (("logs", "none"), 1, "there is no topology 'none'"),
        (("submit", "counting.py:none"), 2, "there is no file 'counting.py'"),
        (("submit", "x:y", "--conf", "engine"), 2, "expected key=value"),
        (("rebalance", "none", "-e", "x"), 2, "expected COMPONENT=N"),
        (("rebalance", "none", "-e", "x=0"), 2, "expected COMPONENT=N with N at least 1"),
        (("rebalance", "none", "-n", "0"), 2, "Invalid value for '--workers'"),
        (("kill", "none", "-w", "-1"), 2, "Invalid value for '--wait-secs'"),
        (("submit", "x:y", "--requirements", "none.txt"), 2, "none.txt' does not exist"),
        (("list", "--cluster", "http://nowhere"), 1, "'http://nowhere' is not the address of a cluster"),
        (("list", "--cluster", "no-such-folder"), 1, "there is no cluster in "),
    ],
)
def test_a_wrong_use_is_told(
    cluster: MachineCluster, words: tuple[str, ...], code: int, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert said in " ".join(invoke(cluster, *words, code=code).stderr.split())


@pytest.mark.long
def test_logs_are_followed_until_the_topology_has_ended(cluster: MachineCluster) -> None:
    invoke(cluster, "submit", target(cluster, "followed"), *QUICK, *WAIT)
    words = ("logs", "followed", "--follow", "--cluster", cluster.address, "--token", TOKEN)
    with started(*words, cwd=cluster.folder) as following:
        assert following.process.stdout is not None
        assert "driver of followed-" in following.process.stdout.readline()
        invoke(cluster, "kill", "followed", "-w", "0")
        code, out, problems = following.end()
    assert (code, problems) == (0, "topology 'followed' has ended\n")
    assert out.endswith("ends: killed\n")


@pytest.mark.long
def test_ctrl_c_ends_the_wait_and_not_the_topology(tmp_path: Path) -> None:
    with MachineCluster(tmp_path, str(tmp_path / "state")) as alone:
        alone.up(machines=0)
        words = ("submit", f"{tmp_path}/counting.py:topology", "--wait", "--cluster", alone.address, "--token", TOKEN)
        with started(*words, cwd=tmp_path) as waiting:
            assert waiting.process.stderr is not None
            line = waiting.process.stderr.readline()
            assert line == "counting: waiting for a slot: no supervisor is there\n"
            waiting.signal(signal.SIGINT)
            code, out, problems = waiting.end()
        assert (code, out[:22]) == (130, "submitted counting as ")
        assert problems == "stopped waiting; it stays submitted: `trident show counting`\n"
        assert [each.base.status.kind for each in alone.client.topologies()] == ["active"]
        again = ("submit", f"{tmp_path}/counting.py:topology", "--name", "late", "--wait", "--timeout", "0.5")
        told = invoke(alone, *again, code=4).stderr
        assert "error: topology 'late' does not run after 0.5 s (waiting for a slot: no supervisor is there)" in told
