"""No password, token or key is in what people read: the `repr` of options, specs and clients, and errors."""

import dataclasses
import logging
import pickle
import re
import sys
from pathlib import Path

import pytest

from states.cassandra import CassandraOptions, CassandraState
from states.delta import DeltaOptions, DeltaState
from states.kafka import KafkaTopicOptions, KafkaTopicState
from states.memcached import MemcachedState
from states.postgres import PostgresOptions, PostgresState
from states.redis import RedisOptions, RedisState
from tests.house_figures import store_options
from trident import Config
from trident.drpc import DRPCClient
from trident.errors import BackendError, ConfigError, DRPCExecutionException
from trident.redaction import SECRET, Redacted, RedactingFormatter, redacted, shown_configuration
from trident.state.interfaces import StateConf

KEYS = {"AWS_ACCESS_KEY_ID": "hush", "AWS_SECRET_ACCESS_KEY": "hush"}
SETTINGS = {"spark.hadoop.fs.s3a.secret.key": "hush"}


@pytest.mark.parametrize(
    "made",
    [
        lambda: DeltaState.opaque("s3://bucket/words?sig=hush", storage_options=KEYS),
        lambda: DeltaState.opaque("s3://name:hush@bucket/words"),
        lambda: DeltaOptions(storage_options=KEYS),
        lambda: RedisState.opaque("redis://user:hush@localhost/0?password=hush", password="hush"),
        lambda: RedisOptions("unix:///run/redis?password=hush"),
        lambda: KafkaTopicState.transactional("localhost:9092", "totals", config={"sasl.password": "hush"}),
        lambda: KafkaTopicOptions("localhost:9092", "totals", config={"sasl.password": "hush"}),
        lambda: PostgresState.opaque("postgresql://user:hush@localhost/counts?password=hush", password="hush"),
        lambda: PostgresOptions("postgresql:///counts?password=hush"),
        lambda: CassandraState.opaque("a", user="me", password="hush"),
        lambda: MemcachedState.cache_for(RedisState.opaque("redis://:hush@localhost")),
        lambda: DRPCClient("http://user:hush@localhost:3774/drpc?token=hush", token="hush"),
        lambda: Config(spark_conf=SETTINGS),
        lambda: StateConf(settings=dataclasses.asdict(Config(spark_conf=SETTINGS))),
        lambda: StateConf(settings={"token": "hush", "of_spark": SETTINGS}),
    ],
)
def test_no_secret_is_shown(made: object) -> None:
    assert callable(made)
    found = made()
    assert "hush" not in f"{found!r} {found} {[found]}"


