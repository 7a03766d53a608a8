// One topology: how it does, then everything in detail.

import { html, useState } from "./vendor/preact-htm.js";
import { EVERY_MS, useLives } from "./api.js";
import { age, amount, count, distinct, duration, failedShare, is, ms, NONE, percent, plural, rate, value, windowName, WINDOWS } from "./format.js";
import { Actions } from "./actions.js";
import { Batches, Phases } from "./batches.js";
import { lagText } from "./cluster.js";
import { componentLink, Components } from "./component.js";
import { Errors } from "./errors.js";
import { Log, logLink } from "./log.js";
import { Letters } from "./letters.js";
import { Line, OverTime } from "./overtime.js";
import { Picture } from "./picture.js";
import { Card, Folded, Problem, Status, Table, Tile, Windows, Words } from "./pieces.js";
import { States } from "./states.js";

const isServed = (page) => page.isServed !== false; // else nobody can say more than this page does
const isSaid = ({ note, verdict }) => verdict?.lines.some(({ text }) => text.toLowerCase().startsWith(note.toLowerCase()));
export const pathOf = (id) => `topology/${encodeURIComponent(id)}`;
const failed = (row) => html`<span class=${row.failed ? "warn" : ""}>${count(row.failed)}${row.failed ? `: ${failedShare(row)}` : ""}</span>`;
const FIGURES = [
  ["Window", (row) => windowName(row)],
  ["Emitted", (row) => plural(row.emitted, "tuples"), null, "num"],
  ["Acknowledged", (row) => plural(row.acked, "tuples"), null, "num"],
  ["Failed", (row) => failed(row), null, "num"],
  ["Complete latency", (row) => (row.acked ? ms(Number(row.completeLatency)) : NONE), null, "num"],
];
const TRIDENT_FIGURES = [
  ["Window", (row) => windowName(row)],
  ["Batches", (row) => plural(row.batches, "batches"), null, "num"],
  ["Tuples", (row) => plural(row.tuples, "tuples"), null, "num"],
  ["Rate", (row) => rate(row.tuplesPerSecond), null, "num"],
  ["Mean time", (row) => (row.batches ? ms(row.phasesMs?.total) : NONE), null, "num"],
  ["Failed attempts", (row) => failed(row), null, "num"],
  ["Dead letters", (row) => html`<span class=${row.deadLetters ? "warn" : ""}>${count(row.deadLetters)}</span>`, null, "num"],
];
const sources = (id) => [
  ["Source", (row) => componentLink(id, row.source)],
  ["Rows", (row) => plural(row.tuples, "rows"), null, "num"],
  ["Rate", (row) => rate(row.tuplesPerSecond, "rows"), null, "num"],
  ["Lag", (row) => (row.lag ? amount(row.lag.amount, row.lag.unit) : "not known"), null, "num"],
  ["At the rate of now", (row) => (row.lag?.amount === 0 ? "nothing" : is(row.secondsBehind) ? `about ${duration(row.secondsBehind)}` : NONE), null, "num"],
];
const unknownOf = (sources) => { const names = (sources ?? []).filter((each) => !each.lag).map((each) => each.source); return names.length ? `not known of ${names.join(", ")}` : ""; };
// How much is left and how long that takes at the rate of now: sources are read at the same time, so the slowest counts.
const lagNote = ({ lags, sources = [] }) => {
  if (!lags?.length) return "the sources do not say";
  const times = sources.filter((each) => each.lag?.amount).map((each) => each.secondsBehind);
  return ["still to be read", times.length && times.every(is) && `about ${duration(Math.max(...times))} at the rate of now`, unknownOf(sources)].filter(Boolean).join("; ");
};
const SETTINGS = [
  ["Setting", ({ name }) => name, ({ name }) => name],
  ["Value", ({ set, found }) => html`<code class=${set ? "" : "muted"}>${value(found)}</code>`],
  ["From", ({ set, from }) => (set ? from ?? "set" : html`<span class="muted">default</span>`), ({ set }) => (set ? 1 : 0)],
];
const workers = (id, logs) => [
  ["Worker", (row) => `worker ${row.worker ?? 0}`],
  ["Machine", (row) => row.host],
  ["Process", (row) => row.pid],
  ["Up for", (row) => age(row.uptimeSeconds), null, "num"],
  ["Executors", (row) => count(row.executorsTotal), null, "num"],
  ["Log", () => logLink(id, "log", logs.includes("output") ? "output" : "driver")],
];

