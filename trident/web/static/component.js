// The components of a topology as a table, and one of them in detail.

import { html, useState } from "./vendor/preact-htm.js";
import { useLive } from "./api.js";
import { count, distinct, is, ms, NONE, plural, rate, windowName } from "./format.js";
import { Errors } from "./errors.js";
import { Capacity, Card, Problem, Table, Tile, Windows, Words } from "./pieces.js";

export const componentLink = (id, component, text = component) =>
  html`<a href="#/topology/${encodeURIComponent(id)}/component/${encodeURIComponent(component)}">${text}</a>`;

const latency = (found, exact) => { const read = is(exact) ? exact : Number(found); return Number.isFinite(read) && read > 0 ? read : null; };
const capacity = (row) => (is(row.capacity) && row.executed !== undefined ? Number(row.capacity) : null);

function columns(id, trident) {
  const numbers = [
    ["Emitted", (row) => plural(row.emitted, "tuples"), (row) => row.emitted, "num"],
    ["Executed", (row) => plural(row.executed, "tuples"), (row) => row.executed, "num"],
    ["Execute latency", (row) => ms(latency(row.executeLatency, row.executeLatencyMs)), (row) => latency(row.executeLatency, row.executeLatencyMs), "num"],
    ...(trident ? [] : [["Process latency", (row) => ms(latency(row.processLatency)), (row) => latency(row.processLatency), "num"]]),
    ["Capacity", (row) => html`<${Capacity} value=${capacity(row)} />`, capacity, "num"],
    ["Failed", (row) => html`<span class=${row.failed ? "warn" : ""}>${count(row.failed)}</span>`, (row) => row.failed, "num"],
    ["Last error", (row) => (row.lastError ? html`<span class="warn">${row.lastError.trimEnd().split("\n").at(-1).slice(0, 80)}</span>` : NONE)],
  ];
  const first = ["Component", (row) => html`${componentLink(id, row.boltId, row.label ?? row.boltId)}${row.detail && html`<span class="muted detail">${row.detail}</span>`}`, (row) => row.boltId];
  return trident ? [first, ["Kind", (row) => row.kind ?? "step", (row) => row.kind, "word"], ...numbers]
    : [first, ["Executors", (row) => `${count(row.executors)} of ${plural(row.tasks, "tasks")}`, (row) => row.executors, "num"], ...numbers];
}

const spoutColumns = (id) => [
  ["Source", (row) => componentLink(id, row.spoutId), (row) => row.spoutId],
  ["Executors", (row) => `${count(row.executors)} of ${plural(row.tasks, "tasks")}`, (row) => row.executors, "num"],
  ["Emitted", (row) => plural(row.emitted, "tuples"), (row) => row.emitted, "num"],
  ["Acknowledged", (row) => plural(row.acked, "tuples"), (row) => row.acked, "num"],
  ["Complete latency", (row) => ms(latency(row.completeLatency)), (row) => latency(row.completeLatency), "num"],
  ["Failed", (row) => html`<span class=${row.failed ? "warn" : ""}>${count(row.failed)}</span>`, (row) => row.failed, "num"],
];

const failedFirst = (rows) => [...rows.filter((row) => row.failed), ...rows.filter((row) => !row.failed)];

