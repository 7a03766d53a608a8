"""The options of a Cassandra state: what is refused when it is given, and which consistency levels are enough."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from states.cassandra import CassandraOptions, CassandraState
from states.cassandra.options import table_name
from states.cassandra.schema import _create_keyspace, check_consistency
from trident.errors import ConfigError
from trident.state import CodecSerializer, StateType


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"contact_points": ()}, "give the host name or address of a node"),
        ({"contact_points": ("a,b",)}, "give host names or addresses in a list"),
        ({"contact_points": ("cassandra://a",)}, "and the port as port="),
        ({"keyspace": "no-such"}, "keyspace='no-such' of a Cassandra state: the server takes 1 to 48 letters"),
        ({"table": "x" * 49}, "the server takes 1 to 48 letters"),
        ({"port": 0}, "port=0 of a Cassandra state: give a whole number from 1 to 65535"),
        ({"buckets": 0}, "buckets=0 of a Cassandra state: give a whole number from 1"),
        ({"rows_per_batch": 101}, "rows_per_batch=101 of a Cassandra state: give a whole number from 1 to 100"),
        ({"rows_per_read": 0}, "rows_per_read=0"),
        ({"max_concurrency": 1.5}, "max_concurrency=1.5 of a Cassandra state: give a whole number"),
        ({"replication": 0}, "replication=0 of a Cassandra state: give at least one copy"),
        ({"replication": {"dc": 0}}, "give at least one copy"),
        ({"replication": {}}, "give at least one copy"),
        ({"read_consistency": "quorum"}, "read_consistency='quorum' of a Cassandra state: give 'ONE', 'TWO'"),
        ({"read_consistency": "EACH_QUORUM"}, "read_consistency='EACH_QUORUM' of a Cassandra state: give 'ONE'"),
        ({"write_consistency": "ANY"}, "write_consistency='ANY' of a Cassandra state: give 'ONE'"),
        ({"user": "me"}, "user and password belong together"),
        ({"ttl_s": 3600}, "ttl_s=3600 of a Cassandra state: .*allow_short_ttl=True"),
        ({"ttl_s": 10**9}, "ttl_s=1000000000 of a Cassandra state: give None .never. or at most 630720000"),
        ({"protocol_version": 2}, "protocol_version=2"),
        ({"serializer": CodecSerializer(StateType.TRANSACTIONAL)}, "was given to a state that is opaque"),
    ],
)
def test_impossible_options_are_refused_where_they_are_given(options: dict[str, Any], text: str) -> None:
    points = options.pop("contact_points", ("localhost",))
    with pytest.raises(ConfigError, match=text):
        CassandraState.opaque(points, **options)


def test_options_are_given_as_names_or_as_one_object() -> None:
    options = CassandraOptions(contact_points=("a", "b"), ttl_s=3600, allow_short_ttl=True, buckets=16)
    specs = [
        CassandraState.opaque(options, cache=5),
        CassandraState.opaque(["a", "b"], ttl_s=3600, allow_short_ttl=True, buckets=16, cache=5),
    ]
    assert specs[0] == specs[1]
    assert CassandraOptions.of("a", {}).contact_points == ("a",)
    assert [one.factory.kind for one in (specs[0], CassandraState.transactional("a"))] == [  # type: ignore[attr-defined]
        StateType.OPAQUE,
        StateType.TRANSACTIONAL,
    ]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(CassandraState.opaque("a", user="me", password="secret"))


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("Topology/state", "topology_state"),
        ("a.b/c-d", "a_b_c_d"),
        ("é/ü", "___"),
        ("t" * 40 + "/" + "s" * 40, "t" * 39 + "_65724187"),
    ],
)
def test_a_table_is_named_after_the_prefix(prefix: str, name: str) -> None:
    assert table_name(prefix) == name


SIMPLE = "org.apache.cassandra.locator.SimpleStrategy"
NETWORK = "org.apache.cassandra.locator.NetworkTopologyStrategy"


@pytest.mark.parametrize(
    ("read", "write", "replication", "local_dc"),
    [
        ("QUORUM", "QUORUM", {"class": SIMPLE, "replication_factor": "3"}, None),
        ("ONE", "ONE", {"class": SIMPLE, "replication_factor": "1"}, None),
        ("ONE", "ALL", {"class": SIMPLE, "replication_factor": "3"}, None),
        ("QUORUM", "QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, None),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3"}, None),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3", "b": "2"}, "a"),
        ("LOCAL_QUORUM", "EACH_QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, "b"),
        ("LOCAL_ONE", "ALL", {"class": NETWORK, "a": "3", "b": "3"}, "b"),
        ("TWO", "QUORUM", {"class": SIMPLE, "replication_factor": "3/1"}, None),
    ],
)
def test_levels_that_surely_meet_are_let_through(
    read: Any, write: Any, replication: dict[str, str], local_dc: str | None
) -> None:
    options = CassandraOptions(read_consistency=read, write_consistency=write, local_dc=local_dc)
    check_consistency(options, replication)
    assert options.read_consistency == read


@pytest.mark.parametrize(
    ("read", "write", "replication", "local_dc", "text"),
    [
        ("ONE", "QUORUM", {"class": SIMPLE, "replication_factor": "3"}, None, r"ONE \(1 of 3 copies\) .*\(2 of 3\)"),
        ("QUORUM", "ONE", {"class": NETWORK, "a": "2", "b": "2"}, None, r"QUORUM \(3 of 4 copies\) .*\(1 of 4\)"),
        ("LOCAL_ONE", "LOCAL_QUORUM", {"class": NETWORK, "a": "3"}, None, r"\(1 of 3 copies\)"),
        ("LOCAL_QUORUM", "QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, "a", r"QUORUM \(0 of 3\)"),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, None, "needs local_dc: .*'a', 'b'"),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", {"class": NETWORK, "a": "3", "b": "3"}, "c", "local_dc='c'"),
    ],
)
def test_levels_that_may_miss_each_other_are_refused(
    read: Any, write: Any, replication: dict[str, str], local_dc: str | None, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check_consistency(
            CassandraOptions(read_consistency=read, write_consistency=write, local_dc=local_dc), replication
        )


def test_weak_levels_are_let_through_if_that_is_accepted() -> None:
    weak = CassandraOptions(read_consistency="ONE", write_consistency="ONE", allow_weak_consistency=True)
    check_consistency(weak, {"class": SIMPLE, "replication_factor": "3"})
    assert weak.allow_weak_consistency


def test_a_keyspace_is_made_with_the_copies_asked_for() -> None:
    assert _create_keyspace(CassandraOptions(replication=3)).endswith(
        "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': '3'}"
    )
    assert _create_keyspace(CassandraOptions(replication={"eu": 3, "us'": 2})).endswith(
        "WITH replication = {'class': 'NetworkTopologyStrategy', 'eu': '3', 'us''': '2'}"
    )


def test_tls_checks_certificates_and_names_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert CassandraOptions().tls_context() is None
    context = CassandraOptions(tls=True).tls_context()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    relaxed = CassandraOptions(tls=True).tls_context(check_hostname=False)
    assert relaxed is not None
    assert (relaxed.check_hostname, relaxed.verify_mode) == (False, ssl.CERT_REQUIRED)
    none = str(tmp_path / "none.pem")
    for options in (CassandraOptions(tls=True, tls_ca_file=none), CassandraOptions(tls=True, tls_cert_file=none)):
        with pytest.raises(ConfigError, match=r"read the TLS files .*none\.pem.*No such file"):
            options.tls_context()
