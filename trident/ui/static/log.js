// The log of the driver: its last part, and what comes.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { EVERY_MS, get } from "./api.js";
import { Card } from "./pieces.js";

const MOST = 400_000; // characters that are shown

export function Log({ id }) {
  const [open, setOpen] = useState(false);
  return html`<${Card} title="Log" id="log" wide side=${html`<button class="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Close" : "Show"}</button>`}>
    ${open && html`<${Lines} id=${id} />`}
  <//>`;
}

function Lines({ id }) {
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
        const page = await get(`topology/${encodeURIComponent(id)}/log${next === null ? "" : `?offset=${next}`}`);
        if (over) return;
        setError(page.note ? { message: page.note } : null);
        if (next !== null && page.offset !== next) add(box.current, "\n… (a part is missing)\n");
        add(box.current, page.text);
        if (page.text) setEmpty(false);
        if (following.current) box.current.scrollTop = box.current.scrollHeight;
        const more = page.text && page.next !== next;
        next = page.next;
        timer = setTimeout(round, more && page.text.length > 60_000 ? 50 : EVERY_MS);
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
    ${empty && html`<p class="muted">Nothing was logged yet.</p>`}
    <pre class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Log" onScroll=${scrolled}></pre>`;
}

// The text is appended by hand, because drawing all of it again each time would be much work. It is a text node: never markup.
function add(box, text) {
  if (!text) return;
  box.append(document.createTextNode(text));
  let length = box.textContent.length;
  while (length > MOST && box.childNodes.length > 1) {
    length -= box.firstChild.length;
    box.firstChild.remove();
  }
}
