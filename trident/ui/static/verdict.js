// The first thing that is read: in sentences, whether all is well, and if not, what is wrong and what can be done.

import { cut, is, percent, plural } from "./format.js";

const FULL = 0.9;
const RECENT_S = 600;
const ORDER = ["good", "quiet", "warn", "bad"];

export function verdict(page, drawn, lags) {
  const lines = [...ended(page), ...unwell(page), ...busy(drawn), ...behind(page, lags)];
  if (!lines.some(([tone]) => tone === "warn" || tone === "bad")) lines.unshift(calm(page));
  const worst = Math.max(...lines.map(([tone]) => ORDER.indexOf(tone)));
  return { tone: ORDER[worst], lines };
}

function calm(page) {
  if (page.status === "STARTING") return ["quiet", "It starts."];
  if (page.status !== "ACTIVE") return ["quiet", "Nothing is processed now."];
  return ["good", recentFailures(page) === 0 && page.health?.failures ? "All is well now." : "All is well: no failures."];
}

function* ended(page) {
  const health = page.health ?? {};
  if (health.fenced) yield ["bad", "Fenced: another driver has taken this topology over; this one writes nothing more."];
  else if (health.error) yield ["bad", `It has ended: ${cut(health.error, 600)}`];
  else if (page.status === "FAILED") yield ["bad", page.statusReason ? `It was put to rest: ${cut(page.statusReason, 600)}` : "It has failed."];
  if (page.status === "INACTIVE") yield ["warn", "Deactivated: its sources are not asked for more until it is activated."];
  if (page.status === "STOPPED") yield ["quiet", "It was stopped."];
  if (page.status === "KILLED") yield ["warn", "It is being killed: what is pending is finished, then it is gone."];
  if (page.status === "WAITING") yield ["warn", "It waits for a free slot. Start a supervisor, or free a slot."];
}

// What failed within ten minutes: what failed long ago is told, but is no alarm any more.
export function recentFailures(page) {
  const recent = page.topologyStats?.find((each) => each.window === "600");
  return recent?.retries ?? recent?.failed ?? page.health?.failures ?? 0;
}

function* unwell(page) {
  const health = page.health ?? {};
  const recent = recentFailures(page);
  const since = recent ? "" : " None of them within ten minutes.";
  const tone = recent ? "warn" : "quiet";
  if (health.failures && page.kind === "trident") {
    const last = health.lastFailure ? `; the last: ${cut(String(health.lastFailure), 300)}.` : ".";
    yield [tone, `${plural(health.failures, "attempts")} failed and were tried again${last}${since}`];
  } else if (health.failures) yield [tone, `${plural(health.failures, "messages")} failed or timed out; their spouts were told.${since}`];
  if (health.deadLetters) yield ["warn", `${plural(health.deadLetters, "dead letters")} wait: tuples that were left out. “trident dead-letters” shows them and puts them back.`];
  if (health.workerDeaths) yield [isRecent(page) ? "warn" : "quiet", `Workers have died ${health.workerDeaths === 1 ? "once" : `${health.workerDeaths} times`} and were started again.`];
}

const isRecent = (page) => page.uptimeSeconds < RECENT_S || (page.errors ?? []).some((each) => each.errorLapsedSecs < RECENT_S);

function* busy(drawn) {
  const full = (drawn?.nodes ?? []).filter((node) => node.kind !== "spout" && is(node.capacity) && node.capacity >= FULL);
  const executors = full.some((node) => node.kind === "bolt");
  if (full.length) yield ["warn", `${full.slice(0, 3).map((node) => `${node.label} works at ${percent(node.capacity)} of its capacity`).join(", ")}.${executors ? " More executors help (rebalance)." : ""}`];
}

function* behind(page, lags) {
  if (is(page.share) && page.share < 1) yield ["warn", `The states cannot keep up: sources are held back to ${percent(page.share)} of their limits.`];
  if (lags.length < 10) return;
  const [first, last] = [lags[0], lags.at(-1)];
  if (last > 1.2 * first + 100) yield ["warn", "It falls behind: the lag grows."];
  else if (last < 0.8 * first - 100) yield ["quiet", "It catches up: the lag shrinks."];
  else yield ["quiet", "It keeps up with its sources."];
}
