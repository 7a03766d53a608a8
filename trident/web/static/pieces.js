// Small pieces that the views share.

import { html, useState } from "./vendor/preact-htm.js";
import { count, is, NONE, WINDOWS } from "./format.js";

const TONES = {
  ACTIVE: "good", INACTIVE: "warn", STOPPED: "quiet", FAILED: "bad", KILLED: "warn", STARTING: "quiet", WAITING: "warn", LEADS: "good",
};

export const Status = ({ status }) =>
  html`<span class="status ${TONES[status] ?? "quiet"}"><i aria-hidden="true"></i>${(status ?? "unknown").toLowerCase()}</span>`;

// What Spark means something else by: explained where a view shows it first, and wherever the mouse rests on it.
const WORDS = {
  slot: "room for the driver of one topology on a machine; not a core of Spark",
  worker: "a process that runs a share of a topology for as long as that runs, on Spark in one long task",
  executor: "a thread in a worker that runs one spout or bolt, or an operation of Trident; Spark's executor is a process",
  stage: "the steps of a batch that run without an exchange between them, as a stage of Spark in its Python workers; commits in the driver are one more",
};
const meaning = (text) => Object.keys(WORDS).filter((word) => new RegExp(`\\b${word}s?\\b`, "i").test(text)).map((word) => `${word}: ${WORDS[word]}`).join("\n") || null;

export const Words = ({ of }) => html`<p class="keys muted">${of.map((word) => html`<span key=${word}><strong>${word}</strong>: ${WORDS[word]}</span>`)}</p>`;

export const Card = ({ title, id, side, children, wide }) => html`
  <section class="card ${wide ? "wide" : ""}" aria-labelledby=${`h-${id}`}>
    <div class="cardhead"><h2 id=${`h-${id}`}>${title}</h2>${side}</div>
    ${children}
  </section>`;

export const Tile = ({ label, value, note, tone, children }) => html`
  <div class="tile ${tone ?? ""}" title=${meaning(`${label} ${value} ${note}`)}><dt>${label}</dt><dd>${value ?? NONE}</dd>${children}${note && html`<dd class="note">${note}</dd>`}</div>`;

export const Problem = ({ error }) => error && error.status !== 0 && html`<p class="problem" role="alert">${error.message}</p>`;

export function Windows({ window, choose }) {
  return html`<fieldset class="segments"><legend class="hidden">Figures over</legend>
    ${WINDOWS.map(([seconds, name]) => html`<label key=${seconds}>
      <input type="radio" name="window" checked=${window === seconds} onChange=${() => choose(seconds)} /><span>${name}</span></label>`)}
  </fieldset>`;
}

// What is long is shown when it is asked for.
export function Folded({ title, id, open: first = false, children }) {
  const [open, setOpen] = useState(first);
  return html`<${Card} title=${title} id=${id} wide side=${html`<button class="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Close" : "Show"}</button>`}>
    ${open && children}
  <//>`;
}

export const Capacity = ({ value }) => {
  if (!is(value)) return html`<span class="muted">${NONE}</span>`;
  const tone = value >= 0.9 ? "bad" : value >= 0.7 ? "warn" : "good";
  return html`<span class="meter ${tone}"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
    <rect width="100" height="8" /><rect class="fill" width=${Math.min(100, value * 100)} height="8" /></svg>${count(value * 100)} %</span>`;
};

const MANY = 40; // rows that are shown before all are asked for

// A table that can be sorted by its columns: [title, text of a row, number or text to sort by, class].
export function Table({ caption, columns, rows, keyOf, empty, filter }) {
  const [order, setOrder] = useState(null);
  const [wanted, setWanted] = useState("");
  const [all, setAll] = useState(false);
  const by = (index) => setOrder((now) => (now?.index !== index ? { index, down: true } : now.down ? { index, down: false } : null));
  let shown = rows;
  if (wanted) shown = shown.filter((row) => filter(row).toLowerCase().includes(wanted.toLowerCase()));
  if (order) {
    const of = columns[order.index][2];
    const rank = (row) => of(row) ?? -Infinity;
    shown = [...shown].sort((a, b) => (rank(a) < rank(b) ? -1 : rank(a) > rank(b) ? 1 : 0) * (order.down ? -1 : 1));
  }
  if (!rows.length) return html`<p class="muted">${empty ?? "None."}</p>`;
  const matching = shown.length;
  if (!all && matching > MANY) shown = shown.slice(0, MANY);
  return html`
    ${filter && rows.length > 12 && html`<label class="filter">Filter <input type="search" value=${wanted} onInput=${(event) => setWanted(event.target.value)} /> <span class="muted" role="status">${wanted && `${matching} of ${rows.length}`}</span></label>`}
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map(([title, , sort, kind], index) => html`<th key=${title} scope="col" class=${kind ?? ""} title=${meaning(title)}
        aria-sort=${order?.index === index ? (order.down ? "descending" : "ascending") : null}>
        ${sort ? html`<button class="sort" onClick=${() => by(index)}>${title}<span aria-hidden="true">${order?.index === index ? (order.down ? " ↓" : " ↑") : ""}</span></button>` : title}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${keyOf(row)}>${columns.map(([title, text, , kind], index) =>
        index === 0 ? html`<th scope="row" data-label=${title}>${text(row)}</th>` : html`<td data-label=${title} class=${kind ?? ""}>${text(row)}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${matching > MANY && html`<p><button class="button" onClick=${() => setAll(!all)}>${all ? `Show the first ${MANY}` : `Show all ${matching}`}</button></p>`}`;
}
