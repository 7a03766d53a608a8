// The dead letters that wait: which tuples were left out, and why; where the page may act, they are put back or discarded.

import { html, useState } from "./vendor/preact-htm.js";
import { askNow, post, token, useLive } from "./api.js";
import { count, cut } from "./format.js";
import { Card, Table } from "./pieces.js";

const COLUMNS = [
  ["Letter", ({ id }) => id],
  ["Step", ({ step }) => html`<bdi>${step}</bdi>`],
  ["Tuple", ({ tuple }) => html`<code>${cut(tuple ?? "", 120)}</code>`],
  ["Error", ({ error }) => html`<bdi>${cut(error, 240)}</bdi>`],
];

export function Letters({ id, page, meta }) {
  const waiting = page.health?.deadLetters ?? 0;
  const path = `topology/${encodeURIComponent(id)}/dead-letters`;
  const { data } = useLive(waiting ? path : null);
  const [chosen, choose] = useState(new Set());
  const [told, tell] = useState(null);
  if (!waiting) return null;
  const rows = data?.deadLetters ?? [];
  const mayAct = !meta.readOnly && (page.actions ?? []).includes("dead-letters");
  const letters = rows.map((row) => row.id).filter((each) => chosen.has(each));
  const ask = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    const discard = event.submitter?.value === "discard";
    if (given.get("token")) token.set(given.get("token"));
    try {
      await post(path, { letters, reason: discard ? given.get("reason") : null }, 0);
      choose(new Set());
      tell(`${count(letters.length)} to be ${discard ? "discarded" : "put back"}.`);
      askNow();
    } catch (error) {
      if (error.status === 401) token.forget();
      tell(error.message);
    }
  };
  const flip = (each) => choose((now) => new Set(now.has(each) ? [...now].filter((one) => one !== each) : [...now, each]));
  const box = ["", (row) => html`<input type="checkbox" aria-label=${`Choose ${row.id}`} checked=${chosen.has(row.id)} onChange=${() => flip(row.id)} />`];
  return html`<${Card} title="Dead letters" id="letters" wide side=${html`<span class="muted">${count(waiting)} wait</span>`}>
    <${Table} caption="Dead letters" columns=${mayAct ? [...COLUMNS, box] : COLUMNS} rows=${rows} keyOf=${(row) => row.id} />
    ${mayAct && html`<form class="lookup" onSubmit=${ask}>
      <button class="button" value="replay" disabled=${!letters.length} formnovalidate>Put back</button>
      <label>Reason <input name="reason" required autocomplete="off" /></label>
      <button class="button danger" value="discard" disabled=${!letters.length}>Discard</button>
      ${!token.get() && html`<label>Token <input type="password" name="token" autocomplete="off" /></label>`}
      <span role="status">${told}</span></form>`}
  <//>`;
}
