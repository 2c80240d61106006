// Requests of the page, with the API key if the server has one.

const STORED = "millpond-key";
// Longest line of a response in characters.
const LINE_MAX = 2 ** 20;
// Most retries of an upload that a busy server refuses.
const TRIES_MAX = 6;
const WAIT_MS = 500;

let key = sessionStorage.getItem(STORED);

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function unlock(value) {
  key = value || null;
  if (key) sessionStorage.setItem(STORED, key); else sessionStorage.removeItem(STORED);
}

export const hasKey = () => key !== null;

// Returns the path of a collection, with the parameters that have a value.
export function path(collection, rest = "", query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = new URLSearchParams(given).toString();
  return `/v1/images${collection === null ? "" : `/${encodeURIComponent(collection)}`}${rest}${words ? `?${words}` : ""}`;
}

async function ask(method, where, body, type, stop) {
  const headers = {};
  if (key) headers["api-key"] = key;
  if (type) headers["Content-Type"] = type;
  let answer;
  try {
    answer = await fetch(where, { method, body, headers, signal: stop });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server did not answer. Is it running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const refused = new Refused(answer.status, said.error ?? `the server answered ${answer.status}`);
  refused.wait = Number(answer.headers.get("retry-after")) * 1000;
  throw refused;
}

export const get = async (where) => (await ask("GET", where)).json();
export const remove = (where) => ask("DELETE", where);
export const post = async (where, body, stop) =>
  (await (body instanceof Blob ? ask("POST", where, body, "application/octet-stream", stop) : ask("POST", where, JSON.stringify(body), "application/json", stop))).json();

// Sends a file, and retries while the server is busy.
async function send(where, file, type, stop) {
  for (let tries = 1; ; tries++) {
    try {
      return await ask("PUT", where, file, type, stop);
    } catch (error) {
      if (![429, 503].includes(error.status) || tries === TRIES_MAX) throw error;
      await new Promise((resume) => setTimeout(resume, error.wait || WAIT_MS * 2 ** tries));
    }
  }
}

export const put = async (where, file, stop) => (await send(where, file, "application/octet-stream", stop)).json();

// Sends a zip. Calls `each` with the result of each image.
export async function putZip(where, file, each, stop) {
  const reader = (await send(where, file, "application/zip", stop)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "") + (done ? "\n" : "")).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const entry = JSON.parse(line);
      ended ||= "summary" in entry;
      if (entry.error && !entry.status) throw new Refused(500, entry.error);
      each(entry);
    }
    if (done) break;
    if (rest.length > LINE_MAX) throw new Refused(500, "the server sent a line without end");
  }
  if (!ended) throw new Refused(500, "the answer ended early; what is listed as added is there");
}

// Shows an image of the server: by its address, or fetched with the key, which an address cannot carry.
export async function show(node, attribute, where) {
  node.dataset.wanted = where;
  if (!key) {
    node.setAttribute(attribute, where);
    return;
  }
  try {
    const address = URL.createObjectURL(await (await ask("GET", where)).blob());
    node.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
    if (node.dataset.wanted === where) node.setAttribute(attribute, address); else URL.revokeObjectURL(address);
  } catch { /* An image that cannot be loaded stays empty. */ }
}
