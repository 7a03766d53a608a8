"""`trident nimbus`: one Nimbus with its HTTP interface, its routes and the page.

The routes that Nimbus adds to Storm UI's and `trident.web.rest`'s: packages of code, submissions, upgrades.

=====================================  ==============================================================================
`GET /api/v1/code?has=SHA256`          `{"has": true}` if the package is there and whole
`PUT /api/v1/code/SHA256`              store a package; again does nothing
`GET /api/v1/code/SHA256`              its bytes
`POST /api/v1/topology`                `{"sha256", "name", "submission", "conf", "workers"}`; answers `{"id", "name"}`
`POST /api/v1/topology/ID/upgrade`     `{"sha256", "conf"}`; answers what became of it
=====================================  ==============================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trident.cluster.code_store import CodeStore
from trident.cluster.nimbus import Nimbus
from trident.cluster.pages import ClusterOverview
from trident.cluster.submissions import Submissions
from trident.cluster_state.cluster_address import log_of, open_cluster_state
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import ClusterUnreachable, NoLeader
from trident.roles import Closes
from trident.servers.plain_json import json_answer
from trident.web.cluster_pages import Action, Page
from trident.web.rest import PageError, UIServer, awaiting, body_of, problem, replying

_CODES = "/api/v1/code"
_CODE = f"{_CODES}/{{sha256}}"
_TOPOLOGY = "/api/v1/topology"
_MAX_BODY = 1 << 20
_KNOWN_S = 15.0


class NimbusDaemon(Closes):
    """A Nimbus that runs in this process. A context manager: leaving it stops it; topologies go on.

    `address`: of the cluster's state.
    `token`: what clients, supervisors and drivers are asked for.
    `code_dir`: where the packages of code are; several Nimbuses of a cluster share it.
    `host`, `port`: where it answers; port 0 takes a free one.
    `times`: `driver_timeout_s` and `max_deaths` of `Nimbus`.
    Raises `ClusterUnreachable`, `ConfigError`, `EnvironmentProblem`.
    """

    def __init__(
        self,
        address: str,
        token: str,
        code_dir: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        session_timeout_s: float = 10.0,
        **times: Any,
    ) -> None:
        with ExitStack() as opened:
            cluster = StormClusterState(open_cluster_state(address, session_timeout_s))
            opened.callback(cluster.disconnect)
            code = CodeStore(code_dir)
            self.submissions = Submissions(cluster, code, lambda name: log_of(address, name))
            # The pages before Nimbus, which tells the others its address, and is stopped before them: who leads must answer.
            overview = ClusterOverview(cluster, token, self._act)
            self.server = opened.enter_context(UIServer(overview, host, port, token, extra_routes=self._routes()))
            tidy = self.submissions.remove_unused_code
            self.nimbus = Nimbus(cluster, self.server.url, str(code_dir.absolute()), tidy, **times)
            opened.callback(self.nimbus.stop)
            self.nimbus.start()
            self._open = opened.pop_all()
        self.url, self._cluster = self.server.url, cluster

    def wait_until_known(self) -> None:
        """Wait until the cluster has a leader, this one or another. Raises `ClusterUnreachable` if none is there in time."""
        ends = time.monotonic() + _KNOWN_S
        while self._cluster.leader() is None:
            if time.monotonic() > ends:
                raise ClusterUnreachable(f"no Nimbus leads the cluster after {_KNOWN_S:g} s")
            time.sleep(0.02)

    def close(self) -> None:
        self._open.close()

    def _check_leads(self) -> None:
        if not self.nimbus.leads:
            leader = self._cluster.leader()
            where = "none leads just now; try again" if leader is None else f"ask the one at {leader['url']}"
            raise NoLeader(f"this Nimbus does not lead the cluster: {where}")

    def _act(self, storm_id: str, action: Action, parameters: Mapping[str, Any]) -> Page:
        self._check_leads()
        done = self.submissions.act(storm_id, action, parameters)
        self.nimbus.wake()
        return done

    def _routes(self) -> list[BaseRoute]:
        """Return the routes; every one of them needs the token."""
        submit, upgrade = (awaiting(partial(self._as_leader, done)) for done in (self._submit, self._upgrade))

        def has_code(asked: Request) -> Page:
            return {"has": self.submissions.code.is_there(asked.query_params.get("has", ""))}

        return [
            Route(_CODE, self._put_code, methods=["PUT"]),
            Route(_CODE, replying(self._get_code, partial(Response, media_type="application/zip")), methods=["GET"]),
            Route(_CODES, replying(has_code), methods=["GET"]),
            Route(_TOPOLOGY, submit, methods=["POST"]),
            Route(f"{_TOPOLOGY}/{{topology}}/upgrade", upgrade, methods=["POST"]),
        ]

    async def _put_code(self, request: Request) -> Response:
        sha256 = request.path_params["sha256"]
        try:
            # Whether or not this one leads: the folder may be shared, and a package alone changes nothing.
            with self.submissions.code.incoming(sha256) as take:
                async for chunk in request.stream():
                    take(chunk)
        except ClientDisconnect:  # nothing was stored
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets an answer
            return problem(request, error)
        return json_answer({"sha256": sha256})

    def _get_code(self, request: Request) -> bytes:
        sha256 = request.path_params["sha256"]
        if not self.submissions.code.path(sha256).exists():
            raise PageError(404, f"this Nimbus has no package {sha256}")
        return self.submissions.code.get(sha256)

    async def _as_leader(self, change: Callable[[Request, Mapping[str, Any]], Page], request: Request) -> Page:
        body = await body_of(request, _MAX_BODY)

        # Not in the event loop: both ask servers, which may be away.
        def change_now() -> Page:
            self._check_leads()
            return change(request, body)

        return await run_in_threadpool(change_now)

    def _submit(self, request: Request, body: Mapping[str, Any]) -> Page:
        sha256, name, submission = _text(body, "sha256"), _text(body, "name", ""), _text(body, "submission", "")
        storm_id = self.submissions.submit(sha256, name, submission, _conf(body), body.get("workers"))
        _, base = self._cluster.find_storm(storm_id)
        return {"id": storm_id, "name": base.storm_name, "kind": base.kind, "generation": base.generation}

    def _upgrade(self, request: Request, body: Mapping[str, Any]) -> Page:
        storm_id, before = self._cluster.find_storm(unquote(request.path_params["topology"]))
        base, check = self.submissions.upgrade(storm_id, _text(body, "sha256"), _conf(body))
        return {
            "id": storm_id,
            "name": base.storm_name,
            "generation": base.generation,
            "changed": base.generation != before.generation,
            "compared": check.compared,
            "notes": list(check.notes),
        }


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise PageError(400, f"{name}: expected a text")
    return value


def _conf(body: Mapping[str, Any]) -> dict[str, str] | None:
    conf = body.get("conf")
    if conf is None:
        return None
    if not isinstance(conf, dict) or not all(isinstance(value, str) for value in conf.values()):
        raise PageError(400, "conf: expected an object of texts")
    return conf
