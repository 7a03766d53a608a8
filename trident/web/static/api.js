// Asks the server; says whether it answers. What needs the token sends it as a header, so that no other site can.

import { useEffect, useState } from "./vendor/preact-htm.js";

const TOKEN = "trident-token"; // in sessionStorage: gone when the tab is closed
const PATIENCE_MS = 8000;
export const EVERY_MS = 2000;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

// Since when the server does not answer: null while it does.
export const connection = {
  awaySince: null,
  lastAnswer: null,
  listeners: new Set(),
  tell(answers) {
    const before = this.awaySince;
    this.awaySince = answers ? null : before ?? Date.now();
    if (answers) this.lastAnswer = Date.now();
    if (before !== this.awaySince) this.listeners.forEach((each) => each());
  },
};

export const useAway = () => {
  const [, draw] = useState(0);
  useEffect(() => {
    const told = () => draw((count) => count + 1);
    connection.listeners.add(told);
    const timer = setInterval(() => connection.awaySince && told(), 1000); // the seconds in the message
    return () => {
      connection.listeners.delete(told);
      clearInterval(timer);
    };
  }, []);
  return connection.awaySince;
};

async function answerTo(method, path, body, patience = PATIENCE_MS) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  let response;
  try {
    response = await fetch(new URL(`api/v1/${path}`, document.baseURI), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(patience),
    });
  } catch (error) {
    connection.tell(false);
    throw new ApiError(0, "The server does not answer.");
  }
  connection.tell(true);
  if (response.ok) return response;
  const read = await response.json().catch(() => ({}));
  throw new ApiError(response.status, read.errorMessage || `The server answered ${response.status}.`);
}

// Whole numbers beyond 2^53 stay the digits that they are, as texts: JavaScript would round them.
const exact = (token) => (/^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${token}"` : token);

async function ask(...asked) {
  const text = await (await answerTo(...asked)).text();
  try {
    return JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, exact));
  } catch {
    return {};
  }
}

export const get = (path) => ask("GET", path);

// Saves a file. A link would not send the token.
export async function download(path, name) {
  const url = URL.createObjectURL(await (await answerTo("GET", path, undefined, 60_000)).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const post = (path, body, seconds) => ask("POST", path, body, 60_000 + 1000 * seconds);

// Asks again and again; keeps what came last, so that nothing flickers. A tab that is not seen does not ask.
export function useLive(path, every = EVERY_MS) {
  const { data, error } = useLives(path === null ? [] : [path], every);
  return { data: data?.[0] ?? null, error };
}

// The same for several addresses: drawn once, when all have come. The first must come and says whether the others are asked;
// one of those that fails is null.
export function useLives(paths, every = EVERY_MS, others = () => true) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    if (!paths.length) return undefined;
    let over = false;
    let timer = 0;
    let asking = false;
    const round = async () => {
      clearTimeout(timer);
      if (asking || over) return;
      if (!document.hidden) {
        asking = true;
        try {
          const first = await get(paths[0]);
          const more = others(first) ? paths.slice(1).map((path) => get(path).catch(() => null)) : [];
          const data = [first, ...await Promise.all(more)];
          if (!over) setState({ data, error: null });
        } catch (error) {
          if (!over) setState((before) => ({ data: before.data, error }));
        }
        asking = false;
      }
      if (!over) timer = setTimeout(round, every);
    };
    round();
    document.addEventListener("visibilitychange", round);
    addEventListener("trident-ask", round);
    return () => {
      over = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", round);
      removeEventListener("trident-ask", round);
    };
  }, [paths.join(" ")]);
  return state;
}

export const askNow = () => dispatchEvent(new Event("trident-ask"));
