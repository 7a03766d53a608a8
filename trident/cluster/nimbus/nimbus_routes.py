"""The routes of Nimbus that Storm UI has not, beside those of `trident.ui.rest`: packages of code, submissions, upgrades.

=====================================  ==============================================================================
`GET /api/v1/code?has=SHA256`          `{"has": true}` if the package is there and whole
`PUT /api/v1/code/SHA256`              keep a package; again does nothing
`GET /api/v1/code/SHA256`              its bytes
`POST /api/v1/topology`                `{"sha256", "name", "submission", "conf", "workers"}`; answers `{"id", "name"}`
`POST /api/v1/topology/ID/upgrade`     `{"sha256", "conf"}`; answers what became of it
=====================================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trident.cluster.nimbus.submissions import Submission, Submissions
from trident.ui.answers import PageError, answer, body_of, problem

__all__ = ["nimbus_routes"]

_CODES = "/api/v1/code"
_CODE = f"{_CODES}/{{sha256}}"
_TOPOLOGY = "/api/v1/topology"
_MAX_BODY = 1 << 20


def nimbus_routes(submissions: Submissions, check_leads: Callable[[], None] = lambda: None) -> list[BaseRoute]:
    """Return the routes; every one of them needs the token.

    Parameters
    ----------
    check_leads
        Raises if this Nimbus does not lead, before anything is changed.
    """
    routes = _Routes(submissions, check_leads)
    return [
        Route(_CODE, routes.put_code, methods=["PUT"]),
        Route(_CODE, routes.get_code, methods=["GET"]),
        Route(_CODES, routes.has_code, methods=["GET"]),
        Route(_TOPOLOGY, routes.submit, methods=["POST"]),
        Route(f"{_TOPOLOGY}/{{topology}}/upgrade", routes.upgrade, methods=["POST"]),
    ]


class _Routes:
    def __init__(self, submissions: Submissions, check_leads: Callable[[], None]) -> None:
        self._submissions, self._check_leads = submissions, check_leads

    async def put_code(self, request: Request) -> Response:
        sha256 = request.path_params["sha256"]
        try:
            with self._submissions.code.incoming(sha256) as package:
                async for chunk in request.stream():
                    package.write(chunk)
        except ClientDisconnect:  # nothing was kept
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets an answer
            return problem(request, error)
        return answer({"sha256": sha256})

    def has_code(self, request: Request) -> Response:  # not async: it runs in a thread
        try:
            return answer({"has": self._submissions.code.is_there(request.query_params.get("has", ""))})
        except Exception as error:  # noqa: BLE001  as above
            return problem(request, error)

    def get_code(self, request: Request) -> Response:
        try:
            sha256 = request.path_params["sha256"]
            if not self._submissions.code.path(sha256).exists():
                raise PageError(404, f"this Nimbus has no package {sha256}")
            data = self._submissions.code.get(sha256)
        except Exception as error:  # noqa: BLE001  as above
            return problem(request, error)
        return Response(data, media_type="application/zip")

    async def submit(self, request: Request) -> Response:
        return await self._changed(request, self._submit)

    async def upgrade(self, request: Request) -> Response:
        topology = unquote(request.path_params["topology"])
        return await self._changed(request, lambda body: self._upgrade(topology, body))

    async def _changed(self, request: Request, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Response:
        try:
            body = await body_of(request, _MAX_BODY)
            done = await run_in_threadpool(self._done, change, body)
        except Exception as error:  # noqa: BLE001  as above
            return problem(request, error)
        return answer(done)

    def _done(
        self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]], body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        self._check_leads()
        return change(body)

    def _submit(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = Submission(
            sha256=_text(body, "sha256"),
            name=_text(body, "name", ""),
            submission=_text(body, "submission", ""),
            conf=_conf(body) or {},
            workers=body.get("workers"),
        )
        storm_id = self._submissions.submit(asked)
        _, base = self._submissions.names.find(storm_id)
        return {"id": storm_id, "name": base.storm_name, "kind": base.kind, "generation": base.generation}

    def _upgrade(self, topology: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        storm_id, before = self._submissions.names.find(topology)
        base, check = self._submissions.upgrade(storm_id, _text(body, "sha256"), _conf(body))
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
