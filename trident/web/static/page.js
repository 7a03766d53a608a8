// The page: which view the address asks for, the bar above it, and whether the server answers.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { askNow, connection, get, token, useAway, useLive } from "./api.js";
import { clock, duration } from "./format.js";
import { Cluster } from "./cluster.js";
import { Topology, TopologyLog } from "./topology.js";
import { Component } from "./component.js";

const routeOf = () => {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (parts[0] === "topology" && parts[1]) return { topology: parts[1], component: parts[2] === "component" ? parts[3] : null, log: parts[2] === "log" ? parts[3] ?? "driver" : null };
  return {};
};

function useRoute() {
  const [route, setRoute] = useState(routeOf());
  useEffect(() => {
    const changed = () => {
      setRoute(routeOf());
      scrollTo(0, 0);
      document.querySelector("main")?.focus({ preventScroll: true });
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function Away() {
  const since = useAway();
  const seconds = since && Math.max(1, Math.round((Date.now() - since) / 1000));
  return html`<div role="status" class="away ${since ? "" : "gone"}">
    ${since &&
    html`<strong>The server does not answer</strong> since ${clock(since)} (${duration(seconds)}). What you see is from
      ${connection.lastAnswer ? ` ${clock(connection.lastAnswer)}` : " before"}. The page asks again every 2 s.`}
  </div>`;
}

function Live() {
  const since = useAway();
  return html`<span class="live ${since ? "off" : "on"}"><i aria-hidden="true"></i>${since ? "not answering" : "live"}</span>`;
}

function TokenPrompt({ message }) {
  const given = (event) => {
    event.preventDefault();
    token.set(new FormData(event.target).get("token"));
    askNow();
  };
  return html`<form class="card prompt" onSubmit=${given}>
    <h1>This server wants its token</h1>
    <p class="muted">${message}. It is kept in this tab only, until you close it.</p>
    <label>Token <input type="password" name="token" required autocomplete="off" autofocus /></label>
    <button class="button primary">Go on</button>
  </form>`;
}

function Page() {
  const route = useRoute();
  const { data: meta, error } = useLive("page", 10_000);
  const { data: cluster } = useLive(meta ? "cluster/summary" : null, 10_000);
  const alone = cluster?.oneTopology;
  const topology = route.topology ?? alone;
  useEffect(() => {
    document.title = topology ? `${route.component ?? (route.log ? `log of ${topology}` : topology)} – Trident` : "Trident";
  }, [topology, route.component, route.log]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to the content</a>
    <header class="bar">
      <nav aria-label="Where you are">
        <a class="brand" href="#/"><img src="static/icon.svg" alt="" width="22" height="22" />Trident</a>
        ${topology && html`<span aria-hidden="true" class="sep">/</span><a href="#/topology/${encodeURIComponent(topology)}" aria-current=${route.component || route.log ? null : "page"}>${topology}</a>`}
        ${(route.component || route.log) && html`<span aria-hidden="true" class="sep">/</span><span aria-current="page">${route.component ?? "log"}</span>`}
      </nav>
      <span class="right">
        ${meta?.readOnly && html`<span class="badge" title="Nothing can be changed here: the server was started without a token, or for reading only">read only</span>`}
        <${Live} />
      </span>
    </header>
    <${Away} />
    <main id="main" tabindex="-1">
      ${error?.status === 401 ? html`<${TokenPrompt} message=${error.message} />` : !meta || !cluster ? html`<p class="muted wait">Waiting for the server …</p>`
        : route.component ? html`<${Component} key=${`${topology}/${route.component}`} id=${topology} component=${route.component} />`
        : route.log ? html`<${TopologyLog} key=${`${topology}/${route.log}`} id=${topology} of=${route.log} />`
        : topology ? html`<${Topology} key=${topology} id=${topology} meta=${meta} alone=${Boolean(alone)} />`
        : html`<${Cluster} cluster=${cluster} />`}
    </main>
    <footer class="muted">Trident for Spark ${meta?.version ?? ""}</footer>`;
}

render(html`<${Page} />`, document.getElementById("app"));