export function Topology({ id, meta, alone }) {
  const [window, choose] = useState(600);
  const path = pathOf(id);
  const { data, error } = useLives([`${path}?window=${window}`, `${path}/visualization?window=${window}`, `${path}/batches`, `${path}/series?window=${window}`], EVERY_MS, isServed);
  const [page, drawn, told, series] = data ?? [];
  if (!page) return html`<h1>${id}</h1><${Problem} error=${error} />${!error && html`<p class="muted wait">…</p>`}`;
  const trident = page.kind === "trident";
  const batches = told?.batches ?? [];
  const figures = page.topologyStats ?? [];
  return html`
    <div class="head">
      <div><h1>${page.name}</h1>
        <p class="sub"><${Status} status=${page.status} /> <span>${trident ? "Trident" : "spouts and bolts"}, up for ${age(page.uptimeSeconds)}
          ${page.host ? html` on <bdi>${page.host}</bdi>` : null}${page.id !== page.name ? html`, id <bdi>${page.id}</bdi>` : null}</span></p></div>
      <${Actions} id=${id} page=${page} meta=${meta} alone=${alone} />
    </div>
    <${Problem} error=${error} />
    ${page.note && !isSaid(page) && html`<p class="problem"><bdi>${page.note}</bdi></p>`}
    ${page.verdict && html`<${Verdict} found=${page.verdict} />`}
    <${Tiles} page=${page} batches=${batches} series=${series} window=${window} />
    ${!trident && html`<${Words} of=${["executor", "worker"]} />`}
    <${Windows} window=${window} choose=${choose} />
    <${OverTime} series=${series} trident=${trident} lags=${trident ? page.lags ?? [] : [{ amount: page.pending, unit: "messages" }]} unknown=${unknownOf(page.sources)} />
    ${!isServed(page) && html`<p class="muted">There is no picture and no current figures while none of its drivers answers.</p>`}
    ${drawn?.nodes?.length > 0 && html`<${Picture} id=${id} drawn=${drawn} />`}
    ${trident && html`<div class="columns">
      <${Card} title="Sources" id="sources"><${Table} caption="Sources" columns=${sources(id)} rows=${page.sources ?? []} keyOf=${(row) => row.source} empty="No batch was committed yet." />
        ${is(page.share) && page.share < 1 && html`<p class="warn">The states cannot keep up, so sources may use ${percent(page.share)} of their limits.</p>`}<//>
      <${Phases} phases=${page.phases} />
    </div>`}
    ${trident && html`<${Batches} batches=${batches} />`}
    ${figures.length > 0 && html`<${Card} title="By window" id="windows"><${Table} caption="Figures by window" columns=${trident ? TRIDENT_FIGURES : FIGURES} rows=${distinct(figures)} keyOf=${(row) => row.window} /><//>`}
    <${Components} id=${id} page=${page} />
    ${trident && html`<${States} id=${id} states=${page.states ?? []} />`}
    <${Errors} errors=${page.topologyErrors ?? page.errors ?? []} />
    ${trident && html`<${Letters} id=${id} page=${page} meta=${meta} />`}
    <${Log} id=${id} logs=${page.logs} />
    <${Settings} page=${page} />
    ${page.workers?.length > 0 && html`<${Card} title="Workers" id="workers"><${Table} caption="Workers" columns=${workers(id, page.logs ?? [])} rows=${page.workers} keyOf=${(row) => `${row.worker} ${row.pid}`} /><//>`}`;
}

export function TopologyLog({ id, of }) {
  const { data: page, error } = useLives([pathOf(id)], 10_000);
  return html`<h1>Log of <bdi>${page?.[0].name ?? id}</bdi></h1><${Problem} error=${error} />
    ${page && html`<${Log} id=${id} logs=${page[0].logs} of=${of} open />`}`;
}

// Those that were set come first.
function Settings({ page }) {
  const set = new Set(page.configurationSet ?? []);
  const rows = Object.entries(page.configuration ?? {}).map(([name, found]) => ({ name, found, set: set.has(name), from: page.configurationOrigins?.[name] }));
  return html`<${Folded} title="Settings" id="settings"><p class="muted">Secrets are not shown: *** stands for each.</p>
    <${Table} caption="Settings" columns=${SETTINGS} rows=${[...rows.filter((each) => each.set), ...rows.filter((each) => !each.set)]} keyOf=${({ name }) => name} filter=${({ name }) => name} /><//>`;
}

