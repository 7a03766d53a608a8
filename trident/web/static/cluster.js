// The overview: what runs, where, and whether all is well.

import { html } from "./vendor/preact-htm.js";
import { useLive } from "./api.js";
import { age, amount, count, cut, firstLine, is, NONE, plural, rate } from "./format.js";
import { logLink } from "./log.js";
import { Card, Problem, Status, Table, Tile, Words } from "./pieces.js";

export const link = (id, text) => html`<a href="#/topology/${encodeURIComponent(id)}">${text}</a>`;
export const lagText = (lags) => (lags?.length ? lags.map((each) => amount(each.amount, each.unit)).join(" + ") : NONE);
const lagOf = (row) => (row.lags ?? []).reduce((sum, each) => sum + each.amount, 0);

const TOPOLOGIES = [
  ["Topology", (row) => link(row.id, row.name), (row) => row.name],
  ["Status", (row) => html`<${Status} status=${row.status} />`, (row) => row.status],
  ["Problems", (row) => problems(row), (row) => ["good", "quiet", "warn", "bad"].indexOf(row.verdict?.tone)],
  ["Kind", (row) => (row.kind === "bolts" ? "spouts and bolts" : "Trident"), (row) => row.kind],
  ["Throughput", (row) => rate(row.rates?.tuplesPerSecond), (row) => row.rates?.tuplesPerSecond, "num"],
  ["Lag", (row) => lagText(row.lags), lagOf, "num"],
  ["Machine", (row) => (row.slot || row.host ? html`${row.slot ?? row.host} ${logLink(row.id)}` : row.status === "FAILED" ? logLink(row.id) : NONE), (row) => row.slot ?? row.host],
  ["Workers", (row) => count(row.workersTotal), (row) => row.workersTotal, "num"],
  ["Executors", (row) => count(row.executorsTotal), (row) => row.executorsTotal, "num"],
  ["Up for", (row) => age(row.uptimeSeconds), (row) => row.uptimeSeconds, "num"],
];

function problems(row) {
  const lines = row.verdict?.lines ?? [];
  const wrong = lines.filter(({ tone }) => tone === "warn" || tone === "bad");
  if (!wrong.length) return is(row.health?.failures) ? "none" : NONE;
  const [{ tone, text }] = wrong;
  return html`<span class=${tone} title=${wrong.map((each) => each.text).join("\n")}><bdi>${cut(firstLine(text), 160)}</bdi></span>`;
}

const supervisorsOf = (rows) => [
  ["Machine", (row) => row.host, (row) => row.host],
  ["Runs", (row) => (row.runs?.length ? row.runs.map(({ port, id }) => html`<div key=${port}>${link(id, rows.find((each) => each.id === id)?.name ?? id)}, port ${port}, ${logLink(id)}</div>`) : NONE)],
  ["Slots used", (row) => `${count(row.slotsUsed)} of ${count(row.slotsTotal)}`, (row) => row.slotsUsed, "num"],
  ["Up for", (row) => age(row.uptimeSeconds), (row) => row.uptimeSeconds, "num"],
];
const NIMBUSES = [
  ["Machine", (row) => html`${row.host}<span class="muted detail">${row.url}</span>`, (row) => row.host],
  ["Role", (row) => html`<${Status} status=${row.status === "Leader" ? "LEADS" : row.status === "Offline" ? "offline" : "stands by"} />`],
  ["Version", (row) => row.version ?? NONE],
  ["Up for", (row) => age(row.nimbusUpTimeSeconds), null, "num"],
];

export function Cluster({ cluster: first }) {
  const { data: live, error } = useLive("cluster/summary");
  const { data: topologies, error: failed } = useLive("topology/summary");
  const { data: supervisors } = useLive("supervisor/summary");
  const { data: nimbuses } = useLive("nimbus/summary");
  const cluster = live ?? first;
  const rows = topologies?.topologies ?? [];
  const of = (status) => rows.filter((row) => row.status === status).length;
  const leaders = nimbuses?.nimbuses.filter((each) => each.status === "Leader").length;
  const total = rows.reduce((sum, row) => sum + (row.rates?.tuplesPerSecond ?? 0), 0);
  return html`
    <h1>Cluster</h1>
    <${Problem} error=${error ?? failed} />
    ${nimbuses && !leaders && html`<p class="problem" role="alert">No Nimbus leads: what runs goes on, but nothing can be submitted or moved.</p>`}
    <dl class="tiles">
      <${Tile} label="Topologies" value=${plural(cluster.topologies ?? rows.length, "topologies")}
        note=${[[of("ACTIVE"), "active"], [of("INACTIVE"), "inactive"], [of("WAITING"), "waiting for a slot"], [of("FAILED"), "failed"]].filter(([many]) => many).map(([many, name]) => `${many} ${name}`).join(", ")}
        tone=${of("FAILED") ? "bad" : ""} />
      <${Tile} label="Throughput" value=${rate(total)} note="of all topologies" />
      <${Tile} label="Slots" value=${`${count(cluster.slotsUsed)} of ${count(cluster.slotsTotal)} used`} note=${`${count(cluster.slotsFree)} free`}
        tone=${of("WAITING") && !cluster.slotsFree ? "warn" : ""} />
      <${Tile} label="Supervisors" value=${plural(cluster.supervisors, "supervisors")} note=${`${plural(cluster.executorsTotal ?? 0, "executors")}, ${plural(cluster.tasksTotal ?? 0, "tasks")}`} />
    </dl>
    <${Words} of=${["slot", "worker", "executor"]} />
    <${Card} title="Topologies" id="topologies" wide>
      <${Table} caption="Topologies" columns=${TOPOLOGIES} rows=${rows} keyOf=${(row) => row.id} filter=${(row) => row.name}
        empty=${topologies ? "No topology was submitted. Begin with: trident submit MODULE:TOPOLOGY --name NAME" : "…"} />
    <//>
    <div class="columns">
      <${Card} title="Supervisors" id="supervisors"><${Table} caption="Supervisors" columns=${supervisorsOf(rows)} rows=${supervisors?.supervisors ?? []} keyOf=${(row) => row.id} empty="No supervisor is running: topologies wait." /><//>
      <${Card} title="Nimbus" id="nimbus"><${Table} caption="Nimbus" columns=${NIMBUSES} rows=${nimbuses?.nimbuses ?? []} keyOf=${(row) => row.url ?? row.host} empty="No Nimbus is running." /><//>
    </div>`;
}
