"""A Delta state under a URL: on a bucket that speaks S3, and on the local disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from states.delta import DeltaState, delta_state_at
from tests.harness.withheld import How, WithheldApart
from tests.states.delta.delta_bucket import Bucket
from tests.states.delta.delta_states import WORDS, Log, commit, update, values
from tests.states.delta.test_delta_staging import stage
from trident.errors import BackendError, ConfigError, FencedError, StoreAwayError
from trident.state.interfaces import StateConf

pytestmark = pytest.mark.slow

URL = "s3://bucket/states/words"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


def storage(bucket: Bucket) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "nowhere",
        "AWS_ACCESS_KEY_ID": "a-user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONDITIONAL_PUT": "etag",
        "max_retries": "0",
    }


def state_in(bucket: Bucket, read_only: bool = False, **options: Any) -> Any:
    conf = StateConf("words", "counts", WORDS.key_fields, "bigint", read_only=read_only)
    spec = DeltaState.opaque(URL, storage_options=storage(bucket), **options)
    return spec.factory.make_state(conf, 0, 1)


def test_a_state_lives_in_a_bucket_with_the_options_given(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("states.delta.local_folder._fsync", lambda name: pytest.fail(f"{name} was forced to the disk"))
    state, log = state_in(bucket, compact_after_commits=4, background_maintenance=False), Log()
    for number in range(1, 8):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    facts = bucket.facts()
    assert facts["signers"] == ["a-user"]
    assert all(name.startswith("states/words/") for name in facts["names"])
    for one in (state, state_in(bucket), state_in(bucket, read_only=True)):
        assert values(one, "man", "w3", "none") == [7, 3, None]
        assert one.read_sentinel() == log.expected
    then = delta_state_at(URL, 2, WORDS, storage_options=storage(bucket))
    assert dict(then.get_tuples()) == {"man": 2, "w1": 1, "w2": 2}
    assert list(tmp_path.iterdir()) == []  # no folder called "s3:"


def test_writers_in_a_bucket_are_fenced(bucket: Bucket) -> None:
    old, new, log = state_in(bucket), state_in(bucket), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    commit(new, log, 2, 2, {"man": 1})
    with pytest.raises(FencedError):
        old.commit(paused)
    assert values(state_in(bucket), "man") == [2]


def test_a_bucket_that_refuses_is_an_error_that_a_replay_may_mend(bucket: Bucket) -> None:
    state, log = state_in(bucket), Log()
    commit(state, log, 1, 1, {"man": 1})
    txid = log.txid(2, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    before = bucket.facts()
    bucket.refuse()
    with pytest.raises(BackendError, match="cannot commit to Delta table s3://bucket/states/words") as caught:
        state.commit(txid)
    assert caught.value.retryable
    assert bucket.facts() == before


@pytest.mark.parametrize("how", ["gone", "busy"])
def test_a_bucket_that_does_not_answer_is_no_damage(bucket: Bucket, how: str) -> None:
    state, log = state_in(bucket), Log()
    commit(state, log, 1, 1, {"man": 1})
    reader = state_in(bucket, read_only=True)
    if how == "gone":
        bucket.close()
    else:
        bucket.refuse("everything")
    for one in (reader, state, state_in(bucket)):
        with pytest.raises(BackendError, match="Delta table s3://bucket/states/words") as caught:
            values(one, "man")
        assert caught.value.retryable


def test_a_bucket_that_does_not_answer_for_a_state_beyond_memory_is_waited_for(bucket: Bucket) -> None:
    state, log = state_in(bucket, max_keys_in_memory=2, background_maintenance=False), Log()
    for number in range(1, 4):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    state.close()
    tables = state_in(bucket)._tables
    base = tables.at_path(read_only=True)
    base.refresh()
    index = base.index(tables.layout)
    assert index.get([("w1",)])[0][-1] == 1
    bucket.refuse("everything")
    with pytest.raises(StoreAwayError, match="cannot read Delta table s3://bucket/states/words"):
        index.get([("w1",)])


@pytest.mark.long
@pytest.mark.parametrize("how", ["error", "dropped"])
def test_a_batch_is_not_called_gone_while_a_bucket_is_away(bucket: Bucket, how: How) -> None:
    state, log = state_in(bucket), Log()
    for number in (1, 2, 3):
        commit(state, log, number, 1, {"man": number})
    busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with closing(WithheldApart(urlsplit(bucket.url).port or 0, busy)) as proxy:
        through = {**storage(bucket), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}

        def read() -> dict[str, int]:
            return dict(delta_state_at(URL, 2, WORDS, storage_options=through).get_tuples())

        assert read() == {"man": 3}
        for number in range(1, proxy.withhold(0, how) + 1):
            proxy.withhold(number, how)
            with pytest.raises(StoreAwayError, match="s3://bucket/states/words"):
                read()


def test_a_file_url_is_a_local_folder_and_is_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[Path] = []
    monkeypatch.setattr("states.delta.local_folder._fsync", forced.append)
    conf = StateConf("words", "counts", WORDS.key_fields, "bigint")
    for name in ("plain", "with space"):
        url = (tmp_path / name).as_uri()
        commit(DeltaState.opaque(url).factory.make_state(conf, 0, 1), Log(), 1, 1, {"man": 1})
        assert tmp_path / name / "_delta_log" in forced
        assert values(DeltaState.opaque(tmp_path / name).factory.make_state(conf, 0, 1), "man") == [1]


def test_a_url_that_lost_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without its second slash"):
        DeltaState.opaque(Path("s3://bucket/words")).factory.make_state(WORDS, 0, 1)


def test_a_task_stages_in_a_bucket_and_the_driver_publishes_there(bucket: Bucket) -> None:
    task, driver, log = state_in(bucket), state_in(bucket), Log()

    def files() -> int:
        return sum("/_staged/" in name for name in bucket.facts()["names"])

    for number in (1, 2, 3):
        txid = log.txid(number, 1)
        staged = stage(task, txid, {"man": number})
        assert files() == 1
        driver.publish(txid, staged)
        log.record(txid)
        assert values(state_in(bucket, read_only=True), "man") == [sum(range(number + 1))]
    assert files() == 0
    stage(task, log.txid(4, 1), {"man": 100})  # lost
    task.begin_commit(log.txid(4, 2).of_run("b" * 16))
    assert files() == 0
    for one in (task, driver):
        one.close()
