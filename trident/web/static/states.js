// The states: what they are, how exact, when they were last committed, and a box to look a key up.

import { html, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { ago, count, is, moment, ms, NONE, plural, value } from "./format.js";
import { Card, Table } from "./pieces.js";

const guarantee = (row) => (row.exact === true ? ["good", "exact"] : row.exact === false ? ["bad", "not exact"] : ["quiet", row.static ? "read only" : "not known"]);
const COLUMNS = [
  ["State", (row) => row.state, (row) => row.state],
  ["Key", (row) => (row.key?.length ? row.key.join(", ") : "single value")],
  ["Kind", (row) => row.kind ?? "its own"],
  ["Guarantee", (row) => html`<span class="status ${guarantee(row)[0]}" title=${row.guarantee ?? ""}><i aria-hidden="true"></i>${guarantee(row)[1]}</span>`],
  ["Store", (row) => row.store],
  ["Partitions", (row) => count(row.partitions), (row) => row.partitions, "num"],
  ["Committed by", (row) => html`<span title=${row.placementWhy ?? ""}>${row.placement === "executors" ? "Spark's executors" : row.placement ? `the ${row.placement}` : NONE}</span>`],
  ["Last commit", (row) => (is(row.lastTxid) ? html`<span title=${moment(row.lastCommitTime)}>batch ${count(row.lastTxid)}${is(row.lastCommitTime) ? `, ${ago(row.lastCommitTime)}` : ""}</span>` : NONE), (row) => row.lastTxid, "num"],
];
const MORE = [
  ["Updated", (row) => plural(row.keysUpdated, "keys"), (row) => row.keysUpdated, "num"],
  ["Commit takes", (row) => ms(row.commitLatencyMs), (row) => row.commitLatencyMs, "num"],
];
const SIZE = ["Size", (row) => (is(row.size) ? plural(row.size, "keys") : "not known"), (row) => row.size, "num"];

export function States({ id, states }) {
  if (!states.length) return null;
  const columns = [...COLUMNS, ...(states.some((row) => is(row.size)) ? [SIZE] : []), ...(states.some((row) => is(row.keysUpdated)) ? MORE : [])];
  const open = states.filter((row) => row.canLookUp !== false);
  return html`<${Card} title="States" id="states" wide>
    <${Table} caption="States" columns=${columns} rows=${states} keyOf=${(row) => row.state} />
    ${open.length > 0 && html`<${Lookup} id=${id} states=${open} />`}
  <//>`;
}

function Lookup({ id, states }) {
  const [name, setName] = useState(states[0].state);
  const [answer, setAnswer] = useState(null);
  const state = states.find((each) => each.state === name) ?? states[0];
  const ask = async (event) => {
    event.preventDefault();
    const keys = new FormData(event.target).getAll("key").map((each) => `&key=${encodeURIComponent(each)}`).join("");
    try {
      setAnswer(await get(`topology/${encodeURIComponent(id)}/lookup?state=${encodeURIComponent(state.state)}${keys}`));
    } catch (error) {
      setAnswer({ error: error.message });
    }
  };
  return html`<form class="lookup" onSubmit=${ask}>
    ${states.length > 1 ? html`<label>State <select value=${state.state} onChange=${(event) => { setName(event.target.value); setAnswer(null); }}>
      ${states.map((each) => html`<option key=${each.state} value=${each.state}>${each.state}</option>`)}</select></label>` : html`<span>Look up in <strong>${state.state}</strong></span>`}
    ${(state.key ?? []).map((field) => html`<label key=${`${state.state} ${field}`}><span>${field}</span> <input name="key" autocomplete="off" spellcheck="false" /></label>`)}
    <button class="button">Look up</button>
    <output class="answer" aria-live="polite">${answer && (answer.error ? html`<span class="bad">${answer.error}</span>`
      : html`<span class="muted">${answer.key.length ? `${answer.key.map(value).join(", ")} = ` : ""}</span><strong>${answer.found === false || answer.value === null ? "not there" : value(answer.value)}</strong><span class="muted"> after batch ${count(answer.txid)}</span>`)}</output>
  </form>`;
}
