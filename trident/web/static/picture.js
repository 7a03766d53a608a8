// The topology as a picture: what feeds what, how much of it, and where it is full.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { count, is, ms, percent, rate, shortRate } from "./format.js";
import { HEIGHT, layOut, WIDTH } from "./layout.js";
import { Card, Words } from "./pieces.js";

const KINDS = [["spout", "source"], ["bolt", "bolt"], ["step", "step"], ["exchange", "exchange"], ["state", "state"], ["query", "query"], ["persist", "update of a state"]];
const STEPS = new Set(["spout", "bolt", "exchange", "state", "query", "persist", "static", "acker"]);
const kindOf = (node) => (STEPS.has(node.kind) ? node.kind : "step");
const MOST_LABELS = 300; // of a larger picture they are drawn when it is near, because there they can be read
const NEAR = 0.9;
const SAME_TASK = "same task"; // the usual grouping of a step, which says nothing in a picture

const [NAME, MORE] = [16, 14]; // pixels from line to line
const BREAKS = /(?<= )(?=\S)|(?<=[^\p{L}\p{M}\p{N}\s])(?=\p{L})|(?<=\p{Ll})(?=\p{Lu})/u; // after a blank or a mark, at a capital
const pen = document.createElement("canvas").getContext("2d");

// The whole text in lines of at most a width, broken between words where that is possible.
function linesOf(text, font, width) {
  pen.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  const lines = [""];
  for (const word of text.split(BREAKS))
    for (const piece of pen.measureText(word.trimEnd()).width > width ? word : [word])
      if (lines.at(-1) && pen.measureText(lines.at(-1) + piece.trimEnd()).width > width) lines.push(piece);
      else lines[lines.length - 1] += piece;
  return lines;
}

const Lines = ({ lines, x, step, ...rest }) =>
  html`<text x=${x} ...${rest}>${lines.map((line, at) => html`<tspan key=${at} x=${x} dy=${at && step}>${line}</tspan>`)}</text>`;

function withTexts(node) {
  const [name, more] = [linesOf(node.label, "600 13px", WIDTH - 26), linesOf(line(node), "11.5px", WIDTH - 26)];
  return { ...node, name, more, height: HEIGHT + NAME * (name.length - 1) + MORE * (more.length - 1) };
}

export function Picture({ id, drawn }) {
  const [zoom, setZoom] = useState(null); // null: as wide as the card
  const box = useRef(null);
  const nodes = drawn.nodes.map(withTexts);
  const shape = JSON.stringify([drawn.stages, nodes.map((node) => [node.id, node.stage, node.height]), drawn.edges.map((edge) => [edge.source, edge.target])]);
  const laid = useMemo(() => layOut(nodes, drawn.edges, (stage, width) => linesOf(stageTitle(drawn.stages, stage), "11.5px", width)), [shape]);
  const [room, setRoom] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setRoom(entry.contentRect.width));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const fit = Math.max(0.1, Math.min(1, room / laid.size.width));
  const scale = zoom ?? Math.max(fit, 0.72);
  const before = useRef(scale);
  useLayoutEffect(() => { // what is in the middle stays there
    const [at, grown] = [box.current, scale / before.current];
    at.scrollLeft = (at.scrollLeft + at.clientWidth / 2) * grown - at.clientWidth / 2;
    at.scrollTop = (at.scrollTop + at.clientHeight / 2) * grown - at.clientHeight / 2;
    before.current = scale;
  }, [scale]);
  const kinds = KINDS.filter(([kind]) => drawn.nodes.some((node) => kindOf(node) === kind));
  const tools = html`<div class="tools" role="group" aria-label="Size of the picture">
    <button class="button" aria-label="Smaller" onClick=${() => setZoom(Math.max(0.1, scale / 1.3))}>−</button>
    <button class="button" onClick=${() => setZoom(zoom === fit ? null : fit)}>Fit</button>
    <button class="button" aria-label="Larger" onClick=${() => setZoom(Math.min(3, scale * 1.3))}>+</button></div>`;
  return html`<${Card} title="Picture" id="picture" wide side=${tools}>
    <a class="skip inside" href="#after" onClick=${(event) => { event.preventDefault(); document.getElementById("after-picture").focus(); }}>Skip the picture</a>
    <div class="canvas" ref=${box} tabindex="0" role="region" aria-label="Picture of the topology, can be scrolled">
      <svg class="graph ${scale < 0.45 ? "far" : ""}" width=${laid.size.width * scale} height=${laid.size.height * scale} viewBox=${`0 0 ${laid.size.width} ${laid.size.height}`} role="group" aria-label=${`${count(drawn.nodes.length)} components, ${count(laid.edges.length)} connections`}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0.5 L8,4 L0,7.5 z" /></marker></defs>
        ${laid.bands.map((band) => html`<g key=${band.stage} class="band"><rect x=${band.x} y="4" width=${band.width} height=${laid.size.height - 8} rx="10" /><${Lines} lines=${band.lines} x=${band.x + 12} y="24" step=${MORE} /></g>`)}
        <${Edges} drawn=${drawn} laid=${laid} near=${scale >= NEAR} />
        ${nodes.map((node) => html`<${Node} key=${node.id} id=${id} node=${node} at=${laid.places.get(node.id)} />`)}
      </svg>
    </div>
    <p class="keys muted" id="after-picture" tabindex="-1">${kinds.map(([kind, name]) => html`<span key=${kind}><i class="key k-${kind}" aria-hidden="true"></i>${name}</span>`)}<span>arrows: tuples per second, of the window above${drawn.nodes.some((node) => node.kind === "state") ? "; to a state: keys per second" : ""}</span></p>
    ${laid.bands.length > 0 && html`<${Words} of=${["stage"]} />`}
  <//>`;
}

