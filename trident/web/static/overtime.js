// What a topology did over the chosen window, as small lines. The server keeps it, so it is there when the page is opened.

import { html } from "./vendor/preact-htm.js";
import { amount, clock, count, duration, is, moment, ms, NONE, number, rate } from "./format.js";
import { Card } from "./pieces.js";

const HEIGHT = 56;

// `lags`: what the tile shows, which is where the lines of the lag end; `unknown`: of which sources it is not known.
export function OverTime({ series, trident, lags, unknown }) {
  if (!series?.at?.length) return null;
  const [first, last] = [series.at[0], series.at.at(-1)];
  const when = last - first > 86_400_000 ? moment : clock;
  const lines = [
    ["Throughput", series.tuplesPerSecond, (value) => rate(value)],
    [trident ? "A batch takes" : "A message takes", series.latencyMs, ms],
    ...(trident ? [["The slowest batch", series.longestMs, ms]] : []),
    ...(Object.keys(series.lags ?? {}).length ? Object.entries(series.lags) : [["", [null]]]).map(([unit, values], _, all) =>
      [trident ? all.length > 1 ? `Lag in ${unit}` : "Lag" : "Pending", values, (value) => (is(value) ? amount(value, unit) : NONE), lags.find((each) => each.unit === unit)?.amount ?? null]),
    [trident ? "Failed attempts" : "Failed messages", series.failed, count],
  ];
  return html`<${Card} title="Over time" id="overtime" wide side=${html`<span class="muted">a point is ${duration(series.spanSeconds)}</span>`}>
    <div class="lines">${lines.map(([title, values, text, now = values.findLast(is)]) => html`<figure key=${title}>
      <figcaption>${title} <strong>${text(now)}</strong></figcaption>
      <p class="muted small">${values.some(is) ? `at most ${text(Math.max(...values.filter(is)))}${title.startsWith("Lag") && unknown ? `; ${unknown}` : ""}` : "not known"}</p>
      <${Line} values=${values} label=${labelOf(title, values, text, now)} bad=${title.startsWith("Failed")} />
      <p class="ends muted"><span>${when(first)}</span><span>${when(last)}</span></p>
    </figure>`)}</div>
  <//>`;
}

const labelOf = (title, values, text, now) => {
  const known = values.filter(is);
  return known.length ? `${title}: now ${text(now)}, at most ${text(Math.max(...known))}, at least ${text(Math.min(...known))}` : `${title}: not known`;
};

// A line that is broken where nothing is known; a point alone is a dot.
export function Line({ values, label, bad, small }) {
  const top = Math.max(...values.filter(is), 1e-9);
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * 100 : 50);
  const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 6);
  const runs = [];
  values.forEach((value, index) => {
    if (!is(value)) return;
    if (!index || !is(values[index - 1])) runs.push([]);
    runs.at(-1).push([x(index), y(value)]);
  });
  const points = (run) => (run.length > 1 ? run : [[run[0][0] - 0.4, run[0][1]], [run[0][0] + 0.4, run[0][1]]]).map((at) => at.map((each) => number(each)).join(",")).join(" ");
  return html`<svg class="${small ? "spark" : "line"} ${bad ? "bad" : ""}" viewBox="0 0 100 ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${runs.map((run, index) => html`<polyline key=${index} points=${points(run)} vector-effect="non-scaling-stroke" />`)}</svg>`;
}
