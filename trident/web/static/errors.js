// Errors with their stack traces, the newest first.

import { html } from "./vendor/preact-htm.js";
import { ago, count, cut, moment } from "./format.js";
import { Card } from "./pieces.js";

const causeOf = (each) => each.cause ?? lastLine(each.error);
const lastLine = (text) => text.trimEnd().split("\n").at(-1);

export function Errors({ errors, title = "Errors" }) {
  const newest = together([...errors].sort((a, b) => b.errorTime - a.errorTime));
  return html`<${Card} title=${title} id="errors" wide side=${newest.length > 0 && html`<span class="muted">the last ${count(errors.length)}</span>`}>
    ${!newest.length && html`<p class="muted">None.</p>`}
    ${newest.map((each) => html`<details class="error" key=${`${each.component} ${causeOf(each)}`}>
      <summary><span class="when" title=${moment(each.errorTime * 1000)}>${ago(each.errorTime * 1000)}</span>
        <span class="where"><bdi>${each.component}</bdi>${each.txid ? ` · batch ${each.txid}` : ""}</span>
        <span class="whatwrong"><bdi>${cut(causeOf(each), 240)}</bdi>${each.times > 1 && html` <span class="muted">${count(each.times)} times</span>`}</span></summary>
      ${each.row && html`<p><span class="muted">Tuple:</span> <code>${each.row}</code></p>`}
      <pre tabindex="0">${each.error}</pre>
      <p class="muted">${each.errorHost ? `on ${each.errorHost}` : ""}${each.errorTask !== undefined && each.errorTask !== null ? `, task ${each.errorTask}` : ""}${each.willRetry === false ? ", not tried again" : ""}</p>
    </details>`)}
  <//>`;
}

// The same error again and again is one line: the newest, and how often.
function together(errors) {
  const found = new Map();
  for (const each of errors) {
    const name = `${each.component} ${causeOf(each)}`;
    if (found.has(name)) found.get(name).times += 1;
    else found.set(name, { ...each, times: 1 });
  }
  return [...found.values()];
}