export function Components({ id, page }) {
  const trident = page.kind === "trident";
  const [spouts, bolts] = [page.spouts ?? [], page.bolts ?? []];
  const over = html`<span class="muted">${page.windowHint ? (page.windowHint === "All time" ? "all time" : `last ${page.windowHint}`) : ""}</span>`;
  return html`
    ${!trident && spouts.length > 0 && html`<${Card} title="Spouts" id="spouts" wide side=${over}><${Table} caption="Spouts" columns=${spoutColumns(id)} rows=${failedFirst(spouts)} keyOf=${(row) => row.spoutId} filter=${(row) => row.spoutId} /><//>`}
    ${bolts.length > 0 && html`<${Card} title=${trident ? "Operations" : "Bolts"} id="bolts" wide side=${over}><${Table} caption=${trident ? "Operations" : "Bolts"} columns=${columns(id, trident)} rows=${failedFirst(bolts)} keyOf=${(row) => row.boltId} filter=${(row) => `${row.boltId} ${row.detail ?? ""}`} /><//>`}`;
}

const named = (row) => windowName(row) ?? row.id ?? (row.source ? `${row.source} → ${row.target}` : [row.component, row.stream].filter(Boolean).join(" · "));
const figures = (title, without = "") => [
  [title, named],
  ["Emitted", (row) => plural(row.emitted, "tuples"), null, "num"],
  ["Executed", (row) => plural(row.executed, "tuples"), null, "num"],
  ["Latency", (row) => ms(latency(row.processLatency ?? row.completeLatency ?? row.executeLatency, row.executeLatencyMs)), null, "num"],
  ["Acknowledged", (row) => plural(row.acked, "tuples"), null, "num"],
  ["Failed", (row) => count(row.failed), null, "num"],
].filter(([name]) => !without.includes(name));
const EDGES = [["Edge", named], ["Grouping", (row) => row.grouping || NONE], ["Rate", (row) => rate(row.tuplesPerSecond, row.unit ?? "tuples"), null, "num"]];
const EXECUTORS = [["Executor", (row) => row.id.replace(/^\[(\d+)-\1\]$/, "task $1").replace(/^\[(\d+)-(\d+)\]$/, "tasks $1 to $2")], ["Worker", (row) => `worker ${row.worker}`], ...figures("Executor").slice(1), ["Capacity", (row) => html`<${Capacity} value=${capacity(row)} />`, capacity, "num"]];

export function Component({ id, component }) {
  const [window, choose] = useState(600);
  const { data: page, error } = useLive(`topology/${encodeURIComponent(id)}/component/${encodeURIComponent(component)}?window=${window}`);
  if (!page) return html`<h1>${component}</h1><${Problem} error=${error} />`;
  const spout = page.componentType === "spout";
  const full = page.capacity ?? (page.executorStats?.length && !spout ? Math.max(...page.executorStats.map((each) => Number(each.capacity))) : null);
  const windows = page.boltStats ?? page.spoutSummary ?? [];
  const tables = [["By window", distinct(windows), figures("Window")], ["What it reads", page.inputStats, figures("From", "Emitted")], ["What it emits", page.outputStats, figures("Stream", spout ? "Executed" : "Executed Latency Acknowledged Failed")],
    ["Edges", [...(page.inputs ?? []), ...(page.outputs ?? [])], EDGES], ["Executors", page.executorStats, EXECUTORS]];
  return html`
    <div class="head"><div><h1>${page.label ?? component}</h1><p class="sub">${page.kind ?? page.componentType}${page.detail && html`: <code>${page.detail}</code>`}</p></div></div>
    <${Problem} error=${error} />
    <dl class="tiles few">
      ${is(page.executors) && html`<${Tile} label="Runs in" value=${plural(typeof page.executors === "number" ? page.executors : page.executors.length, "executors")} note=${plural(page.tasks, "tasks")} />`}
      ${is(page.perSecond) && html`<${Tile} label="Throughput" value=${rate(page.perSecond, page.unit)} />`}
      ${page.guarantee && html`<${Tile} label="Guarantee" value=${page.guarantee} />`}
      ${is(full) && html`<${Tile} label="Capacity" value=${html`<${Capacity} value=${Number(full)} />`} note="of the busiest executor, in ten minutes" />`}
    </dl>
    ${is(page.executors) && html`<${Words} of=${page.executorStats?.length ? ["executor", "worker"] : ["executor"]} />`}
    ${windows.length > 0 && html`<${Windows} window=${window} choose=${choose} />`}
    ${tables.filter(([, rows]) => rows?.length).map(([title, rows, shown], index) => html`<${Card} key=${title} title=${title} id=${`c${index}`} wide>
      <${Table} caption=${title} columns=${shown} rows=${rows} keyOf=${named} /><//>`)}
    <${Errors} errors=${page.componentErrors ?? []} />`;
}
