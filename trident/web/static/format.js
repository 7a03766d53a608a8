// Values as people read them: each with its unit.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const two = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

export const NONE = "–";
export const is = (value) => value !== null && value !== undefined && !Number.isNaN(value);
export const count = (value) => (is(value) ? whole.format(value) : NONE);
export const number = (value) => {
  if (!is(value)) return NONE;
  if (value === 0) return "0";
  return (Math.abs(value) >= 100 ? whole : Math.abs(value) >= 10 ? one : two).format(value);
};
export const plural = (value, unit) => `${count(value)} ${value === 1 ? unit.replace(/ies$/, "y").replace(/(ch|sh|x|ss)es$/, "$1").replace(/([^s])s$/, "$1") : unit}`;
// The same as `amount` of trident/naming.py: bytes are shown in one way everywhere.
export const amount = (value, unit) => {
  const power = Math.min(Math.floor(Math.log2(value) / 10), 4);
  if (unit !== "bytes" || !(power >= 1)) return plural(value, unit);
  const size = value / 1024 ** power;
  return `${(size >= 100 ? whole : one).format(size)} ${"KMGT"[power - 1]}iB`;
};
export const rate = (value, unit = "tuples") => (is(value) ? `${number(value)} ${unit}/s` : NONE);
export const shortRate = (value) => (is(value) ? `${value >= 1000 ? compact.format(value) : number(value)}/s` : "");
export const percent = (value) => (is(value) ? `${number(value * 100)} %` : NONE);

export const ms = (value) => {
  if (!is(value)) return NONE;
  if (value > 0 && value < 0.1) return `${number(value * 1000)} µs`;
  if (value < 1000) return `${number(value)} ms`;
  return duration(value / 1000);
};

export const duration = (seconds) => {
  if (!is(seconds)) return NONE;
  if (seconds < 60) return `${seconds < 10 && !Number.isInteger(seconds) ? number(seconds) : whole.format(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.floor(seconds);
  const parts = [];
  for (const [name, size] of units) {
    const amount = Math.floor(left / size);
    left -= amount * size;
    if (amount || parts.length) parts.push(`${amount} ${name}`);
  }
  return parts.slice(0, 2).join(" ");
};

export const age = (seconds) => (is(seconds) ? duration(Math.floor(seconds)) : NONE);
export const ago = (at) => {
  if (!is(at)) return NONE;
  const seconds = Math.round((Date.now() - at) / 1000);
  return seconds < 1 ? "just now" : `${seconds < 10 ? `${seconds} s` : duration(seconds)} ago`;
};
export const clock = (at) => (is(at) ? new Date(at).toLocaleTimeString([], { hour12: false }) : NONE);
export const moment = (at) => (is(at) ? new Date(at).toLocaleString([], { hour12: false }) : NONE);
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const value = (found) => (typeof found === "string" ? found : JSON.stringify(found));
export const windowName = (row) => ({ 600: "10 min", 10800: "3 h", 86400: "1 d", ":all-time": "All time" })[row.window] ?? row.windowPretty;
// Until a topology is as old as a window, that is the same as all time, and only that is shown.
export const distinct = (rows) => rows.filter((row) => row.window === ":all-time" || !(row.windowSeconds >= rows.at(-1).windowSeconds));
export const failedShare = (row) => {
  if (!row?.failed || !row.failedOf) return "none";
  return `${percent(row.failed / row.failedOf)} of ${count(row.failedOf)}${row.failures ? `, ${row.failures}` : ""}`;
};
export const firstLine = (text) => text.trim().split("\n", 1)[0];
export const WINDOWS = [[600, "10 min"], [10800, "3 h"], [86400, "1 d"], [0, "All time"]];
