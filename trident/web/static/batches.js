// The last batches as bars, and where the time goes.

import { html, useState } from "./vendor/preact-htm.js";
import { clock, count, is, ms, plural } from "./format.js";
import { Card } from "./pieces.js";

export const PHASES = [
  ["define", "asking the sources what the batch contains"],
  ["process", "reading the sources and running the steps"],
  ["wait", "waiting for the commits of earlier batches"],
  ["commit", "updating the states"],
  ["record", "making the record in the log durable"],
];
const SHOWN = 80;
const HEIGHT = 132;

export function Phases({ phases }) {
  const means = phases?.meanMs ?? {};
  if (!is(means.total)) return html`<${Card} title="Where the time goes" id="phases"><p class="muted">No batch was committed yet.</p><//>`;
  let from = 0;
  return html`<${Card} title="Where the time goes" id="phases" side=${html`<span class="muted">mean of ${plural(phases.batches, "batches")}</span>`}>
    <svg class="stack" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      ${PHASES.map(([name]) => {
        const width = (means[name] / Math.max(means.total, 1e-9)) * 100;
        const x = from;
        from += width;
        return html`<rect key=${name} class="p-${name}" x=${x} width=${width} height="10" />`;
      })}
    </svg>
    <dl class="legend">${PHASES.map(([name, meaning]) => html`<div key=${name}>
      <dt><i class="key p-${name}" aria-hidden="true"></i>${name}</dt><dd>${ms(means[name])}<span class="muted"> ${count((means[name] / Math.max(means.total, 1e-9)) * 100)} %</span></dd><dd class="muted what">${meaning}</dd></div>`)}</dl>
  <//>`;
}

export function Batches({ batches }) {
  const [chosen, choose] = useState(null); // a txid, or null: the last one
  const shown = batches.slice(-SHOWN);
  if (!shown.length) return null;
  const found = shown.findIndex((each) => each.batchId === chosen);
  const index = found < 0 ? shown.length - 1 : found;
  const top = scaleOf(shown.map((each) => each.durationMs.total));
  const width = 100 / Math.max(shown.length, 12);
  return html`<${Card} title="Last batches" id="batches" wide side=${html`<span class="keys" aria-hidden="true">${PHASES.map(([name]) => html`<span key=${name}><i class="key p-${name}"></i>${name}</span>`)}</span>`}>
    <div class="chart">
      <span class="axis top">${ms(top)}</span><span class="axis middle">${ms(top / 2)}</span><span class="axis bottom">0 ms</span>
      <svg class="bars" height=${HEIGHT} role="img" aria-label=${`The last ${shown.length} batches; the slowest took ${ms(Math.max(...shown.map((each) => each.durationMs.total)))}`}>
        <line x1="0" x2="100%" y1="0.5" y2="0.5" /><line x1="0" x2="100%" y1=${HEIGHT / 2} y2=${HEIGHT / 2} /><line x1="0" x2="100%" y1=${HEIGHT - 0.5} y2=${HEIGHT - 0.5} />
        ${shown.map((each, at) => html`<g key=${each.batchId} class="batch ${at === index ? "chosen" : ""} ${each.numAttempts > 1 ? "again" : ""}" onClick=${() => choose(each.batchId)}>
          <rect class="hit" x="${at * width}%" width="${width}%" y="0" height=${HEIGHT} />${bars(each, at * width, width, top)}
          ${each.durationMs.total > top && html`<text class="higher" x="${(at + 0.5) * width}%" y="-3" text-anchor="middle">▲</text>`}</g>`)}
      </svg>
    </div>
    <div class="ends muted"><span>${clock(Date.parse(shown[0].timestamp))}</span><span>${clock(Date.parse(shown.at(-1).timestamp))}</span></div>
    <label class="pick"><span class="hidden">Choose a batch</span>
      <input type="range" min="0" max=${shown.length - 1} value=${index} aria-valuetext=${`batch ${shown[index].batchId}`} onInput=${(event) => choose(Number(event.target.value) === shown.length - 1 ? null : shown[event.target.value].batchId)} /></label>
    <${Chosen} batch=${shown[index]} last=${found < 0} back=${() => choose(null)} />
  <//>`;
}

function bars(batch, x, width, top) {
  let y = HEIGHT;
  return PHASES.map(([name]) => {
    const bottom = y;
    const height = Math.max(0, (batch.durationMs[name] / top) * HEIGHT);
    y -= Math.min(height, y);
    return html`<rect key=${name} class="p-${name}" x="${x + width * 0.12}%" width="${width * 0.76}%" y=${y} height=${Math.min(height, bottom)} />`;
  });
}

const Chosen = ({ batch, last, back }) => html`<div class="chosenbatch">
  <p><strong>Batch ${count(batch.batchId)}</strong>${last ? " (the last)" : html` <button class="linkish" onClick=${back}>follow the last</button>`}: ${plural(batch.numInputRows, "rows")} at ${clock(Date.parse(batch.timestamp))}, ${batch.engine === "spark" ? "on Spark" : "in the driver"}, ${ms(batch.durationMs.total)}
    ${batch.numAttempts > 1 && html`, <span class="warn">${plural(batch.numAttempts, "attempts")}</span>`}
    ${batch.numDeadLetters > 0 && html`, <span class="warn">${plural(batch.numDeadLetters, "dead letters")}</span>`}</p>
  <p class="muted">${PHASES.map(([name]) => `${name} ${ms(batch.durationMs[name])}`).join(" · ")}${Object.entries(batch.stateKeysUpdated).map(([state, keys]) => ` · ${state}: ${plural(keys, "keys")}`)}</p></div>`;

// High enough for nearly all; the few that are much higher are cut and marked, so that the others can be seen.
function scaleOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor(0.95 * (sorted.length - 1))];
  return nice(sorted.at(-1) > 2.5 * high ? 1.3 * high : sorted.at(-1));
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(Math.max(value, 0.1)));
  return [1, 2, 5, 10].map((each) => each * size).find((each) => each >= value);
}
