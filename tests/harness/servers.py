"""Real servers for tests, on free loopback ports: started, killed, paused, restarted and always stopped by process id.

`make servers` installs what is started here: Redis, Memcached and PostgreSQL from the system's packages, the jars of
Cassandra and Kafka in `build/services`. A server that is missing is a failure that says so, never a skip. Kafka's part is
in `kafka_servers.py`.
"""

import base64
import contextlib
import fcntl
import hmac
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.request import Request, urlopen

import psutil

from tests.harness import leftovers
from tests.harness.quick import refuse_in_quick_tests

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "tests" / "services"
JARS = ROOT / "build" / "services"
_LAST_JAVA_OF_CASSANDRA = 21
_GET = b"GET / HTTP/1.0\r\n\r\n"
_draw = random.Random()  # of its own: tests seed the shared one
_reserved: list[BinaryIO] = []  # a lock lasts as long as its file is open


QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-XX:-UsePerfData")


class Stops:
    """What `stop` ends. A context manager: leaving it stops it."""

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


class Server(Stops):
    """One server process.

    `name`: for messages.
    `port`: where it answers, on 127.0.0.1.
    `work`: its folder: data, and `server.log` with what it prints.
    `ready`: whether it answers yet; an `OSError` means not yet. Or what it says in its log when it does, where its port may
    answer before it serves.
    `grace`, `limit`: seconds that it may take to stop, and to start.
    `user`: who runs it; None: who runs the tests.
    """

    _ends_by = signal.SIGTERM
    _kills_below = False

    def __init__(
        self, name: str, argv: Sequence[object], port: int, work: Path, ready: Callable[[int], bool] | bytes,
        grace: float = 5.0, limit: float = 120.0, user: str | None = None,
    ) -> None:  # fmt: skip
        self.name, self.argv, self.port, self.work = name, [str(word) for word in argv], port, work
        self._ready, self._grace, self._limit, self._user = ready, grace, limit, user
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # a test may kill it from several threads, and start it again meanwhile
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether it was started and neither killed nor stopped since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again on the same data and port; return once it answers."""
        assert self._process is None, f"{self.name} runs already"
        refuse_in_quick_tests(self.name)
        log = self.work / "server.log"
        with log.open("ab") as out:
            logged = out.tell()
            # A session of its own: Ctrl-C at the tests reaches the fixture, which stops it; `leftovers` if that cannot.
            process = subprocess.Popen(
                self.argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.work,
                start_new_session=True, **_as_user(self._user),
            )  # fmt: skip
        self._process = process
        leftovers.note(process.pid)
        deadline = time.monotonic() + self._limit
        while True:
            with contextlib.suppress(OSError):
                if self._is_ready(log, logged):
                    return
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self.name} did not start: {' '.join(self.argv)[:300]}\n{tail}")
            time.sleep(0.02)  # between two questions whether it is ready

    def _is_ready(self, log: Path, logged: int) -> bool:
        return self._ready in log.read_bytes()[logged:] if isinstance(self._ready, bytes) else self._ready(self.port)

    def kill(self) -> None:
        """End it as a crash does: SIGKILL; with what it has started, where that would look for it for a while."""
        with self._lock:
            if self._process is None:
                return
            kills_below = self._kills_below and self._process.poll() is None
            below = psutil.Process(self.pid).children(recursive=True) if kills_below else []
            self._process.kill()
            self._process.wait()
            self._process = None
        each_of(below, psutil.Process.kill)

    def stop(self) -> None:
        """End it in order, by force if that takes too long."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(self._ends_by)
        try:
            self._process.wait(self._grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Let it hang: it keeps its connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # until then one of its threads may still answer

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class _Postgres(Server):
    """A PostgreSQL: one process for each connection, all of which a crash ends."""

    _ends_by = signal.SIGINT  # at SIGTERM it waits until its clients are gone

    def kill(self) -> None:
        with self._lock:
            if self._process is None:
                return
            self.pause()  # or it starts another process meanwhile
            children = self._children()
            super().kill()
        each_of(children, psutil.Process.kill)
        # A new server does not start while one of them has the memory of the old one.
        while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
            pass

    def stop(self) -> None:
        super().stop()
        if self._user is not None:
            shutil.rmtree(self.work)

    def pause(self) -> None:
        super().pause()
        each_of(self._children(), psutil.Process.suspend)

    def resume(self) -> None:
        each_of(self._children(), psutil.Process.resume)
        super().resume()

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()


class Servers(Stops):
    """Servers of one kind, 1, 2, …, each of which a test kills, pauses and starts again; it does not kill `others`."""

    def __init__(self, members: Sequence[Server], others: Sequence[Server] = ()) -> None:
        self.members, self._others = list(members), others

    @property
    def addresses(self) -> str:
        """What a client is given: every member."""
        return ",".join(member.address for member in self.members)

    def restart(self) -> None:
        """Start every member again that was killed."""
        for member in self.members:
            if not member.runs:
                member.start()

    def stop(self) -> None:
        """End all; in order it would take seconds, for data that are thrown away."""
        for each in (*self.members, *self._others):
            each.kill()


def each_of(processes: list[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    """Do something to each process that has not ended by itself."""
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            act(each)


def make_certificate(certificate: Path, key: Path) -> None:
    """Write the certificate of this machine that signs itself, and its key."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return so many free ports, which no other call returns: of this process or of one that runs beside it.

    They lie below those that the system gives to clients, which could take one before the server does.
    """
    return [_reserve_port() for _ in range(count)]


def _reserve_port() -> int:
    folder = Path(tempfile.gettempdir()) / f"trident-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        port = _draw.randrange(10_000, 30_000)
        lock = (folder / str(port)).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _reserved.append(lock)
        return port


def start_redis(work: Path, *arguments: object) -> Server:
    """Start a Redis; without arguments it keeps nothing over a restart."""
    (port,) = free_ports(1)
    persistence = [] if "--appendonly" in arguments or "--save" in arguments else ["--save", "", "--appendonly", "no"]
    argv = [program("redis-server"), "--port", port, "--bind", "127.0.0.1", "--dir", work, *persistence, *arguments]
    return Server("redis-server", argv, port, work, lambda port: b"+PONG" in _ask(port, b"PING\r\n", b"\r\n"))


def start_memcached(work: Path, *arguments: object) -> Server:
    """Start a Memcached of 64 MB, or as the arguments say."""
    (port,) = free_ports(1)
    user = ["-u", "root"] if os.geteuid() == 0 else []
    memory = [] if "-m" in arguments else ["-m", 64]
    argv = [program("memcached"), "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 1, *memory, *user, *arguments]
    return Server("memcached", argv, port, work, lambda port: b"VERSION" in _ask(port, b"version\r\n", b"\r\n"))


def start_s3(work: Path) -> Server:
    """Start an S3 server with a bucket `logs`; it keeps nothing over a restart."""
    program = made_by("make servers", JARS / "s3" / "bin" / "python")
    (port,) = free_ports(1)
    argv = [program, CONFIGURATION / "s3_server.py", port]
    server = Server("s3", argv, port, work, lambda port: bool(_ask(port, _GET, b"200 OK")))
    urlopen(Request(f"http://{server.address}/logs", method="PUT")).close()
    return server


AZURE_ACCOUNT = {
    "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
    # Azurite's own, in its handbook.
    "AZURE_STORAGE_ACCOUNT_KEY": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
}


def start_azurite(work: Path) -> Server:
    """Start a server of Azure's blobs with a container `logs`, which it keeps over a restart."""
    program = made_by("make build/services/azurite", JARS / "azurite" / "node_modules" / ".bin" / "azurite-blob")
    (port,) = free_ports(1)
    argv = [program, "--blobPort", port, "--location", work, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    server = Server("azurite", argv, port, work, lambda port: b"HTTP/1.1" in _ask(port, _GET, b"HTTP/1.1"))
    date, account = formatdate(usegmt=True), AZURE_ACCOUNT["AZURE_STORAGE_ACCOUNT_NAME"]
    headers = {"x-ms-date": date, "x-ms-version": "2021-12-02", "Content-Length": "0"}
    signed = "".join(f"{name}:{headers[name]}\n" for name in ("x-ms-date", "x-ms-version"))
    text = "PUT" + "\n" * 12 + signed + f"/{account}/{account}/logs\nrestype:container"
    key = base64.b64decode(AZURE_ACCOUNT["AZURE_STORAGE_ACCOUNT_KEY"])
    signature = base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()
    headers["Authorization"] = f"SharedKey {account}:{signature}"
    url = f"http://{server.address}/{account}/logs?restype=container"
    urlopen(Request(url, method="PUT", headers=headers)).close()
    return server


def start_postgres(work: Path, *arguments: object) -> Server:
    """Start a PostgreSQL with a database `postgres` of the user `trident`, who needs no password."""
    (port,) = free_ports(1)
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, default=None)
    programs = programs or Path(program("postgres")).parent  # Debian has them where PATH does not lead
    user = None
    if os.geteuid() == 0:  # whom it refuses to run as; and what belongs to root no other user can reach
        user = next(name for name in ("postgres", "nobody") if name in {each.pw_name for each in pwd.getpwall()})
        work = Path(tempfile.mkdtemp(prefix="trident-postgres-"))
        shutil.chown(work, user)
    data = work / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "trident", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
    subprocess.run([*map(str, initdb)], cwd=work, check=True, stdout=subprocess.DEVNULL, **_as_user(user))
    asks = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    argv = [
        programs / "postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1",
        "-c", "unix_socket_directories=", *arguments,
    ]  # fmt: skip
    return _Postgres(
        "postgres", argv, port, work, lambda port: subprocess.run(asks, check=False).returncode == 0, 20.0, user=user
    )


def _version(programs: Path) -> int:
    return int(programs.parent.name) if programs.parent.name.isdigit() else 0


def _as_user(user: str | None) -> dict[str, Any]:
    """Return what `subprocess` is told so that a program runs as that user."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def start_cassandra(work: Path, durable: bool = True) -> Server:
    """Start a Cassandra in 5 to 25 seconds; `durable`: each write is on disk when it is answered, or soon, as usual."""
    java = [*_java_of_cassandra(), *(f"-javaagent:{jar}" for jar in sorted((JARS / "cassandra").glob("jamm-*.jar")))]
    cql, storage, jmx = free_ports(3)
    sync = "batch" if durable else "periodic\ncommitlog_sync_period: 10s"
    yaml = write_settings(work, "cassandra.yaml", CQL=cql, STORAGE=storage, SYNC=sync)
    lines = (CONFIGURATION / "cassandra.jvm.options").read_text(encoding="utf-8").splitlines()
    options = [line for line in lines if line and not line.startswith("#")]
    argv = [
        *java, *options, f"-Dcassandra.config=file://{yaml}", f"-Dcassandra.storagedir={work}",
        f"-Dcassandra.jmx.local.port={jmx}", f"-Dlogback.configurationFile=file://{CONFIGURATION}/logback.xml",
        "-Dcassandra-foreground=yes", "-cp", jars_of("cassandra"), "org.apache.cassandra.service.CassandraDaemon",
    ]  # fmt: skip
    return Server("cassandra", argv, cql, work, lambda port: _ask(port) == b"", grace=10, limit=180)


def program(name: str) -> str:
    """Return where a program is; a missing one is an error that says how to install it."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not on PATH; run: make servers")
    return found


def made_by(command: str, path: Path) -> Path:
    """Return a path; if there is nothing, an error says what makes it."""
    if not path.exists():
        raise RuntimeError(f"there is no {path}; run: {command}")
    return path


def jars_of(server: str) -> str:
    return f"{made_by('make servers', JARS / server)}/*"


def write_settings(work: Path, name: str, **values: object) -> Path:
    """Write a file of settings into the folder of a server: ours, with values in the places that it names for them."""
    text = (CONFIGURATION / name).read_text(encoding="utf-8")
    for place, value in {**values, "WORK": work}.items():
        text = text.replace(f"@{place}@", str(value))
    (work / name).write_text(text, encoding="utf-8")
    return work / name


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else program("java")


def _java_of_cassandra() -> list[str]:
    printed = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    version = int(printed.split('"')[1].split(".")[0])
    if version > _LAST_JAVA_OF_CASSANDRA:
        last = _LAST_JAVA_OF_CASSANDRA
        raise RuntimeError(f"Cassandra runs on Java 17 to {last}; {java()} is {version}; set JAVA_HOME")
    return [java(), *(["-Djava.security.manager=allow"] if version > 17 else [])]


def _ask(port: int, question: bytes = b"", until: bytes = b"") -> bytes:
    """Connect, ask, and return the answer up to `until`; nothing if nothing is asked."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 1) as connection:
        connection.sendall(question)
        while until not in answer:
            received = connection.recv(4096)
            if not received:
                raise ConnectionError("closed before it answered")
            answer += received
    return answer
