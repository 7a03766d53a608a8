// What can be done to a topology: each after a confirmation, and with the token.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { askNow, post, token } from "./api.js";
import { Words } from "./pieces.js";

const ALL = ["activate", "deactivate", "rebalance", "kill"];
const TEXTS = {
  activate: ["Activate", "Its sources are asked for more again."],
  deactivate: ["Deactivate", "Its sources are asked for no more; what has begun is finished. Nothing is lost, and it goes on when it is activated."],
  rebalance: ["Rebalance", "It is paused, what is pending is finished, and it goes on with other numbers of workers and executors."],
  kill: ["Kill", "Its sources are asked for no more, what is pending is finished within the time that you give, and then it ends. What is committed stays."],
};

export function Actions({ id, page, meta, alone }) {
  const [asked, setAsked] = useState(null);
  const [done, setDone] = useState(null);
  if (meta.readOnly) return null;
  const offered = ALL.filter((name) => (page.actions ?? (alone ? [] : ALL)).includes(name));
  const fits = (name) => !(name === "activate" && page.status === "ACTIVE") && !(name === "deactivate" && page.status === "INACTIVE");
  const over = ["STOPPED", "KILLED"].includes(page.status);
  return html`<div class="actions" role="group" aria-label="Actions">
    ${offered.filter(fits).map((name) => html`<button key=${name} class="button ${name === "kill" ? "danger" : ""}" disabled=${over} onClick=${() => setAsked(name)}>${TEXTS[name][0]}</button>`)}
    <span role="status" class="done">${done}</span>
    ${asked && html`<${Dialog} id=${id} name=${page.name} action=${asked} bolts=${page.kind === "bolts"} components=${[...(page.spouts ?? []), ...(page.bolts ?? [])]}
      close=${(message) => { setAsked(null); setDone(message ?? null); if (message) askNow(); }} />`}
  </div>`;
}

function Dialog({ id, name, action, bolts, components, close }) {
  const box = useRef(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [wantsToken, setWantsToken] = useState(!token.get());
  const [title, meaning] = TEXTS[action];
  const timed = action === "kill" || action === "rebalance";
  useEffect(() => {
    const shown = box.current;
    shown.showModal();
    return () => shown.close(); // gives the focus back to the button
  }, []);
  const send = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    if (given.get("token")) token.set(given.get("token"));
    const seconds = timed ? Number(given.get("wait")) : 0;
    setBusy(true);
    setProblem(null);
    try {
      await post(`topology/${encodeURIComponent(id)}/${action}${timed ? `/${seconds}` : ""}`, options(given, components), seconds);
      close(`${title}: done.`);
    } catch (error) {
      if (error.status === 401) {
        token.forget();
        setWantsToken(true);
      }
      setProblem(error.message);
      setBusy(false);
    }
  };
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onCancel=${(event) => { event.preventDefault(); close(); }}>
    <form onSubmit=${send}>
      <h2 id="dialog-title">${title} <bdi>${name}</bdi>?</h2>
      <p>${meaning}</p>
      ${timed && html`<label>What is pending may take (seconds) <input type="number" name="wait" min="0" max="86400" step="any" value="30" required /></label>`}
      ${action === "rebalance" && html`<${Words} of=${bolts ? ["worker", "executor"] : ["worker"]} />`}
      ${action === "rebalance" && html`<label>Workers (empty: as now) <input type="number" name="workers" min="1" /></label>`}
      ${action === "rebalance" && bolts && components.length <= 30 && components.map((each) => { const component = each.spoutId ?? each.boltId; return html`<label key=${component}>Executors of ${component} (now ${each.executors}, at most ${each.tasks}) <input type="number" name="executors" min="1" max=${each.tasks} /></label>`; })}
      ${wantsToken && html`<label>Token <input type="password" name="token" required autocomplete="off" /></label><p class="muted small">The command that serves this page has printed it, or the file that has it. It is kept in this tab until you close it.</p>`}
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="buttons"><button type="button" class="button" onClick=${() => close()}>Cancel</button>
        <button class="button ${action === "kill" ? "danger solid" : "primary"}" disabled=${busy}>${busy ? "…" : title}</button></div>
    </form></dialog>`;
}

function options(given, components) {
  const found = {};
  if (given.get("workers")) found.numWorkers = Number(given.get("workers"));
  const executors = given.getAll("executors").map((count, index) => [components[index].spoutId ?? components[index].boltId, count]).filter(([, count]) => count);
  if (executors.length) found.executors = Object.fromEntries(executors.map(([name, count]) => [name, Number(count)]));
  return { rebalanceOptions: found };
}
