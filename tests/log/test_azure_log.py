"""The contract of a transaction log, on a log in Azure's blobs: Azurite, which keeps them over a restart. Of the soak alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.harness.servers import AZURE_ACCOUNT, Server, start_azurite
from tests.log.log_homes import ObjectHome
from tests.log.log_processes import ProcessContract
from tests.log.stored_faults import StoredAway
from tests.log.test_log_contract import LogContract, OwnerContract
from trident.nodes import object_store

pytestmark = [pytest.mark.soak, pytest.mark.server, pytest.mark.slow]

_numbers = count(1)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_azurite(tmp_path_factory.mktemp("azurite"))
    yield server
    server.stop()


class InAzure:
    @pytest.fixture
    def server(self, azurite: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
        account = AZURE_ACCOUNT["AZURE_STORAGE_ACCOUNT_NAME"]
        for name, value in {**AZURE_ACCOUNT, "AZURE_STORAGE_ENDPOINT": f"http://{azurite.address}/{account}"}.items():
            monkeypatch.setenv(name, value)
        return azurite

    @pytest.fixture
    def home(self, server: Server) -> ObjectHome:
        return ObjectHome(f"az://logs/trident/log-{next(_numbers)}")

    @pytest.fixture
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(object_store, "_TIMEOUT", {"timeout": "1s", "connect_timeout": "1s"})


class TestAzureLog(InAzure, LogContract):
    pass


class TestOwnerOfAzureLog(InAzure, OwnerContract):
    pass


class TestProcessesWithAzureLog(InAzure, ProcessContract):
    pass


class TestAzureThatHangs(InAzure, StoredAway):
    pass


class TestAzureThatIsRestarted(InAzure, StoredAway):
    def vanish(self, server: Server) -> None:
        server.stop()  # killed, it would forget what it has answered in its last seconds

    def appear(self, server: Server) -> None:
        server.start()