const stageTitle = (stages, number) => (stages ?? []).map((each, index) => (typeof each === "string" ? { number: index, title: each } : each)).find((each) => each.number === number)?.title ?? `stage ${number}`;

function Edges({ drawn, laid, near }) {
  const byIndex = drawn.edges;
  const fastest = Math.max(1e-9, ...byIndex.map((edge) => edge.tuplesPerSecond ?? 0));
  const labels = near || laid.edges.length <= MOST_LABELS;
  return laid.edges.map((edge, at) => {
    const told = byIndex[edge.index];
    const speed = told.tuplesPerSecond;
    const unit = told.unit ?? "tuples";
    const width = is(speed) && speed > 0 ? 1.2 + 2.6 * Math.sqrt(speed / fastest) : 1.2;
    const stream = told.stream && told.stream !== "default" ? `${told.stream}: ` : "";
    const text = `${told.source} → ${told.target}: ${stream}${told.grouping || ""} ${is(speed) ? rate(speed, unit) : ""}`;
    const { path, label } = laid.lines[at];
    return html`<g key=${`${edge.index} ${edge.source} ${edge.target}`} class="edge ${told.kind === "reads" ? "reads" : ""} ${is(speed) && speed > 0 ? "flows" : ""}">
      <path d=${path} stroke-width=${width.toFixed(1)} marker-end="url(#arrow)" /><title>${text}</title>
      ${labels && (is(speed) ? html`<text class="rate" x=${label.x} y=${label.y - 5} text-anchor=${label.anchor}>${shortRate(speed)}</text>` : null)}
      ${labels && told.grouping && !["reads", SAME_TASK].includes(told.grouping) && html`<${Lines} lines=${linesOf(stream + told.grouping, "10px", 80)} class="grouping" x=${label.x} y=${label.y + 12} step="11" text-anchor=${label.anchor} />`}</g>`;
  });
}

function Node({ id, node, at }) {
  const kind = kindOf(node);
  const full = is(node.capacity) && node.kind !== "spout" ? Math.min(1, node.capacity) : null;
  const tone = full === null ? "" : full >= 0.9 ? "bad" : full >= 0.7 ? "warn" : "good";
  const label = `${node.label}, ${node.kind}. ${node.detail ?? ""}. ${node.more.join("")}`;
  return html`<a class="node k-${kind} ${node.failed ? "failing" : ""}" href="#/topology/${encodeURIComponent(id)}/component/${encodeURIComponent(node.id)}" aria-label=${label} transform=${`translate(${at.x},${at.y})`}>
    <title>${label}</title>
    <rect class="body" width=${WIDTH} height=${node.height} rx=${kind === "state" ? 16 : 8} />
    <rect class="mark" width="5" x="0" y="10" height=${node.height - 20} rx="2.5" />
    <${Lines} lines=${node.name} class="name" x="15" y="23" step=${NAME} />
    <${Lines} lines=${node.more} class="more" x="15" y=${24 + NAME * node.name.length} step=${MORE} />
    ${full !== null && html`<rect class="gauge" x="15" y=${node.height - 9} width=${WIDTH - 30} height="3" rx="1.5" /><rect class="gauge fill ${tone}" x="15" y=${node.height - 9} width=${(WIDTH - 30) * full} height="3" rx="1.5" />`}
  </a>`;
}

function line(node) {
  if (node.kind === "state" || node.kind === "static") return [node.detail, node.guarantee].filter(Boolean).join(", ");
  const parts = [];
  if (is(node.capacity) && node.kind !== "spout") parts.push(percent(node.capacity));
  if (is(node.latencyMs)) parts.push(ms(node.latencyMs));
  if (is(node.executors)) parts.push(`× ${count(node.executors)}`);
  if (node.kind === "spout" && is(node.perSecond)) parts.unshift(rate(node.perSecond));
  return parts.length ? parts.map((each) => each.replaceAll(" ", "\u00a0")).join(" · ") : node.detail ?? node.kind;
}