const Verdict = ({ found }) => html`<ul class="verdict ${found.tone}" aria-label="How it does">
  ${found.lines.map(({ tone, text }, index) => html`<li key=${index} class=${tone}><bdi>${text}</bdi></li>`)}</ul>`;

function Tiles({ page, batches, series, window }) {
  const health = page.health ?? {};
  const last = batches.at(-1);
  const trident = page.kind === "trident";
  const spouts = page.spouts ?? [];
  const chosen = (page.topologyStats ?? []).find((row) => row.window === (window ? String(window) : ":all-time"));
  const failures = chosen?.failed ?? health.failures;
  const over = window ? `in ${WINDOWS.find(([seconds]) => seconds === window)[1]}` : "in this run";
  const slowest = Math.max(0, ...spouts.map((each) => Number(each.completeLatency)));
  return html`<dl class="tiles">
    <${Tile} label="Throughput" value=${rate(page.rates?.tuplesPerSecond)} note=${is(page.rates?.batchesPerSecond) ? rate(page.rates.batchesPerSecond, "batches") : trident ? "" : "acknowledged"}>
      ${series?.at?.length > 2 && html`<${Line} values=${series.tuplesPerSecond} label="Throughput within the window" small />`}<//>
    ${trident && html`<${Tile} label="Lag" value=${lagText(page.lags)} note=${lagNote(page)} />`}
    ${trident && html`<${Tile} label="A batch takes" value=${ms(page.phases?.meanMs?.total)} note=${last ? `the last ${ms(last.durationMs.total)}${page.engine?.includes("resident") ? ", on resident workers" : ""}` : "none yet"} />`}
    ${trident && html`<${Tile} label="Committed" value=${`batch ${count(page.txid)}`} note=${`${plural(page.tuples ?? 0, "tuples")} in this run`} />`}
    ${!trident && html`<${Tile} label="A message takes" value=${slowest ? ms(slowest) : NONE} note="from its spout to the last ack" />`}
    ${!trident && html`<${Tile} label="Pending" value=${plural(page.pending, "messages")} note="not answered yet" />`}
    <${Tile} label=${trident ? "Failed attempts" : "Failed messages"} value=${count(failures)} tone=${page.verdict?.recentFailures ? "warn" : ""}
      note=${failures ? `${over}: ${failedShare(chosen)}` : health.failures ? `${over}; ${count(health.failures)} in this run` : "none"} />
    ${trident ? html`<${Tile} label="Dead letters" value=${count(health.deadLetters)} tone=${health.deadLetters ? "warn" : ""} note=${health.deadLetters ? "wait to be put back" : "none wait"} />`
      : is(health.workerDeaths) && html`<${Tile} label="Deaths of workers" value=${count(health.workerDeaths)} tone=${health.workerDeaths ? "warn" : ""} note=${health.workerDeaths ? "started again" : "none"} />`}
    ${!trident && html`<${Tile} label="Runs in" value=${plural(page.executorsTotal, "executors")} note=${`${plural(page.tasksTotal, "tasks")}, ${plural(page.workersTotal, "workers")}`} />`}
  </dl>`;
}
