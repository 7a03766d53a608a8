// The log of the driver, or what its processes print: its last part, what comes, and what is searched for.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { download, EVERY_MS, get } from "./api.js";
import { Folded, Problem } from "./pieces.js";

const MOST = 400_000; // characters that are shown

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const HEAD = /^\d\d(?:\d\d)?[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d[.,\d]* +([A-Z]+)/;
const TONES = { WARNING: "warn", WARN: "warn", ERROR: "bad", CRITICAL: "bad", FATAL: "bad" };

export const logLink = (id, text = "log", of = "driver") => html`<a href="#/topology/${encodeURIComponent(id)}/log/${of}">${text}</a>`;

export const Log = ({ id, logs, open, of }) => html`<${Folded} title="Log" id="log" open=${open}><${Chosen} id=${id} logs=${logs ?? ["driver"]} first=${of} /><//>`;

function Chosen({ id, logs, first = "driver" }) {
  const [of, setOf] = useState(logs.includes(first) ? first : "driver");
  const [level, setLevel] = useState("");
  const [search, setSearch] = useState("");
  const [error, setError] = useState(null);
  const searched = (event) => {
    event.preventDefault();
    setSearch(new FormData(event.target).get("search"));
  };
  const save = () => download(`topology/${encodeURIComponent(id)}/log/download?of=${of}`, `${id}.${of === "driver" ? "log" : "out"}`).then(() => setError(null), setError);
  return html`<form class="logtools" onSubmit=${searched}>
      ${logs.length > 1 && html`<label>Of <select value=${of} onChange=${(event) => setOf(event.target.value)}><option value="driver">the driver</option><option value="output">what its processes print</option></select></label>`}
      <label>From <select value=${level} onChange=${(event) => setLevel(event.target.value)}><option value="">all</option>${LEVELS.map((each) => html`<option key=${each} value=${each}>${each.toLowerCase()}</option>`)}</select></label>
      <label>Search <input type="search" name="search" /></label>
      <button class="button">Search</button>
      <button type="button" class="button" onClick=${save}>Download</button>
    </form>
    <${Problem} error=${error} />
    <${Lines} key=${`${of} ${level} ${search}`} id=${id} asked=${`of=${of}&level=${level}&search=${encodeURIComponent(search)}`} finds=${Boolean(level || search)} />`;
}

function Lines({ id, asked, finds }) {
  const [follow, setFollow] = useState(true);
  const [error, setError] = useState(null);
  const [empty, setEmpty] = useState(true);
  const box = useRef(null);
  const following = useRef(true);
  following.current = follow;
  useEffect(() => {
    let over = false;
    let timer = 0;
    let next = null;
    const round = async () => {
      try {
        const page = await get(`topology/${encodeURIComponent(id)}/log?${asked}${next === null ? "" : `&offset=${next}`}`);
        if (over) return;
        setError(page.note ? { message: page.note } : null);
        if (next !== null && page.offset !== next) add(box.current, "\n… (a part is missing)\n");
        add(box.current, page.text);
        if (page.text) setEmpty(false);
        if (following.current) box.current.scrollTop = box.current.scrollHeight;
        const more = !finds && page.text.length > 60_000 && page.next !== next;
        next = page.next;
        timer = setTimeout(round, more ? 50 : EVERY_MS);
      } catch (failed) {
        if (over) return;
        setError(failed.status === 0 ? null : failed);
        timer = setTimeout(round, EVERY_MS);
      }
    };
    round();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [id]);
  const scrolled = () => {
    const at = box.current;
    const end = at.scrollHeight - at.scrollTop - at.clientHeight < 24;
    if (end !== following.current) setFollow(end);
  };
  const toEnd = (event) => {
    setFollow(event.target.checked);
    if (event.target.checked) box.current.scrollTop = box.current.scrollHeight;
  };
  return html`<label class="follow"><input type="checkbox" checked=${follow} onChange=${toEnd} /> Follow</label>
    ${error && html`<p class="problem">${error.message}</p>`}
    ${empty && html`<p class="muted">${finds ? "Nothing of this in the last mebibyte of it." : "Nothing was logged yet."}</p>`}
    <pre class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Log" onScroll=${scrolled}></pre>`;
}

// The text is appended by hand, because drawing all of it again each time would be much work. It is set as text: never markup.
function add(box, text) {
  for (const part of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) {
    const head = HEAD.exec(part);
    const last = box.lastElementChild;
    const tone = head ? TONES[head[1]] ?? "" : last?.className ?? "";
    if (last && last.className === tone && last.textContent.length < 4000) last.textContent += part;
    else box.append(Object.assign(document.createElement("span"), { className: tone, textContent: part }));
  }
  let length = box.textContent.length;
  while (length > MOST && box.childElementCount > 1) {
    length -= box.firstElementChild.textContent.length;
    box.firstElementChild.remove();
  }
}
