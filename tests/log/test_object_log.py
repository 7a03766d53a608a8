"""The contract of a transaction log, on logs in object stores: Moto's S3, a process of its own, and Azurite."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from tests.harness.proxy import Proxy
from tests.harness.servers import AZURE_ACCOUNT, Server, start_azurite
from tests.log.log_homes import ObjectHome, read, reopened
from tests.log.log_processes import ProcessContract
from tests.log.log_samples import commit
from tests.log.stored_faults import StoredAway, StoredContents, StoredFaults
from tests.log.test_log_contract import LogContract, OwnerContract
from trident.errors import EnvironmentProblem, FencedError, LogError, LogHeldError
from trident.log import record_store
from trident.log.record_store import Head
from trident.log.records import DefineRecord
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience


@pytest.fixture
def home(object_home: ObjectHome) -> ObjectHome:
    return object_home


@pytest.fixture
def server(s3_server: Server) -> Server:
    return s3_server


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "_ANSWER_S", 1.0)


class TestObjectLog(LogContract, OwnerContract, StoredContents): ...


@pytest.mark.long
class TestProcessesWithObjectLog(ProcessContract): ...


@pytest.mark.long
class TestFaultsOfObjectLog(StoredFaults):
    @pytest.fixture
    def behind(self, home: ObjectHome, proxy: Proxy) -> ObjectHome:
        return ObjectHome(home.address, f"http://127.0.0.1:{proxy.port}")


class TestObjectStoreThatHangs(StoredAway): ...


class Counting:
    """Counts the requests of a client."""

    def __init__(self, store: Any) -> None:
        self.made: list[str] = []
        self._real = store._objects._obstore
        store._objects._obstore = self

    def __getattr__(self, name: str) -> Any:
        self.made.append(name)
        return getattr(self._real, name)


def test_an_append_is_one_request_and_a_batch_two(home: ObjectHome) -> None:
    with closing(home.open()) as log:
        requests = Counting(log._store)
        for txid in range(1, 51):
            log.append(DefineRecord(txid, "lines", txid), durable=False)
            log.check_owner()
            log.append(commit(txid))
        assert requests.made == ["get", "put"] * 50


def test_the_start_on_a_long_log_takes_few_requests(
    home: ObjectHome, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for txid in range(1, 2001):
        log.append(commit(txid, payload="x" * 200), durable=txid % 100 == 0)
    while log._size < 500_000:  # the worst moment: just before a new segment begins
        log.append(commit(log.state.txid + 1, payload="x" * 20_000))
    log.close()
    made: list[str] = []
    run = Patience.run

    def counted(self: Patience, request: Callable[[], Any], *more: Any) -> Any:
        made.append(request.__qualname__)
        return run(self, request, *more)

    monkeypatch.setattr(Patience, "run", counted)
    with closing(home.open()) as again:
        assert again.state.txid == log.state.txid
    assert len(made) + 2 <= 20  # that of the conditions has up to three requests, and that of the sweep two


@pytest.mark.long
def test_a_reader_fetches_no_chunk_twice(home: ObjectHome) -> None:
    with closing(home.open()) as log, closing(home.reader()) as reader:
        for txid in range(1, 301):
            log.append(commit(txid, payload="x" * 500))
        reader.refresh()
        requests = Counting(reader._store)
        for txid in range(301, 311):
            log.append(commit(txid))
            assert reader.refresh() == log.state
        assert requests.made == ["get"] * 10


def test_a_store_that_ignores_conditions_is_refused(home: ObjectHome, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put
    for ignored in (str, dict):

        def careless(
            store: Any, name: str, data: bytes, *, mode: Any, use_multipart: bool, kind: type = ignored
        ) -> Any:
            return put(store, name, data, mode="overwrite" if isinstance(mode, kind) else mode)

        with monkeypatch.context() as patch:
            patch.setattr(obstore, "put", careless)
            with pytest.raises(
                LogError, match=f"cannot keep a log at {home.address}: this store carries out a put whose"
            ):
                home.open()
        assert set(home.contents()) <= {"conditions"}  # before there is a claim
    assert reopened(home).epoch == 1


def test_a_first_claim_that_is_still_under_way_is_made_again(home: ObjectHome, monkeypatch: pytest.MonkeyPatch) -> None:
    put, refused = obstore.put, [0]

    def busy_once(store: Any, name: str, data: bytes, **how: Any) -> Any:
        if name == "head" and not refused[0]:
            refused[0] += 1
            raise AlreadyExistsError("409 Conflict")  # as for a request without an answer that still goes on there
        return put(store, name, data, **how)

    monkeypatch.setattr(obstore, "put", busy_once)
    assert reopened(home).epoch == 1
    assert refused == [1]


def test_a_bucket_that_is_not_there_is_named(home: ObjectHome) -> None:
    with pytest.raises(LogError, match="cannot keep a log at s3://nowhere/log: .*NoSuchBucket.*Make the bucket"):
        ObjectHome("s3://nowhere/log").open()
    with pytest.raises(LogError, match="there is no transaction log at s3://nowhere/log"):
        read(ObjectHome("s3://nowhere/log"))


def test_a_bucket_with_versions_keeps_a_log(home: ObjectHome, s3_server: Server) -> None:
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    for target, data in (("versioned", b""), ("versioned?versioning", body)):
        request = Request(f"http://{s3_server.address}/{target}", method="PUT", data=data)
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=user/20260101/us-east-1/s3/aws4_request")
        request.add_header("Content-Type", "application/xml")
        urlopen(request).close()
    versioned = ObjectHome("s3://versioned/log")
    first = versioned.open()
    first.append(commit(1))
    with closing(versioned.open(takeover=True)) as second:
        with pytest.raises(FencedError, match="epoch 2"):
            first.append(commit(2))
        second.append(commit(2, 2 << 20))
        assert read(versioned) == second.state
    first.close()


def test_a_driver_of_another_machine_that_was_killed_is_taken_over_on_demand(home: ObjectHome, log: Any) -> None:
    log.append(commit(1))
    body = Head.of(home.contents()["head"], "head")
    about = {**json.loads(body.about), "machine": "another", "pid": 1}
    obstore.put(home.objects, "head", replace(body, id="00ff", about=json.dumps(about)).data)
    with pytest.raises(
        LogHeldError, match="held by process 1 on .*takeover=True .*other commands: --conf takeover=true"
    ):
        home.open()
    with closing(home.open(takeover=True)) as second:
        assert (second.epoch, second.state.txid) == (2, 1)
    with pytest.raises(FencedError):
        log.append(commit(2))


@pytest.mark.parametrize(
    "address", ["s3://bucket/a/b", "gs://bucket/a", "az://box/a", "abfss://box@account.dfs.core.windows.net/a"]
)
def test_an_address_that_was_taken_for_a_path_is_still_one(address: str) -> None:
    assert str(ObjectAddress.of(str(Path(address)))) == str(ObjectAddress.of(address + "/")) == address


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        EnvironmentProblem, match=r"a log in an object store needs the package obstore.*\[object-store\]"
    ):
        ObjectHome("s3://bucket/log").open()


_numbers = count(1)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


class InAzure:
    pytestmark: ClassVar = [pytest.mark.soak, pytest.mark.server, pytest.mark.slow]

    @pytest.fixture
    def server(self, azurite: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
        account = AZURE_ACCOUNT["AZURE_STORAGE_ACCOUNT_NAME"]
        for name, value in {**AZURE_ACCOUNT, "AZURE_STORAGE_ENDPOINT": f"http://{azurite.address}/{account}"}.items():
            monkeypatch.setenv(name, value)
        return azurite

    @pytest.fixture
    def home(self, server: Server) -> ObjectHome:
        return ObjectHome(f"az://logs/trident/log-{next(_numbers)}")


class TestAzureLog(InAzure, LogContract, OwnerContract, ProcessContract): ...


class TestAzureThatHangs(InAzure, StoredAway): ...


class TestAzureThatIsRestarted(InAzure, StoredAway):
    def vanish(self, server: Server) -> None:
        server.stop()  # killed, it would forget what it has answered in its last seconds

    def appear(self, server: Server) -> None:
        server.start()
