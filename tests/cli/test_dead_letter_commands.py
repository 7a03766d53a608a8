"""`trident dead-letters`: from a tuple that failed to one that is counted."""

import base64
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.harness.commands import environment, write_module
from trident.cli.app import app
from trident.cli.target import load_topology
from trident.log.file_log import FileLog
from trident.run.running import RunningTopology
from trident.state.encoding.codec import decode

pytestmark = pytest.mark.slow

MODULE = """
    import pathlib
    from decimal import Decimal
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count

    def careful(word: str) -> str:
        if word == "bad" and not pathlib.Path("mended").exists():
            raise ValueError("cannot read this")
        return word

    topology = TridentTopology("counts")
    rows = [["good", Decimal(1)], ["bad", Decimal(2)], ["bad", Decimal(3)], ["good", Decimal(4)]]
    words = topology.new_stream("s", FixedBatchSpout("word: string, price: decimal(9,2)", 2, *rows))
    again = words.each(["word", "price"], lambda word, price: careful(word), "again: string")
    again.group_by("again").persistent_aggregate(DeltaState.opaque("table"), Count(), "count")
"""
SETTINGS = {"engine": "in_process", "on_poison": "dead_letter", "max_batch_attempts": 1, "poll_interval_ms": 1}
KILLED = f"""
    import os, signal, sys
    from module import topology
    from trident import Config
    from trident.run import running

    def observe(point, attempt):
        if (point, attempt.txid) == (sys.argv[1], 3):
            os.kill(os.getpid(), signal.SIGKILL)

    running.start(topology.graph(), Config.of({SETTINGS}), None, observe).process_all_available()
"""
LOG = "trident-log/counts"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a topology of which two tuples are dead letters."""
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path, "module", MODULE)
    write_module(tmp_path, "killed", KILLED)
    run_once()
    return tmp_path


def run_once() -> RunningTopology:
    with load_topology("module.py:topology").start(SETTINGS) as running:
        running.process_all_available()
    return running


def counts(running: RunningTopology) -> list[int | None]:
    return list(running.state("count").multi_get(["bad", "good"]))


def invoke(*words: str) -> Result:
    variables = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, ["dead-letters", *words], env=variables)


def dead_letters(*words: str) -> str:
    done = invoke(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_letters_are_listed_shown_and_put_back_once(folder: Path) -> None:
    listed = dead_letters("list", LOG)
    assert [line.split()[0] for line in listed.splitlines() if "ValueError: cannot read this" in line] == ["1-0", "2-0"]
    shown = dead_letters("show", LOG, "2-0")
    assert "batch 2 (start 1), step 's/each'" in shown
    assert "word = 'bad'\n  price = Decimal('3.00')\n" in shown
    assert 'raise ValueError("cannot read this")' in shown
    letter = json.loads(dead_letters("show", LOG, "1-0", "--json"))
    assert letter == json.loads(dead_letters("list", LOG, "--json"))[0]
    assert letter["tuple"] == {"word": "'bad'", "price": "Decimal('2.00')"}
    assert str(decode(base64.b64decode(letter["values"]))["price"]) == "2.00"

    (folder / "mended").touch()
    asked = dead_letters("replay", LOG, "1", "2-0")
    assert asked == "asked for 2 dead letters, to be put back by the next driver of the topology\n"
    assert counts(run_once()) == [2, 2]
    running = run_once()
    assert (running.txid, counts(running)) == (3, [2, 2])

    assert dead_letters("list", LOG) == "no dead letter waits\n"
    assert dead_letters("list", LOG, "--all").count("put back") == 2
    assert "dead letters: [1-0, 2-0]" in CliRunner().invoke(app, ["log", LOG], env={"COLUMNS": "400"}).stdout
    assert dead_letters("replay", LOG, "--all") == "no dead letter waits\n"
    refused = invoke("replay", LOG, "1-0")
    assert (refused.exit_code, "dead letter 1-0 was put back already" in refused.stderr) == (2, True)


def test_an_error_with_half_a_character_goes_into_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path, "module", MODULE.replace("cannot read this", "cannot read \\udcff"))
    run_once()
    for words in (["export", LOG], ["list", LOG], ["show", LOG, "1-0"]):
        command = [sys.executable, "-c", "from trident.cli import main; main()", "dead-letters", *words]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "cannot read \\udcff" in printed, words
        if words[0] == "export":
            assert json.loads(printed.splitlines()[0])["error"] == "ValueError: cannot read \udcff"


def test_letters_are_exported_edited_and_put_back_once_though_the_command_runs_twice(folder: Path) -> None:
    lines = [json.loads(line) for line in dead_letters("export", LOG).splitlines()]
    assert lines[0] == {
        "id": "1-0", "step": "s/each", "error": "ValueError: cannot read this", "tuple": {"word": "bad", "price": "2.00"},
    }  # fmt: skip
    mended = "mended\u2028"  # which other readers of text take for the end of a line
    lines[0]["tuple"]["word"] = lines[1]["tuple"]["word"] = mended
    lines[1]["tuple"]["price"] = "3.50"
    Path("edited.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    for _ in range(2):
        told = dead_letters("replay", LOG, "--from", "edited.jsonl")
        assert "asked for 2 dead letters, to be put back by the next driver" in told
    running = run_once()
    assert (running.txid, list(running.state("count").multi_get(["bad", "mended\u2028"]))) == (3, [None, 2])
    again = dead_letters("replay", LOG, "--from", "edited.jsonl")
    assert again == "2 dead letters of edited.jsonl no longer wait, and are left as they are\nno dead letter waits\n"
    assert run_once().txid == 3


def test_a_null_of_a_letter_is_edited_as_the_type_of_its_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summed = MODULE.replace("import Count", "import Sum").replace("Count()", '"price", Sum()')
    write_module(tmp_path, "module", summed.replace("Decimal(2)", "None").replace("Decimal(3)", "None"))
    run_once()
    (tmp_path / "mended").touch()
    for prices, total in [
        (("3.501", 3.501), None),
        (("3.50", 3.5), "7.00"),
    ]:  # too many digits: they are left out again
        lines = [json.loads(line) for line in dead_letters("export", LOG).splitlines()]
        edited = [{**one, "tuple": {**one["tuple"], "price": price}} for one, price in zip(lines, prices, strict=True)]
        Path("edited.jsonl").write_text("\n".join(map(json.dumps, edited)))
        dead_letters("replay", LOG, "--from", "edited.jsonl")
        found = counts(run_once())[0]
        assert (found and str(found)) == total
    assert dead_letters("list", LOG) == "no dead letter waits\n"


def test_a_discarded_letter_is_left_out_of_the_list_and_keeps_its_reason(folder: Path) -> None:
    asked = dead_letters("discard", LOG, "1-0", "--reason", "a test order")
    assert asked == "asked for 1 dead letter, to be discarded by the next driver of the topology\n"
    assert [line["id"] for line in json.loads(dead_letters("list", LOG, "--json"))] == ["2-0"]
    assert dead_letters("list", LOG, "--all").count("to be discarded: a test order") == 1
    (folder / "mended").touch()
    dead_letters("replay", LOG, "--all")
    running = run_once()
    assert (counts(running), running.status["deadLetters"]) == ([1, 2], 0)
    assert dead_letters("show", LOG, "1-0").startswith("dead letter 1-0, discarded: a test order\n")
    refused = invoke("replay", LOG, "1-0")
    assert (refused.exit_code, "dead letter 1-0 was discarded: a test order already" in refused.stderr) == (2, True)


def test_a_line_that_is_wrong_is_named_and_nothing_is_put_back(folder: Path) -> None:
    right = json.loads(dead_letters("export", LOG, "1-0"))
    for wrong, said in [
        ({**right, "id": "9-0"}, "there is no dead letter '9-0'"),
        ({**right, "tuple": {**right["tuple"], "wrod": "x"}}, "the tuple has no field 'wrod'; did you mean 'word'?"),
        ({**right, "tuple": {"word": "x"}}, "the tuple lacks the field 'price'"),
        ({**right, "tuple": {**right["tuple"], "price": "cheap"}}, "field 'price': 'cheap' cannot be a Decimal"),
        (right, "dead letter 1-0 occurs twice"),
        ("word", "is not a line"),
    ]:
        Path("edited.jsonl").write_text(f"{json.dumps(right)}\n{json.dumps(wrong)}\n")
        refused = invoke("replay", LOG, "--from", "edited.jsonl")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "edited.jsonl, line 2: " in refused.stderr
        assert said in " ".join(refused.stderr.replace("│", " ").split()), refused.stderr
    Path("edited.jsonl").write_bytes(b'{"id": "caf\xe9"}\n')  # an editor has saved it in another encoding
    for file in ("edited.jsonl", "."):
        refused = invoke("replay", LOG, "--from", file)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{file} cannot be read: " in " ".join(refused.stderr.replace("│", " ").split())
    assert not (folder / LOG / "dead_letters" / "replay").exists()


@pytest.mark.long
@pytest.mark.parametrize("point", ["processed", "committed"])
def test_a_driver_that_is_killed_with_letters_in_flight_loses_and_repeats_none(point: str, folder: Path) -> None:
    (folder / "mended").touch()
    dead_letters("replay", LOG, "--all")
    killed = subprocess.run([sys.executable, "killed.py", point], cwd=folder, env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    running = run_once()
    assert (running.txid, counts(running), running.log_state.put_back) == (3, [2, 2], {1: [[0, 1]], 2: [[0, 1]]})


def test_letters_elsewhere_and_a_driver_that_is_at_work(folder: Path) -> None:
    shutil.move(folder / LOG / "dead_letters", folder / "elsewhere")
    missing = invoke("list", LOG)
    assert (missing.exit_code, missing.stdout) == (0, "no dead letter waits\n")
    assert f"2 more are waiting, but are not in {LOG}/dead_letters" in missing.stderr
    (folder / LOG / "dead_letters").mkdir()
    shutil.copy(min((folder / "elsewhere").glob("*.jsonl")), folder / LOG / "dead_letters")
    assert f"1 more is waiting, but is not in {LOG}/dead_letters" in invoke("list", LOG).stderr
    log = FileLog.open(folder / LOG, "counts")
    asked = dead_letters("replay", LOG, "1-0", "--dead-letter-dir", "elsewhere")
    assert asked.startswith("asked for 1 dead letter, to be put back by the running driver, ")
    log.close()
    assert len(list((folder / "elsewhere" / "replay").iterdir())) == 1


def test_where_nobody_can_be_asked_it_is_said(folder: Path) -> None:
    (folder / LOG / "dead_letters" / "replay").write_text("in the way")
    refused = invoke("replay", LOG, "--all")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"cannot ask for dead letters in {LOG}/dead_letters/replay" in refused.stderr
    assert counts(run_once()) == [None, 2]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("list", "."), 1, "there is no transaction log in ."),
        (("show", LOG, "9-0"), 2, "there is no dead letter '9-0'"),
        (("show", LOG, "nine"), 2, "there is no dead letter 'nine'"),
        (("replay", LOG), 2, "name dead letters or batches, or give --all, or --from"),
        (("discard", LOG, "--reason", "x"), 2, "name dead letters or batches, or give --all"),
        (("discard", LOG, "1-0"), 2, "Missing option '--reason'"),
        (("discard", LOG, "1-0", "--reason", " "), 2, "say why"),
        (("replay", LOG, "1", "--all"), 2, "name dead letters or batches, or give --all"),
    ],
)
def test_what_is_not_there_is_named(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FileLog.open(LOG, "counts").close()
    refused = invoke(*words)
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert said in refused.stderr
