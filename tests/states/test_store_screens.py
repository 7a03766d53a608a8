"""The first screen of each page of a store or a source: its program runs, and the own tools of a store see what it says."""

import re
import socket
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cassandra.cluster import Cluster
from redis import Redis

from tests.harness.kafka_topics import Topics
from tests.harness.servers import Server
from tests.test_docs import DOCS, blocks, rows, text_of

READ = "Read it with your own tools"
PAGES = [
    *((page, READ) for page in sorted((DOCS / "states").glob("*.md"))),
    *((page, "See where it is, with your own tools") for page in sorted((DOCS / "spouts").glob("*.md"))),
]


def section(page: str, title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", text_of(DOCS / "states" / page), re.MULTILINE | re.DOTALL)
    return str(found)


def shown(page: str, prompt: str) -> list[tuple[str, list[str]]]:
    """Return what the page types at a prompt, each with the lines that it prints."""
    lines = [line.removeprefix("    ") for line in section(page, READ).splitlines()]
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in lines:
        if line.startswith(prompt):
            found.append((line.removeprefix(prompt).strip(), []))
            inside = True
        elif not line.strip() or line.startswith("```"):
            inside = False
        elif inside:
            found[-1][1].append(line)
    return found


def run(page: str, replaced: dict[str, str], log_dir: Path) -> None:
    code = blocks(DOCS / "states" / page, "python")[0]
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(code, names)
    with names["topology"].start(engine="in_process", log_dir=str(log_dir)) as running:
        running.process_all_available()


def cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("|"))


@pytest.mark.parametrize(("page", "tools"), PAGES, ids=lambda one: one.name if isinstance(one, Path) else "")
def test_a_page_begins_with_what_a_reader_needs(page: Path, tools: str) -> None:
    text = text_of(page)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == [tools, "What to tune", "How it works"], (
        "whatever else there is to say stands below 'How it works'"
    )
    assert "```python" in text.partition("\n## ")[0]
    assert 1 < len(rows(text, "| setting | default | change it if |")) <= 6


def test_psql_sees_what_the_page_shows(postgres_server: Server, tmp_path: Path) -> None:
    with psycopg.connect(f"postgresql://trident@{postgres_server.address}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE screens")
    url = f"postgresql://trident@{postgres_server.address}/screens"
    run("postgres.md", {"postgresql://trident@localhost:5432/counts": url}, tmp_path)
    ((query, (names, _, *lines)),) = shown("postgres.md", "counts=>")
    with psycopg.connect(url) as connection:
        found = connection.execute(query.encode())
        assert tuple(column.name for column in found.description or ()) == cells(names)
        assert [tuple(map(str, row)) for row in found] == [cells(line) for line in lines]


def test_redis_cli_sees_what_the_page_shows(redis_server: Server, tmp_path: Path) -> None:
    with Redis.from_url(f"redis://{redis_server.address}", decode_responses=True) as client:
        client.flushdb()
        run("redis.md", {"localhost:6379": redis_server.address}, tmp_path)
        screens = list(shown("redis.md", "127.0.0.1:6379>"))
        assert screens
        for command, lines in screens:
            found: Any = client.execute_command(*command.split())
            said = list(found) if not isinstance(found, dict) else [part for pair in found.items() for part in pair]
            if isinstance(found, str):
                assert [f'"{found}"'] == lines
            else:
                assert [f'{number}) "{part}"' for number, part in enumerate(said, 1)] == lines
        client.flushdb()


@pytest.mark.long
def test_cqlsh_sees_what_the_page_shows(cassandra_server: Server, tmp_path: Path) -> None:
    host, _, port = cassandra_server.address.rpartition(":")
    given = {'"counts"': f'"screens", port={port}, replication=1', '["cassandra-1"]': f'["{host}"]'}
    run("cassandra.md", given, tmp_path)
    cluster = Cluster([host], port=int(port))
    try:
        session = cluster.connect()
        screens = list(shown("cassandra.md", "cqlsh>"))
        assert screens
        for query, lines in screens:
            found = session.execute(query.rstrip(";").replace("counts.", "screens."))
            told = [tuple("null" if value is None else str(value) for value in row) for row in found]
            assert sorted(told) == sorted(cells(line) for line in lines)
    finally:
        cluster.shutdown()


def test_a_client_of_memcached_sees_what_the_page_shows(memcached_server: Server, tmp_path: Path) -> None:
    say(memcached_server, "flush_all\r\nquit\r\n")
    run("memcached.md", {"127.0.0.1:11211": memcached_server.address}, tmp_path)
    ((command, lines),) = shown("memcached.md", "$")
    (asked,) = re.findall(r"printf '(.*?)'", command)
    found = say(memcached_server, asked.replace(r"\r\n", "\r\n"))
    say(memcached_server, "flush_all\r\nquit\r\n")
    drawn = re.compile(r"(?<=:the )\d+")  # the flags are the epoch of the state
    assert [drawn.sub("…", line) for line in found] == [drawn.sub("…", line) for line in lines]


def say(server: Server, text: str) -> list[str]:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rwb") as stream:
        stream.write(text.encode())
        stream.flush()
        return [line.decode().rstrip() for line in stream]


def test_a_consumer_of_kafka_sees_what_the_page_shows(kafka_topics: Topics, tmp_path: Path) -> None:
    topic = kafka_topics.create()
    run("kafka.md", {"localhost:9092": kafka_topics.bootstrap, '"totals"': f'"{topic}"'}, tmp_path)
    ((_, lines),) = shown("kafka.md", "$")
    found = [f"{one.key.decode()} {one.value.decode()}" for one in kafka_topics.read(topic) if one.key and one.value]
    assert found == [" ".join(line.split()) for line in lines if not line.startswith("      ")]
