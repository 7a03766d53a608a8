"""`trident nimbus`: one Nimbus, which leads or stands by, with its HTTP interface and the page."""

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trident import __version__
from trident.cluster.assigning import Assign, Decision, DriverHealth, Forget, MarkFailed, Picture, RollBack, decide
from trident.cluster.code_store import CodeStore
from trident.cluster.pages import ClusterOverview
from trident.cluster.submissions import Submissions, rolled_back
from trident.cluster_state.cluster_address import log_of, open_cluster_state
from trident.cluster_state.cluster_records import Assignment, NodePort, StormBase, WantedStatus, machine_names
from trident.cluster_state.storm_cluster_state import LEADER, NIMBUSES, StormClusterState
from trident.errors import ClusterError, ClusterUnreachable, NoLeader
from trident.roles import Closes
from trident.servers.plain_json import json_answer
from trident.web.cluster_pages import Action, Page
from trident.web.rest import PageError, UIServer, awaiting, body_of, problem, replying

logger = logging.getLogger(__name__)

_ROUND_S, _MAX_PAUSE_S = 1.0, 5.0  # between looks; watches make it look at once
_LAUNCH_TIMEOUT_S = 60.0  # how long a driver may take to its first heartbeat
_TIDY_EVERY_S = 600.0

_CODES = "/api/v1/code"
_CODE = f"{_CODES}/{{sha256}}"
_TOPOLOGY = "/api/v1/topology"
_MAX_BODY = 1 << 20
_KNOWN_S = 15.0