def test_what_is_no_secret_is_shown_and_hiding_changes_nothing() -> None:
    options = RedisOptions("redis://user:hush@localhost:6379/0?health_check_interval=30", password="hush", retries=7)
    shown = repr(options)
    assert shown.startswith("RedisOptions(url='redis://***@localhost:6379/0?health_check_interval=***', ")
    assert "cluster=False" in shown
    assert "password='***'" in shown
    assert "retries=7" in shown
    assert pickle.loads(pickle.dumps(options)) == options
    assert "password=None" in repr(CassandraOptions())
    assert "storage_options={'AWS_REGION': '***'}" in repr(DeltaOptions(storage_options={"AWS_REGION": "eu"}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://us:pa/s@s#w@host:1/0", "redis://***@host:1/0"),
        ("redis+cluster://u:p@a:1,b:2", "redis+cluster://***@a:1,b:2"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("az://box/t?sv=1&sig=x%2F", "az://box/t?sv=***&sig=***"),
        ("asked (http://h/t?sig=x): no route", "asked (http://h/t?sig=***): no route"),
        ("('http://u:p@h', 'b@c')", "('http://***@h', 'b@c')"),
        ("state/words", "state/words"),
        ("a?b=c@d", "a?b=c@d"),
        ("host=db password=hush port=1", "host=db password=*** port=1"),
        ("""LoginModule required username="u" password="hu sh";""", """LoginModule required username="u" password=***;"""),
        ("{'api_key': 'hush', 'n': 1}", "{'api_key': ***, 'n': 1}"),
        ("AWS_SECRET_ACCESS_KEY=hush", "AWS_SECRET_ACCESS_KEY=***"),
        ("Authorization: Bearer hu.sh-1", "Authorization: Bearer ***"),
        ("password authentication failed; 7 tokens; the key: 5", "password authentication failed; 7 tokens; the key: 5"),
    ],
)  # fmt: skip
def test_urls_are_shown_without_user_and_query(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_every_option_that_sounds_like_a_secret_is_marked() -> None:
    found = store_options().values()
    for kind in found:
        assert issubclass(kind, Redacted), kind
        names = {each.name: each for each in dataclasses.fields(kind)}
        secrets = {name for name in names if re.search("passw|token|secret|credential", name)}
        assert all(names[name].metadata == SECRET for name in secrets)
    assert len(found) >= 6


def test_errors_name_an_address_without_its_secrets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'ftp://\*\*\*@host' is not the address"):
        DRPCClient("ftp://user:hush@host")
    with DRPCClient("http://user:hush@127.0.0.1:1") as client, pytest.raises(DRPCExecutionException) as refused:
        client.execute("words", "the")
    assert "hush" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"cassandra://\*\*\*@host"):
        CassandraState.opaque("cassandra://user:hush@host")
    url = "s3://name:hush@bucket/words?sig=hush"
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0", **KEYS}
    state = DeltaState.opaque(url, storage_options=unreachable).factory.make_state(StateConf(), 0, 1)
    with pytest.raises(BackendError) as failed:
        state.begin_commit(1)
    assert "hush" not in str(failed.value)


def test_settings_that_are_json_show_no_secrets_by_name() -> None:
    user = '{"folder": "books", "password": "geheim", "at": ["redis://u:geheim@host/0"]}'
    assert shown_configuration({"user": user}) == {
        "user": '{"at": ["redis://***@host/0"], "folder": "books", "password": "***"}'
    }
    assert shown_configuration({"user": "{no json"}) == {"user": "{no json"}


def test_settings_whose_names_speak_of_secrets_show_no_values() -> None:
    shown = shown_configuration(
        {
            "spark.ssl.keyPassword": "a",
            "fs.s3a.access.key": "b",
            "my_TOKEN": "c",
            "url": "http://u:p@h/",
            "engine": "spark",
        }
    )
    assert shown == {
        "engine": "spark", "fs.s3a.access.key": "***", "my_TOKEN": "***", "spark.ssl.keyPassword": "***",
        "url": "http://***@h/",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["fs.azure.account.key", "sasl.jaas.config", "ssl.private-key", "db_pwd", "spark.api.key"]
)
def test_more_names_that_speak_of_secrets(name: str) -> None:
    assert shown_configuration({name: "hush"}) == {name: "***"}


def test_lines_of_a_log_are_written_without_secrets_whoever_logs_them() -> None:
    record = logging.LogRecord("user", logging.ERROR, "", 1, "cannot reach %s", ("redis://u:hush@h/0",), None)
    assert RedactingFormatter("%(levelname)s %(message)s").format(record) == "ERROR cannot reach redis://***@h/0"
    try:
        raise ValueError("postgres://u:hush@h/0 refuses, password=hush")
    except ValueError:
        record = logging.LogRecord("user", logging.ERROR, "", 1, "it failed", (), sys.exc_info())
    shown = RedactingFormatter().format(record)
    assert "postgres://***@h/0 refuses, password=***" in shown
    assert "ValueError: postgres" in shown


def test_a_long_list_of_addresses_is_looked_at_once() -> None:
    paths = ",".join(f"file:///data/part-{number}.parquet?v=1" for number in range(20_000))
    assert redacted(paths) == "file:///data/part-0.parquet?v=***"  # up to a space it is one query
    addresses = "x://" * 100_000
    assert redacted(f"{addresses} @ ?") == f"{addresses} @ ?"
