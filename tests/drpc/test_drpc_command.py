"""`trident drpc` and `trident run --drpc-port`, as processes."""

import signal
from pathlib import Path

import pytest

from tests.harness.commands import Background, complaints, started, trident, write_module
from tests.harness.drpc_functions import echo
from trident.drpc import DRPCClient, DRPCServer, LocalDRPC
from trident.errors import DRPCExecutionException

pytestmark = pytest.mark.slow

IN_PROCESS = ("--conf", "engine=in_process")
MODULE = """
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from states.memory import MemoryMapState
    from tests.harness.drpc_functions import word_counts
    from trident import TridentTopology

    stored, _ = word_counts(DeltaState.opaque("table"))
    in_memory, _ = word_counts(MemoryMapState(), cycle=True)

    silent = TridentTopology("silent")
    silent.new_stream("lines", FixedBatchSpout("line: string", 2, ["the"]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "module", MODULE)
    return tmp_path


def address(background: Background) -> str:
    """Read where a server says that it is."""
    return background.says(r"(?<=serving words at )http://\S+")


@pytest.mark.sample(1)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_server_beside_the_topology_answers_from_its_states_and_ends_at_a_signal(
    folder: Path, signum: signal.Signals
) -> None:
    assert trident("run", "module:stored", "--once", *IN_PROCESS, cwd=folder).returncode == 0
    with started("drpc", "module:stored", "--port", "0", cwd=folder) as server:
        with DRPCClient(address(server)) as client:
            assert client.execute("words", "cat dog the man") == [[5]]
            server.signal(signum)
            code, _, problems = server.end()
        assert (code, [line.partition(" (")[0] for line in complaints(problems)]) == (
            128 + signum,
            ["", "stopping after the requests in flight"],
        )
        assert server.session() == []


@pytest.mark.long
def test_a_run_answers_in_its_own_process(folder: Path) -> None:
    with started("run", "module:in_memory", "--drpc-port", "0", "--drpc-token", "t", *IN_PROCESS, cwd=folder) as run:
        url = address(run)
        with DRPCClient(url, token="t") as client:
            first = client.execute("words", "the")[0][0]
            while client.execute("words", "the")[0][0] <= first:
                assert run.process.poll() is None
        with pytest.raises(DRPCExecutionException, match="unauthorized"):
            DRPCClient(url).execute("words", "the")
        run.signal(signal.SIGTERM)
        code, out, _ = run.end()
        assert (code, run.session()) == (143, [])
        assert "stopped after batch" in out


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["module:in_memory"], 1, "is in the memory of the process that runs 'word-count'"),
        (["module:stored"], 1, "there is no transaction log in"),
        (["module:stored", "--port", "x"], 2, "'--port'"),
        (["module:stored", "--max-concurrency", "0"], 2, "--max-concurrency"),
    ],
)
def test_what_cannot_be_served_is_explained(folder: Path, words: list[str], code: int, said: str) -> None:
    done = trident("drpc", *words, cwd=folder)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_cannot_serve_what_it_is_asked_for_does_not_begin(folder: Path) -> None:
    with LocalDRPC(echo()) as drpc, DRPCServer(drpc, port=0) as taken:
        for target, options, cause in (
            ("nowhere:topology", ("--drpc-port", taken.port), f"DRPC cannot listen on 127.0.0.1:{taken.port}"),
            ("nowhere:topology", ("--ui", "--ui-port", taken.port), f"be served at 127.0.0.1:{taken.port}"),
            ("module:silent", ("--drpc-port", 0), "topology 'silent' has no DRPC function"),
        ):
            done = trident("run", target, "--once", *IN_PROCESS, *map(str, options), cwd=folder)
            assert (done.returncode, cause in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
    assert not (folder / "trident-log").exists()