class Nimbus:
    """One Nimbus: its thread looks at the cluster about once a second, and assigns what needs a slot if it leads."""

    def __init__(
        self,
        cluster: StormClusterState,
        url: str,
        code_dir: str,
        tidy: Callable[[], object] = lambda: None,
        driver_timeout_s: float = 15.0,
        max_deaths: int = 20,
    ) -> None:
        self.cluster, self._code_dir, self._max_deaths = cluster, code_dir, max_deaths
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._leadership = Leadership(cluster, url)
        cluster.state.register(lambda _event: self._wake.set())
        self._health = DriverHealth(driver_timeout_s, _LAUNCH_TIMEOUT_S)
        self.leads = False
        self._problem = ""
        self._tidy, self._tidied_at = tidy, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="trident-nimbus", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._leadership.resign()
        self.leads = False

    def wake(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            began, spent_s = time.monotonic(), 0.0
            try:
                self._round()
                self._problem = ""
                spent_s = time.monotonic() - began
            # Another one may lead by now, and this one cannot be told.
            except ClusterUnreachable as error:
                if self.leads:
                    logger.warning("this Nimbus does not lead for now: %s", error)
                self.leads = False
            except ClusterError as error:  # a record that cannot be read
                if str(error) != self._problem:
                    self._problem = str(error)
                    logger.error("nothing is assigned or moved: %s", error)
            except Exception:  # one topology's damaged record must not end the care for all others
                logger.exception("a round of Nimbus failed; the next one is in %g s", _ROUND_S)
            # Of a thousand topologies a look takes a while: it is to take a tenth of the time.
            self._wake.wait(max(_ROUND_S, min(9 * spent_s, _MAX_PAUSE_S)))

    def _round(self) -> None:
        leads = self._leadership.campaign()
        if leads != self.leads:
            logger.info("this Nimbus %s", "leads the cluster" if leads else "stands by: another one leads")
            self._health.forget()
            self.leads = leads
        if leads:
            self._lead()

    def _lead(self) -> None:
        picture = self._look()
        for each in decide(picture):
            self._do(each, picture)
        if time.monotonic() - self._tidied_at > _TIDY_EVERY_S:
            self._tidied_at = time.monotonic()
            self.cluster.remove_late()
            self._tidy()

    def _look(self) -> Picture:
        cluster = self.cluster
        bases, assignments = cluster.all_bases(watch=True), cluster.all_assignments()
        # What is left of a forgotten topology holds no slot.
        assignments = {name: each for name, each in assignments.items() if name in bases}
        heartbeats = cluster.heartbeats_at({name: each.slot for name, each in assignments.items()})
        beating = {
            name: (beat := heartbeats.get(name)) is not None and beat.start_time_secs == each.start_time_secs
            for name, each in assignments.items()
        }
        cluster.supervisors(watch=True)
        now_secs, supervisors = time.time(), cluster.all_supervisor_info()
        health = self._health.observe(time.monotonic(), assignments, heartbeats)
        deaths, most = cluster.all_deaths(), self._max_deaths
        return Picture(now_secs, bases, assignments, supervisors, health, beating, deaths, most)

    def _do(self, decision: Decision, picture: Picture) -> None:
        match decision:
            case Assign(storm_id, slot, why):
                self._assign(storm_id, slot, why, picture)
            case MarkFailed(storm_id, reason):
                # The record first: if this process dies in between, the next leader takes the slot away all the same.
                if self._change(storm_id, picture, lambda base: _as_failed(base, reason)):
                    logger.error("topology %s is marked as failed: %s", storm_id, reason)
                    self.cluster.state.delete_node(f"/assignments/{storm_id}")
            case RollBack(storm_id, reason):
                if self._change(storm_id, picture, rolled_back):
                    logger.error("topology %s goes back to the code before its upgrade: %s", storm_id, reason)
            case Forget(storm_id):
                logger.info("topology %s has ended", storm_id)
                self.cluster.remove_storm(storm_id)

    def _assign(self, storm_id: str, slot: NodePort, why: str, picture: Picture) -> None:
        base, before = picture.bases[storm_id], picture.assignments.get(storm_id)
        host = machine_names(picture.supervisors)[slot.node]
        # Later than every earlier one: supervisors and drivers distinguish assignments by this.
        start = max(picture.now_secs, 0.0 if before is None else before.start_time_secs + 0.001)
        driver, code = Assignment.DRIVER, (base.code_hash, base.generation)
        assignment = Assignment(self._code_dir, {slot.node: host}, {driver: slot}, {driver: start}, *code)
        # Refused if another Nimbus, which believes that it leads, was faster.
        if self.cluster.replace_assignment(storm_id, before, assignment):
            logger.info("topology %s is assigned to %s: %s", storm_id, assignment.where, why)
            if before is not None and before.slot != slot:
                self.cluster.remove_worker_heartbeat(storm_id, *before.slot)

    def _change(self, storm_id: str, seen: Picture, change: Callable[[StormBase], StormBase]) -> bool:
        """Change a record if it is still the one that was decided on; whether it was. Else the next round decides again."""
        is_same = False

        def change_if_same(base: StormBase) -> StormBase:
            nonlocal is_same
            is_same = base == seen.bases[storm_id]
            return change(base) if is_same else base

        self.cluster.update_storm(storm_id, change_if_same)
        return is_same


def _as_failed(base: StormBase, reason: str) -> StormBase:
    done = base.status.kind == "failed"
    return base if done else replace(base, status=WantedStatus("failed", time.time(), reason=reason))


class Leadership:
    """The candidacy of one Nimbus: the one whose ephemeral node is there leads. It does no harm if two believe so."""

    def __init__(self, cluster: StormClusterState, url: str) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._cluster, self._node = cluster, f"{NIMBUSES}/{self.id}"
        self._about = {
            "id": self.id, "url": url, "host": socket.gethostname(), "pid": os.getpid(), "since-secs": time.time(),
            "version": __version__,
        }  # fmt: skip

    def campaign(self) -> bool:
        """Return whether this Nimbus leads now; it does from here on if there was no leader. Who leads is watched."""
        state, data = self._cluster.state, json.dumps(self._about).encode()
        # Again in each round, as it goes with the session.
        if state.get_data(self._node) is None:
            state.set_ephemeral_node(self._node, data)
        while (leader := self._cluster.leader(watch=True)) is None:
            state.create_ephemeral_node(LEADER, data)
        return bool(leader["id"] == self.id)

    def resign(self) -> None:
        try:
            if (leader := self._cluster.leader()) is not None and leader["id"] == self.id:
                self._cluster.state.delete_node(LEADER)
            self._cluster.state.delete_node(self._node)
        except ClusterUnreachable:
            pass  # the session ends with the process, and the nodes with the session


class NimbusDaemon(Closes):
    """A Nimbus that runs in this process; `times`: `driver_timeout_s` and `max_deaths` of `Nimbus`."""

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
            self.submissions = Submissions(cluster, CodeStore(code_dir), lambda name: log_of(address, name))
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
        # Every one of them needs the token.
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
